"""The device pools that one node can use, with shared counters and feature gates."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from koord_numa.core.claims.allocation import DeviceUsage
from koord_numa.core.claims.budget import Selectors
from koord_numa.core.claims.inventory import Amounts, Device, DeviceId, NumaByRoot, PoolId, ResourceSlice
from koord_numa.core.selectors import Labels


@dataclass(frozen=True, slots=True)
class Features:
    """The gates of Kubernetes 1.36 with their defaults (``featureGates``). Fields behind a gate that is off are refused or do nothing."""

    admin_access: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True
    device_taints: bool = True
    extended_resource: bool = True
    partitionable_devices: bool = True
    prioritized_list: bool = True

    @property
    def stable_allocator(self) -> bool:
        """
        Whether kube-scheduler uses the allocator of gates that are locked, which knows neither distinctAttribute nor capacity requests
        (dynamic-resource-allocation/structured, ``NewAllocator``).
        """
        return not self.consumable_capacity and not self.binding_conditions


ALL_FEATURES = Features()


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A device of a pool, with the slice it is published in."""

    device: Device
    slice: ResourceSlice
    pool: "Pool"


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """
    A pool as one node sees it.

    ``local`` are the slices with devices for this node, by name; ``counters`` the counter sets of the pool, ``consumers`` all
    devices of the pool that consume them, on whatever node.
    """

    id: PoolId
    local: tuple[ResourceSlice, ...]
    counters: Mapping[str, Amounts]
    consumers: tuple[Device, ...]
    incomplete: bool = False
    invalid: str = ""  # what contradicts what
    foreign: bool = False  # every slice names another node: nothing in it can be for this one

    def candidates(self) -> Iterator[Candidate]:
        """Every device for this node, in slice order."""
        for each in self.local:
            for device in each.devices:
                yield Candidate(device, each, self)

    @property
    def usable(self) -> bool:
        """May devices be allocated from it?"""
        return not self.incomplete and not self.invalid

    @property
    def binds_late(self) -> bool:
        """Has any device binding conditions? Such pools are tried last."""
        return any(each.binds_late for each in self.local)


def gather_pools(
    slices: Iterable[ResourceSlice], node: str, labels: Labels, all_slices: "SlicesOfPools"
) -> tuple[Pool, ...]:
    """
    The pools among ``slices``, which must hold every slice that can concern the node: those that reach it and those with counters.

    ``all_slices`` tells of every slice of the cluster, by pool.
    """
    groups: dict[PoolId, list[ResourceSlice]] = {}
    for each in slices:
        if each.counters or each.reaches(node, labels):
            # Slices with counters matter to every node that draws from the pool, whatever nodes they name.
            groups.setdefault(each.pool, []).append(each)
    pools = [
        pool for key, group in groups.items() if (pool := _pool(key, group, (node, labels), all_slices)) is not None
    ]
    # Pools with binding conditions last, then by name: the order in which upstream tries them.
    return tuple(sorted(pools, key=lambda pool: (pool.binds_late, pool.id)))


SlicesOfPools = Mapping[PoolId, Sequence[ResourceSlice]]


def _pool(key: PoolId, group: list[ResourceSlice], node: tuple[str, Labels], all_slices: SlicesOfPools) -> Pool | None:
    if len(group) == 1 and len(all_slices.get(key, group)) == 1 and group[0].plain and group[0].slice_count == 1:
        # As nearly all pools are: one slice of this node, and nothing that could contradict it.
        return Pool(key, tuple(group) if group[0].devices else (), {}, (), foreign=group[0].nodes.name != node[0])
    generation = max(each.generation for each in group)
    newest = [each for each in group if each.generation == generation]
    incomplete = False
    everywhere = all_slices.get(key, newest)
    # Fewer slices for this node than the pool has: the others may be of other nodes, or still to be published.
    if len(newest) != newest[0].slice_count:
        if any(each.generation > generation for each in everywhere):
            return None  # obsolete: the driver has moved on, to slices that this node does not see
        incomplete = sum(each.generation == generation for each in everywhere) != newest[0].slice_count
    newest.sort(key=lambda each: each.name)
    local = tuple(each for each in newest if each.devices and each.reaches(*node))
    return Pool(
        key,
        local,
        {name: amounts for each in newest for name, amounts in each.counters},
        _consumers(newest, everywhere),
        incomplete,
        "" if incomplete else _contradiction(newest, local, everywhere),
        all(each.nodes.name not in ("", node[0]) for each in (*newest, *everywhere)),
    )


