"""
A scheduler's conclusion: would this kubelet admit this pod now, and what would the pod then hold?

Asks the kubelet's own procedure on the state that a view supposes, after the careful rules for what nobody published. A "yes" must
hold; a "no" may be wrong, and says which assumption decided.
"""

from collections.abc import Iterator
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.explain import amounts_text
from koord_numa.core.kubelet.admit import DryRunAdmitted, NotAdmitted, Trust, dry_run
from koord_numa.core.kubelet.aggregates import ContainerDemand, PodDemand, pod_demand
from koord_numa.core.kubelet.cpus import CpuReuse
from koord_numa.core.kubelet.kubelet_node import KubeletNode
from koord_numa.core.kubelet.manager_state import KubeletState, ManagerState
from koord_numa.core.kubelet.results import (
    OUT_OF,
    SMT_ALIGNMENT,
    TOPOLOGY_AFFINITY,
    Charge,
    Grant,
    KubeletAdmission,
)
from koord_numa.core.kubelet.view import Knowledge, KubeletView
from koord_numa.core.request import PodRequest
from koord_numa.core.resources import CPU, MEMORY, MILLI, PODS, ResourceList, total
from koord_numa.core.verdicts import NumaNumbers, Reason, Rejection
from koord_numa.core.vocabulary import ContainerKind, KubeletPolicy

CANNOT_ALIGN: Final = "node(s) whose kubelet cannot align the pod to NUMA nodes"
NO_WHOLE_CORES: Final = "node(s) whose kubelet cannot give whole cores"
CANNOT_ALLOCATE: Final = "node(s) whose kubelet lacks exclusive CPUs, memory or devices"
NOTHING_KNOWN: Final = "node(s) without usable NUMA topology"


def would_admit(request: PodRequest, view: KubeletView) -> KubeletAdmission | Rejection:
    """
    Whether the kubelet of this node would admit the pod, as far as a scheduler can tell.

    The reasons are those of the kubelet's ``status.reason``: alignment (TopologyAffinityError), whole cores (SMTAlignmentError),
    allocation (UnexpectedAdmissionError), and node-wide amounts (OutOf…).
    """
    demand = pod_demand(request)
    doubt = _uncertainty(demand, view)
    if doubt is not None:
        return doubt
    trust = Trust.EXACT if view.knowledge is Knowledge.EXACT else Trust.INFERRED
    verdict = dry_run(view.state, request, trust)
    if isinstance(verdict, DryRunAdmitted) and _order_matters(demand, view):
        worst = dry_run(view.state, request, Trust.INFERRED, CpuReuse.LEAST)
        if isinstance(worst, DryRunAdmitted) or _accepts_only_preferred(view):
            verdict = worst
    if isinstance(verdict, NotAdmitted):
        return _rejection(request, verdict, view)
    return _admission(demand, verdict, view)


def _order_matters(demand: PodDemand, view: KubeletView) -> bool:
    """Is it open which of its init containers' CPUs a later container gets? Then the worst order is taken."""
    return bool(demand.counts) and view.knowledge is Knowledge.PUBLISHED and _has_pinned_init(demand)


def _accepts_only_preferred(view: KubeletView) -> bool:
    policy = view.state.node.config.topology_policy
    return policy in (KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE)


def _uncertainty(demand: PodDemand, view: KubeletView) -> Rejection | None:
    """The refusal that rests on not knowing better."""
    if view.problem and _is_aligned(demand):
        return Rejection(Reason.NO_TOPOLOGY, NOTHING_KNOWN, view.problem, resolvable=False)
    if (spoiled := _split_cores(demand, view)) is not None:
        return spoiled
    if demand.pod.memory and view.state.managers.memory is not None and not view.groups_known:
        detail = "the pods known to be there do not explain where memory is in use"
        return Rejection(Reason.KUBELET_ALLOCATION, CANNOT_ALLOCATE, detail)
    return None


