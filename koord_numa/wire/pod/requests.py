"""Pods' requests: what the containers ask for, and every demand. What is malformed is left out, the rest counts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from koord_numa.core.objects.constraints import Constraints
from koord_numa.core.objects.request import Container, CpuBind, NumaSpec, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, PriorityClass, QosClass
from koord_numa.core.resources import ResourceList
from koord_numa.wire.errors import FieldPath, WireError
from koord_numa.wire.gangs import gang_of_pod
from koord_numa.wire.metadata import Head
from koord_numa.wire.parsing import Problems, Quantity, Strict, read
from koord_numa.wire.pod.constraints import ConstraintsModel, PortModel, constraints
from koord_numa.wire.pod.pod_annotations import numa_spread, policies, priority_class, qos_class
from koord_numa.wire.quantities import requested
from koord_numa.wire.selectors import label_pairs


class Resources(Strict):
    """Requests and limits, of a container or of a whole pod."""

    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class ClaimUseModel(Strict):
    """A claim of the pod that a container uses, or one request of it."""

    name: str
    request: str | None = None


class ContainerResources(Resources):
    """Those of a container, which has its claims there."""

    claims: list[ClaimUseModel] | None = None


class ContainerModel(Strict):
    """One container."""

    name: str
    resources: ContainerResources | None = None
    ports: list[PortModel] | None = None
    restart_policy: str | None = None  # Always makes an init container a sidecar
    restart_policy_rules: list[dict[str, Any]] | None = None


class Workload(Strict):
    """The part of a pod's spec that is about what runs."""

    containers: list[ContainerModel] | None = None
    init_containers: list[ContainerModel] | None = None
    overhead: dict[str, Quantity] | None = None
    resources: Resources | None = None


def pod_request(top: Head, spec: dict[str, Any], priority: int, problems: Problems) -> PodRequest:
    """Everything about a pod that may change where it can go."""
    work = _workload(top, spec, problems)
    bind, numa = problems.collect(lambda: policies(top.annotations, top.path), _NO_POLICIES)
    return PodRequest(
        containers=work.containers,
        overhead=work.overhead,
        pod_requests=work.pod_requests,
        pod_limits=work.pod_limits,
        qos=problems.collect(lambda: qos_class(top.labels, top.path), QosClass.NONE),
        priority_class=problems.collect(lambda: priority_class(top.labels, top.path), PriorityClass.NONE),
        priority=priority,
        bind=bind,
        numa=numa,
        numa_spread=problems.collect(lambda: numa_spread(top.annotations, top.namespace or "default", top.path), None),
        constraints=_constraints(top, spec, work, problems),
        namespace=top.namespace or "default",
        labels=label_pairs(top.labels),
        gang=gang_of_pod(top, spec),
    )


@dataclass(frozen=True, slots=True)
class _Work:
    containers: tuple[Container, ...]
    overhead: ResourceList
    pod_requests: ResourceList | None
    pod_limits: ResourceList | None
    ports: tuple[PortModel, ...]
    restarts_all: bool = False  # some container, when it ends in certain ways, restarts all containers of the pod


def _workload(top: Head, spec: dict[str, Any], problems: Problems) -> _Work:
    found = problems.collect(lambda: _read_workload(spec, top.path.at("spec")), None)
    # A malformed pod that runs holds what it asks for all the same.
    return _Work(_whatever_counts(spec), {}, None, None, ()) if found is None else found


def _read_workload(spec: dict[str, Any], path: FieldPath) -> _Work:
    work = read(Workload, spec, path)
    containers = tuple(_containers(work, path))
    pod_requests, pod_limits = _pod_level(work.resources, containers, path.at("resources"))
    ports = tuple(port for model in _long_running(work) for port in model.ports or ())
    # Rules of init containers count too: any of them may restart the others.
    models = [*(work.init_containers or ()), *(work.containers or ())]
    rules = [rule for model in models for rule in model.restart_policy_rules or ()]
    restarts_all = any(rule.get("action") == "RestartAllContainers" for rule in rules)
    overhead = requested(work.overhead, path.at("overhead"))
    return _Work(containers, overhead, pod_requests, pod_limits, ports, restarts_all)


def _constraints(top: Head, spec: dict[str, Any], work: _Work, problems: Problems) -> Constraints:
    node = spec.get("nodeName")
    known = Constraints(node_name=node if isinstance(node, str) else "")
    path = top.path.at("spec")
    return problems.collect(
        lambda: constraints(top, read(ConstraintsModel, spec, path), work.ports, work.restarts_all), known
    )


def _containers(work: Workload, path: FieldPath) -> Iterable[Container]:
    for model in work.init_containers or ():
        # Always makes an init container a sidecar (KEP-753).
        sidecar = model.restart_policy == "Always"
        kind = ContainerKind.SIDECAR if sidecar else ContainerKind.INIT
        yield _container(model, kind, path.at("initContainers"))
    for model in work.containers or ():
        yield _container(model, ContainerKind.APP, path.at("containers"))


def _container(model: ContainerModel, kind: ContainerKind, path: FieldPath) -> Container:
    resources = model.resources or _NO_RESOURCES
    limits = requested(resources.limits, path.at("limits"))
    requests = requested(resources.requests, path.at("requests"))
    # Requests default to limits, resource by resource, as the API server writes them.
    claims = tuple((it.name, it.request or "") for it in resources.claims or ())
    return Container(model.name, kind, limits | requests if limits else requests, limits, claims)


def _pod_level(
    resources: Resources | None, containers: Iterable[Container], path: FieldPath
) -> tuple[ResourceList | None, ResourceList | None]:
    """Requests default to limits only where no container asks for the resource, as in the API server."""
    if resources is None or not (resources.requests or resources.limits):
        return None, None
    limits = requested(resources.limits, path.at("limits"))
    requests = requested(resources.requests, path.at("requests"))
    # Only resources that no container mentions default to the pod's limit.
    mentioned = {name for container in containers for name in container.requests}
    return {name: amount for name, amount in limits.items() if name not in mentioned} | requests, limits


def _long_running(work: Workload) -> Iterable[ContainerModel]:
    yield from (model for model in work.init_containers or () if model.restart_policy == "Always")
    yield from work.containers or ()


def _whatever_counts(spec: Mapping[str, Any]) -> tuple[Container, ...]:
    """The containers of a malformed pod, with every amount that can be read: if it runs, it does use them."""
    kinds = {"initContainers": ContainerKind.INIT, "containers": ContainerKind.APP}
    found: list[Container] = []
    for key, kind in kinds.items():
        items = spec.get(key)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            resources = item.get("resources") if isinstance(item, dict) else None
            limits, requests = (
                _readable(resources.get(part) if isinstance(resources, dict) else None)
                for part in ("limits", "requests")
            )
            found.append(Container(f"{key}[{index}]", kind, requests=limits | requests, limits=limits))
    return tuple(found)


def _readable(values: object) -> dict[str, int]:
    readable: dict[str, int] = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        # bool is an int in Python and no quantity.
        if isinstance(name, str) and isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                readable |= requested({name: value}, FieldPath(""))
            except WireError:
                continue  # the problem is on record; this part of the pod simply cannot be counted
    return readable


_NO_RESOURCES = ContainerResources()
_NO_POLICIES = (CpuBind(), NumaSpec())
