"""Free and used amounts and CPUs on each NUMA node of a node."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from operator import or_
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus import shaped
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet import KubeletState, KubeletView, free_on
from koord_numa.core.numa import NumaOccupancy
from koord_numa.core.objects.request import SharedPool
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import SINGLE_NUMA_NODE, CpuBindPolicy, NodeBindPolicy
from koord_numa.core.pod_resources import amplify
from koord_numa.core.resources import CPU, MEMORY, MILLI, NOTHING, ResourceList, add
from koord_numa.core.state.inventory import Inventory, NodeSnapshot, PerNuma
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field, value_object

LEFT: Final = "left"
USERS: Final = "users"
"""Keys of the sums of a ledger."""


@dataclass(slots=True, eq=False)
class NumaLeft:
    """
    ``left[resource][place]`` is the part of ``totals`` without recorded amounts, negative if more is recorded.

    ``places`` are the positions of NUMA ids in both.
    """

    totals: Mapping[str, PerNuma]
    places: Mapping[int, int]
    left: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.left = {name: list(amounts) for name, amounts in self.totals.items()}

    def count(self, holding: Holding, sign: int) -> None:
        """Add (1) or remove (-1) a pod."""
        for numa, amounts in holding.numa:
            self.take(numa, amounts, sign)

    def take(self, numa: int, amounts: ResourceList, sign: int = 1) -> None:
        """Add or remove recorded amounts of a NUMA node. Amounts that no NUMA node lists are ignored."""
        left, place = self.left, self.places.get(numa)
        if place is None:
            return
        for name, amount in amounts.items():
            if name in left:
                left[name][place] -= sign * amount


class NumaUsers(MutableObject, eq=False):
    """
    Number of pods by set of NUMA nodes (a mask): ``several`` for pods on several NUMA nodes, ``single`` for pods on one.

    ``single`` only has pods with the policy SingleNUMANode. Pods with exclusive CPUs and pods on shared CPUs count
    alike, by the NUMA nodes of their CPUs and amounts (pod-level NUMA policy, "Goal"). Koordinator's node_allocation.go
    only counts pods with exclusive CPUs, whatever their policy.
    """

    machine: CpuTopology | None
    single: dict[int, int] = value_field(default_factory=dict)
    several: dict[int, int] = value_field(default_factory=dict)

    def count(self, holding: Holding, sign: int) -> None:
        """Add (1) or remove (-1) a pod."""
        if not (holding.mask or holding.cpus.bits):
            return  # its NUMA nodes are unknown
        mask = numa_mask(holding, self.machine)
        if mask & (mask - 1):
            # Several bits: the pod spans NUMA nodes, whatever its policy.
            users = self.several
        elif holding.request is not None and holding.request.numa.policy is SINGLE_NUMA_NODE:
            users = self.single
        else:
            return
        users[mask] = users.get(mask, 0) + sign
        if not users[mask]:
            del users[mask]


def numa_left(inventory: Inventory, ledger: Ledger) -> Mapping[str, list[int]]:
    """Return the amounts without record on each NUMA node, by resource, in the order of ``numa_ids``. Must not be modified."""
    known = ledger.sums.get(LEFT)
    # By identity: the totals are replaced whenever the node changes.
    if isinstance(known, NumaLeft) and known.totals is inventory.totals:
        return known.left
    places = {numa: place for place, numa in enumerate(inventory.numa_ids)}
    made = NumaLeft(inventory.totals, places)
    # The ledger has already summed the recorded amounts.
    for numa, amounts in ledger.numa.items():
        made.take(numa, amounts)
    ledger.sums[LEFT] = made
    return made.left


def numa_occupancy(ledger: Ledger, machine: CpuTopology | None) -> NumaOccupancy:
    """Return the NUMA nodes with pods on a single NUMA node under SingleNUMANode, and those with pods on several."""
    known = ledger.sums.get(USERS)
    if not isinstance(known, NumaUsers) or known.machine is not machine:
        known = ledger.sums[USERS] = NumaUsers(machine)
        for holding in ledger:
            known.count(holding, 1)
    return NumaOccupancy(reduce(or_, known.single, 0), reduce(or_, known.several, 0))


def numa_mask(holding: Holding, machine: CpuTopology | None) -> int:
    """Return the NUMA nodes of the pod's CPUs and amounts."""
    if machine is None or not holding.cpus.bits:
        return holding.mask
    return holding.mask | machine.numa_of(holding.cpus)


ACCOUNTS: Final = "accounts"
"""Key of the derived results of a ledger."""


class Accounting(Enum):
    """The pods that count on a NUMA node: every pod, or only recorded NUMA amounts (as Koordinator, which overcommits)."""

    EVERY_POD = "every pod"
    RECORDED_AMOUNTS = "recorded amounts"


