"""
The total resources of a pod, and the Kubernetes QoS class of its containers. Independent of nodes.

Amplification: a node may count one CPU as more than one. Ratios up to 1, and resources without a ratio, change nothing.
"""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Final

from koord_numa.core.objects.request import Container, PodRequest, once_per_request
from koord_numa.core.objects.vocabulary import ContainerKind, KubeQos
from koord_numa.core.resources import CPU, MEMORY, ResourceList, add, is_hugepages, largest, total, without_zeros

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
