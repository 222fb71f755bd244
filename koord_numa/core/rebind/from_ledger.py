"""
Layout of a rebind from the inventory and the ledger of a node: movable pods, fixed pods, and the room of NUMA nodes.

Only CPUs that the scheduler assigned can move, and only pods whose annotation permits it. This module plans nothing.
"""

from collections.abc import Collection, Iterable, Iterator
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
from koord_numa.core.rebind.layout import FixedPods, NodeLayout, PinnedPod
from koord_numa.core.rebind.place_pod import place
from koord_numa.core.rebind.plan import layout_of_pods
from koord_numa.core.resources import CPU, MEMORY, MILLI, is_hugepages, is_native
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.state.numa_free import accounts
from koord_numa.core.value_objects import ValueObject, replace

_IMPOSED: Final = {
    NodeBindPolicy.FULL_PCPUS_ONLY: CpuBindPolicy.FULL_PCPUS,
    NodeBindPolicy.SPREAD_BY_PCPUS: CpuBindPolicy.SPREAD_BY_PCPUS,
}
_BINDING: Final = frozenset({NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE})
_SHAPES: Final = (CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS)
_NO_REQUEST: Final = PodRequest()


class Defaults(ValueObject):
    """Defaults for pods without own values: the bind policy, and the exclusivity of pods that name a NUMA policy."""

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
    Return the layout of the node. ``fixed_pods`` are the uids of pods that must not move, for any reason.

    Pods with contested CPUs are also fixed: CPUs that are reserved, outside the machine, or held by two pods. A pod
    with devices keeps its number of CPUs on each NUMA node. So does a pod with huge pages, or with memory that is bound
    to NUMA nodes, unless ``move_memory``. A NUMA policy of the pod or node that requires a placement (Restricted,
    SingleNUMANode) binds memory, and so does the kubelet's memory manager. Otherwise the kernel may allocate memory
    anywhere, and its amounts follow the CPUs. Raises ``ValueError`` if the CPUs of the node are unknown.
    """
    if inventory.machine is None:
        raise ValueError(f"the CPUs of node {inventory.node} are unknown")
    machine, kept = inventory.machine, inventory.reserved
    pods: list[PinnedPod] = []
    staying, fixed_holdings = Ledger(), []
    for holding in ledger:
        # A pod without exclusive CPUs, a fixed pod, and a pod with contested CPUs keep their place and amounts.
        if not holding.cpus or holding.pod.uid in fixed_pods or _is_contested(holding, inventory, ledger):
            staying.hold(holding)
            fixed_holdings.append(holding)
            kept |= holding.cpus | _kept_clear(holding, machine)
            continue
        bound = _holds_devices(holding) or (not move_memory and _holds_bound_memory(holding, inventory))
        pinned = _pinned_pod(holding, inventory, defaults, numa_bound=bound)
        pods.append(pinned)
        # A pod tied to its NUMA nodes keeps its amounts there, whatever CPUs it gets.
        if pinned.cpus_per_numa is not None:
            staying.hold(holding)
    layout = layout_of_pods(machine, pods, kept, _cpu_limits(inventory, staying))
    limits = _amount_limits(inventory, staying, pods)
    return replace(layout, fixed_pods=_fixed_pods(fixed_holdings, machine, defaults), amount_limits=limits)


def _is_contested(holding: Holding, inventory: Inventory, ledger: Ledger) -> bool:
    # CPUs outside the machine: the topology has changed while the pod was running.
    if holding.cpus & inventory.reserved or not holding.cpus <= inventory.cpus:
        return True
    return bool(holding.cpus & ledger.shared)


def _kept_clear(holding: Holding, machine: CpuTopology) -> CpuSet:
    """
    Return the CPUs that a fixed pod with an exclusive policy needs for itself. A rebind puts no conflicting pod there.
    """
    if holding.exclusive is CpuExclusivePolicy.NONE:
        return CpuSet()
    units = list(machine.numa_bits.values())
    if holding.exclusive is CpuExclusivePolicy.PCPU_LEVEL:
        units = [core.bits for core in machine.cores]
    return CpuSet(_union(unit for unit in units if unit & holding.cpus.bits))


def _fixed_pods(holdings: Iterable[Holding], machine: CpuTopology, defaults: Defaults) -> FixedPods:
    """
    Return the NUMA masks of the fixed pods.

    As in Koordinator's node_allocation.go, only pods with exclusive CPUs count.
    """
    fixed_pods = FixedPods()
    for holding in holdings:
        mask = machine.numa_of(holding.cpus)
        # Without a request the policies of the pod are unknown, and the defaults apply.
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
    """
    Return the NUMA exclusivity.

    Only a pod that names a NUMA policy has the default exclusivity (pod-level NUMA policy, "SingleNUMANodeExclusive").
    """
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
    """
    Return the effective bind policy and whether it is required: the node's policy, else the required, else the
    preferred policy of the pod.
    """
    if imposed in _IMPOSED:
        return _IMPOSED[imposed], True
    fallback = default if default in _SHAPES else CpuBindPolicy.FULL_PCPUS
    required = fallback if request.bind.required is CpuBindPolicy.DEFAULT else request.bind.required
    if required in _SHAPES:
        # As in an allocation, ``Default`` means the configured policy.
        return required, True
    return (request.bind.preferred if request.bind.preferred in _SHAPES else fallback), False


def _holds_devices(holding: Holding) -> bool:
    """Return whether the pod holds devices, which cannot move. Resources other than CPU and memory count as devices."""
    of_numa = any(name not in (CPU, MEMORY) and not is_hugepages(name) for _, held in holding.numa for name in held)
    return of_numa or any(amount and not is_native(name) for name, amount in holding.amounts.items())


def _holds_bound_memory(holding: Holding, inventory: Inventory) -> bool:
    if any(amount and is_hugepages(name) for name, amount in holding.amounts.items()):
        return True
    if not any(held.get(MEMORY) for _, held in holding.numa):
        return False
    # Both policies are checked: the policy of a pod binds its memory also on a node without a policy.
    policies = {inventory.policy, (holding.request or _NO_REQUEST).numa.policy}
    return bool(policies & _BINDING) or (inventory.aligner is not None and inventory.aligner.binds_memory)


def _amount_limits(inventory: Inventory, staying: Ledger, pods: Iterable[PinnedPod]) -> dict[str, dict[int, int]]:
    """Return the free amounts of resources beside CPU that movable pods hold, by resource and NUMA node."""
    free = accounts(inventory, staying)
    names = {name for pinned in pods if pinned.cpus_per_numa is None for _, held in pinned.numa for name in held} - {
        CPU
    }
    return {name: dict(zip(free.numa_ids, free.free[name], strict=True)) for name in sorted(names) if name in free.free}


def _counts(machine: CpuTopology, cpus: CpuSet) -> dict[int, int]:
    return {numa: count for numa, bits in machine.numa_bits.items() if (count := (bits & cpus.bits).bit_count())}


def _cpu_limits(inventory: Inventory, staying: Ledger) -> dict[int, int]:
    """Return the whole CPUs per NUMA node for pods without NUMA amounts. Empty if no CPU amounts are published."""
    numa_free = accounts(inventory, staying)
    ratio = max(1.0, inventory.ratios.get(CPU, 1))
    free = dict(zip(numa_free.numa_ids, numa_free.free.get(CPU, ()), strict=False))
    # Amounts are amplified, CPUs are not. Rounded down, because a pod cannot use a fraction of a CPU.
    return {numa: int(amount / ratio) // MILLI for numa, amount in free.items()}


def _union(parts: Iterator[int]) -> int:
    bits = 0
    for part in parts:
        bits |= part
    return bits


class DoubleHold(ValueObject):
    """A conflict: both pods have ``cpus`` in their resource-status. ``younger`` was created later than ``older``."""

    cpus: CpuSet
    older: PodKey
    younger: PodKey

    def __str__(self) -> str:
        return f"CPUs {self.cpus} belong to {self.older} and to {self.younger} by their resource-status"


def double_holds(ledger: Ledger) -> tuple[DoubleHold, ...]:
    """
    Return every pair of pods that hold the same CPUs, older pods first.

    Of two pods with equal age the pod with the larger uid is the younger, so that two replicas report the same pod.
    """
    if not ledger.shared:
        # The common case: the ledger maintains the set of shared CPUs, so nodes without conflicts cost nothing.
        return ()
    holders = sorted((held for held in ledger if held.cpus & ledger.shared), key=_age)
    return tuple(
        # All pairs, because three holders of one CPU are two conflicts.
        DoubleHold(both, older.pod, younger.pod)
        for index, younger in enumerate(holders)
        for older in holders[:index]
        if (both := older.cpus & younger.cpus)
    )


def replacement_cpus(inventory: Inventory, ledger: Ledger, uid: str, defaults: Defaults = DEFAULTS) -> CpuSet | None:
    """
    Return as many CPUs as the pod has, none of which another pod holds, or None if there are not enough.

    The CPUs are chosen as in a rebind: on the same NUMA nodes if the pod has memory or devices there, and no worse than
    now if possible. Raises ``ValueError`` for a node with unknown CPUs, and ``KeyError`` for a pod without a holding.
    """
    held = ledger.holdings[uid]
    # A ledger without the pod, so that its own CPUs count as free.
    others = Ledger.of(holding for holding in ledger if holding.pod.uid != uid)
    # In a ledger of its own the pod shares no CPU, so it is movable. The CPUs of other pods are excluded afterwards.
    alone = layout_of_ledger(inventory, Ledger.of([held]), (), defaults)
    if not alone.pods:
        return None  # it holds CPUs that are reserved or outside the machine
    layout = replace(layout_of_ledger(inventory, others, others.holdings, defaults), pods=alone.pods)
    bits = place(layout, (held.cpus.bits,), 0, inventory.cpus.bits & ~inventory.reserved.bits & ~others.bits)
    return None if bits is None or bits & others.bits else CpuSet(bits)


def _age(holding: Holding) -> tuple[float, str]:
    return age_key(holding.created, holding.pod.uid)
