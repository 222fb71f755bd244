"""Defaults, initial status and validation of the built-in kinds, as a table with a row per kind."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from koord_numa.core.cel import CompileError
from koord_numa.core.cel.estimate import estimate_cost
from koord_numa.sandbox.apiserver.backend import Backend
from koord_numa.sandbox.apiserver.crds import begin_crd, crd_causes, default_crd
from koord_numa.sandbox.apiserver.documents import JsonObject, dig, metadata_of, section
from koord_numa.sandbox.apiserver.errors import (
    Cause,
    duplicate,
    forbidden,
    forbidden_field,
    invalid_value,
    required,
    too_long,
    unsupported,
)
from koord_numa.sandbox.apiserver.kinds import Kind
from koord_numa.sandbox.apiserver.pods import begin_pod, default_pod, pod_causes, pod_change_causes
from koord_numa.sandbox.apiserver.selectors import label_key_problem

# Validation of the resource.k8s.io kinds.
#
# ResourceClaims: defaults, status validation and immutable fields (resource/validation, 1.36). ResourceSlices: names and
# node selectors that Kubernetes 1.38 rejects. Selectors of claims, templates and classes: length, compilation and
# estimated cost.

MOST_CONSUMERS: Final = 256
MOST_RESULTS: Final = 32
MOST_CONFIGS: Final = 64
LONGEST_EXPRESSION: Final = 10 << 10
"""Maximum bytes of an expression (resource/v1 CELSelectorExpressionMaxLength)."""

MOST_EXPRESSION_COST: Final = 1_000_000
"""Maximum estimated cost of an expression (resource/v1 CELSelectorExpressionMaxCost)."""
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SOURCES: Final = ("FromClass", "FromClaim")


def default_claim(claim: JsonObject) -> None:
    """Set the default allocation mode and count of a claim's requests: ExactCount, 1 device."""
    _default_spec(claim.get("spec") or {})


def default_template(template: JsonObject) -> None:
    """Set the defaults of the claim in a template."""
    _default_spec(dig(template, "spec", "spec") or {})


def _default_spec(spec: JsonObject) -> None:
    for request in dig(spec, "devices", "requests") or ():
        for demand in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if isinstance(demand, dict):
                demand.setdefault("allocationMode", "ExactCount")
                if demand["allocationMode"] == "ExactCount":
                    demand.setdefault("count", 1)


def claim_causes(claim: JsonObject) -> Iterator[Cause]:
    """Yield the errors of a claim."""
    yield from _attribute_and_capacity_causes(claim)
    yield from _request_selector_causes(claim.get("spec") or {}, "spec")
    names = [request.get("name") for request in dig(claim, "spec", "devices", "requests") or ()]
    # Allocations and constraints refer to requests by name.
    for name in names:
        if names.count(name) > 1:
            yield duplicate("spec.devices.requests", str(name))
    status = claim.get("status") or {}
    consumers = status.get("reservedFor") or []
    if consumers and not status.get("allocation"):
        yield forbidden_field("status.reservedFor", "may not be specified when `allocated` is not set")
    if len(consumers) > MOST_CONSUMERS:
        yield invalid_value("status.reservedFor", len(consumers), f"must have at most {MOST_CONSUMERS} items")
    uids = [consumer.get("uid") for consumer in consumers]
    for consumer in consumers:
        for field in ("resource", "name", "uid"):
            if not consumer.get(field):
                yield required(f"status.reservedFor.{field}")
        if uids.count(consumer.get("uid")) > 1:
            yield duplicate("status.reservedFor.uid", str(consumer.get("uid")))
    yield from _allocation_causes(claim)


def template_causes(template: JsonObject) -> Iterator[Cause]:
    """Yield the errors in the selectors of a template's claim."""
    yield from _request_selector_causes(dig(template, "spec", "spec") or {}, "spec.spec")


