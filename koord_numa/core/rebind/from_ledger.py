"""
From what is known of a node to the layout of a rebind: who may move, who must stay, how much room NUMA nodes have.

It finds out and plans nothing. Only CPUs that the scheduler gave out move, and only pods whose annotation says so.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey, PodRequest
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    CpuExclusivePolicy,
    NodeBindPolicy,
    NumaExclusive,
    NumaPolicy,
)
from koord_numa.core.ordering import age_key, reallocation_order
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.pinned_pods import FixedPods, PinnedPod
from koord_numa.core.rebind.place_pod import place
from koord_numa.core.rebind.plan import layout_of_pods
from koord_numa.core.resources import CPU, MEMORY, MILLI, is_hugepages, is_native
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.state.numa_free import accounts
from koord_numa.core.value_objects import replace

_IMPOSED: Final = {
    NodeBindPolicy.FULL_PCPUS_ONLY: CpuBindPolicy.FULL_PCPUS,
    NodeBindPolicy.SPREAD_BY_PCPUS: CpuBindPolicy.SPREAD_BY_PCPUS,
}
_BINDING: Final = frozenset({NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE})
_SHAPES: Final = (CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS)
_NO_REQUEST: Final = PodRequest()


@dataclass(frozen=True, slots=True)
class Defaults:
    """What is configured for pods that do not say it: their bind policy, and their exclusivity if they name a NUMA policy."""

    bind: CpuBindPolicy = CpuBindPolicy.FULL_PCPUS
    numa_exclusive: NumaExclusive = NumaExclusive.REQUIRED


DEFAULTS: Final = Defaults()


def layout_of_ledger(
    inventory: Inventory,
    ledger: Ledger,
    fixed_pods: Collection[str],
    defaults: Defaults = DEFAULTS,
    *,
    move_memory: bool = False,
) -> NodeLayout:
    """
    The node as a rebind sees it. ``fixed_pods`` are the uids of pods that must stay where they are, whatever the reason.

    So must pods whose CPUs are contested: reserved, not in the machine, or held by two. A pod that holds
    devices keeps its number of CPUs on each NUMA node; so does one with huge pages, or with memory that is bound to NUMA nodes, unless
    ``move_memory``. Memory is bound by a NUMA policy of the pod or node that demands a place (Restricted, SingleNUMANode), and by a
    kubelet's memory manager; elsewhere the kernel may allocate it anywhere, and its amounts follow the CPUs. A machine must be known.
    """
    if inventory.machine is None:
        raise ValueError(f"the CPUs of node {inventory.node} are unknown")
    machine, kept = inventory.machine, inventory.reserved
    pods: list[PinnedPod] = []
    staying, fixed_holdings = Ledger(), []
    for holding in ledger:
        # Without CPUs of its own, told to stay, or contested: it holds its place and amounts against the others.
        if not holding.cpus or holding.pod.uid in fixed_pods or _is_contested(holding, inventory, ledger):
            staying.hold(holding)
            fixed_holdings.append(holding)
            kept |= holding.cpus | _kept_clear(holding, machine)
            continue
        bound = _holds_devices(holding) or (not move_memory and _holds_bound_memory(holding, inventory))
        pinned = _pinned_pod(holding, inventory, defaults, numa_bound=bound)
        pods.append(pinned)
        # Tied to its NUMA nodes, so that its amounts stay there whatever CPUs it gets.
        if pinned.cpus_per_numa is not None:
            staying.hold(holding)
    layout = layout_of_pods(machine, pods, kept, _cpu_limits(inventory, staying))
    limits = _amount_limits(inventory, staying, pods)
    return replace(layout, fixed_pods=_fixed_pods(fixed_holdings, machine, defaults), amount_limits=limits)


def _is_contested(holding: Holding, inventory: Inventory, ledger: Ledger) -> bool:
    # CPUs outside the machine: the topology has changed under the pod, and moving it would guess.
    if holding.cpus & inventory.reserved or not holding.cpus <= inventory.cpus:
        return True
    return bool(holding.cpus & ledger.shared)


def _kept_clear(holding: Holding, machine: CpuTopology) -> CpuSet:
    """What a pod that stays wants to have to itself, so that a rebind puts no pod there who would be in conflict with it."""
    if holding.exclusive is CpuExclusivePolicy.NONE:
        return CpuSet()
    units = list(machine.numa_bits.values())
    if holding.exclusive is CpuExclusivePolicy.PCPU_LEVEL:
        units = [core.bits for core in machine.cores]
    return CpuSet(_union(unit for unit in units if unit & holding.cpus.bits))


def _fixed_pods(holdings: Iterable[Holding], machine: CpuTopology, defaults: Defaults) -> FixedPods:
    """Only pods with CPUs of their own count, as in Koordinator's node_allocation.go."""
    fixed_pods = FixedPods()
    for holding in holdings:
        mask = machine.numa_of(holding.cpus)
        # Without a request nothing is known of its policies; the defaults of a pod that names none apply.
        protected = 0 if _numa_exclusive_of(holding.request or _NO_REQUEST, defaults) is NumaExclusive.NONE else mask
        if mask.bit_count() > 1:
            fixed_pods = replace(
                fixed_pods,
                spanning=fixed_pods.spanning | mask,
                protected_spanning=fixed_pods.protected_spanning | protected,
            )
        else:
            fixed_pods = replace(
                fixed_pods, single=fixed_pods.single | mask, protected_single=fixed_pods.protected_single | protected
            )
    return fixed_pods


