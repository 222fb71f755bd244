"""
Koordinator's quality of service: the class of a pod, and whether its CPUs are exclusive.

Rules only, independent of free CPUs.
"""

from typing import Final

from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.objects.vocabulary import ContainerKind, KubeQos, NumaPolicy, PriorityClass, QosClass
from koord_numa.core.pod_resources import effective_requests, is_limited, kube_qos
from koord_numa.core.resources import CPU, MEMORY, MILLI

OWN_CPUS: Final = frozenset({QosClass.LSE, QosClass.LSR})
"""Classes whose whole CPUs are shared with no pod (LSE), or only with best-effort pods (LSR)."""

_FROM_KUBERNETES: Final = {
    KubeQos.GUARANTEED: QosClass.LSR,
    KubeQos.BURSTABLE: QosClass.LS,
    KubeQos.BEST_EFFORT: QosClass.BE,
}
_BANDS: Final = (
    (9000, 9999, PriorityClass.PROD),
    (7000, 7999, PriorityClass.MID),
    (5000, 5999, PriorityClass.BATCH),
    (3000, 3999, PriorityClass.FREE),
)


def default_qos(request: PodRequest) -> QosClass:
    """Return the class of the label, by default the class for the Kubernetes class (``GetPodQoSClassWithDefault``)."""
    return request.qos if request.qos is not QosClass.NONE else _FROM_KUBERNETES[kube_qos(request)]


def priority_class(request: PodRequest) -> PriorityClass:
    """Return the band of the label, else of the priority value, else of the QoS class (``GetPodPriorityClassWithDefault``)."""
    if request.priority_class is not PriorityClass.NONE:
        return request.priority_class
    for low, high, band in _BANDS:
        if low <= request.priority <= high:
            return band
    return PriorityClass.BATCH if default_qos(request) is QosClass.BE else PriorityClass.PROD


@once_per_request
def may_use_cpuset(request: PodRequest) -> bool:
    """
    Return whether the label allows exclusive CPUs: only for a pod labeled LSE or LSR of the production band.

    A Guaranteed pod without the label is treated as LS (fine-grained CPU orchestration, "Koordinator QoS CPU
    orchestration principles").
    """
    return request.qos in OWN_CPUS and priority_class(request) is PriorityClass.PROD


def has_whole_cpus(request: PodRequest) -> bool:
    """Return whether the pod requests a whole, positive number of CPUs."""
    cpu = effective_requests(request).get(CPU, 0)
    return cpu > 0 and cpu % MILLI == 0


def bursts(request: PodRequest) -> bool:
    """
    Return whether a container has a CPU limit above its request.

    A missing limit does not count: exclusive CPUs limit such a pod.
    """
    if request.pod_limits and CPU in request.pod_limits:
        return request.pod_limits[CPU] > (request.pod_requests or {}).get(CPU, 0)
    return any(
        container.limits.get(CPU, 0) > container.requests.get(CPU, 0)
        for container in request.containers
        if container.kind is not ContainerKind.INIT
    )


def unequal_limits(request: PodRequest) -> list[str]:
    """
    Return which of CPU and memory an LSE or LSR pod limits above its request ("MUST BE equal", CPU orchestration principles).

    A missing limit does not count.
    """
    if not may_use_cpuset(request):
        return []
    if request.pod_limits:
        asked = request.pod_requests or {}
        return [
            name
            for name in (CPU, MEMORY)
            if name in request.pod_limits and request.pod_limits[name] > asked.get(name, 0)
        ]
    running = [container for container in request.containers if container.kind is not ContainerKind.INIT]
    return [name for name in (CPU, MEMORY) if any(c.limits.get(name, 0) > c.requests.get(name, 0) for c in running)]


def is_exclusive_by_policy(request: PodRequest) -> bool:
    """
    Return whether the pod's own SingleNUMANode policy gives it exclusive CPUs.

    True if its CPU limit equals its request and is whole. A pod that may burst gets the shared pool, and so does a pod
    labeled LS, BE or SYSTEM (pod-level NUMA topology policy, "Examples").
    """
    return (
        request.numa.policy is NumaPolicy.SINGLE_NUMA_NODE
        and request.qos is QosClass.NONE
        and is_limited(request, CPU)
        and not bursts(request)
        and has_whole_cpus(request)
    )


@once_per_request
def pinned_by_static_kubelet(request: PodRequest) -> tuple[int, ...]:
    """
    Return the CPUs of each container that a static CPU manager would pin, including init containers.

    It pins containers of whole CPUs in Guaranteed pods, whatever the pod's label (kubelet policy_static.go).
    """
    if kube_qos(request) is not KubeQos.GUARANTEED:
        return ()
    asked = (container.requests.get(CPU, 0) for container in request.containers)
    return tuple(cpu // MILLI for cpu in asked if cpu and cpu % MILLI == 0)


def is_pinned_by_static_kubelet(request: PodRequest) -> bool:
    """Return whether a static CPU manager would pin any container of this pod."""
    return bool(pinned_by_static_kubelet(request))