def class_causes(device_class: JsonObject) -> Iterator[Cause]:
    """Yield the errors in the selectors of a DeviceClass."""
    yield from _selector_causes(dig(device_class, "spec", "selectors"), "spec.selectors")


def _request_selector_causes(spec: JsonObject, path: str) -> Iterator[Cause]:
    for at, request in enumerate(dig(spec, "devices", "requests") or ()):
        place = f"{path}.devices.requests[{at}]"
        yield from _selector_causes(dig(request, "exactly", "selectors"), f"{place}.exactly.selectors")
        for number, alternative in enumerate(request.get("firstAvailable") or ()):
            yield from _selector_causes(alternative.get("selectors"), f"{place}.firstAvailable[{number}].selectors")


def _selector_causes(selectors: list[JsonObject] | None, path: str) -> Iterator[Cause]:
    for at, selector in enumerate(selectors or ()):
        expression, place = dig(selector, "cel", "expression"), f"{path}[{at}].cel.expression"
        if not isinstance(expression, str):
            continue
        if len(expression.encode(errors="replace")) > LONGEST_EXPRESSION:
            yield too_long(place, LONGEST_EXPRESSION)
            continue
        try:
            if estimate_cost(expression) > MOST_EXPRESSION_COST:
                yield forbidden_field(place, "too complex, exceeds cost limit")
        except CompileError as error:
            yield invalid_value(place, expression, str(error))


def slice_causes(each: JsonObject) -> Iterator[Cause]:
    """Yield the errors of a ResourceSlice.

    These are names with several slashes, and device node selectors without exactly 1 term.
    """
    for at, device in enumerate(dig(each, "spec", "devices") or ()):
        path = f"spec.devices[{at}]"
        for field in ("attributes", "capacity"):
            for name in device.get(field) or {}:
                yield from _name_causes(f"{path}.{field}", name)
        terms = dig(device, "nodeSelector", "nodeSelectorTerms")
        if device.get("nodeSelector") is not None and len(terms or ()) != 1:
            yield invalid_value(
                f"{path}.nodeSelector.nodeSelectorTerms", terms, "must have exactly one node selector term"
            )


def _attribute_and_capacity_causes(claim: JsonObject) -> Iterator[Cause]:
    for request in dig(claim, "spec", "devices", "requests") or ():
        for demand in (request.get("exactly") or {}, *(request.get("firstAvailable") or ())):
            for name in dig(demand, "capacity", "requests") or {}:
                yield from _name_causes("spec.devices.requests.capacity.requests", name)
    for constraint in dig(claim, "spec", "devices", "constraints") or ():
        for field in ("matchAttribute", "distinctAttribute"):
            yield from _name_causes(f"spec.devices.constraints.{field}", constraint.get(field) or "")


def _name_causes(path: str, name: str) -> Iterator[Cause]:
    if name.count("/") > 1:
        yield invalid_value(path, name, "must be a domain and a name, separated by one slash, or a name alone")


def _allocation_causes(claim: JsonObject) -> Iterator[Cause]:
    devices = dig(claim, "status", "allocation", "devices") or {}
    known = set(_request_names(claim))
    results, configs = devices.get("results") or [], devices.get("config") or []
    path = "status.allocation.devices"
    if len(results) > MOST_RESULTS:
        yield invalid_value(f"{path}.results", len(results), f"must have at most {MOST_RESULTS} items")
    if len(configs) > MOST_CONFIGS:
        yield invalid_value(f"{path}.config", len(configs), f"must have at most {MOST_CONFIGS} items")
    for result in results:
        if result.get("request") not in known:
            yield invalid_value(
                f"{path}.results.request", result.get("request"), "must be the name of a request in the claim"
            )
        if "shareID" in result and not _UUID.fullmatch(str(result["shareID"])):
            yield invalid_value(f"{path}.results.shareID", result["shareID"], "must be a lower-case UUID")
    yield from _config_causes(configs, known, f"{path}.config")


