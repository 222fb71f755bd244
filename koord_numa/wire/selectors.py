"""Label selectors and node selectors, as they stand in affinity, spread constraints, budgets and volumes."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from koord_numa.core.objects.constraints import LabelSelector, NodeTerm, Operator, Requirement
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.parsing import EnumReader, Strict

LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LISTED: Final = (Operator.IN, Operator.NOT_IN)
OPERATORS = EnumReader({operator.value: operator for operator in Operator})


class RequirementModel(Strict):
    """One condition on a label or field."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelectorModel(Strict):
    """``matchLabels`` and ``matchExpressions``; all must hold."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[RequirementModel] | None = None


class NodeTermModel(Strict):
    """One term of a node selector."""

    match_expressions: list[RequirementModel] | None = None
    match_fields: list[RequirementModel] | None = None


class NodeSelectorModel(Strict):
    """Node terms of which any must hold."""

    node_selector_terms: list[NodeTermModel] | None = None


def requirements(models: Iterable[RequirementModel] | None, path: FieldPath) -> tuple[Requirement, ...]:
    """Conditions in a canonical order, so that equal selectors are equal values."""
    found = {
        # Sorted values: selectors that differ in the order of values are the same selector.
        Requirement(model.key, OPERATORS.read(model.operator, path.at(model.key)), tuple(sorted(model.values or ())))
        for model in models or ()
    }
    return tuple(sorted(found, key=_order))


def label_selector(
    model: LabelSelectorModel | None, path: FieldPath, more: Iterable[Requirement] = ()
) -> LabelSelector | None:
    """A selector with further conditions folded in; an absent selector stays absent and matches nothing."""
    # nil selects nothing, {} everything (LabelSelectorAsSelector).
    if model is None:
        return None
    equal = [Requirement(key, Operator.IN, (value,)) for key, value in (model.match_labels or {}).items()]
    # A set, as a condition that is written twice is one.
    found = {*equal, *requirements(model.match_expressions, path), *more}
    return LabelSelector(tuple(sorted(found, key=_order)))


def node_terms(model: NodeSelectorModel, path: FieldPath) -> tuple[NodeTerm, ...]:
    """The terms of a node selector, in the order written."""
    return tuple(node_term(term, path) for term in model.node_selector_terms or ())


def node_term(model: NodeTermModel, path: FieldPath) -> NodeTerm:
    """
    One node term. A value that no label can have makes the whole term match nothing, as in kube-scheduler
    (``component-helpers/nodeaffinity``).
    """
    labels = requirements(model.match_expressions, path.at("matchExpressions"))
    invalid = [
        it for it in labels for value in it.values if it.operator in _LISTED and not LABEL_VALUE.fullmatch(value)
    ]
    return NodeTerm(
        # IN without values: the term matches nothing, whatever else it says.
        labels=(Requirement(invalid[0].key, Operator.IN),) if invalid else labels,
        fields=requirements(model.match_fields, path.at("matchFields")),
    )


_MOST_SHARED: Final = 64
_LONGEST_SHARED: Final = 63  # characters, of any value of a label that an API server takes


@lru_cache(maxsize=8192)
def _pairs(pairs: frozenset[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(pairs))


def label_pairs(labels: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Labels as sorted pairs; equal labels share one tuple."""
    if not labels:
        return ()
    if len(labels) > _MOST_SHARED or max(map(len, labels.values())) > _LONGEST_SHARED:
        return tuple(sorted(labels.items()))
    return _pairs(frozenset(labels.items()))


def _order(requirement: Requirement) -> tuple[str, str, tuple[str, ...]]:
    return requirement.key, requirement.operator.value, requirement.values
