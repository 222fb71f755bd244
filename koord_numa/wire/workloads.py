"""Parse Services, controllers of pods, PodDisruptionBudgets and namespaces."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from koord_numa.core.objects.constraints import (
    DisruptionBudget,
    LabelSelector,
    Namespace,
    Workload,
    WorkloadKey,
    WorkloadKind,
)
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.metadata import Head, Owner, head
from koord_numa.wire.parsing import Int64, Problems, Strict, read
from koord_numa.wire.selectors import LabelSelectorModel, label_selector


class BudgetSpec(Strict):
    """The pods that a budget protects."""

    selector: LabelSelectorModel | None = None
    unhealthy_pod_eviction_policy: str | None = None


class BudgetStatus(Strict):
    """The disruptions that are currently allowed."""

    disruptions_allowed: Int64 | None = None
    disrupted_pods: dict[str, str] | None = None
    current_healthy: Int64 | None = None
    desired_healthy: Int64 | None = None


def parse_budget(obj: Mapping[str, Any]) -> DisruptionBudget:
    """Parse a PodDisruptionBudget. A malformed one protects all pods of its namespace. Raises ``WireError`` only without a name."""
    problems = Problems()
    top = head(obj, "PodDisruptionBudget", problems)
    path = top.path.at("spec")
    spec = problems.collect(lambda: read(BudgetSpec, top.body.get("spec") or {}, path), BudgetSpec())
    status = problems.collect(
        lambda: read(BudgetStatus, top.body.get("status") or {}, top.path.at("status")), BudgetStatus()
    )
    selector = problems.collect(lambda: label_selector(spec.selector, path.at("selector")), None)
    return DisruptionBudget(
        # policy/v1 objects are always namespaced. The fallback is for objects from files.
        namespace=top.namespace or "default",
        name=top.name,
        # An empty selector matches every pod: an unreadable budget must not be violated.
        selector=LabelSelector() if problems.problem else selector,
        allowed=0 if problems.problem else max(0, status.disruptions_allowed or 0),
        disrupted=tuple(sorted(status.disrupted_pods or ())),
        unhealthy_always=spec.unhealthy_pod_eviction_policy == "AlwaysAllow",
        # More than 0 desired: a budget without pods is not healthy.
        healthy=(status.current_healthy or 0) >= (status.desired_healthy or 0) > 0,
        problem=problems.problem,
    )


def parse_namespace(obj: Mapping[str, Any]) -> Namespace:
    """Parse a Namespace. One with malformed labels has none, so no selector matches it. Raises ``WireError`` only without a name."""
    problems = Problems()
    top = head(obj, "Namespace", problems)
    return Namespace(top.name, top.labels, problems.problem)


class LabelsSpec(Strict):
    """A spec with a label map as selector, of a Service or a ReplicationController."""

    selector: dict[str, str] | None = None


class SelectorSpec(Strict):
    """A spec with a LabelSelector, of a ReplicaSet or a StatefulSet."""

    selector: LabelSelectorModel | None = None


VERSIONS: Final = {
    ("v1", "ReplicationController"): WorkloadKind.REPLICATION_CONTROLLER,
    ("apps/v1", "ReplicaSet"): WorkloadKind.REPLICA_SET,
    ("apps/v1", "StatefulSet"): WorkloadKind.STATEFUL_SET,
}
"""Owners that kube-scheduler looks up (``DefaultSelector``), by apiVersion and kind."""


def parse_workload(kind: WorkloadKind, obj: Mapping[str, Any]) -> Workload:
    """Parse an object of this kind. Raises ``WireError`` only for an object without a name."""
    problems = Problems()
    top = head(obj, kind.value, problems)
    selector = problems.collect(lambda: _selector(kind, top), None)
    # Objects from files may omit the namespace.
    return Workload(WorkloadKey(kind, top.namespace or "default", top.name), selector)


parse_service = partial(parse_workload, WorkloadKind.SERVICE)
parse_replication_controller = partial(parse_workload, WorkloadKind.REPLICATION_CONTROLLER)
parse_replica_set = partial(parse_workload, WorkloadKind.REPLICA_SET)
parse_stateful_set = partial(parse_workload, WorkloadKind.STATEFUL_SET)


def controller_of(top: Head) -> WorkloadKey | None:
    """Return the controlling owner of a pod if its selector is known by kind, else ``None``."""
    for owner in top.metadata.owner_references or ():
        if owner.controller:
            return _key(owner, top.namespace or "default")
    return None


def _key(owner: Owner, namespace: str) -> WorkloadKey | None:
    kind = VERSIONS.get((owner.api_version, owner.kind))
    return None if kind is None or not owner.name else WorkloadKey(kind, namespace, owner.name)


def _selector(kind: WorkloadKind, top: Head) -> LabelSelector | None:
    spec, path = top.body.get("spec") or {}, top.path.at("spec")
    if kind in (WorkloadKind.SERVICE, WorkloadKind.REPLICATION_CONTROLLER):
        labels = read(LabelsSpec, spec, path).selector
        # A Service without a selector has manually managed endpoints, and selects no pod.
        return _equal(labels, path) if labels else None
    return label_selector(read(SelectorSpec, spec, path).selector, path.at("selector"))


def _equal(labels: dict[str, str], path: FieldPath) -> LabelSelector | None:
    return label_selector(LabelSelectorModel(matchLabels=labels), path.at("selector"))