def _numa_exclusive_of(request: PodRequest, defaults: Defaults) -> NumaExclusive:
    """Only a pod that names a NUMA policy is exclusive without saying so (pod-level NUMA policy, "SingleNUMANodeExclusive")."""
    if request.numa.exclusive is not NumaExclusive.NONE or request.numa.policy is NumaPolicy.NONE:
        return request.numa.exclusive
    return defaults.numa_exclusive


def _pinned_pod(holding: Holding, inventory: Inventory, defaults: Defaults, *, numa_bound: bool) -> PinnedPod:
    request = holding.request or _NO_REQUEST
    bind, required = _shape(request, inventory.bind, defaults.bind)
    count = len(holding.cpus)
    return PinnedPod(
        key=holding.pod,
        cpus=holding.cpus,
        bind=bind,
        required=required,
        exclusive=holding.exclusive,
        cpus_per_numa=_counts(inventory.machine, holding.cpus) if numa_bound and inventory.machine else None,
        order=reallocation_order(
            request.qos, required=required, count=count, created=holding.created, uid=holding.pod.uid
        ),
        numa_exclusive=_numa_exclusive_of(request, defaults),
        numa=holding.numa,
    )


def _shape(request: PodRequest, imposed: NodeBindPolicy, default: CpuBindPolicy) -> tuple[CpuBindPolicy, bool]:
    """The bind policy in force and whether it must hold: the node's, else what the pod requires, else what it prefers."""
    if imposed in _IMPOSED:
        return _IMPOSED[imposed], True
    fallback = default if default in _SHAPES else CpuBindPolicy.FULL_PCPUS
    required = fallback if request.bind.required is CpuBindPolicy.DEFAULT else request.bind.required
    if required in _SHAPES:
        # ``Default`` means the configured policy, as in an allocation.
        return required, True
    return (request.bind.preferred if request.bind.preferred in _SHAPES else fallback), False


def _holds_devices(holding: Holding) -> bool:
    """Devices stay where they are, and resources that are neither CPU nor memory are taken for devices."""
    of_numa = any(name not in (CPU, MEMORY) and not is_hugepages(name) for _, held in holding.numa for name in held)
    return of_numa or any(amount and not is_native(name) for name, amount in holding.amounts.items())


def _holds_bound_memory(holding: Holding, inventory: Inventory) -> bool:
    if any(amount and is_hugepages(name) for name, amount in holding.amounts.items()):
        return True
    if not any(held.get(MEMORY) for _, held in holding.numa):
        return False
    # Both have to be asked: a pod's policy binds its memory even on a node that has none.
    policies = {inventory.policy, (holding.request or _NO_REQUEST).numa.policy}
    return bool(policies & _BINDING) or (inventory.aligner is not None and inventory.aligner.binds_memory)