def _consumers(newest: Sequence[ResourceSlice], everywhere: Sequence[ResourceSlice]) -> tuple[Device, ...]:
    if not any(each.counters for each in newest):
        return ()
    generation = newest[0].generation
    return tuple(
        device for each in everywhere if each.generation == generation for device in each.devices if device.consumes
    )


def _contradiction(
    newest: Sequence[ResourceSlice], local: Sequence[ResourceSlice], everywhere: Sequence[ResourceSlice]
) -> str:
    broken = next((each.problem for each in newest if each.problem), "")
    if broken:
        return broken
    names = [device.id.device for each in local for device in each.devices]
    if len(set(names)) != len(names):
        return "a device name occurs twice"
    sets = [name for each in newest for name, _ in each.counters]
    if len(set(sets)) != len(sets):
        return "a counter set occurs twice"
    known = {name: amounts for each in newest for name, amounts in each.counters}
    for each in everywhere:
        if each.generation == newest[0].generation:
            for device in each.devices:
                if unknown := _unknown_counter(device, known):
                    return unknown
    return ""


def _unknown_counter(device: Device, known: Mapping[str, Amounts]) -> str:
    for name, amounts in device.consumes:
        if name not in known or not amounts.keys() <= known[name].keys():
            return f"device {device.id.device} consumes a counter of {name} that is not published"
    return ""


Account = dict[str, dict[str, int]]


class CounterAccounts:
    """
    What is left of the counters of every pool, in 10^-9 units.

    Upstream keeps accounts by pool name, so that two drivers with a pool of one name share them; here they go by driver and name.
    """

    def __init__(self, usage: DeviceUsage) -> None:
        self._usage = usage
        self._left: dict[PoolId, Account] = {}

    def draw(self, candidate: Candidate) -> bool:
        """Take what the device consumes; nothing when any counter of the pool would be negative."""
        account = self._account(candidate.pool)
        self._change(account, candidate, -1)
        # All counters of the pool are looked at: upstream refuses while any is overdrawn, by whichever device.
        if all(value >= 0 for amounts in account.values() for value in amounts.values()):
            return True
        self._change(account, candidate, 1)
        return False

    def give_back(self, candidate: Candidate) -> None:
        """Undo a draw."""
        self._change(self._account(candidate.pool), candidate, 1)

    def _account(self, pool: Pool) -> Account:
        account = self._left.get(pool.id)
        if account is None:
            account = {name: dict(amounts) for name, amounts in pool.counters.items()}
            # Every device of the pool that is in use, on whatever node: partitions draw from common counters.
            for device in pool.consumers:
                if self._usage.in_use(device.id) or self._usage.shared_by_some(device.id):
                    for name, amounts in device.consumes:
                        for counter, amount in amounts.items():
                            # A counter that is not published any more is a contradiction of the pool and found there.
                            if counter in account.get(name, {}):
                                account[name][counter] -= amount
            self._left[pool.id] = account
        return account

    @staticmethod
    def _change(account: Account, candidate: Candidate, sign: int) -> None:
        for name, amounts in candidate.device.consumes:
            for counter, amount in amounts.items():
                account[name][counter] += sign * amount


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """
    The devices of one node: ``pools`` in the order in which they are tried. ``numa_by_root`` is the NUMA node by PCIe root.

    With a ``numa_mask``, a device is tried only if each of its ``places`` has a NUMA node in the mask; a device without places always is.
    """

    name: str
    labels: Labels = field(default_factory=dict)
    pools: tuple[Pool, ...] = ()
    features: Features = ALL_FEATURES
    numa_mask: int = 0  # 0 sets no bound
    places: Mapping[DeviceId, tuple[int, ...]] = field(default_factory=dict)  # masks of NUMA nodes
    numa_by_root: NumaByRoot = field(default_factory=dict)
    selectors: Selectors = field(default_factory=Selectors, compare=False)
