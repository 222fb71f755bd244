"""
Rejections for the scheduler: the texts of a kubelet's rejection, and checks that the pod requires nothing that the
kubelet cannot guarantee.

``rejection_of`` converts the result of a dry run. ``refuse_promises`` rejects NUMA and CPU bind policies of a pod that
the configuration of a
kubelet does not guarantee. ``never_fits`` and ``fits_empty_node`` decide whether evicting pods can help.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from koord_numa.core.explain import largest_that_fits, needs_text
from koord_numa.core.kubelet.admit import DryRunAdmitted, NotAdmitted, dry_run
from koord_numa.core.kubelet.bounds import has_room
from koord_numa.core.kubelet.demand import (
    OUT_OF,
    SMT_ALIGNMENT,
    TOPOLOGY_AFFINITY,
    ContainerDemand,
    PodDemand,
    check_node_fit,
    pod_demand,
)
from koord_numa.core.kubelet.node_config import ALIGN_BY_SOCKET
from koord_numa.core.kubelet.state import KubeletNode, KubeletState, free_on
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import NumaNumbers, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    FULL_PCPUS,
    INIT,
    NO_BIND_POLICY,
    NO_NUMA_POLICY,
    NUMA_REQUIRED,
    SINGLE_NUMA_NODE,
    CpuBindPolicy,
    KubeletPolicy,
    KubeletScope,
    KubeQos,
    NumaPolicy,
)
from koord_numa.core.pod_resources import effective_requests, is_pinned_by_static_kubelet, kube_qos, may_use_cpuset
from koord_numa.core.resources import CPU, MILLI, NOTHING, PODS, ResourceList


def fits_empty_node(request: PodRequest, node: KubeletNode) -> bool:
    """
    Return whether the kubelet of this node admits the pod on the empty node. Called for every rejection, so amounts are compared first.
    """
    if check_node_fit(effective_requests(request), {}, node.allocatable) is not None:
        return False
    empty = KubeletState.empty(node)
    return has_room(request, node, empty.managers) or isinstance(dry_run(empty, request), DryRunAdmitted)


def never_fits(request: PodRequest, node: KubeletNode, *, keeps_cores: bool) -> bool:
    """
    Return whether the kubelet rejects the pod in every state. ``False`` means not known.

    ``keeps_cores``: the kubelet allocates whole cores only, and cores have several threads. Thread counts are powers of two, so odd counts
    are rejected (``Allocate`` in policy_static.go of the cpumanager). Under single-numa-node, one NUMA node must
    have all that a unit requests.
    The memory manager returns no hints for a whole pod for which no set of NUMA nodes has enough, and may still find memory for its
    containers. So in scope pod only CPUs are compared. Devices may become healthy, so their numbers are not compared.
    """
    demand = pod_demand(request)
    if keeps_cores and node.pins_cpus and [count for count in demand.counts if count % 2]:
        return True
    if node.config.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    if node.config.topology_scope is KubeletScope.POD:
        return _exceeds_each(ContainerDemand(cpus=demand.pod.cpus, memory=None, devices={}), node)
    for _, unit in demand.containers:
        if _exceeds_each(unit, node):
            break
    else:
        return False
    return True


def _exceeds_each(unit: ContainerDemand, node: KubeletNode) -> bool:
    """Return whether the unit requests more than every single NUMA node has when it is empty."""
    for numa in node.machine.numa_ids:
        if not _exceeds(unit, node, numa):
            break
    else:
        return True
    return False


def _exceeds(unit: ContainerDemand, node: KubeletNode, numa: int) -> bool:
    """Return whether the unit requests more than the NUMA node has when it is empty."""
    if node.pins_cpus and unit.cpus > (node.machine.numa_bits[numa] & ~node.reserved).bit_count():
        return True
    if not unit.memory or not node.pins_memory:
        return False
    there = node.memory.get(numa, NOTHING)
    for kind, amount in unit.memory.items():
        if amount > there.get(kind, amount):
            break
    else:
        return False
    return True


CANNOT_ALIGN: Final = "node(s) whose kubelet cannot align the pod to NUMA nodes"
NO_WHOLE_CORES: Final = "node(s) whose kubelet cannot give whole cores"
CANNOT_ALLOCATE: Final = "node(s) whose kubelet lacks exclusive CPUs, memory or devices"


def rejection_of(request: PodRequest, refused: NotAdmitted, view: KubeletView, state: KubeletState) -> Rejection:
    """Return the rejection of the pod for a kubelet's rejection in this state: reason, numbers, and whether evicting pods may help."""
    reason, detail = refused.refusal.reason, refused.refusal.detail
    # Evicting pods cannot help if the empty node rejects the pod.
    resolvable = fits_empty_node(request, state.node)
    if reason.startswith(OUT_OF):
        resource = reason.removeprefix(OUT_OF)
        message = "Too many pods" if resource == PODS else f"Insufficient {resource}"
        return Rejection(Reason.RESOURCES, message, detail, resolvable=resolvable)
    kind, message = {
        TOPOLOGY_AFFINITY: (Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN),
        SMT_ALIGNMENT: (Reason.KUBELET_SMT, NO_WHOLE_CORES),
    }.get(reason, (Reason.KUBELET_ALLOCATION, CANNOT_ALLOCATE))
    # The numbers are those of the rejected unit, a container or the pod, and not the sum of the pod.
    wanted = _wanted(refused.unit, state.node)
    rooms = {numa: free_on(state.node, state.managers, numa) for numa in state.node.machine.numa_ids}
    numbers = tuple(_numbers(wanted, rooms, KubeletState.empty(state.node)))
    if kind is Reason.KUBELET_ALIGNMENT and view.state.node.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE:
        numbers = _decisive(numbers)
        unit, colon, _ = detail.rpartition(": ")  # in container scope, the container
        detail = f"{unit}{colon}needs {needs_text(wanted)} in one NUMA node"
        # The device manager's hints for 0 devices are the NUMA nodes with such devices (devicemanager/topology_hints.go).
        if tied := [name for name, amount in wanted.items() if not amount and name in state.node.devices]:
            detail += f", which must have {', '.join(tied)} (a request of 0 is aligned too)"
    if view.overlooked:
        detail += f"; {needs_text(view.overlooked.amounts)} of running pods that the exporter overlooks may be on any NUMA node"
    core = view.cores.threads if view.cores.free is not None else 1
    largest = largest_that_fits(wanted, rooms.values(), {CPU: MILLI * core})
    return Rejection(kind, message, detail, resolvable=resolvable, numbers=numbers, largest=largest)


