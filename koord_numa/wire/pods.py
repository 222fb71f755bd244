"""Parse pods: identity, priority, scheduling, request and in-place resize. A malformed pod still counts."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from msgspec import convert

from koord_numa.core.claims import counted_with
from koord_numa.core.objects.claims import ClaimAmounts, Overhead, PodResourceClaim
from koord_numa.core.objects.devices import DeviceGrants
from koord_numa.core.objects.request import Container, Pod, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, QosClass
from koord_numa.core.pod_resources import OWN_CPUS, effective_requests
from koord_numa.core.resources import ResourceList, largest
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.wire import names
from koord_numa.wire.devices import device_grants
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.nodes import pod_images
from koord_numa.wire.parsing import (
    MALFORMED,
    Head,
    Int64,
    Metadata,
    Problems,
    Quantity,
    Strict,
    head,
    read,
    read_time,
    requested,
    version,
)
from koord_numa.wire.pod_annotations import cached_assignment, check_bind_policy, check_demands
from koord_numa.wire.pod_cache import (
    CachedRequest,
    bound_text,
    cached_request,
    explored,
    known_pod,
    remember_request,
    request_key,
)
from koord_numa.wire.raw_json import UnreadObject
from koord_numa.wire.resource_slices import nano
from koord_numa.wire.workloads import controller_of

PENDING: Final = "PodResizePending"
INFEASIBLE: Final = "Infeasible"


def counted_request(request: PodRequest, status: Mapping[str, Any], path: FieldPath) -> PodRequest:
    """
    Return the request of a bound pod, with ``counted`` and ``allocated`` set if a resize changes them.

    A kubelet with static policy never allocates a resize of a Guaranteed pod (``Infeasible`` in the kubelet's
    allocation manager), so the pod keeps the exclusive CPUs and the memory of ``allocated``, whatever its spec. Raises
    ``WireError``.
    """
    infeasible = any(
        isinstance(each, Mapping) and each.get("type") == PENDING and each.get("reason") == INFEASIBLE
        for each in _items(status, "conditions")
    )
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
    """Return whether any container's status has other amounts than its spec. Must be fast: called for every bound pod."""
    if spec.get("resources") and (status.get("resources") or status.get("allocatedResources")):
        return True
    wanted: dict[str, object] | None = None  # not needed while no container has started
    for key in _STATUSES:
        for each in _items(status, key):
            if not _has_resources(each):
                continue
            if wanted is None:
                wanted = _wanted(spec)
            asked = wanted.get(each["name"])
            if _resized_part(each["resources"], "requests") != asked or each.get("allocatedResources", asked) != asked:
                return True
    return False


