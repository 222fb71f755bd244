"""
What a pod may demand of CPUs and NUMA nodes that a kubelet, and not we, hands out: nothing may be promised that it will not keep.

A kubelet knows no CPU bind policies and no NUMA policy of a pod. A demand is met only where the kubelet's own configuration
happens to guarantee it; everything else is refused here, before the kubelet's procedure is asked whether it would admit the pod. So is what
align-by-socket may spoil where the kubelet is not followed: a container's CPUs come from any NUMA node of its sockets, which no exporter
publishes (where it is followed, hypotheses try the sockets out: ``inference/config_variants``).
"""

from collections.abc import Mapping
from typing import Final

from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.inference.config_variants import ALIGN_BY_SOCKET
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
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
from koord_numa.core.pod_resources import kube_qos
from koord_numa.core.qos import is_pinned_by_static_kubelet, may_use_cpuset
from koord_numa.core.resources import CPU

_TOGETHER: Final = 2
"""So many containers with CPUs of their own may take them from one another."""

_WHOLE_CORES: Final = "full-pcpus-only"
_KEEPS: Final[Mapping[NumaPolicy, KubeletPolicy]] = {
    NumaPolicy.BEST_EFFORT: KubeletPolicy.BEST_EFFORT,
    NumaPolicy.RESTRICTED: KubeletPolicy.RESTRICTED,
    SINGLE_NUMA_NODE: KubeletPolicy.SINGLE_NUMA_NODE,
}


def refuse_promises(request: PodRequest, config: KubeletConfig, *, may_claim_cpus: bool = False) -> Rejection | None:
    """
    Does the pod demand something that this kubelet's configuration does not guarantee?

    ``may_claim_cpus``: the pod has claims, whose devices may be its own CPUs. ``refuse_unpinned`` is then asked once that is known.
    """
    return (
        _refuse_numa_policy(request, config)
        or _refuse_numa_exclusive(request)
        or _refuse_numa_spread(request)
        or _refuse_bind_policy(request, config)
        or (None if may_claim_cpus else refuse_unpinned(request, config))
    )


def refuse_unpinned(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    """Reject an LSE or LSR pod, which needs CPUs of its own, where the kubelet gives it none."""
    return _unpinned(request, config) if may_use_cpuset(request) else None


def _unpinned(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    if config.cpu_policy != "none" and is_pinned_by_static_kubelet(request):
        return None
    detail = f"its kubelet gives this pod no CPUs of its own (CPU manager {config.cpu_policy or 'unknown'})"
    return _unkept("node(s) had a kubelet that pins no CPUs for the pod", detail)


def _refuse_numa_exclusive(request: PodRequest) -> Rejection | None:
    """Kubelets put aligned pods and pods that span NUMA nodes on the same ones; a default that the pod did not write demands nothing."""
    # Only ``Required`` is a demand; ``Preferred`` may go unmet.
    if request.numa.exclusive is not NUMA_REQUIRED:
        return None
    detail = "the pod requires singleNUMANodeExclusive, and a kubelet keeps no NUMA node to pods of one kind"
    return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)


def _refuse_numa_spread(request: PodRequest) -> Rejection | None:
    """Kubelets choose NUMA nodes without regard to the pods of a workload; a wish (``ScheduleAnyway``) may go unmet."""
    if request.numa_spread is None or not request.numa_spread.required:
        return None
    detail = "the pod requires numa-spread (DoNotSchedule), and on this node the kubelet chooses the NUMA nodes"
    return Rejection(Reason.NUMA_SPREAD, "node(s) had a kubelet that spreads no workloads", detail, resolvable=False)


def _refuse_numa_policy(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    """As the pod-level NUMA policy proposal's matrix; a node that aligns nothing cannot be told to by a pod."""
    wanted = request.numa.policy
    has = config.topology_policy or KubeletPolicy.NONE
    # BestEffort admits anything, so that a kubelet that aligns nothing keeps it.
    if wanted is NO_NUMA_POLICY or (wanted is NumaPolicy.BEST_EFFORT and has is KubeletPolicy.NONE):
        return None
    # A stricter kubelet would refuse pods that BestEffort promises to run, a laxer one aligns less than is asked.
    if has is not _KEEPS[wanted]:
        published = (
            f"the node's kubelet has {has}"
            if config.topology_policy
            else "the policy of the node's kubelet is not published"
        )
        detail = f"the pod wants {wanted}, {published}"
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    # topologymanager generates hints for Guaranteed pods only: others run anywhere.
    if wanted is not NumaPolicy.BEST_EFFORT and kube_qos(request) is not KubeQos.GUARANTEED:
        detail = f"the pod wants {wanted}, a kubelet aligns Guaranteed pods only, and the pod is {kube_qos(request)}"
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    if wanted is not NumaPolicy.BEST_EFFORT and not _has_own_cpus(request, config):
        detail = f"the pod wants {wanted}, and its kubelet gives no container CPUs of its own: they would come from all NUMA nodes"
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    long_running = sum(container.kind is not INIT for container in request.containers)
    # Restricted and SingleNUMANode are about the pod as a whole; container scope may put two containers on different NUMA nodes.
    if long_running > 1 and wanted is not NumaPolicy.BEST_EFFORT and config.topology_scope is KubeletScope.CONTAINER:
        detail = (
            f"the pod wants {wanted} as a whole, the node's kubelet aligns each of its {long_running} containers alone"
        )
        return Rejection(Reason.NUMA_POLICY, "node(s) NUMA Topology policy not match", detail, resolvable=False)
    return None


def _has_own_cpus(request: PodRequest, config: KubeletConfig) -> bool:
    """Does the static CPU manager give some container exclusive CPUs, where the pod asks for CPUs at all?"""
    asks = any(container.requests.get(CPU, 0) for container in request.containers) or bool(request.pod_requests)
    return not asks or (config.cpu_policy != "none" and bool(pod_demand(request).counts))


def _refuse_bind_policy(request: PodRequest, config: KubeletConfig) -> Rejection | None:
    """A required shape only ``full-pcpus-only`` can give, and only whole cores."""
    required = request.bind.required
    if required is CpuBindPolicy.CONSTRAINED_BURST:
        detail = "the pod requires the shared pool of one NUMA node, and kubelets know no such pools"
        return _unkept("node(s) cpu bind policy conflicts with pod's required cpu bind policy", detail)
    if required in (NO_BIND_POLICY, CpuBindPolicy.DEFAULT):
        return None
    if refusal := _unpinned(request, config):
        return refusal
    # full-pcpus-only hands out whole cores or refuses; no option makes a kubelet give one CPU a core.
    if required is FULL_PCPUS and config.cpu_options.get(_WHOLE_CORES, False):
        return None
    detail = f"the pod requires {required}, and on this node the kubelet chooses the CPUs"
    return _unkept("node(s) cpu bind policy conflicts with pod's required cpu bind policy", detail)


def _unkept(message: str, detail: str) -> Rejection:
    return Rejection(Reason.BIND_POLICY, message, detail, resolvable=False)


def lost_to_sockets(demand: PodDemand, view: KubeletView) -> str:
    """
    Why one container may take CPUs away that the next one must have on its NUMA node; empty when none can.

    By getAlignedCPUs in the kubelet's cpumanager/policy_static.go. Only ``restricted`` refuses for it, as ``best-effort`` admits what it
    cannot align and ``single-numa-node`` excludes the option; pod scope looks for the CPUs of all containers at once.
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
