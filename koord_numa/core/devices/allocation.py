"""
Allocation of the devices of a pod on a machine: which devices, in a fixed order of preference, or why there are none.

Devices of different types never compete, so the types are allocated one after the other. Only a joint allocation on the
same PCIe switches couples them: the sets of the primary type are tried in the order of preference until every other type
fits on the same switches. The order for GPUs is that of Koordinator's allocator_gpu.go: a partition of the table, then the
smallest part of the topology (PCIe switch, NUMA node, node), parts in use first.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from typing import Final

from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.cpuset import each, members
from koord_numa.core.devices.machine import (
    NOT_OBSERVED,
    UNUSED,
    DeviceDemand,
    DeviceMachine,
    DeviceUse,
    FreeDevices,
    Observed,
    TypeDemand,
    device_demand,
    device_machine,
    device_use,
    double_holds,
    filled,
    free_devices,
    free_value,
    held_devices,
    neighbours,
)
from koord_numa.core.numa import numa_ids
from koord_numa.core.objects.constraints import selects
from koord_numa.core.objects.devices import (
    GPU,
    DeviceExclusive,
    DeviceGrant,
    DeviceGrants,
    DeviceInventory,
    DeviceKey,
    Partition,
    PartitionPolicy,
    TopologyScope,
    VirtualFunction,
)
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import ValueObject, replace

INSUFFICIENT: Final = "Insufficient {} devices"
NO_FUNCTIONS: Final = "Insufficient {} VirtualFunctions"
NUMA_SCOPED: Final = "Insufficient NUMA Scoped Devices"
PARTITIONED: Final = "Insufficient Partitioned GPU Devices"
SCOPED: Final = "Insufficient Topology Scoped GPU Devices"
NO_TABLE: Final = "node(s) missing GPU Partition Table"
NO_SUCH_PARTITION: Final = "node(s) Unsupported number of GPU requests"
MULTI_SHARED: Final = "node(s) Unsupported Multi-Shared GPU"
NO_TREE: Final = "node(s) missing GPU Device Topology Tree"
NOT_JOINT: Final = "node(s) Device Joint-Allocate rules violation"

MOST_SETS: Final = 4096
"""Maximum sets of PCIe switches evaluated for one part of a machine. Machines have at most 8 or 16 switches with GPUs."""


class Shortage(ValueObject, gc=False):
    """
    Reason why a machine has no devices for a demand: Koordinator's message, and numbers.

    ``resolvable``: fewer pods on the node could help. ``room`` has, by type, how many devices the best part of the
    machine has free of the demanded ``needed``.
    """

    message: str
    detail: str = ""
    resolvable: bool = True
    room: tuple[tuple[str, int], ...] = ()
    needed: tuple[tuple[str, int], ...] = ()


class Chosen(ValueObject, gc=False):
    """The chosen devices of each demanded type as sets of positions, in the order of the demand."""

    types: tuple[tuple[TypeDemand, int], ...]

    @property
    def devices(self) -> int:
        """All chosen devices."""
        found = 0
        for _, bits in self.types:
            found |= bits
        return found


@lru_cache(maxsize=16384)
def allocate(
    machine: DeviceMachine, use: DeviceUse, demand: DeviceDemand, numa: int = 0, preferred: int = 0
) -> Chosen | Shortage:
    """
    Return the devices for a demand on these NUMA nodes (0: any), preferably on the ``preferred`` ones, or the shortage.

    Cached: nodes with equal machines and equal use have equal results. A sweep of 5,000 nodes evaluates as many results
    as there are different states.
    """
    search = _Search(machine, free_devices(machine, use), demand, numa, preferred)
    return search.run()


@lru_cache(maxsize=16384)
def partition_points(machine: DeviceMachine, use: DeviceUse, demand: DeviceDemand) -> int:
    """
    Return 0 to 100: the share of the value of free partitions that an allocation leaves, -1 if there is none.

    The NUMA nodes of CPUs are not considered, so that the result depends on the devices only.
    """
    chosen = allocate(machine, use, demand)
    if isinstance(chosen, Shortage):
        return -1
    free = free_devices(machine, use)
    gpus = machine.by_type.get(GPU, 0)
    taken = free.used | (gpus & ~free.healthy)
    before = free_value(machine, taken)
    return 100 * free_value(machine, taken | chosen.devices & gpus) // before if before else 100


def fits_one_numa_node(machine: DeviceMachine, use: DeviceUse, demand: DeviceDemand) -> bool:
    """
    Return whether the devices of a single NUMA node suffice, as the policy SingleNUMANode requires.

    May be true for devices whose NUMA node is not known.
    """
    first = allocate(machine, use, demand)
    if isinstance(first, Chosen) and machine.numa_of(first.devices).bit_count() <= 1:
        return True  # the usual case, and cached
    places = places_of(machine, demand)
    return not places or any(isinstance(allocate(machine, use, demand, 1 << numa), Chosen) for numa in numa_ids(places))


def places_of(machine: DeviceMachine, demand: DeviceDemand) -> int:
    """Return the NUMA nodes of the demanded types as a bit set."""
    places = 0
    for wanted in demand.types:
        places |= machine.numa_of_type.get(wanted.type, 0)
    return places


@dataclass(slots=True)
class _Search:
    machine: DeviceMachine
    free: FreeDevices
    demand: DeviceDemand
    numa: int
    preferred: int  # NUMA nodes

    def run(self) -> Chosen | Shortage:
        found: dict[str, int] = {}
        candidates: dict[str, int] = {}
        counts: dict[str, int] = {}
        for wanted in self.demand.types:
            there = self.candidates(wanted)
            count = wanted.count or self._matching(wanted).bit_count()
            if there.bit_count() < count or not count:
                return self._with_joint_room(self._too_few(wanted, count, there))
            candidates[wanted.type], counts[wanted.type] = there, count
        if self.demand.joint:
            joint = self._jointly(candidates, counts)
            if isinstance(joint, Shortage):
                return joint
            found = joint
        for wanted in self.demand.types:
            if wanted.type in found:
                continue
            sets = self.sets(wanted, candidates[wanted.type], counts[wanted.type])
            if isinstance(sets, Shortage):
                return sets
            chosen = next(sets, None)
            if chosen is None:
                return self._too_scattered(wanted, counts[wanted.type], candidates[wanted.type])
            found[wanted.type] = chosen
        return Chosen(tuple((wanted, found[wanted.type]) for wanted in self.demand.types))

    # Candidates: the devices that could each serve the demand alone.

    def candidates(self, wanted: TypeDemand) -> int:
        """Return the devices of a type that satisfy the hint and have the amounts free."""
        free = self.free
        there = self._matching(wanted) & self._located() & free.healthy & ~free.closed
        found = there & ~free.used & _fitting(self.machine, self.demand, wanted.type)
        # Whole GPUs in use never fit.
        if wanted.partial or wanted.type != GPU:
            for bit in each(there & free.used):
                found |= bit if self._has_amounts(wanted, bit.bit_length() - 1) else 0
        if wanted.hint.exclusive is DeviceExclusive.NONE and wanted.hint.function_selector is None:
            return found
        return sum(bit for bit in each(found) if self._is_suitable(wanted, bit.bit_length() - 1))

    def _matching(self, wanted: TypeDemand) -> int:
        if wanted.hint.selector is None:
            return self.machine.by_type.get(wanted.type, 0)
        return _matching(self.machine, self.demand, wanted.type)

    def _located(self) -> int:
        """Return the devices near the NUMA nodes: those of no NUMA node included, those without a topology excluded."""
        if not self.numa:
            return -1
        found = self.machine.anywhere
        for numa in members(self.numa):
            found |= self.machine.by_numa.get(numa, 0)
        return found

    def _has_amounts(self, wanted: TypeDemand, position: int) -> bool:
        left = self.free.amounts[position]
        needed = needed_on(self.machine, self.demand, wanted.type, position)
        return not [name for name, amount in needed if left.get(name, 0) < amount]

    def _is_suitable(self, wanted: TypeDemand, position: int) -> bool:
        """Return whether the device satisfies the exclusivity of the pod and has a virtual function for it."""
        function = lowest_function(wanted, self.machine, position, self.free.functions[position])
        return self._is_open(wanted, position) and function is not None

    def _is_open(self, wanted: TypeDemand, position: int) -> bool:
        if wanted.hint.exclusive is DeviceExclusive.DEVICE:
            return not self.free.used >> position & 1
        if wanted.hint.exclusive is DeviceExclusive.PCIE:
            return not self.free.used & neighbours(self.machine, position)
        return True

    # Sets of devices of one type, in the order of preference.

    def sets(self, wanted: TypeDemand, candidates: int, count: int) -> Iterator[int] | Shortage:
        """Return the possible sets of ``count`` devices: every set of PCIe switches that such a set may have is represented."""
        scope = wanted.hint.scope
        if self._needs_partition(wanted):
            partitions = self._partitions(candidates, count, scope)
            return partitions if isinstance(partitions, Shortage) else iter(partitions)
        if problem := self._no_scope(wanted, count):
            return problem
        if wanted.type == GPU and not wanted.partial and self.machine.partitions is not None:
            partitions = self._partitions(candidates, count, scope)
            if not isinstance(partitions, Shortage):
                return chain(partitions, self._by_topology(wanted, candidates, count))
        return self._by_topology(wanted, candidates, count)

    def _no_scope(self, wanted: TypeDemand, count: int) -> Shortage | None:
        """Return why no topology scope can be satisfied for these GPUs, as in Koordinator."""
        if wanted.type != GPU or wanted.hint.scope is None:
            return None
        if wanted.partial and count > 1:
            return Shortage(MULTI_SHARED, "a topology scope is for one partial GPU or for whole GPUs", resolvable=False)
        if self.machine.by_type.get(GPU, 0) & ~self.machine.located:
            return Shortage(NO_TREE, "a GPU of the Device object has no topology", resolvable=False)
        return None

    def _needs_partition(self, wanted: TypeDemand) -> bool:
        honors = self.machine.honors_partitions or self.demand.partition is not None
        return honors and wanted.type == GPU and not wanted.partial

    def _partitions(self, candidates: int, count: int, scope: TopologyScope | None) -> list[int] | Shortage:
        """Return the feasible partitions of ``count`` GPUs, the best first."""
        table = None if self.machine.partitions is None else dict(self.machine.partitions)
        if table is None:
            return Shortage(NO_TABLE, "neither the Device object nor the GPU model has one", resolvable=False)
        if not table.get(count):
            sizes = ", ".join(str(size) for size, found in table.items() if found)
            return Shortage(NO_SUCH_PARTITION, f"needs {count} gpu; partitions have {sizes}", resolvable=False)
        spec, partitions = self.demand.partition, table[count]
        if spec is not None and spec.policy is PartitionPolicy.RESTRICTED:
            best = max(partition.score for partition in partitions)
            partitions = tuple(partition for partition in partitions if partition.score == best)
        bandwidth = None if spec is None else spec.bandwidth
        unused = candidates & ~self.free.used
        ranked = []
        for partition in partitions:
            bits = self.machine.positions(GPU, partition.minors)
            if bits and not bits & ~unused and _is_fast(partition, bandwidth) and self._is_within(bits, scope):
                ranked.append((-partition.score, -self._left(bits), partition.minors, bits))
        if not ranked:
            fast = f" with {bandwidth} of bandwidth" if bandwidth else ""
            return Shortage(PARTITIONED, f"needs a partition of {count} gpu{fast}, and none is free")
        return [bits for *_, bits in sorted(ranked)]

    def _left(self, taken: int) -> int:
        """Return the value of the partitions that stay possible when these GPUs are taken too."""
        gpus = self.machine.by_type.get(GPU, 0)
        return free_value(self.machine, self.free.used | (gpus & ~self.free.healthy) | taken)

    def _is_within(self, bits: int, scope: TopologyScope | None) -> bool:
        """Return whether the devices are within one part of the machine of this scope."""
        if scope is None or scope is TopologyScope.NODE or bits.bit_count() == 1:
            return True
        # A PCIe switch without a NUMA node is within one too.
        parts = (*self._parts_of(TopologyScope.PCIE)[0], *self._parts_of(scope)[0])
        return scope is not TopologyScope.DEVICE and any(not bits & ~part for part in parts)

    def _by_topology(self, wanted: TypeDemand, candidates: int, count: int) -> Iterator[int]:
        # A single device is within every scope.
        scope = TopologyScope.NODE if count == 1 else wanted.hint.scope or TopologyScope.NODE
        if scope is TopologyScope.DEVICE:
            return
        for part in self._parts(wanted, candidates, count, scope):
            yield from self._sets_in(wanted, part & candidates, count)

    def _parts(self, wanted: TypeDemand, candidates: int, count: int, scope: TopologyScope) -> Iterator[int]:
        """Yield the parts with enough devices, the smallest first; of equal size the near ones and those in use first."""
        by_topology = wanted.type == GPU or wanted.hint.scope is not None or self.preferred
        for level, parts in _levels(self.machine, wanted.type):
            if level.value < scope.value:
                return
            if level is TopologyScope.NODE or by_topology:
                enough = [part for part in parts if (part[0] & candidates).bit_count() >= count]
                if len(enough) > 1:
                    enough.sort(key=lambda part: self._rank(wanted, part, candidates))
                for part, _ in enough:
                    yield part

    def _rank(
        self, wanted: TypeDemand, part: tuple[int, tuple[int, ...]], candidates: int
    ) -> tuple[bool, int, tuple[int, int], int]:
        """Return the sort key of a part: NUMA nodes of the pod first, then parts in use, then its best device."""
        bits, around = part
        apart = bool(self.preferred) and not self.machine.numa_of(bits) & self.preferred
        in_use = 0
        # Shares of NICs spread over the machine instead.
        if wanted.type == GPU:
            used = self.free.used
            for scope in around:
                if scope & used:
                    in_use += 1
        best = min([self._order(wanted, bit) for bit in each(bits & candidates)]) if wanted.partial else (0, 0)
        return apart, -in_use, best, bits & -bits

    def _order(self, wanted: TypeDemand, bit: int) -> tuple[int, int]:
        """Return the sort key of a device: of partial GPUs the fullest first, of other devices the emptiest, then by position."""
        position = bit.bit_length() - 1
        if not wanted.partial or not self.free.used & bit:
            return 0, position
        total, left = self.machine.totals[position], self.free.amounts[position]
        held = sum(100 - 100 * left.get(name, 0) // total[name] for name, _ in wanted.amounts if total.get(name))
        return (-held if wanted.type == GPU else held), position

    def _sets_in(self, wanted: TypeDemand, there: int, count: int) -> Iterator[int]:
        """Yield sets of ``count`` of these devices: one for each set of PCIe switches, the fewest switches first."""
        groups = self._by_root(there)
        largest = sorted((bits.bit_count() for bits in groups.values()), reverse=True)
        fewest = next((size for size in range(1, len(largest) + 1) if sum(largest[:size]) >= count), len(largest) + 1)
        if wanted.type != GPU and not self.demand.joint:
            yield self._first(wanted, there, count)
            return
        tried = 0
        for size in range(fewest, min(len(groups), count) + 1):
            chosen = []
            for roots in combinations(groups, size):
                tried += 1
                if tried > MOST_SETS:
                    break
                if sum(groups[root].bit_count() for root in roots) >= count:
                    in_use = sum(bool(self.machine.by_root.get(root, 0) & self.free.used) for root in roots)
                    chosen.append((-in_use, roots))
            for _, roots in sorted(chosen):
                yield self._from_each(wanted, [groups[root] for root in roots], count)

    def _by_root(self, there: int) -> dict[tuple[int, str], int]:
        """Return the devices by PCIe switch. A device without a known switch is alone."""
        found: dict[tuple[int, str], int] = {}
        for bit in each(there):
            root = self.machine.root_of(bit.bit_length() - 1) or (-2, str(bit.bit_length()))
            found[root] = found.get(root, 0) | bit
        return found

    def _first(self, wanted: TypeDemand, there: int, count: int) -> int:
        ordered = sorted(each(there), key=lambda bit: self._order(wanted, bit))
        return sum(ordered[:count])

    def _from_each(self, wanted: TypeDemand, groups: list[int], count: int) -> int:
        """Return ``count`` devices, at least one of each group, taken in turns of the groups."""
        queues = [sorted(each(group), key=lambda bit: self._order(wanted, bit)) for group in groups]
        taken = 0
        while count:
            for queue in queues:
                if queue and count:
                    taken |= queue.pop(0)
                    count -= 1
        return taken

    # Joint allocation.

    def _jointly(self, candidates: dict[str, int], counts: dict[str, int]) -> dict[str, int] | Shortage:
        """Return the devices of the joint types: on the same PCIe switches if they are required, or if possible."""
        primary = self.demand.of(self.demand.joint[0])
        others = [self.demand.of(kind) for kind in self.demand.joint[1:]]
        sets = self.sets(primary, candidates[primary.type], counts[primary.type])
        if isinstance(sets, Shortage):
            return sets
        first: int | None = None
        for chosen in sets:
            first = chosen if first is None else first
            roots = self._roots(chosen)
            beside = None if roots is None else self._beside(roots, others, candidates, counts)
            if beside is not None:
                return {primary.type: chosen, **beside}
        if first is None:
            return self._too_scattered(primary, counts[primary.type], candidates[primary.type])
        if self.demand.same_pcie:
            return self._not_joint(candidates, counts)
        found = {primary.type: first}
        for wanted in others:
            near = self._near(wanted, candidates[wanted.type], counts[wanted.type], first)
            if isinstance(near, Shortage):
                return near
            found[wanted.type] = near
        return found

    def _roots(self, devices: int) -> list[tuple[int, str]] | None:
        """Return the PCIe switches of these devices, ``None`` if one of them is not known."""
        found = [self.machine.root_of(position) for position in members(devices)]
        return None if None in found else sorted({root for root in found if root is not None})

    def _beside(
        self,
        roots: list[tuple[int, str]],
        others: Iterable[TypeDemand],
        candidates: dict[str, int],
        counts: dict[str, int],
    ) -> dict[str, int] | None:
        """Return devices of the other types on exactly these PCIe switches, at least one on each, or ``None``."""
        found = {}
        for wanted in others:
            groups = [candidates[wanted.type] & self.machine.by_root[root] for root in roots]
            count = max(counts[wanted.type], len(roots))
            if not all(groups) or sum(group.bit_count() for group in groups) < count:
                return None
            if self._needs_partition(wanted):
                chosen = self._partition_on(groups, count, wanted)
            elif self._no_scope(wanted, count):
                return None
            else:
                chosen = self._from_each(wanted, groups, count)
                chosen = chosen if self._is_within(chosen, wanted.hint.scope) else 0
            if not chosen:
                return None
            found[wanted.type] = chosen
        return found

    def _partition_on(self, groups: list[int], count: int, wanted: TypeDemand) -> int:
        partitions = self._partitions(sum(groups), count, wanted.hint.scope)
        if isinstance(partitions, Shortage):
            return 0
        return next((bits for bits in partitions if all(bits & group for group in groups)), 0)

    def _near(self, wanted: TypeDemand, candidates: int, count: int, primary: int) -> int | Shortage:
        """Return devices near the primary devices: one after the other from their PCIe switches, then from their NUMA nodes, then any."""
        if wanted.hint.scope is not None or self._needs_partition(wanted):
            sets = self.sets(wanted, candidates, count)
            chosen = sets if isinstance(sets, Shortage) else next(sets, None)
            return self._too_scattered(wanted, count, candidates) if chosen is None else chosen
        roots = {root for position in members(primary) if (root := self.machine.root_of(position)) is not None}
        groups = [group for root in sorted(roots) if (group := candidates & self.machine.by_root[root])]
        most = max(count, len(groups))
        there = sum(groups)
        if there.bit_count() >= most:
            return self._from_each(wanted, groups, most)
        numa = self.machine.numa_of(primary)
        far = sorted(
            each(candidates & ~there),
            key=lambda bit: (not self.machine.numa_of(bit) & numa, self._order(wanted, bit)),
        )
        return there | sum(far[: count - there.bit_count()])

    # Shortages with numbers.

    def _too_few(self, wanted: TypeDemand, count: int, there: int) -> Shortage:
        matching = self._matching(wanted)
        if not matching:
            what = "matching " if self.machine.by_type.get(wanted.type) else ""
            return Shortage(INSUFFICIENT.format(wanted.type), f"the node has no {what}{wanted.type}", resolvable=False)
        near = matching & self._located()
        unhealthy = (near & ~self.free.healthy).bit_count()
        room, needed = ((wanted.type, there.bit_count()),), ((wanted.type, count),)
        detail = f"needs {count} {wanted.type}{_share(wanted)}; {there.bit_count()} of {near.bit_count()} are free"
        if unhealthy:
            detail += f", {unhealthy} are unhealthy"
        # By all NUMA nodes: another one may have enough devices that are in use.
        resolvable = (matching & self.free.healthy).bit_count() >= count
        if wanted.hint.function_selector is not None and self._without_functions(wanted) >= count:
            detail = f"needs a virtual function of {count} {wanted.type}; {there.bit_count()} have a free one"
            any_function = any(self.machine.devices[position].functions for position in members(matching))
            return Shortage(NO_FUNCTIONS.format(wanted.type), detail, any_function, room, needed)
        if self.numa:
            return Shortage(NUMA_SCOPED, f"{detail} on these NUMA nodes", resolvable, room, needed)
        return Shortage(INSUFFICIENT.format(wanted.type), detail, resolvable, room, needed)

    def _with_joint_room(self, shortage: Shortage) -> Shortage:
        """Add the PCIe switch that comes closest, if the devices must be on the same switches and the node has all types."""
        joint = [self.demand.of(kind) for kind in self.demand.joint] if self.demand.same_pcie else []
        if not joint or not all(self._matching(wanted) for wanted in joint):
            return shortage
        candidates = {wanted.type: self.candidates(wanted) for wanted in joint}
        counts = {wanted.type: wanted.count or self._matching(wanted).bit_count() for wanted in joint}
        room = self._not_joint(candidates, counts)
        return replace(shortage, detail=f"{shortage.detail}; {room.detail}")

    def _without_functions(self, wanted: TypeDemand) -> int:
        there = members(self._matching(wanted) & self._located() & self.free.healthy & ~self.free.closed)
        return sum(self._has_amounts(wanted, position) and self._is_open(wanted, position) for position in there)

    def _too_scattered(self, wanted: TypeDemand, count: int, candidates: int) -> Shortage:
        parts, name = self._parts_of(wanted.hint.scope)
        best = max(((candidates & part).bit_count() for part in parts), default=min(1, candidates.bit_count()))
        message = SCOPED if wanted.type == GPU else INSUFFICIENT.format(wanted.type)
        detail = f"needs {count} {wanted.type} on one {name}; the best has {best}"
        largest = max(((self._matching(wanted) & part).bit_count() for part in parts), default=1)
        room, needed = ((wanted.type, best),), ((wanted.type, count),)
        return Shortage(message, detail, largest >= count, room, needed)

    def _parts_of(self, scope: TopologyScope | None) -> tuple[Iterable[int], str]:
        if scope is TopologyScope.PCIE:
            return self.machine.by_root.values(), "PCIe switch"
        if scope is TopologyScope.NUMA_NODE:
            return self.machine.by_numa.values(), "NUMA node"
        return (), "device"

    def _not_joint(self, candidates: dict[str, int], counts: dict[str, int]) -> Shortage:
        kinds = self.demand.joint
        best: tuple[int, tuple[int, ...]] = (-1, tuple(0 for _ in kinds))
        for root in self.machine.by_root.values():
            room = tuple((candidates[kind] & root).bit_count() for kind in kinds)
            share = min(100 * min(there, counts[kind]) // counts[kind] for kind, there in zip(kinds, room, strict=True))
            total = sum(min(there, counts[kind]) for kind, there in zip(kinds, room, strict=True))
            best = max(best, (share * 1000 + total, room))
        wanted = " and ".join(f"{counts[kind]} {kind}" for kind in kinds)
        there = " + ".join(map(str, best[1]))
        return Shortage(
            NOT_JOINT,
            f"needs {wanted} on the same PCIe switches; the best switch has {there}",
            # By all NUMA nodes, as for numbers of devices.
            resolvable=bool(self.free.used) and isinstance(allocate(self.machine, UNUSED, self.demand), Chosen),
            room=tuple(zip(kinds, best[1], strict=True)),
            needed=tuple((kind, counts[kind]) for kind in kinds),
        )


def lowest_function(
    wanted: TypeDemand, machine: DeviceMachine, position: int, held: frozenset[str]
) -> tuple[VirtualFunction, ...] | None:
    """
    Return the virtual function that an allocation of the device uses: the lowest free bus id that the selector matches.

    Empty if no function is demanded, ``None`` if none is free.
    """
    selector = wanted.hint.function_selector
    if selector is None:
        return ()
    for function in machine.devices[position].functions:
        if function.bus_id not in held and selects(selector, dict(function.labels)):
            return (function,)
    return None


@lru_cache(maxsize=4096)
def _matching(machine: DeviceMachine, demand: DeviceDemand, kind: str) -> int:
    """Return the devices of a type that the selector of the demand matches."""
    selector = demand.of(kind).hint.selector
    of_type = machine.by_type.get(kind, 0)
    return sum(bit for bit in each(of_type) if selects(selector, dict(machine.devices[bit.bit_length() - 1].labels)))


@lru_cache(maxsize=65536)
def needed_on(machine: DeviceMachine, demand: DeviceDemand, kind: str, position: int) -> tuple[tuple[str, int], ...]:
    """Return the amounts that a demand needs of this device."""
    return tuple(filled(dict(demand.of(kind).amounts), machine, machine.devices[position].key).items())


@lru_cache(maxsize=4096)
def _fitting(machine: DeviceMachine, demand: DeviceDemand, kind: str) -> int:
    """Return the devices of a type that are large enough for the demand if they are unused."""
    found = 0
    for bit in each(machine.by_type.get(kind, 0)):
        total = machine.totals[bit.bit_length() - 1]
        needed = needed_on(machine, demand, kind, bit.bit_length() - 1)
        found |= bit if all(total.get(name, 0) >= amount for name, amount in needed) else 0
    return found


Level = tuple[TopologyScope, tuple[tuple[int, tuple[int, ...]], ...]]
"""Parts of a machine with devices of a type, each with the parts that contain it."""


@lru_cache(maxsize=4096)
def _levels(machine: DeviceMachine, kind: str) -> tuple[Level, ...]:
    """Return PCIe switches, NUMA nodes and the node."""
    of_type = machine.by_type.get(kind, 0)
    scopes = [
        bits & of_type for parts in (machine.by_root, machine.by_numa) for bits in parts.values() if bits & of_type
    ]

    def level(scope: TopologyScope, parts: Iterable[int]) -> Level:
        there = [bits & of_type for bits in parts if bits & of_type]
        return scope, tuple((part, tuple(around for around in scopes if not part & ~around)) for part in there)

    return (
        level(TopologyScope.PCIE, machine.by_root.values()),
        level(TopologyScope.NUMA_NODE, machine.by_numa.values()),
        level(TopologyScope.NODE, (of_type,)),
    )


def _is_fast(partition: Partition, bandwidth: int | None) -> bool:
    return bandwidth is None or (partition.bandwidth is not None and partition.bandwidth >= bandwidth)


def _share(wanted: TypeDemand) -> str:
    if not wanted.partial:
        return ""
    amounts = ", ".join(f"{amount} {name.rpartition('/')[2]}" for name, amount in wanted.amounts)
    return f" with {amounts} each"


ELSEWHERE: Final = 1 << MAX_NUMA_ID + 1
"""Placeholder for all NUMA nodes without devices."""

NO_OBJECT: Final = "node(s) had no Device object"
UNUSABLE: Final = "node(s) had unknown devices"


class DeviceOffer(ValueObject, gc=False):
    """
    The devices of a node for decisions. ``problem`` states why it is not known which of them are free.

    ``injected``: an agent gives containers the chosen devices. ``observed`` are the devices that pods hold by their
    kubelet.
    """

    machine: DeviceMachine
    ids: Mapping[DeviceKey, str]
    problem: str = ""
    injected: bool = True
    observed: Observed = NOT_OBSERVED

    def use(self, ledger: Ledger) -> DeviceUse:
        """Return the holdings of the devices by pods."""
        return device_use(ledger, self.machine, self.observed)

    def holders(self, ledger: Ledger, key: DeviceKey) -> list[str]:
        """Return the pods that hold a part of a device, sorted."""
        return held_devices(ledger, self.machine, self.observed).holders(key)

    def conflict(self, ledger: Ledger) -> str:
        """Return a sentence about a device that is held twice, empty if there is none or a device plugin chooses."""
        return double_holds(ledger, self.machine) if self.injected else ""


def device_offer(
    inventory: DeviceInventory | None,
    unknown: str,
    *,
    held: bool,
    model: str = "",
    honors_partitions: bool = False,
) -> DeviceOffer | None:
    """
    Return the devices of a node, ``None`` for a node without a Device object.

    ``unknown`` states which pods hold unknown devices. ``held``: pods hold devices of the node. Without its Device
    object they are then not known. ``model`` and ``honors_partitions`` are labels of the Node.
    """
    if inventory is None:
        if not held and not unknown:
            return None
        return DeviceOffer(NO_DEVICES, {}, unknown or "pods hold devices, and the Device object of the node is gone")
    machine = NO_DEVICES if inventory.problem else device_machine(inventory, model, honors_partitions=honors_partitions)
    observed = dict(inventory.held) if inventory.held else NOT_OBSERVED
    return DeviceOffer(machine, inventory.ids, inventory.problem or unknown, inventory.injected, observed)


NO_DEVICES: Final = device_machine(DeviceInventory(""))


class NodeDeviceHints(ValueObject):
    """
    Possible allocations of the devices of one pod on one node (``DeviceHints``).

    ``places`` are the NUMA nodes of the demanded types.
    """

    demand: DeviceDemand
    offer: DeviceOffer
    use: DeviceUse
    places: int

    def at(self, mask: int, preferred: int = 0) -> Chosen | Shortage:
        """Return the devices on a set of NUMA nodes (0: any), or the shortage."""
        return allocate(self.offer.machine, self.use, self.demand, self._near(mask), preferred & self.places)

    def fits(self, mask: int) -> bool:
        """Return whether the devices can be allocated on the NUMA nodes (``DeviceHints``)."""
        return isinstance(self.at(mask), Chosen)

    def fits_if_empty(self, mask: int) -> bool:
        """Return whether the devices could be allocated on the NUMA nodes if no pod held any (``DeviceHints``)."""
        return self.fits(mask) or isinstance(
            allocate(self.offer.machine, UNUSED, self.demand, self._near(mask)), Chosen
        )

    def numa_of(self, chosen: Chosen) -> int:
        """Return the NUMA nodes of chosen devices."""
        return self.offer.machine.numa_of(chosen.devices)

    def best_shortage(self) -> Shortage:
        """Return the shortage on the NUMA node that comes closest, for a pod that no single NUMA node takes."""
        found = (self.at(1 << numa) for numa in numa_ids(self.places))
        short = [shortage for shortage in found if isinstance(shortage, Shortage)]
        closest = max(short, key=lambda shortage: sum(room for _, room in shortage.room))
        return replace(closest, message=NUMA_SCOPED)

    def points(self) -> int:
        """Return how much of the free partitions remains, 0 to 100."""
        return max(0, partition_points(self.offer.machine, self.use, self.demand))

    def grants(self, chosen: Chosen) -> DeviceGrants:
        """Return the entries of ``device-allocated`` for the chosen devices."""
        machine, free = self.offer.machine, free_devices(self.offer.machine, self.use)
        found = []
        for wanted, bits in chosen.types:
            wanted_amounts = dict(wanted.amounts)
            for position in members(bits):
                key = machine.devices[position].key
                functions = lowest_function(wanted, machine, position, free.functions[position]) or ()
                amounts = filled(wanted_amounts, machine, key)
                found.append(DeviceGrant(*key, amounts, functions, self.offer.ids.get(key, "")))
        return tuple(found)

    def _near(self, mask: int) -> int:
        # Sets with the same NUMA nodes among the places offer the same devices.
        return mask and (mask & self.places or ELSEWHERE)


def node_devices(request: PodRequest, offer: DeviceOffer | None, ledger: Ledger) -> NodeDeviceHints | Rejection | None:
    """Return the hint provider for a pod with device requests, ``None`` without, or the rejection by the node."""
    demand = device_demand(request)
    if demand is None or isinstance(demand, str):
        return None  # invalid requests are rejected for all nodes
    if offer is None:
        # Without a Device object the requests are amounts of the node, and nothing can satisfy conditions on devices.
        if not demand.spec_matters:
            return None
        return Rejection(Reason.DEVICES, NO_OBJECT, "the pod has conditions on its devices", resolvable=False)
    if offer.problem:
        return Rejection(Reason.DEVICES, UNUSABLE, offer.problem, resolvable=False)
    return NodeDeviceHints(demand, offer, offer.use(ledger), places_of(offer.machine, demand))


def rejection(shortage: Shortage) -> Rejection:
    """Return the rejection of a node for a shortage."""
    needed = dict(shortage.needed)
    lack = max((1 - there / needed[kind] for kind, there in shortage.room), default=1.0)
    return Rejection(Reason.DEVICES, shortage.message, shortage.detail, shortage.resolvable, lack=max(0.0, lack))
