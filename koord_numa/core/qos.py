"""
Koordinator's quality of service: which class a pod counts as, and from that, whether its CPUs are its own.

Rules only; nothing here looks at free CPUs.
"""

from typing import Final

from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.objects.vocabulary import ContainerKind, KubeQos, NumaPolicy, PriorityClass, QosClass
from koord_numa.core.pod_resources import effective_requests, is_limited, kube_qos
from koord_numa.core.resources import CPU, MEMORY, MILLI

OWN_CPUS: Final = frozenset({QosClass.LSE, QosClass.LSR})
"""Classes whose whole CPUs no pod shares (LSE), or only best-effort pods share (LSR)."""

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
    """The labelled class, else the one that Koordinator derives from the Kubernetes class (``GetPodQoSClassWithDefault``)."""
    return request.qos if request.qos is not QosClass.NONE else _FROM_KUBERNETES[kube_qos(request)]


def priority_class(request: PodRequest) -> PriorityClass:
    """The labelled band, else that of the numeric priority, else that of the QoS class (``GetPodPriorityClassWithDefault``)."""
    if request.priority_class is not PriorityClass.NONE:
        return request.priority_class
    for low, high, band in _BANDS:
        if low <= request.priority <= high:
            return band
    return PriorityClass.BATCH if default_qos(request) is QosClass.BE else PriorityClass.PROD


@once_per_request
def may_use_cpuset(request: PodRequest) -> bool:
    """
    May the pod have CPUs of its own by its label? Only a labelled LSE or LSR pod of the production band.

    A Guaranteed pod without the label is treated as LS (fine-grained CPU orchestration, "Koordinator QoS CPU
    orchestration principles").
    """
    return request.qos in OWN_CPUS and priority_class(request) is PriorityClass.PROD


def has_whole_cpus(request: PodRequest) -> bool:
    """Does the pod ask for a whole, positive number of CPUs?"""
    cpu = effective_requests(request).get(CPU, 0)
    return cpu > 0 and cpu % MILLI == 0


def bursts(request: PodRequest) -> bool:
    """
    Does some container limit its CPU above what it requests?

    No limit at all is no burst in this sense: CPUs of its own end what such a pod can use.
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
    Of CPU and memory those that an LSE or LSR pod limits above what it requests ("MUST BE equal", CPU orchestration principles).

    A limit that is not set is no such limit.
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
    Does the pod's own SingleNUMANode policy give it CPUs of its own?

    Yes when its CPU limit equals its request and is whole; a pod that may burst goes to the shared pool, and so does one
    labelled LS, BE or SYSTEM (pod-level NUMA topology policy, "Examples").
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
    How many CPUs a static CPU manager would pin for each container that it pins, init containers among them.

    Containers of whole CPUs in Guaranteed pods are pinned, whatever label the pod has (kubelet policy_static.go).
    """
    if kube_qos(request) is not KubeQos.GUARANTEED:
        return ()
    asked = (container.requests.get(CPU, 0) for container in request.containers)
    return tuple(cpu // MILLI for cpu in asked if cpu and cpu % MILLI == 0)


def is_pinned_by_static_kubelet(request: PodRequest) -> bool:
    """Would a static CPU manager pin any container of this pod?"""
    return bool(pinned_by_static_kubelet(request))