def _wanted(spec: Mapping[str, Any]) -> dict[str, object]:
    """Return the requests of the spec by container name."""
    return {
        container["name"]: _resized_part(_resized_part(container, "resources"), "requests")
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


def _counted(container: Container, status: Mapping[str, Any] | None, infeasible: bool, path: FieldPath) -> Container:
    if status is None or container.kind is ContainerKind.INIT:
        return container
    held = _held(status, path)
    return replace(container, requests=held if infeasible else largest(container.requests, held))


def _allocated(container: Container, status: Mapping[str, Any] | None, path: FieldPath) -> Container:
    """Return the container with its allocated requests, or those in ``resources`` of the status without an allocation."""
    if status is None:
        return container
    amounts = requested(_resized_part(status, "allocatedResources"), path.at("allocatedResources"))
    amounts = amounts or requested(_resized_part(_resized_part(status, "resources"), "requests"), path.at("resources"))
    return replace(container, requests={**container.requests, **amounts})


def _held(status: Mapping[str, Any], path: FieldPath) -> ResourceList:
    allocated = requested(_resized_part(status, "allocatedResources"), path.at("allocatedResources"))
    return largest(
        requested(_resized_part(_resized_part(status, "resources"), "requests"), path.at("resources")), allocated
    )


def _resized_part(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = of.get(key)
    return part if isinstance(part, _OBJECT) else _NOTHING


def _items(of: Mapping[str, Any], key: str) -> list[Any]:
    items = of.get(key)
    return items if isinstance(items, list) else []


_STATUSES: Final = ("containerStatuses", "initContainerStatuses")
_NOTHING: Final[Mapping[str, Any]] = {}

_OBJECT: Final = (dict, Mapping)  # dict first: the common case and the faster check


class PriorityClassObject(ValueObject):
    """A PriorityClass. ``global_default``: the class of pods that name none."""

    name: str
    value: int
    preempts: str = "PreemptLowerPriority"
    global_default: bool = False
    problem: str = ""


BUILT_IN: Final = (
    PriorityClassObject("system-cluster-critical", 2_000_000_000),
    PriorityClassObject("system-node-critical", 2_000_001_000),
)
"""PriorityClasses of every API server (scheduling/v1, ``SystemPriorityClasses``)."""


class PriorityClassModel(Strict):
    """A PriorityClass, which has its fields at the top level instead of a spec."""

    value: Int64 = 0
    global_default: bool | None = None
    preemption_policy: str | None = None


def parse_priority_class(obj: Mapping[str, Any]) -> PriorityClassObject:
    """Parse a PriorityClass. Raises ``WireError`` only for an object without a name."""
    problems = Problems()
    top = head(obj, "PriorityClass", problems)
    model = problems.collect(lambda: read(PriorityClassModel, top.body, top.path), PriorityClassModel())
    preempts = model.preemption_policy or "PreemptLowerPriority"
    return PriorityClassObject(top.name, model.value, preempts, bool(model.global_default), problems.problem)


def with_priority(pod: Mapping[str, Any], priority_classes: Iterable[PriorityClassObject]) -> Mapping[str, Any]:
    """
    Return a new pod with the priority and preemption policy of its class, as the API server's Priority admission does.

    An existing priority is kept. Raises ``WireError`` if the class does not exist.
    """
    spec = pod.get("spec")
    if not isinstance(spec, Mapping) or spec.get("priority") is not None:
        return pod
    # Built-in classes last, since a file may define them, too.
    known = [*(one for one in priority_classes if not one.problem), *BUILT_IN]
    name = spec.get("priorityClassName")
    if name:
        chosen = next((one for one in known if one.name == name), None)
        if chosen is None:
            raise FieldPath("Pod").at("spec.priorityClassName").error(f"there is no PriorityClass {name}")
    else:
        # Of several global defaults the lowest wins (admission/plugin/priority, ``getDefaultPriorityClass``).
        chosen = min(
            (one for one in known if one.global_default),
            key=lambda one: (one.value, one.name),
            default=None,
        )
    if chosen is None:
        return pod
    # ``spec`` after the policy, so that an existing policy is kept.
    admitted = {"preemptionPolicy": chosen.preempts, **spec, "priority": chosen.value, "priorityClassName": chosen.name}
    return {**pod, "spec": admitted}


class PodClaimModel(Strict):
    """An entry of ``spec.resourceClaims``: a claim by name, or a claim created for the pod from a template."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodClaimStatusModel(Strict):
    """The claim that was created from a template. Without a name, no claim is needed."""

    name: str
    resource_claim_name: str | None = None


class ExtendedClaimStatusModel(Strict):
    """The claim with the devices for the pod's extended resources."""

    resource_claim_name: str | None = None


class MappedResourceModel(Strict):
    """The amount of a node resource that devices of a claim provide."""

    name: str
    quantity: Quantity | None = None


class OverheadResourceModel(Strict):
    """The overhead of a node resource that the use of a claim adds."""

    name: str
    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class ClaimAmountsModel(Strict):
    """The node resources that a claim of the pod takes."""

    resource_claim_name: str = ""
    containers: list[str] | None = None
    mapping: list[MappedResourceModel] | None = None
    overhead: list[OverheadResourceModel] | None = None


class SchedulingSpec(Strict):
    """The part of a pod's spec about queueing, priority and claims."""

    scheduler_name: str | None = None
    priority: Int64 | None = None
    preemption_policy: str | None = None
    scheduling_gates: list[dict[str, Any]] | None = None
    resource_claims: list[PodClaimModel] | None = None


class Status(Strict):
    """The lifecycle of the pod."""

    phase: str | None = None
    reason: str | None = None
    nominated_node_name: str | None = None
    start_time: str | None = None
    container_statuses: list[Any] | None = None
    init_container_statuses: list[Any] | None = None
    conditions: list[Any] | None = None
    resource_claim_statuses: list[PodClaimStatusModel] | None = None
    extended_resource_claim_status: ExtendedClaimStatusModel | None = None
    node_allocatable_resource_claim_statuses: list[ClaimAmountsModel] | None = None


class _Whole(Strict):
    """All parts of a pod. One validation is faster than several."""

    metadata: Metadata
    spec: SchedulingSpec
    status: Status = Status()


def parse_pod(obj: Mapping[str, Any]) -> Pod:
    """
    Parse a Pod. Malformed parts set ``Pod.problem`` and are omitted. All readable amounts count.

    Raises ``WireError`` only if the object has no name or no UID.
    """
    text = bound_text(obj) if isinstance(obj, UnreadObject) else None
    if text is None:
        return _read_whole(obj)[0]
    node, key = request_key(text)
    pod = known_pod(text, node, key)
    if pod is None:
        pod, request = _read_whole(obj)
        if request.key and not pod.problem:
            remember_request(key, request)
    return pod


def _read_whole(obj: Mapping[str, Any]) -> tuple[Pod, CachedRequest]:
    """Return the pod, and its request as shared with other pods."""
    if isinstance(obj, UnreadObject):
        obj = obj.fields
    problems = Problems()
    whole = _well_formed(obj)
    top = head(obj, "Pod", problems, None if whole is None else whole.metadata)
    # A pod is identified by its UID: without it, a pod cannot be distinguished from a successor of the same name.
    if not top.uid:
        raise top.path.at("metadata.uid").error("is missing")
    spec, status = _part(top.body, top.path, "spec", problems), _part(top.body, top.path, "status", problems)
    if whole is not None:
        scheduling, model = whole.spec, whole.status
    else:
        scheduling = problems.collect(lambda: read(SchedulingSpec, spec, top.path, "spec"), _NO_SCHEDULING)
        model = problems.collect(lambda: read(Status, status, top.path, "status"), _NO_STATUS)
    if not _node(spec):
        problems.collect(partial(check_demands, top, spec), None)
    cached = cached_request(top, spec, scheduling.priority or 0, problems)
    return _pod(_Parts(top, spec, scheduling, status, model), cached, problems), cached


def _well_formed(obj: object) -> _Whole | None:
    """Return all parts of a pod, or ``None`` if any is malformed. The parts are then parsed one by one, to keep the others."""
    try:
        return convert(obj, _Whole)
    except MALFORMED:
        return None


class _Parts(ValueObject):
    """The parts of a pod: ``scheduling`` is parsed from ``spec``, and ``model`` from ``status``."""

    top: Head
    spec: dict[str, Any]
    scheduling: SchedulingSpec
    status: dict[str, Any]
    model: Status


def _pod(parts: _Parts, cached: CachedRequest, problems: Problems) -> Pod:
    top, spec, scheduling, status = parts.top, parts.spec, parts.scheduling, parts.model
    node, path, annotations, owner = _node(spec), top.path, top.annotations, top.metadata.controller
    # A running pod may be resized: its status has the amounts that count.
    if node:
        request = cached.at(node)
        if amounts_differ(spec, parts.status):
            request = problems.collect(partial(counted_request, request, parts.status, path.at("status")), request)
        if status.node_allocatable_resource_claim_statuses:
            request = problems.collect(partial(_with_claim_amounts, request, status, path.at("status")), request)
    else:
        request = cached.plain if owner else cached.alone
        problems.collect(partial(check_bind_policy, request, path), None)
    start = status.start_time or ""
    held = annotations.get(names.RESOURCE_STATUS)
    # Before the bind the annotation is stale or was written by another client. It has no effect.
    assignment, unknown_cpus = None, ""
    if node and held is not None:
        unreadable = Problems()
        assignment = unreadable.collect(lambda: cached_assignment(held, path), None)
        problems.problem = problems.problem or unreadable.problem
        # LS, BE and system pods run on shared CPUs, whatever the annotation.
        unknown_cpus = unreadable.problem if request.qos in (*OWN_CPUS, QosClass.NONE) else ""
    granted = annotations.get(names.DEVICE_ALLOCATED)
    devices: DeviceGrants = ()
    unknown_devices = ""
    if node and granted is not None:
        unreadable = Problems()
        devices = unreadable.collect(lambda: device_grants(granted, path), ())
        unknown_devices = unreadable.problem
        problems.problem = problems.problem or unreadable.problem
    return Pod(
        key=PodKey(top.namespace or "default", top.name, top.uid),
        request=request,
        # An empty text counts as absent.
        scheduler=scheduling.scheduler_name or "default-scheduler",
        node=node,
        nominated=status.nominated_node_name or "",
        phase=status.phase or "Pending",
        reason=status.reason or "",
        created=top.created,
        deleting=top.metadata.deletion_timestamp is not None,
        gated=bool(scheduling.scheduling_gates),
        mirror=names.MIRROR in annotations,
        labels=request.labels,
        owner=owner,
        coined=top.metadata.has_coined_name,
        # Only for pods that default constraints may apply to: bound pods are spread already.
        controller=None if node else controller_of(top),
        assignment=assignment,
        preempts=scheduling.preemption_policy != "Never",
        ready=status.conditions is not None and _is_ready(status.conditions),
        # The kubelet that has admitted the pod writes the container statuses.
        started=status.phase == "Running" or bool(status.container_statuses or status.init_container_statuses),
        started_at=problems.collect(lambda: read_time(start, path, "status.startTime"), 0.0) if start else 0.0,
        resource_version=version(top),
        spec_text=annotations.get(names.RESOURCE_SPEC, ""),
        never_rebound=annotations.get(names.REBIND, "").lower() == "false",
        # A resource-status on a pod without a node is stale. The bind replaces it.
        stale_status=not node and held is not None,
        resource_claims=_resource_claims(scheduling.resource_claims or (), status),
        extended_claim=(status.extended_resource_claim_status or _NO_CLAIM).resource_claim_name or "",
        explores=explored(annotations[names.EXPLORES]) if node and names.EXPLORES in annotations else (),
        images=() if node else pod_images(spec),
        problem=problems.problem,
        unknown_cpus=unknown_cpus,
        devices=devices,
        unknown_devices=unknown_devices,
        stale_devices=not node and granted is not None,
    )


def _with_claim_amounts(request: PodRequest, status: Status, path: FieldPath) -> PodRequest:
    """Return the request with the node resources of the pod's claims, as written by its scheduler (KEP-5517)."""
    path = path.at("nodeAllocatableResourceClaimStatuses")
    found = [
        ClaimAmounts(
            "",
            tuple(each.containers or ()),
            tuple((it.name, nano(it.quantity, path)) for it in each.mapping or () if it.quantity is not None),
            tuple(
                Overhead(
                    it.name,
                    None if it.per_pod is None else nano(it.per_pod, path),
                    None if it.per_container is None else nano(it.per_container, path),
                )
                for it in each.overhead or ()
            ),
        )
        for each in status.node_allocatable_resource_claim_statuses or ()
    ]
    return replace(request, counted=counted_with(request, found))


def _node(spec: Mapping[str, Any]) -> str:
    node = spec.get("nodeName")
    return node if isinstance(node, str) else ""


def _is_ready(conditions: Iterable[Any]) -> bool:
    """Return whether the condition ``Ready`` is true. A pod without the condition is not ready."""
    return any(
        # dict first: the common case and the faster check.
        isinstance(each, (dict, Mapping)) and each.get("type") == "Ready" and each.get("status") == "True"
        for each in conditions
    )


def _resource_claims(claims: Iterable[PodClaimModel], status: Status) -> tuple[PodResourceClaim, ...]:
    """Return the claims of the pod, as dynamic-resource-allocation/resourceclaim ``Name``."""
    made = {it.name: it.resource_claim_name for it in status.resource_claim_statuses or ()}
    return tuple(
        PodResourceClaim(it.name, it.resource_claim_name)
        if it.resource_claim_name
        else PodResourceClaim(
            it.name,
            made.get(it.name) or "",
            from_template=True,
            needed=it.name not in made or bool(made[it.name]),
            template=it.resource_claim_template_name or "",
        )
        for it in claims
    )


def _part(body: Mapping[str, Any], path: FieldPath, key: str, problems: Problems) -> dict[str, Any]:
    part = body.get(key)
    if part is None or isinstance(part, dict):
        return part or {}
    if isinstance(part, Mapping):
        return dict(part)
    problems.problem = problems.problem or str(path.at(key).error("is not an object"))
    return {}


_NO_SCHEDULING = SchedulingSpec()
_NO_STATUS = Status()
_NO_CLAIM = ExtendedClaimStatusModel()
