"""Parse selectors, and the objects that select pods: Services, controllers, PodDisruptionBudgets and namespaces."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from koord_numa.core.objects.constraints import (
    DisruptionBudget,
    LabelSelector,
    Namespace,
    NodeTerm,
    Operator,
    Requirement,
    Workload,
    WorkloadKey,
    WorkloadKind,
)
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.parsing import EnumReader, Head, Int64, Problems, Strict, head, read

LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LISTED: Final = (Operator.IN, Operator.NOT_IN)
OPERATORS = EnumReader({operator.value: operator for operator in Operator})


class RequirementModel(Strict):
    """A condition on a label or field."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelectorModel(Strict):
    """``matchLabels`` and ``matchExpressions``, all of which must hold."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[RequirementModel] | None = None


class NodeTermModel(Strict):
    """A term of a node selector."""

    match_expressions: list[RequirementModel] | None = None
    match_fields: list[RequirementModel] | None = None


class NodeSelectorModel(Strict):
    """Node terms, any of which must hold."""

    node_selector_terms: list[NodeTermModel] | None = None


def requirements(models: Iterable[RequirementModel] | None, path: FieldPath) -> tuple[Requirement, ...]:
    """Return the conditions in canonical order, so that equal selectors are equal values."""
    found = {
        # Sorted values: the order of values has no meaning.
        Requirement(model.key, OPERATORS.read(model.operator, path.at(model.key)), tuple(sorted(model.values or ())))
        for model in models or ()
    }
    return tuple(sorted(found, key=_order))


def label_selector(
    model: LabelSelectorModel | None, path: FieldPath, more: Iterable[Requirement] = ()
) -> LabelSelector | None:
    """Return a selector with further conditions merged. An absent selector stays ``None`` and matches nothing."""
    # nil selects nothing, {} everything (LabelSelectorAsSelector).
    if model is None:
        return None
    equal = [Requirement(key, Operator.IN, (value,)) for key, value in (model.match_labels or {}).items()]
    # A set, to remove repeated conditions.
    found = {*equal, *requirements(model.match_expressions, path), *more}
    return LabelSelector(tuple(sorted(found, key=_order)))


def node_terms(model: NodeSelectorModel, path: FieldPath) -> tuple[NodeTerm, ...]:
    """Return the terms of a node selector in their order."""
    return tuple(node_term(term, path) for term in model.node_selector_terms or ())


def node_term(model: NodeTermModel, path: FieldPath) -> NodeTerm:
    """
    Return a node term. An invalid label value makes the whole term match nothing, as in kube-scheduler.

    See ``component-helpers/nodeaffinity``.
    """
    labels = requirements(model.match_expressions, path.at("matchExpressions"))
    invalid = [
        it for it in labels for value in it.values if it.operator in _LISTED and not LABEL_VALUE.fullmatch(value)
    ]
    return NodeTerm(
        # IN without values matches nothing, whatever the other conditions.
        labels=(Requirement(invalid[0].key, Operator.IN),) if invalid else labels,
        fields=requirements(model.match_fields, path.at("matchFields")),
    )


_MOST_SHARED: Final = 64
_LONGEST_SHARED: Final = 63  # maximum characters of a valid label value


@lru_cache(maxsize=8192)
def _pairs(pairs: frozenset[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(pairs))


def label_pairs(labels: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return labels as sorted pairs. Equal labels share one tuple."""
    if not labels:
        return ()
    if len(labels) > _MOST_SHARED or max(map(len, labels.values())) > _LONGEST_SHARED:
        return tuple(sorted(labels.items()))
    return _pairs(frozenset(labels.items()))


def _order(requirement: Requirement) -> tuple[str, str, tuple[str, ...]]:
    return requirement.key, requirement.operator.value, requirement.values


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
    spec = problems.part(top, "spec", BudgetSpec)
    status = problems.part(top, "status", BudgetStatus)
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


def controller_of(top: Head) -> WorkloadKey | None:
    """Return the controlling owner of a pod if its selector is known by kind, else ``None``."""
    for owner in top.metadata.owner_references or ():
        if owner.controller:
            kind = VERSIONS.get((owner.api_version, owner.kind))
            return WorkloadKey(kind, top.namespace or "default", owner.name) if kind and owner.name else None
    return None


def _selector(kind: WorkloadKind, top: Head) -> LabelSelector | None:
    spec, path = top.body.get("spec") or {}, top.path.at("spec")
    if kind in (WorkloadKind.SERVICE, WorkloadKind.REPLICATION_CONTROLLER):
        labels = read(LabelsSpec, spec, path).selector
        # A Service without a selector has manually managed endpoints, and selects no pod.
        return label_selector(LabelSelectorModel(match_labels=labels), path.at("selector")) if labels else None
    return label_selector(read(SelectorSpec, spec, path).selector, path.at("selector"))