def _split_cores(demand: PodDemand, view: KubeletView) -> Rejection | None:
    counts, rule = demand.counts, view.cores
    if rule.free is None:
        return None
    odd = [count for count in counts if count % rule.threads]
    if odd:
        detail = f"{odd[0]} CPUs are not a multiple of {rule.threads}; {rule.why}"
        return Rejection(Reason.KUBELET_SMT, NO_WHOLE_CORES, detail, resolvable=False)
    # Without threads to spoil, the sum says more than the count of free CPUs only where CPUs are used twice.
    if sum(counts) > rule.free and (rule.threads > 1 or _has_pinned_init(demand)):
        detail = f"{sum(counts)} CPUs needed, {rule.free} surely free on whole cores; {rule.why}"
        return Rejection(Reason.KUBELET_SMT, NO_WHOLE_CORES, detail)
    return None


def _has_pinned_init(demand: PodDemand) -> bool:
    return any(part.cpus and container.kind is ContainerKind.INIT for container, part in demand.containers)


def _is_aligned(demand: PodDemand) -> bool:
    parts = [part for _, part in demand.containers]
    return any(part.cpus or part.memory or part.devices for part in parts)


def _rejection(request: PodRequest, refused: NotAdmitted, view: KubeletView) -> Rejection:
    reason, detail = refused.refusal.reason, refused.refusal.detail
    empty = KubeletState.empty(view.state.node)
    resolvable = isinstance(dry_run(empty, request), DryRunAdmitted)
    if reason.startswith(OUT_OF):
        resource = reason.removeprefix(OUT_OF)
        message = "Too many pods" if resource == PODS else f"Insufficient {resource}"
        return Rejection(Reason.RESOURCES, message, detail, resolvable=resolvable)
    kind, message = {
        TOPOLOGY_AFFINITY: (Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN),
        SMT_ALIGNMENT: (Reason.KUBELET_SMT, NO_WHOLE_CORES),
    }.get(reason, (Reason.KUBELET_ALLOCATION, CANNOT_ALLOCATE))
    wanted = _wanted(refused.unit, view.state.node)
    numbers = tuple(_numbers(wanted, view.state))
    if kind is Reason.KUBELET_ALIGNMENT and _needs_one(view):
        numbers = _decisive(numbers)
        unit, colon, _ = detail.rpartition(": ")  # in the container scope, which container it is
        detail = f"{unit}{colon}needs {amounts_text(wanted)} in one NUMA node"
    return Rejection(
        kind, message, detail, resolvable=resolvable, numbers=numbers, largest=_largest(wanted, view.state)
    )


def _needs_one(view: KubeletView) -> bool:
    return view.state.node.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE


def _decisive(numbers: tuple[NumaNumbers, ...]) -> tuple[NumaNumbers, ...]:
    """Those of the resources that rule some NUMA node out by themselves; all of them where none does."""
    scarce = {number.resource for number in numbers if number.free < number.needed}
    return tuple(number for number in numbers if number.resource in scarce) or numbers


def _wanted(unit: ContainerDemand | None, node: KubeletNode) -> dict[str, int]:
    """The amounts of a unit that are tied to NUMA nodes, in our units."""
    if unit is None:
        return {}
    wanted = {
        name: amount for name, amount in unit.devices.items() if name in node.devices and node.devices[name].hosts
    }
    if unit.cpus and node.pins_cpus:
        wanted[CPU] = unit.cpus * MILLI
    if unit.memory and node.pins_memory:
        wanted.update(unit.memory)
    return dict(sorted(wanted.items()))


def _numbers(wanted: ResourceList, state: KubeletState) -> Iterator[NumaNumbers]:
    node = state.node
    whole = KubeletState.empty(node).managers
    for resource, needed in wanted.items():
        for numa in node.machine.numa_ids:
            free = free_on(node, state.managers, numa).get(resource, 0)
            yield NumaNumbers(numa, resource, free_on(node, whole, numa).get(resource, 0), free, needed)


def _largest(wanted: ResourceList, state: KubeletState) -> dict[str, int]:
    """What the NUMA node with most CPUs, then memory, has free of the wanted resources, and no more than is wanted."""
    rooms = [free_on(state.node, state.managers, numa) for numa in state.node.machine.numa_ids]
    best = max(rooms, key=lambda room: (room.get(CPU, 0), room.get(MEMORY, 0)), default={})
    return {resource: min(amount, best.get(resource, 0)) for resource, amount in wanted.items()}