def _decisive(numbers: tuple[NumaNumbers, ...]) -> tuple[NumaNumbers, ...]:
    """Return the numbers of resources that alone exclude some NUMA node, or all numbers if no resource does."""
    scarce = {number.resource for number in numbers if number.free < number.needed}
    return tuple(number for number in numbers if number.resource in scarce) or numbers


def _wanted(unit: ContainerDemand | None, node: KubeletNode) -> dict[str, int]:
    """Return the amounts of a unit that are bound to NUMA nodes, in this project's units."""
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


def _numbers(wanted: ResourceList, rooms: Mapping[int, ResourceList], empty: KubeletState) -> Iterator[NumaNumbers]:
    """Yield, by resource and NUMA node, the amount on the empty node and the free amount in ``rooms``."""
    if not wanted:
        return
    whole = {numa: free_on(empty.node, empty.managers, numa) for numa in rooms}
    for resource, needed in wanted.items():
        for numa, room in rooms.items():
            yield NumaNumbers(numa, resource, whole[numa].get(resource, 0), room.get(resource, 0), needed)


_TOGETHER: Final = 2
"""Minimum containers with exclusive CPUs that may take CPUs from each other."""

_WHOLE_CORES: Final = "full-pcpus-only"
_KEEPS: Final[Mapping[NumaPolicy, KubeletPolicy]] = {
    NumaPolicy.BEST_EFFORT: KubeletPolicy.BEST_EFFORT,
    NumaPolicy.RESTRICTED: KubeletPolicy.RESTRICTED,
    SINGLE_NUMA_NODE: KubeletPolicy.SINGLE_NUMA_NODE,
}


def refuse_promises(request: PodRequest, config: KubeletConfig, *, may_claim_cpus: bool = False) -> Rejection | None:
    """
    Return a rejection if the pod requires something that this kubelet's configuration does not guarantee.

    ``may_claim_cpus``: the pod has resource claims, whose devices may be its exclusive CPUs. Then the caller calls
    ``refuse_unpinned`` once that is
    known.
    """
    return (
        _refuse_numa_policy(request, config)
        or _refuse_numa_exclusive(request)
        or _refuse_numa_spread(request)
        or _refuse_bind_policy(request, config)
        or (None if may_claim_cpus else refuse_unpinned(request, config))
    )