class NumaAccounting(ValueObject):
    """The rules of accounting: the pods that count, and the maximum pods per CPU (above 1 only for embedding code)."""

    accounting: Accounting = Accounting.EVERY_POD
    references: int = 1


EVERY_POD: Final = NumaAccounting()


@value_object
class NumaFree:
    """
    Totals and free amounts per NUMA node, by resource. 0 for a NUMA node that does not publish the resource.

    ``free_cpus`` are the CPUs that pods may get now. ``unplaced`` are the amounts that pods hold without a known NUMA
    node, for resources that a NUMA node publishes.
    """

    numa_ids: tuple[int, ...]
    total: Mapping[str, PerNuma]
    free: Mapping[str, PerNuma]
    free_cpus: CpuSet
    unplaced: Mapping[str, int]
    machine: CpuTopology | None
    counted: dict[CpuBindPolicy, PerNuma] = field(default_factory=dict, compare=False, repr=False)

    def takeable(self, policy: CpuBindPolicy) -> PerNuma:
        """
        Return the number of free CPUs of each NUMA node usable under a *required* bind policy.

        FullPCPUs: CPUs of completely free cores. SpreadByPCPUs: one CPU of each core with a free CPU. Other policies:
        all. As Koordinator's filterAvailableCPUsByRequiredCPUBindPolicy. The result is cached.
        """
        if policy not in self.counted:
            self.counted[policy] = _takeable(self, policy)
        return self.counted[policy]

    def unclaimed(self, resource: str) -> int:
        """Return the free amount of all NUMA nodes minus the amount of pods without a known NUMA node."""
        return sum(self.free.get(resource, ())) - self.unplaced.get(resource, 0)


def accounts(inventory: Inventory, ledger: Ledger, accounting: NumaAccounting = EVERY_POD) -> NumaFree:
    """Return the current accounts, cached until the ledger changes."""
    known: tuple[Inventory, NumaAccounting, NumaFree] | None = ledger.derived.get(ACCOUNTS)
    # By identity of the inventory: it is replaced whenever the node changes.
    if known is not None and known[0] is inventory and (known[1] is accounting or known[1] == accounting):
        return known[2]
    free = {
        # Never negative: amounts recorded before the node shrank must not affect the sums of other NUMA nodes.
        name: tuple(amounts) if min(amounts) >= 0 else tuple([max(0, amount) for amount in amounts])
        for name, amounts in numa_left(inventory, ledger).items()
    }
    if CPU in free and inventory.machine is not None and (ledger.unrecorded or inventory.ratios.get(CPU, 1) > 1):
        # Otherwise, the recorded amounts include all held CPUs.
        held = _held_cpu(inventory, inventory.machine, ledger, accounting)
        free[CPU] = tuple([max(0, there - taken) for there, taken in zip(inventory.totals[CPU], held, strict=True)])
    made = NumaFree(
        numa_ids=inventory.numa_ids,
        total=inventory.totals,
        free=free,
        free_cpus=_free_cpus(inventory, ledger, accounting),
        unplaced=_unplaced(inventory, ledger) if accounting.accounting is Accounting.EVERY_POD else {},
        machine=inventory.machine,
    )
    ledger.derived[ACCOUNTS] = (inventory, accounting, made)
    return made


def _held_cpu(inventory: Inventory, machine: CpuTopology, ledger: Ledger, accounting: NumaAccounting) -> list[int]:
    """Return the held milli-CPU by NUMA node: recorded amounts, and CPUs that they do not include."""
    every_pod = accounting.accounting is Accounting.EVERY_POD
    # A union, since CPUs of two pods are only taken once.
    unrecorded = 0
    if every_pod:
        for bits in ledger.unrecorded.values():
            unrecorded |= bits
    ratio = inventory.ratios.get(CPU, 1)
    held = []
    for numa in inventory.numa_ids:
        here = machine.numa_bits.get(numa, 0)
        amount = ledger.numa.get(numa, NOTHING).get(CPU, 0)
        if unrecorded:
            amount += MILLI * (unrecorded & here).bit_count()
        if ratio > 1 and (every_pod or numa in ledger.numa):
            # Exclusive CPUs are recorded unamplified, but weigh amplified: each reduces the amount by `ratio` CPUs.
            own = MILLI * (ledger.bits & here).bit_count()
            amount += amplify(own, ratio) - own
        held.append(amount)
    return held


def _free_cpus(inventory: Inventory, ledger: Ledger, accounting: NumaAccounting) -> CpuSet:
    if accounting.references == 1:
        # Only embedding code may share CPUs. Without sharing, the set of held CPUs is sufficient.
        return CpuSet(inventory.cpus.bits & ~ledger.bits)
    full = CpuSet.of(cpu for cpu, count in ledger.references.items() if count >= accounting.references)
    return inventory.cpus - full