def free_on(node: KubeletNode, managers: ManagerState, numa: int) -> dict[str, int]:
    """What is free on one NUMA node, in our units: exclusive CPUs (milli), memory by type, devices near it."""
    free = {
        name: (pool.near(1 << numa) & pool.healthy & ~managers.devices[name]).bit_count()
        for name, pool in node.devices.items()
    }
    if node.pins_cpus:
        free[CPU] = (managers.cpus & node.machine.numa_bits[numa]).bit_count() * MILLI
    if managers.memory is not None:
        free.update(managers.memory.free[numa])
    return free


def _admission(demand: PodDemand, verdict: DryRunAdmitted, view: KubeletView) -> KubeletAdmission:
    node, exact = view.state.node, view.knowledge is Knowledge.EXACT
    taken = {numa: _taken(node, view.state.managers, verdict.managers, numa) for numa in node.machine.numa_ids}
    mask, certain = 0, True
    for place in _places(verdict.grant, node):
        mask |= place
        # What is on one NUMA node only, the kubelet's order of preference fixes.
        certain = certain and place.bit_count() == 1
    if not certain and not exact:
        whole = total(taken.values())
        taken = {numa: whole if mask >> numa & 1 else {} for numa in taken}
    holds = tuple([(numa, amounts) for numa, amounts in taken.items() if amounts])
    return KubeletAdmission(
        numa=holds,
        charge=Charge.PREDICTED if certain or exact else Charge.EVERYWHERE,
        mask=mask if holds else None,
        cpus=_cpus(verdict.grant) if exact else EMPTY,
        note="" if exact else _note(demand, view, certain=certain),
    )


def _taken(node: KubeletNode, before: ManagerState, after: ManagerState, numa: int) -> dict[str, int]:
    """What one NUMA node has free in the first managers and not in the second, in our units."""
    less = {}
    for name, pool in node.devices.items():
        here = pool.near(1 << numa) & pool.healthy
        less[name] = (here & ~before.devices[name]).bit_count() - (here & ~after.devices[name]).bit_count()
    if node.pins_cpus:
        here = node.machine.numa_bits[numa]
        less[CPU] = MILLI * ((before.cpus & here).bit_count() - (after.cpus & here).bit_count())
    if before.memory is not None and after.memory is not None:
        left = after.memory.free[numa]
        for kind, amount in before.memory.free[numa].items():
            less[kind] = amount - left[kind]
    return {name: amount for name, amount in less.items() if amount}


def _cpus(grant: Grant) -> CpuSet:
    cpus = EMPTY
    for container in grant.containers:
        cpus |= container.cpus
    return cpus


def _places(grant: Grant, node: KubeletNode) -> Iterator[int]:
    """For everything that is tied to NUMA nodes, the mask it may be on."""
    everywhere = node.machine.numa_mask
    for container in grant.containers:
        hint = container.hint.mask if container.hint is not None and container.hint.preferred else None
        # A hint that is not preferred may be too narrow, and the rest then comes from anywhere.
        aligned = everywhere if hint is None else hint
        if container.cpus:
            yield aligned
        for block in container.memory:
            yield block.mask
        for resource, ids in container.devices.items():
            pool = node.devices[resource]
            near = [device.near for device in pool.devices if device.id in ids and device.near]
            yield from (aligned | mask if mask.bit_count() > 1 else aligned for mask in near)


def _note(demand: PodDemand, view: KubeletView, *, certain: bool) -> str:
    """The assumptions that this yes rests on."""
    notes = []
    if any(part.cpus for _, part in demand.containers) and view.cores.threads > 1:
        notes.append(view.cores.why)
    policy = view.state.node.config.topology_policy
    if demand.pod.memory and view.state.managers.memory is not None and policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        notes.append("memory is taken to be grouped as the pods on the node suggest")
    if not certain:
        notes.append("several NUMA nodes are possible, so the pod is counted on each")
    return "; ".join(notes)