def _config_causes(configs: list[JsonObject], known: set[str], path: str) -> Iterator[Cause]:
    for config in configs:
        if config.get("source") not in _SOURCES:
            yield unsupported(f"{path}.source", str(config.get("source")), _SOURCES)
        if not isinstance(dig(config, "opaque", "parameters"), dict):
            yield invalid_value(f"{path}.opaque.parameters", "", "must be a valid JSON object")
        for name in config.get("requests") or ():
            if name not in known:
                yield invalid_value(f"{path}.requests", name, "must be the name of a request in the claim")


def _request_names(claim: JsonObject) -> Iterator[str]:
    for request in dig(claim, "spec", "devices", "requests") or ():
        yield str(request.get("name"))
        for alternative in request.get("firstAvailable") or ():
            yield f"{request.get('name')}/{alternative.get('name')}"


def claim_change_causes(old: JsonObject, new: JsonObject) -> Iterator[Cause]:
    """Yield the errors of a claim update.

    The specification and an existing allocation are immutable. A claim that is being deleted accepts no new
    reservations.
    """
    if old.get("spec") != new.get("spec"):
        yield invalid_value("spec", "", "field is immutable")
    before, after = dig(old, "status", "allocation"), dig(new, "status", "allocation")
    # Clearing the allocation deallocates the claim. Replacing it would affect pods that use the claim.
    if before and after and before != after:
        yield invalid_value("status.allocation", "", "field is immutable")
    known = {consumer.get("uid") for consumer in dig(old, "status", "reservedFor") or ()}
    added = [it for it in dig(new, "status", "reservedFor") or () if it.get("uid") not in known]
    # Otherwise the deletion of a claim that many pods share might never complete.
    if added and metadata_of(old).get("deletionTimestamp"):
        yield forbidden_field("status.reservedFor", "new entries may not be added when `deletionTimestamp` is set")


_PRIORITIES = "priorityclasses.scheduling.k8s.io"


def admit(backend: Backend, kind: Kind, document: JsonObject) -> None:
    """Set the priority of a new pod, as plugin/pkg/admission/priority does.

    Raises ``ApiError`` with code 403 for an unknown PriorityClass or a priority that differs from its value.
    """
    if kind.qualified != "pods":
        return
    spec = document["spec"]
    name = spec.get("priorityClassName") or ""
    chosen = _class_named(backend, name) if name else _default_class(backend)
    if name and chosen is None:
        raise forbidden(kind, document["metadata"].get("name") or "", f"no PriorityClass with name {name} was found")
    value = chosen["value"] if chosen else 0
    if spec.get("priority") not in (None, value):
        why = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
        why += f"priority admission controller computed {value} from the given PriorityClass name"
        raise forbidden(kind, document["metadata"].get("name") or "", why)
    spec["priority"] = value
    if chosen:
        spec["priorityClassName"] = chosen["metadata"]["name"]
    spec.setdefault("preemptionPolicy", chosen["preemptionPolicy"] if chosen else "PreemptLowerPriority")


def _class_named(backend: Backend, name: str) -> JsonObject | None:
    record = backend.lookup(_PRIORITIES, name)
    return record.load() if record else None


def _default_class(backend: Backend) -> JsonObject | None:
    """Return the global default PriorityClass.

    The smallest value wins among several (plugin/pkg/admission/priority).
    """
    classes = [record.load() for record in backend.storage.table(_PRIORITIES)]
    return min((one for one in classes if one.get("globalDefault")), key=lambda one: int(one["value"]), default=None)


_MAX_USER_PRIORITY: Final = 1_000_000_000
_SYSTEM_PREFIX: Final = "system-"
_TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def _nothing(_: JsonObject) -> None:
    return None


def _valid(_: JsonObject) -> Iterable[Cause]:
    return ()


def _may_change(_old: JsonObject, _new: JsonObject) -> Iterable[Cause]:
    return ()


