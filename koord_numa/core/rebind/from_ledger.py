"""
From what is known of a node to the layout of a rebind: who may move, who must stay, how much room NUMA nodes have.

It finds out and plans nothing. Only CPUs that the scheduler gave out move, and only pods whose annotation says so.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.inventory import Inventory
from koord_numa.core.ledger import Holding, Ledger
from koord_numa.core.numa_free import accounts
from koord_numa.core.rebind.exclusivity import FixedPods
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.pinned_pod import PinnedPod
from koord_numa.core.rebind.plan import layout_of_pods, reallocation_order
from koord_numa.core.request import PodRequest
from koord_numa.core.resources import CPU, MILLI, is_hugepages, is_native
from koord_numa.core.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NodeBindPolicy, NumaExclusive, NumaPolicy

_IMPOSED: Final = {
    NodeBindPolicy.FULL_PCPUS_ONLY: CpuBindPolicy.FULL_PCPUS,
    NodeBindPolicy.SPREAD_BY_PCPUS: CpuBindPolicy.SPREAD_BY_PCPUS,
}
_SHAPES: Final = (CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS)
_NO_REQUEST: Final = PodRequest()


@dataclass(frozen=True, slots=True)
class Defaults:
    """What is configured for pods that do not say it: their bind policy, and their exclusivity if they name a NUMA policy."""

    bind: CpuBindPolicy = CpuBindPolicy.FULL_PCPUS
    numa_exclusive: NumaExclusive = NumaExclusive.REQUIRED


DEFAULTS: Final = Defaults()


def layout_of_ledger(
    inventory: Inventory, ledger: Ledger, fixed_pods: Collection[str], defaults: Defaults = DEFAULTS
) -> NodeLayout:
    """
    The node as a rebind sees it. ``fixed_pods`` are the uids of pods that must stay where they are, whatever the reason.

    So must pods whose CPUs are contested: reserved, not in the machine, or held by two. A pod with NUMA amounts keeps its number
    of CPUs on each NUMA node, because only its cpuset may change; so does one with huge pages or devices, of which no pod knows
    the NUMA node. A machine must be known.
    """
    if inventory.machine is None:
        raise ValueError(f"the CPUs of node {inventory.node} are unknown")
    machine, kept = inventory.machine, inventory.reserved
    pods: list[PinnedPod] = []
    staying, fixed_holdings = Ledger(), []
    for holding in ledger:
        if not holding.cpus or holding.pod.uid in fixed_pods or _is_contested(holding, inventory, ledger):
            staying.hold(holding)
            fixed_holdings.append(holding)
            kept |= holding.cpus | _kept_clear(holding, machine)
            continue
        pinned = _pinned_pod(holding, machine, inventory.bind, defaults)
        pods.append(pinned)
        if pinned.cpus_per_numa is not None:
            staying.hold(holding)
    layout = layout_of_pods(machine, pods, kept, _cpu_limits(inventory, staying))
    return replace(layout, fixed_pods=_fixed_pods(fixed_holdings, machine, defaults))


def _is_contested(holding: Holding, inventory: Inventory, ledger: Ledger) -> bool:
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


def _pinned_pod(holding: Holding, machine: CpuTopology, imposed: NodeBindPolicy, defaults: Defaults) -> PinnedPod:
    request = holding.request or _NO_REQUEST
    bind, required = _shape(request, imposed, defaults.bind)
    count = len(holding.cpus)
    return PinnedPod(
        key=holding.pod,
        cpus=holding.cpus,
        bind=bind,
        required=required,
        exclusive=holding.exclusive,
        cpus_per_numa=_counts(machine, holding.cpus) if _is_numa_bound(holding) else None,
        order=reallocation_order(
            request.qos, required=required, count=count, created=holding.created, uid=holding.pod.uid
        ),
        numa_exclusive=_numa_exclusive_of(request, defaults),
    )


def _shape(request: PodRequest, imposed: NodeBindPolicy, default: CpuBindPolicy) -> tuple[CpuBindPolicy, bool]:
    """The bind policy in force and whether it must hold: the node's, else what the pod requires, else what it prefers."""
    if imposed in _IMPOSED:
        return _IMPOSED[imposed], True
    fallback = default if default in _SHAPES else CpuBindPolicy.FULL_PCPUS
    required = fallback if request.bind.required is CpuBindPolicy.DEFAULT else request.bind.required
    if required in _SHAPES:
        return required, True
    return (request.bind.preferred if request.bind.preferred in _SHAPES else fallback), False


def _is_numa_bound(holding: Holding) -> bool:
    if holding.numa:
        return True
    return any(amount and (is_hugepages(name) or not is_native(name)) for name, amount in holding.amounts.items())


def _counts(machine: CpuTopology, cpus: CpuSet) -> dict[int, int]:
    return {numa: count for numa, bits in machine.numa_bits.items() if (count := (bits & cpus.bits).bit_count())}


def _cpu_limits(inventory: Inventory, staying: Ledger) -> dict[int, int]:
    """Whole CPUs that each NUMA node's amounts leave to pods without NUMA amounts; none are named where no CPU is published."""
    books = accounts(inventory, staying)
    ratio = max(1.0, inventory.ratios.get(CPU, 1))
    free = dict(zip(books.numa_ids, books.free.get(CPU, ()), strict=False))
    return {numa: int(amount / ratio) // MILLI for numa, amount in free.items()}


def _union(parts: Iterator[int]) -> int:
    bits = 0
    for part in parts:
        bits |= part
    return bits
