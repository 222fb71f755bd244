"""Defaults, initial status and validation of the built-in kinds, as a table with a row per kind."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from koord_numa.sandbox.apiserver.errors import Cause, forbidden, forbidden_field, invalid_value, required, unsupported
from koord_numa.sandbox.apiserver.objects.crds import begin_crd, crd_causes, default_crd
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dig, metadata_of, section
from koord_numa.sandbox.apiserver.objects.kinds import Kind
from koord_numa.sandbox.apiserver.objects.names import label_key_problem
from koord_numa.sandbox.apiserver.rules.claim_rules import (
    claim_causes,
    claim_change_causes,
    class_causes,
    default_claim,
    default_template,
    slice_causes,
    template_causes,
)
from koord_numa.sandbox.apiserver.rules.pod_rules import begin_pod, default_pod, pod_causes, pod_change_causes
from koord_numa.sandbox.apiserver.store.backend import Backend

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