def refuse_unpinned(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    """Reject an LSE or LSR pod, which needs exclusive CPUs, if the kubelet does not allocate any to it."""
    return _unpinned(request, config) if may_use_cpuset(request) else None


def _unpinned(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    if config.cpu_policy != "none" and is_pinned_by_static_kubelet(request):
        return None
    detail = f"its kubelet gives this pod no CPUs of its own (CPU manager {config.cpu_policy or 'unknown'})"
    return _unkept("node(s) had a kubelet that pins no CPUs for the pod", detail)


def _refuse_numa_exclusive(request: PodRequest) -> Rejection | None:
    """Reject required NUMA exclusiveness: kubelets put aligned pods and pods that span NUMA nodes on the same NUMA nodes."""
    # Only ``Required`` must be met. ``Preferred`` and a default that the pod does not set need not.
    if request.numa.exclusive is not NUMA_REQUIRED:
        return None
    detail = "the pod requires singleNUMANodeExclusive, and a kubelet keeps no NUMA node to pods of one kind"
    return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)


def _refuse_numa_spread(request: PodRequest) -> Rejection | None:
    """Reject required NUMA spreading: kubelets choose NUMA nodes without regard to workloads. ``ScheduleAnyway`` need not be met."""
    if request.numa_spread is None or not request.numa_spread.required:
        return None
    detail = "the pod requires numa-spread (DoNotSchedule), and on this node the kubelet chooses the NUMA nodes"
    return Rejection(Reason.NUMA_SPREAD, "node(s) had a kubelet that spreads no workloads", detail, resolvable=False)


def _refuse_numa_policy(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    """
    Reject a pod whose NUMA policy the node's topology manager does not enforce (matrix of the pod-level NUMA policy proposal).

    A pod cannot make a kubelet without alignment align.
    """
    wanted = request.numa.policy
    has = config.topology_policy or KubeletPolicy.NONE
    # BestEffort admits every pod, so a kubelet without alignment satisfies it.
    if wanted is NO_NUMA_POLICY or (wanted is NumaPolicy.BEST_EFFORT and has is KubeletPolicy.NONE):
        return None
    # A stricter kubelet rejects pods that BestEffort admits. A less strict kubelet aligns less than requested.
    if has is not _KEEPS[wanted]:
        published = (
            f"the node's kubelet has {has}"
            if config.topology_policy
            else "the policy of the node's kubelet is not published"
        )
        detail = f"the pod wants {wanted}, {published}"
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    # The topology manager aligns Guaranteed pods only. Other pods run on any NUMA node.
    if wanted is not NumaPolicy.BEST_EFFORT and kube_qos(request) is not KubeQos.GUARANTEED:
        detail = f"the pod wants {wanted}, a kubelet aligns Guaranteed pods only, and the pod is {kube_qos(request)}"
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    if wanted is not NumaPolicy.BEST_EFFORT and not _has_own_cpus(request, config):
        detail = f"the pod wants {wanted}, and its kubelet gives no container CPUs of its own: they would come from all NUMA nodes"
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    long_running = sum(container.kind is not INIT for container in request.containers)
    # Restricted and SingleNUMANode apply to the whole pod. Container scope may put two containers on different NUMA
    # nodes.
    if long_running > 1 and wanted is not NumaPolicy.BEST_EFFORT and config.topology_scope is KubeletScope.CONTAINER:
        detail = (
            f"the pod wants {wanted} as a whole, the node's kubelet aligns each of its {long_running} containers alone"
        )
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    return None


def _has_own_cpus(request: PodRequest, config: KubeletConfig) -> bool:
    """Return whether the static CPU manager gives some container exclusive CPUs, or the pod requests no CPUs."""
    asks = any(container.requests.get(CPU, 0) for container in request.containers) or bool(request.pod_requests)
    return not asks or (config.cpu_policy != "none" and bool(pod_demand(request).counts))


def _refuse_bind_policy(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    """Reject a required CPU bind policy, except whole cores on a kubelet with ``full-pcpus-only``."""
    required = request.bind.required
    if required is CpuBindPolicy.CONSTRAINED_BURST:
        detail = "the pod requires the shared pool of one NUMA node, and kubelets know no such pools"
        return _unkept("node(s) cpu bind policy conflicts with pod's required cpu bind policy", detail)
    if required in (NO_BIND_POLICY, CpuBindPolicy.DEFAULT):
        return None
    if refusal := _unpinned(request, config):
        return refusal
    # full-pcpus-only allocates whole cores or rejects. No option allocates a single CPU per core.
    if required is FULL_PCPUS and config.cpu_options.get(_WHOLE_CORES, False):
        return None
    detail = f"the pod requires {required}, and on this node the kubelet chooses the CPUs"
    return _unkept("node(s) cpu bind policy conflicts with pod's required cpu bind policy", detail)


def _unkept(message: str, detail: str) -> Rejection:
    return Rejection(Reason.BIND_POLICY, message, detail, resolvable=False)


def lost_to_sockets(demand: PodDemand, view: KubeletView) -> str:
    """
    Return why a container may take CPUs that the next container needs on its NUMA node, or an empty string.

    Source: getAlignedCPUs in cpumanager/policy_static.go. Only ``restricted`` rejects a pod for this:
    ``best-effort`` admits what it cannot align, and
    ``single-numa-node`` excludes the option. Pod scope looks for the CPUs of all containers together.
    """
    node = view.state.node
    config = node.config
    if node.ids_are_real or view.followed or not node.pins_cpus or not config.cpu_options.get(ALIGN_BY_SOCKET):
        return ""
    if config.topology_policy is not KubeletPolicy.RESTRICTED or config.topology_scope is not KubeletScope.CONTAINER:
        return ""
    taking = [container.name for container, part in demand.containers if part.cpus]
    if len(taking) < _TOGETHER:
        return ""
    first, second = taking[:2]
    return f"container {first} may take CPUs of any NUMA node of its socket, of which {second} needs some, and sockets are not published"