def _unplaced(inventory: Inventory, ledger: Ledger) -> dict[str, int]:
    """Return the amounts held without a NUMA node, on an unpublished NUMA node, or as CPUs that the machine does not list."""
    # Unplaced amounts have no NUMA node, so all NUMA nodes together must leave room for them.
    held, ids = ledger.unplaced, inventory.numa_ids
    for numa, amounts in ledger.numa.items():
        if numa not in ids:
            held = add(held, amounts)
    if ledger.unrecorded:
        known = inventory.machine.bits if inventory.machine else 0
        unlisted = sum((bits & ~known).bit_count() for bits in ledger.unrecorded.values())
        held = add(held, {CPU: MILLI * unlisted})
    # Only published resources can be scarce on NUMA nodes.
    unplaced = {name: held[name] for name in inventory.totals if held.get(name)}
    for uid in inventory.kubelet_pods:
        holding = ledger.holdings.get(uid)
        if holding and CPU in unplaced:
            # The kubelet chose its CPUs: they are reserved and already subtracted from the zones.
            unplaced[CPU] = max(0, unplaced[CPU] - holding.unplaced.get(CPU, 0))
    return unplaced


def _takeable(accounts: NumaFree, policy: CpuBindPolicy) -> PerNuma:
    if accounts.machine is None:
        return (0,) * len(accounts.numa_ids)
    usable = shaped(policy, accounts.machine, accounts.free_cpus).bits
    there = accounts.machine.numa_bits
    return tuple([(usable & there.get(numa, 0)).bit_count() for numa in accounts.numa_ids])


@dataclass(frozen=True, slots=True)
class NumaUsage:
    """
    The total and free amounts of a NUMA node for pods, in internal units.

    ``free`` never exceeds the free amounts of the whole node. ``least`` is the lower bound: the free amounts if all holdings with
    unknown NUMA node are on this NUMA node.
    """

    numa: int
    total: ResourceList
    free: ResourceList
    least: ResourceList = field(default_factory=dict)  # by default equal to ``free``

    def __post_init__(self) -> None:
        if not self.least:
            object.__setattr__(self, "least", self.free)


def rooms(candidate: NodeSnapshot) -> tuple[NumaUsage, ...]:
    """Return the usage of every NUMA node, ascending. Empty without a topology, or if the node takes no pods."""
    offer = candidate.offer
    if isinstance(offer, Rejection):
        return ()
    hidden: Mapping[str, int]
    if isinstance(offer, KubeletView):
        found = [*_kubelet_rooms(offer)]
        hidden = _hidden(found, candidate.ledger)
    else:
        found, hidden = [*_own_rooms(offer, candidate.ledger)], accounts(offer, candidate.ledger).unplaced
    left = _left(candidate)
    return tuple(_bounded(usage, left, hidden) for usage in found)


def _left(candidate: NodeSnapshot) -> dict[str, int]:
    """Return the free amounts of the whole node, of the resources that it lists."""
    held = candidate.ledger.amounts
    return {name: max(0, amount - held.get(name, 0)) for name, amount in candidate.allocatable.items()}


def _hidden(found: list[NumaUsage], ledger: Ledger) -> dict[str, int]:
    """Return the amounts of pods that no NUMA node shows as used: a kubelet aligns exclusive CPUs and devices only."""
    hidden = {}
    for name, amount in ledger.amounts.items():
        shown = sum(usage.total.get(name, 0) - usage.free.get(name, 0) for usage in found)
        if amount > shown:
            hidden[name] = amount - shown
    return hidden


def _bounded(usage: NumaUsage, left: Mapping[str, int], hidden: Mapping[str, int]) -> NumaUsage:
    free = {name: min(amount, left.get(name, amount)) for name, amount in usage.free.items()}
    least = {name: max(0, min(free[name], amount - hidden.get(name, 0))) for name, amount in usage.free.items()}
    return NumaUsage(usage.numa, usage.total, free, least)


def node_free(candidate: NodeSnapshot, resource: str, found: Iterable[NumaUsage]) -> int:
    """Return the free amount of all NUMA nodes of a node together. Every pod of the node counts."""
    offer, amount = candidate.offer, 0
    usages = list(found)
    if isinstance(offer, Inventory):
        amount = accounts(offer, candidate.ledger).unclaimed(resource)
    elif isinstance(offer, KubeletView):
        amount = sum(usage.free.get(resource, 0) for usage in usages)
    return max(
        0, min(amount, sum(usage.free.get(resource, 0) for usage in usages), _left(candidate).get(resource, amount))
    )


