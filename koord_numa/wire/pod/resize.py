"""
In-place resize: what a running pod counts for while its containers have not, or not yet, what its spec asks for.

As ``PodRequests`` with ``UseStatusResources`` of Kubernetes' component helpers (``resource/helpers.go``): per resource the largest of what
the spec requests, what the kubelet has allocated and what the container has; without the spec once the kubelet has called the resize
infeasible. Containers of the status without ``resources`` count by the spec.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import ResourceList, largest
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.quantities import requested

PENDING: Final = "PodResizePending"
INFEASIBLE: Final = "Infeasible"


def counted_request(
    request: PodRequest, spec: Mapping[str, Any], status: Mapping[str, Any], path: FieldPath
) -> PodRequest:
    """The request of a pod with a node, with ``counted`` set where its status says something else than its spec. Raises ``WireError``."""
    if not _differs(spec, status):
        return request
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
    return request if counted == effective_requests(request) else replace(request, counted=counted)


def _differs(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Cheap, as it is asked of every running pod: is there any container whose status names other amounts than its spec?"""
    if spec.get("resources") and (status.get("resources") or status.get("allocatedResources")):
        return True
    told = [each for key in _STATUSES for each in _items(status, key) if _has_resources(each)]
    if not told:
        return False  # as of a pod whose containers have not started
    wanted: dict[str, object] = {}
    for key in ("containers", "initContainers"):
        for container in _items(spec, key):
            if isinstance(container, Mapping) and isinstance(container.get("name"), str):
                wanted[container["name"]] = _part(_part(container, "resources"), "requests")
    for each in told:
        asked = wanted.get(each["name"])
        if _part(each["resources"], "requests") != asked or each.get("allocatedResources", asked) != asked:
            return True
    return False


def _has_resources(status: object) -> bool:
    return (
        isinstance(status, Mapping)
        and isinstance(status.get("name"), str)
        and isinstance(status.get("resources"), Mapping)
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


def _held(status: Mapping[str, Any], path: FieldPath) -> ResourceList:
    allocated = requested(_part(status, "allocatedResources"), path.at("allocatedResources"))
    return largest(requested(_part(_part(status, "resources"), "requests"), path.at("resources")), allocated)


def _part(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = of.get(key)
    return part if isinstance(part, Mapping) else _NOTHING


def _items(of: Mapping[str, Any], key: str) -> list[Any]:
    items = of.get(key)
    return items if isinstance(items, list) else []


_STATUSES: Final = ("containerStatuses", "initContainerStatuses")
_NOTHING: Final[Mapping[str, Any]] = {}