def _no_status(document: JsonObject) -> None:
    document.pop("status", None)


@dataclass(frozen=True, slots=True)
class Rules:
    """The processing of objects of a kind in addition to the rules for all kinds."""

    default: Callable[[JsonObject], None] = _nothing
    begin: Callable[[JsonObject], None] = _nothing
    causes: Callable[[JsonObject], Iterable[Cause]] = _valid
    change_causes: Callable[[JsonObject, JsonObject], Iterable[Cause]] = _may_change
    status_causes: Callable[[JsonObject, JsonObject], Iterable[Cause]] = _may_change
    refresh: Callable[[JsonObject], None] = _nothing  # updates the status after a change of the specification
    blind_updates: bool = True  # PUT without a resourceVersion overwrites
    put_creates: bool = False  # PUT of an absent object creates it


def _begin_namespace(namespace: JsonObject) -> None:
    namespace["status"] = {"phase": "Active"}


def _default_namespace(namespace: JsonObject) -> None:
    metadata = section(namespace, "metadata")
    section(metadata, "labels")["kubernetes.io/metadata.name"] = metadata.get("name", "")
    section(namespace, "spec")["finalizers"] = ["kubernetes"]


def _default_node(node: JsonObject) -> None:
    section(node, "spec")
    status = section(node, "status")
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _node_causes(node: JsonObject) -> Iterator[Cause]:
    for index, taint in enumerate(dig(node, "spec", "taints") or ()):
        path = f"spec.taints[{index}]"
        if label_key_problem(taint.get("key") or ""):
            yield invalid_value(f"{path}.key", taint.get("key"), label_key_problem(taint.get("key") or ""))
        if taint.get("effect") not in _TAINT_EFFECTS:
            yield unsupported(f"{path}.effect", taint.get("effect", ""), _TAINT_EFFECTS)