def largest_aligned(candidate: NodeSnapshot, usage: Sequence[NumaUsage] | None = None) -> dict[str, int]:
    """
    Return the largest request that a single NUMA node could serve: that with the most free CPUs, then memory.

    Contains CPUs, memory and devices. CPUs are whole, or in whole cores if the node allocates only these, and limited
    by the free CPUs of the whole node. Empty without a known NUMA node. ``usage`` is the result of ``rooms``, if known.
    """
    return max(aligned_shapes(candidate, usage), key=_by_cpus, default={})


def largest_with_devices(candidate: NodeSnapshot, usage: Sequence[NumaUsage] | None = None) -> dict[str, int]:
    """Return the largest request with more devices than ``largest_aligned`` has, or an empty dictionary."""
    shapes = aligned_shapes(candidate, usage)
    devices = devices_in(max(shapes, key=_by_cpus, default={}))
    others = [it for it in shapes if it.get(CPU) and devices_in(it) > devices]
    return max(others, key=lambda shape: (devices_in(shape), *_by_cpus(shape)), default={})


def devices_in(amounts: ResourceList) -> int:
    """Return the number of devices in amounts: extended resources, whose names have a domain."""
    return sum(amount for name, amount in amounts.items() if "/" in name)


def aligned_shapes(candidate: NodeSnapshot, usage: Sequence[NumaUsage] | None = None) -> list[dict[str, int]]:
    """Return the largest request that each NUMA node could serve, as described for ``largest_aligned``."""
    unit = _unit(candidate)
    shapes = []
    for room in rooms(candidate) if usage is None else usage:
        free = {name: max(0, amount) for name, amount in room.free.items()}
        shapes.append({**free, CPU: free.get(CPU, 0) // unit * unit})
    return shapes


def _by_cpus(shape: ResourceList) -> tuple[int, int]:
    return shape.get(CPU, 0), shape.get(MEMORY, 0)


def _own_rooms(inventory: Inventory, ledger: Ledger) -> Iterator[NumaUsage]:
    accounting = accounts(inventory, ledger)
    # Partly used cores serve no pod if cores are allocated completely.
    whole = accounting.takeable(CpuBindPolicy.FULL_PCPUS) if _whole_cores(inventory) and inventory.machine else None
    for at, numa in enumerate(accounting.numa_ids):
        free = {name: row[at] for name, row in accounting.free.items()}
        if whole is not None and CPU in free:
            free[CPU] = min(free[CPU], whole[at] * MILLI)
        yield NumaUsage(numa, {name: row[at] for name, row in accounting.total.items()}, free)


def _kubelet_rooms(view: KubeletView) -> Iterator[NumaUsage]:
    node = view.state.node
    empty = KubeletState.empty(node).managers
    for numa in node.machine.numa_ids:
        free = free_on(node, view.state.managers, numa)
        yield NumaUsage(numa, free_on(node, empty, numa), free)


def _whole_cores(inventory: Inventory) -> bool:
    return inventory.bind is NodeBindPolicy.FULL_PCPUS_ONLY


def _unit(candidate: NodeSnapshot) -> int:
    offer = candidate.offer
    if isinstance(offer, KubeletView):
        # A kubelet node with unknown options counts in whole cores.
        return MILLI * max(1, offer.cores.threads)
    if isinstance(offer, Inventory) and offer.machine and _whole_cores(offer):
        return MILLI * max(1, offer.machine.threads_per_core)
    return MILLI


def shared_pools(inventory: Inventory, ledger: Ledger) -> tuple[SharedPool, ...]:
    """
    Return the pools of LS and Burstable pods, by socket and NUMA node: all CPUs that no pod holds exclusively.

    They include the CPUs reserved for the kubelet (fine-grained CPU orchestration, "Basic CPU orchestration
    principles").
    """
    if inventory.machine is None:
        return ()
    free = inventory.machine.all - ledger.cpus - inventory.kept_from_pools
    pools = (
        SharedPool(socket=socket_of(inventory, numa), numa=numa, cpus=CpuSet(bits) & free)
        for numa, bits in inventory.machine.numa_bits.items()
        if bits
    )
    # By socket first, as Koordinator's node agent publishes them.
    return tuple(sorted(pools, key=lambda pool: (pool.socket, pool.numa)))


def socket_of(inventory: Inventory, numa: int) -> int:
    """Return the socket of a NUMA node: the lowest socket of its CPUs. 0 if it has no CPUs or they are unknown."""
    machine = inventory.machine
    if machine is None:
        return 0
    here = machine.numa_bits.get(numa, 0)
    return min((socket for socket, bits in machine.socket_bits.items() if bits & here), default=0)
