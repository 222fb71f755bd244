"""
The total resources of a pod, and its quality of service: the Kubernetes class, and Koordinator's class.

Amplification: a node may count one CPU as more than one. Ratios up to 1, and resources without a ratio, change nothing.
"""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Final

from koord_numa.core.objects.request import Container, PodRequest, once_per_request
from koord_numa.core.objects.vocabulary import ContainerKind, KubeQos, NumaPolicy, PriorityClass, QosClass
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList, add, is_hugepages, largest, total, without_zeros

_QOS_RESOURCES: Final = (CPU, MEMORY)


@once_per_request
def effective_requests(request: PodRequest) -> ResourceList:
    """
    Return the maximum of resources that the pod needs at a time, as the scheduler and the kubelet count them.

    This is the maximum of the long-running containers (app containers and sidecars) and of each init container together
    with the sidecars started before it. Pod-level amounts replace it for cpu, memory and huge pages. Overhead is added.
    As ``PodRequests`` of Kubernetes' component helpers.
    """
    if request.counted is not None:
        return request.counted
    needed = _over_time((container.kind, container.requests) for container in request.containers)
    return without_zeros(add(_with_pod_level(needed, request.pod_requests), request.overhead))


@once_per_request
def effective_limits(request: PodRequest) -> ResourceList:
    """
    Return the limits of the whole pod. A container without a limit adds nothing, so check ``is_limited`` first.

    Overhead is only added to limited resources, as ``PodLimits`` of Kubernetes' component helpers.
    """
    limits = _with_pod_level(
        _over_time((container.kind, container.limits) for container in request.containers), request.pod_limits
    )
    return without_zeros(
        {name: amount + request.overhead.get(name, 0) if amount else 0 for name, amount in limits.items()}
    )


def is_limited(request: PodRequest, resource: str) -> bool:
    """Return whether every long-running container (or the pod itself) has a limit for this resource."""
    if request.pod_limits and request.pod_limits.get(resource):
        return True
    lasting = [container for container in request.containers if container.kind is not ContainerKind.INIT]
    return bool(lasting) and all(container.limits.get(resource) for container in lasting)


@once_per_request
def kube_qos(request: PodRequest) -> KubeQos:
    """
    Return the QoS class of Kubernetes.

    Guaranteed: every container has limits for cpu and memory and equal requests. BestEffort: no container has either.
    Init containers count, too. Pod-level amounts, if there are any, decide alone. As Kubernetes' ``ComputePodQOS``.
    """
    pod = Container(
        name="", kind=ContainerKind.APP, requests=request.pod_requests or {}, limits=request.pod_limits or {}
    )
    units = (pod,) if has_pod_level(request) else request.containers
    requests = _qos_amounts(unit.requests for unit in units)
    limits = _qos_amounts(unit.limits for unit in units)
    if not requests and not limits:
        return KubeQos.BEST_EFFORT
    all_limited = all(unit.limits.get(name, 0) > 0 for unit in units for name in _QOS_RESOURCES)
    return KubeQos.GUARANTEED if all_limited and requests == limits else KubeQos.BURSTABLE


def _over_time(parts: Iterable[tuple[ContainerKind, ResourceList]]) -> dict[str, int]:
    lasting: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for kind, amounts in parts:
        if kind is ContainerKind.APP:
            lasting = add(lasting, amounts)
        elif kind is ContainerKind.SIDECAR:
            lasting, sidecars = add(lasting, amounts), add(sidecars, amounts)
            peak = largest(peak, sidecars)
        else:
            peak = largest(peak, add(sidecars, amounts))
    return largest(lasting, peak)


def _with_pod_level(amounts: dict[str, int], pod_level: ResourceList | None) -> dict[str, int]:
    if not pod_level:
        return amounts
    return {**amounts, **{name: amount for name, amount in pod_level.items() if _is_pod_level(name)}}


def _is_pod_level(resource: str) -> bool:
    """Return whether the resource is supported at pod level (Kubernetes' PodLevelResources)."""
    return resource in _QOS_RESOURCES or is_hugepages(resource)


def has_pod_level(request: PodRequest) -> bool:
    """Return whether ``spec.resources`` has a pod-level resource (IsPodLevelResourcesSet of Kubernetes' component helpers)."""
    return any(_is_pod_level(name) for name in (*(request.pod_requests or ()), *(request.pod_limits or ())))


def _qos_amounts(parts: Iterable[ResourceList]) -> dict[str, int]:
    summed = total(parts)
    return {name: summed[name] for name in _QOS_RESOURCES if summed.get(name, 0) > 0}


def amplify(amount: int, ratio: float | None) -> int:
    """Return ``amount * ratio``, rounded up to the whole unit (Koordinator's ``extension.Amplify``)."""
    return amount if ratio is None or ratio <= 1 else ceil(amount * ratio)


def amplify_all(amounts: ResourceList, ratios: Mapping[str, float]) -> ResourceList:
    """Return every amount multiplied by the ratio of its resource."""
    if not ratios:
        return amounts
    return {name: amplify(amount, ratios.get(name)) for name, amount in amounts.items()}


# Koordinator's quality of service: the class of a pod, and whether its CPUs are exclusive.
#
# Rules only, independent of free CPUs.

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