def _amount_limits(inventory: Inventory, staying: Ledger, pods: Iterable[PinnedPod]) -> dict[str, dict[int, int]]:
    """What is left on each NUMA node for pods that may move, of the resources beside CPU that they take along."""
    free = accounts(inventory, staying)
    names = {name for pinned in pods if pinned.cpus_per_numa is None for _, held in pinned.numa for name in held} - {
        CPU
    }
    return {name: dict(zip(free.numa_ids, free.free[name], strict=True)) for name in sorted(names) if name in free.free}


def _counts(machine: CpuTopology, cpus: CpuSet) -> dict[int, int]:
    return {numa: count for numa, bits in machine.numa_bits.items() if (count := (bits & cpus.bits).bit_count())}


def _cpu_limits(inventory: Inventory, staying: Ledger) -> dict[int, int]:
    """Whole CPUs that each NUMA node's amounts leave to pods without NUMA amounts; none are named where no CPU is published."""
    numa_free = accounts(inventory, staying)
    ratio = max(1.0, inventory.ratios.get(CPU, 1))
    free = dict(zip(numa_free.numa_ids, numa_free.free.get(CPU, ()), strict=False))
    # Amounts are amplified, CPUs are not; floored, as a part of a CPU holds no pod.
    return {numa: int(amount / ratio) // MILLI for numa, amount in free.items()}


def _union(parts: Iterator[int]) -> int:
    bits = 0
    for part in parts:
        bits |= part
    return bits


@dataclass(frozen=True, slots=True)
class DoubleHold:
    """``cpus`` belong to ``older`` by its resource-status and to ``younger`` by its own: the pod that was created later."""

    cpus: CpuSet
    older: PodKey
    younger: PodKey

    def __str__(self) -> str:
        return f"CPUs {self.cpus} belong to {self.older} and to {self.younger} by their resource-status"


def double_holds(ledger: Ledger) -> tuple[DoubleHold, ...]:
    """
    Every pair of pods that hold the same CPUs, older pods first; empty at once where no CPU has two holders.

    Of equal age the larger uid is the younger: two replicas name the same pod.
    """
    if not ledger.shared:
        # Nearly always: the ledger keeps the set of shared CPUs, so that nodes in order cost nothing.
        return ()
    holders = sorted((held for held in ledger if held.cpus & ledger.shared), key=_age)
    return tuple(
        # Every pair, since three holders of one CPU are two conflicts.
        DoubleHold(both, older.pod, younger.pod)
        for index, younger in enumerate(holders)
        for older in holders[:index]
        if (both := older.cpus & younger.cpus)
    )


def replacement_cpus(inventory: Inventory, ledger: Ledger, uid: str, defaults: Defaults = DEFAULTS) -> CpuSet | None:
    """
    As many CPUs for this pod as it has, none of which another pod holds; ``None`` when there are not enough.

    They are chosen as a rebind would: on the same NUMA nodes where the pod has memory or devices there, and no worse than today where
    that is possible. Raises ``ValueError`` for a node whose CPUs are unknown, ``KeyError`` for a pod that holds nothing.
    """
    held = ledger.holdings[uid]
    # A ledger without the pod, as its own CPUs must count as free for it.
    others = Ledger.of(holding for holding in ledger if holding.pod.uid != uid)
    # Alone the pod shares no CPU, so that the layout lets it move; then the CPUs of all others are closed to it.
    alone = layout_of_ledger(inventory, Ledger.of([held]), (), defaults)
    if not alone.pods:
        return None  # it holds CPUs that are reserved, or that the machine does not have
    layout = replace(layout_of_ledger(inventory, others, others.holdings, defaults), pods=alone.pods)
    bits = place(layout, (held.cpus.bits,), 0, inventory.cpus.bits & ~inventory.reserved.bits & ~others.bits)
    return None if bits is None or bits & others.bits else CpuSet(bits)


def _age(holding: Holding) -> tuple[float, str]:
    return age_key(holding.created, holding.pod.uid)