def _lease_causes(lease: JsonObject) -> Iterator[Cause]:
    spec = lease.get("spec") or {}
    seconds = spec.get("leaseDurationSeconds")
    if seconds is not None and seconds <= 0:
        yield invalid_value("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    if (spec.get("leaseTransitions") or 0) < 0:
        yield invalid_value("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0")


def _event_causes(event: JsonObject) -> Iterator[Cause]:
    """Yield the errors of an event.

    The strict rules apply to events with an ``eventTime`` (pkg/apis/core/validation/events.go).
    """
    about = dig(event, "involvedObject", "namespace") or ""
    namespace = metadata_of(event).get("namespace") or ""
    if about and about != namespace:
        yield invalid_value("involvedObject.namespace", about, "does not match event.namespace")
    if not about and namespace not in ("default", "kube-system"):
        yield invalid_value("involvedObject.namespace", about, "does not match event.namespace")
    if not event.get("eventTime"):
        return
    for field in ("reportingComponent", "reportingInstance", "action", "reason"):
        name = "reportingController" if field == "reportingComponent" else field
        if not event.get(field):
            yield required(name)
        elif len(event[field]) > 128:
            yield invalid_value(name, event[field], "can have at most 128 characters")
    if len(event.get("message") or "") > 1024:
        yield invalid_value("message", event["message"], "can have at most 1024 characters")
    if event.get("type") not in ("Normal", "Warning"):
        yield invalid_value("type", event.get("type") or "", "")


def _priority_class_causes(priority: JsonObject) -> Iterator[Cause]:
    value = priority.get("value")
    name = metadata_of(priority).get("name", "")
    if not isinstance(value, int):
        yield required("value")
    elif value > _MAX_USER_PRIORITY and not name.startswith(_SYSTEM_PREFIX):
        yield forbidden_field("value", f"maximum allowed value of a user defined priority is {_MAX_USER_PRIORITY}")


def _priority_change_causes(old: JsonObject, new: JsonObject) -> Iterator[Cause]:
    if old.get("value") != new.get("value"):
        yield forbidden_field("value", "may not be changed in an update.")


def _budget_causes(budget: JsonObject) -> Iterator[Cause]:
    spec = budget.get("spec") or {}
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        yield invalid_value("spec", "", "minAvailable and maxUnavailable cannot be both set")


def _default_priority_class(priority: JsonObject) -> None:
    priority.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _default_storage_class(storage: JsonObject) -> None:
    storage.setdefault("reclaimPolicy", "Delete")
    storage.setdefault("volumeBindingMode", "Immediate")


def _begin_claim(claim: JsonObject) -> None:
    claim["status"] = {"phase": "Pending"}


def _immutable_causes(old: JsonObject, new: JsonObject) -> Iterator[Cause]:
    if old.get("immutable") and any(
        old.get(field) != new.get(field) for field in ("data", "binaryData", "stringData", "immutable")
    ):
        yield forbidden_field("data", "field is immutable when `immutable` is set")


def _default_secret(secret: JsonObject) -> None:
    secret.setdefault("type", "Opaque")


def _default_admission_policy(policy: JsonObject) -> None:
    """Set the defaults of a ValidatingAdmissionPolicy (pkg/apis/admissionregistration/v1/defaults.go)."""
    spec = section(policy, "spec")
    spec.setdefault("failurePolicy", "Fail")
    constraints = spec.get("matchConstraints")
    if not isinstance(constraints, dict):
        return
    constraints.setdefault("matchPolicy", "Equivalent")
    constraints.setdefault("namespaceSelector", {})
    constraints.setdefault("objectSelector", {})
    for rule in (*(constraints.get("resourceRules") or ()), *(constraints.get("excludeResourceRules") or ())):
        rule.setdefault("scope", "*")


_PLAIN: Final = Rules()
_RULES: Final[Mapping[str, Rules]] = {
    "pods": Rules(default_pod, begin_pod, pod_causes, pod_change_causes),
    "nodes": Rules(_default_node, causes=_node_causes),
    "namespaces": Rules(default=_default_namespace, begin=_begin_namespace),
    "events": Rules(causes=_event_causes, put_creates=True),
    "events.events.k8s.io": Rules(causes=_event_causes, put_creates=True),
    "leases.coordination.k8s.io": Rules(causes=_lease_causes, blind_updates=False, put_creates=True),
    "priorityclasses.scheduling.k8s.io": Rules(
        default=_default_priority_class, causes=_priority_class_causes, change_causes=_priority_change_causes
    ),
    "poddisruptionbudgets.policy": Rules(begin=_no_status, causes=_budget_causes),
    "configmaps": Rules(change_causes=_immutable_causes),
    "secrets": Rules(default=_default_secret, change_causes=_immutable_causes),
    "persistentvolumeclaims": Rules(begin=_begin_claim),
    "persistentvolumes": Rules(begin=_begin_claim),
    "resourceclaims.resource.k8s.io": Rules(
        default=default_claim,
        begin=_no_status,
        causes=claim_causes,
        change_causes=claim_change_causes,
        status_causes=claim_change_causes,
    ),
    "resourceslices.resource.k8s.io": Rules(causes=slice_causes),
    "resourceclaimtemplates.resource.k8s.io": Rules(default=default_template, causes=template_causes),
    "deviceclasses.resource.k8s.io": Rules(causes=class_causes),
    "storageclasses.storage.k8s.io": Rules(default=_default_storage_class),
    "validatingadmissionpolicies.admissionregistration.k8s.io": Rules(default=_default_admission_policy),
    "customresourcedefinitions.apiextensions.k8s.io": Rules(
        default_crd, begin_crd, crd_causes, refresh=begin_crd, blind_updates=False
    ),
}


def rules_of(qualified: str) -> Rules:
    """Return the rules of a built-in kind. Most kinds have no rules of their own."""
    return _RULES.get(qualified, _PLAIN)
