"""Parse label selectors and node selectors of affinity, spread constraints, budgets and volumes."""

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
