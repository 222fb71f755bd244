"""
In-place resize: what a running pod counts for while its containers have not, or not yet, what its spec asks for.

As ``PodRequests`` with ``UseStatusResources`` of Kubernetes' component helpers (``resource/helpers.go``): per resource the largest of what
the spec requests, what the kubelet has allocated and what the container has; without the spec once the kubelet has called the resize
infeasible. Containers of the status without ``resources`` count by the spec.
"""

from collections.abc import Mapping
from typing import Any, Final

from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import ResourceList, largest
from koord_numa.core.value_objects import replace
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.quantities import requested

PENDING: Final = "PodResizePending"
INFEASIBLE: Final = "Infeasible"


def counted_request(request: PodRequest, status: Mapping[str, Any], path: FieldPath) -> PodRequest:
    """
    The request of a pod with a node, with ``counted`` and ``allocated`` set where ``amounts_differ`` makes a difference.

    A kubelet with static policy never allocates a resize of a Guaranteed pod (``Infeasible`` in the kubelet's allocation manager), so that
    the pod keeps the exclusive CPUs and the memory of ``allocated``, whatever its spec says. Raises ``WireError``.
    """
    infeasible = _is_infeasible(status)
    known = {each["name"]: each for key in _STATUSES for each in _items(status, key) if _has_resources(each)}
    containers = tuple(
        _counted(container, known.get(container.name), infeasible, path) for container in request.containers
    )
    pod_requests = request.pod_requests
    if pod_requests is not None:
        of_pod = status.get("resources")
        if isinstance(of_pod, Mapping):
            held = _held({"resources": of_pod, "allocatedResources": status.get("allocatedResources")}, path)
            pod_requests = held if infeasible else largest(pod_requests, held)
    counted = effective_requests(replace(request, containers=containers, pod_requests=pod_requests))
    if counted != effective_requests(request):
        request = replace(request, counted=counted)
    allocated = tuple(_allocated(container, known.get(container.name), path) for container in request.containers)
    return request if allocated == request.containers else replace(request, allocated=allocated)


def amounts_differ(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Is there any container whose status names other amounts than its spec? Cheap, as it is asked of every pod with a node."""
    if spec.get("resources") and (status.get("resources") or status.get("allocatedResources")):
        return True
    wanted: dict[str, object] | None = None  # not asked for while the containers have not started
    for key in _STATUSES:
        for each in _items(status, key):
            if not _has_resources(each):
                continue
            if wanted is None:
                wanted = _wanted(spec)
            asked = wanted.get(each["name"])
            if _part(each["resources"], "requests") != asked or each.get("allocatedResources", asked) != asked:
                return True
    return False


def _wanted(spec: Mapping[str, Any]) -> dict[str, object]:
    """By the name of a container, what its spec requests."""
    return {
        container["name"]: _part(_part(container, "resources"), "requests")
        for key in ("containers", "initContainers")
        for container in _items(spec, key)
        if isinstance(container, _OBJECT) and isinstance(container.get("name"), str)
    }


def _has_resources(status: object) -> bool:
    return (
        isinstance(status, _OBJECT)
        and isinstance(status.get("name"), str)
        and isinstance(status.get("resources"), _OBJECT)
    )


def _is_infeasible(status: Mapping[str, Any]) -> bool:
    return any(
        isinstance(each, Mapping) and each.get("type") == PENDING and each.get("reason") == INFEASIBLE
        for each in _items(status, "conditions")
    )


def _counted(container: Container, status: Mapping[str, Any] | None, infeasible: bool, path: FieldPath) -> Container:
    if status is None or container.kind is ContainerKind.INIT:
        return container
    held = _held(status, path)
    return replace(container, requests=held if infeasible else largest(container.requests, held))


def _allocated(container: Container, status: Mapping[str, Any] | None, path: FieldPath) -> Container:
    """The container with the requests that the kubelet has allocated, of the status' ``resources`` where it names no allocation."""
    if status is None:
        return container
    amounts = requested(_part(status, "allocatedResources"), path.at("allocatedResources"))
    amounts = amounts or requested(_part(_part(status, "resources"), "requests"), path.at("resources"))
    return replace(container, requests={**container.requests, **amounts})


def _held(status: Mapping[str, Any], path: FieldPath) -> ResourceList:
    allocated = requested(_part(status, "allocatedResources"), path.at("allocatedResources"))
    return largest(requested(_part(_part(status, "resources"), "requests"), path.at("resources")), allocated)


def _part(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = of.get(key)
    return part if isinstance(part, _OBJECT) else _NOTHING


def _items(of: Mapping[str, Any], key: str) -> list[Any]:
    items = of.get(key)
    return items if isinstance(items, list) else []


_STATUSES: Final = ("containerStatuses", "initContainerStatuses")
_NOTHING: Final[Mapping[str, Any]] = {}

_OBJECT: Final = (dict, Mapping)  # asked in this order: the first is what nearly all are, and the quicker question
