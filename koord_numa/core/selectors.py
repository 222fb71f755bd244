"""Match labels against label selectors and node selector terms."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from koord_numa.core.objects.constraints import LabelSelector, NodeTerm, Operator, Requirement

Labels = Mapping[str, str]
_Test = Callable[[str | None, tuple[str, ...]], bool]


_INT64_DIGITS: Final = 19


def _number(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isascii() or not digits.isdigit():
        return None
    digits = digits.lstrip("0") or "0"
    if len(digits) > _INT64_DIGITS:
        return None
    number = -int(digits) if text[0] == "-" else int(digits)
    return number if -(1 << 63) <= number < 1 << 63 else None  # as strconv.ParseInt(text, 10, 64)


def _greater(value: str | None, values: tuple[str, ...]) -> bool:
    left, right = _number(value or ""), _number(values[0] if len(values) == 1 else "")
    return left is not None and right is not None and left > right


def _less(value: str | None, values: tuple[str, ...]) -> bool:
    left, right = _number(value or ""), _number(values[0] if len(values) == 1 else "")
    return left is not None and right is not None and left < right


# As labels.Requirement.Matches in apimachinery: NotIn and DoesNotExist match absent keys, Gt and Lt compare integers.
_TESTS: Final[Mapping[Operator, _Test]] = {
    Operator.IN: lambda value, values: value is not None and value in values,
    Operator.NOT_IN: lambda value, values: value is None or value not in values,
    Operator.EXISTS: lambda value, _: value is not None,
    Operator.DOES_NOT_EXIST: lambda value, _: value is None,
    Operator.GT: _greater,
    Operator.LT: _less,
}


def meets(labels: Labels, requirements: Iterable[Requirement]) -> bool:
    """Return whether the labels meet every requirement."""
    return all(_TESTS[need.operator](labels.get(need.key), need.values) for need in requirements)


def selects(selector: LabelSelector | None, labels: Labels) -> bool:
    """Return whether the selector matches these labels. ``None`` matches nothing, an empty selector everything."""
    return selector is not None and meets(labels, selector.requirements)


def matches_term(term: NodeTerm, node: str, labels: Labels) -> bool:
    """Return whether a node with this name and these labels matches the term. An empty term matches no node."""
    if not term.labels and not term.fields:
        return False
    return meets(labels, term.labels) and meets({"metadata.name": node}, term.fields)
