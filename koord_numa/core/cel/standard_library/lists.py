"""Lists and sets: list functions of Kubernetes, the lists extension (version 3) and the sets extension."""

from collections.abc import Callable
from functools import cmp_to_key
from typing import Any, Final

from koord_numa.core.cel.functions import Overload, constant_time, elements, joined, pairs, row
from koord_numa.core.cel.values import (
    NONE,
    Duration,
    EvaluationError,
    OptionalValue,
    Uint,
    checked_int,
    checked_uint,
    compare,
    identity,
    same,
)

LONGEST_ATTRIBUTE: Final = 48
"""Maximum number of values of a device attribute (resource/v1 ResourceSliceMaxAttributeValuesPerDevice)."""

SORT_KEY: Final = cmp_to_key(compare)


def charge_sort(frame: Any, items: tuple[Any, ...], *_: object) -> None:
    """Charge a sort: every element is compared in at most log2(n) rounds."""
    frame.charge(frame.size(items).units * len(items).bit_length())


def _shallow(frame: Any, items: tuple[Any, ...], *_: object) -> None:
    """Charge for the list without the contents of its elements."""
    frame.charge(len(items))


def _both(frame: Any, left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    """Charge for a list that concatenates both lists."""
    frame.charge_nodes(len(left) + len(right))


def _concatenate(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    return left + right


def sort_values(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sort in ascending order. Raises ``EvaluationError`` when the elements have no common order."""
    return tuple(sorted(items, key=SORT_KEY))


def _is_sorted(items: tuple[Any, ...]) -> bool:
    return all(compare(items[at], items[at + 1]) <= 0 for at in range(len(items) - 1))


def _extreme(items: tuple[Any, ...], word: str, choose: Callable[..., Any]) -> Any:
    if not items:
        raise EvaluationError(f"{word} called on empty list")
    return choose(items, key=SORT_KEY)


def _sum(items: tuple[Any, ...]) -> Any:
    if not items:
        return 0
    # A sum of durations exceeds int64 only with more elements than the cost limit allows.
    if isinstance(items[0], Duration):
        return Duration(sum(item.nanoseconds for item in items))
    total = sum(items)
    if isinstance(items[0], Uint):
        return checked_uint(total)
    return total if isinstance(total, float) else checked_int(total)


def _index(items: tuple[Any, ...], wanted: Any) -> int:
    return next((at for at, item in enumerate(items) if same(item, wanted)), -1)


def _last_index(items: tuple[Any, ...], wanted: Any) -> int:
    return next((at for at in range(len(items) - 1, -1, -1) if same(items[at], wanted)), -1)


def _slice(items: tuple[Any, ...], start: int, end: int) -> tuple[Any, ...]:
    if start < 0 or end < 0:
        raise EvaluationError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvaluationError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(items):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def _flatten(items: tuple[Any, ...], depth: int = 1) -> tuple[Any, ...]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    flat: list[Any] = []
    for item in items:
        # All elements have already been charged.
        if isinstance(item, tuple) and depth:
            flat.extend(_flatten(item, depth - 1))
        else:
            flat.append(item)
    return tuple(flat)


def _distinct(items: tuple[Any, ...]) -> tuple[Any, ...]:
    kept: dict[object, Any] = {}
    for item in items:
        kept.setdefault(identity(item), item)
    return tuple(kept.values())


def _range(count: int) -> tuple[int, ...]:
    return tuple(range(count))


def _keys(items: tuple[Any, ...]) -> set[object]:
    return set(map(identity, items))


def _includes(value: Any, wanted: Any) -> bool:
    """
    Return membership in a list attribute, or equality with a scalar attribute.

    As ``includesFunc`` in dynamic-resource-allocation/cel/compile.go.
    """
    if not isinstance(value, tuple):
        return same(value, wanted)
    if any(same(item, wanted) for item in value[:LONGEST_ATTRIBUTE]):
        return True
    if len(value) > LONGEST_ATTRIBUTE:
        raise EvaluationError(f"'includes' function cannot be applied to lists longer than {LONGEST_ATTRIBUTE} values")
    return False


def _typed(name: str, result: str, kinds: tuple[str, ...], call: Callable[..., Any]) -> list[Overload]:
    return [row(f"list({kind}).{name}() -> {result or kind}", call, elements) for kind in kinds]


_ORDERED: Final = ("int", "uint", "double", "bool", "string", "bytes", "duration", "timestamp")

ROWS: Final = (
    *_typed("isSorted", "bool", _ORDERED, _is_sorted),
    *_typed("sum", "", ("int", "uint", "double", "duration"), _sum),
    *_typed("min", "", _ORDERED, lambda items: _extreme(items, "min", min)),
    *_typed("max", "", _ORDERED, lambda items: _extreme(items, "max", max)),
    row("list(A).indexOf(A) -> int", _index, elements),
    row("list(A).lastIndexOf(A) -> int", _last_index, elements),
    row("list(A).slice(int, int) -> list(A)", _slice, elements, _shallow),
    row("list(list(A)).flatten() -> list(A)", _flatten, elements),
    row("list(A).flatten(int) -> list(dyn)", _flatten, elements),
    *[
        row(f"list({kind}).sort() -> list({kind})", sort_values, lambda items: 5 * len(items) + 10, charge_sort)
        for kind in _ORDERED
    ],
    # Upstream compares all pairs of elements.
    row("list(A).distinct() -> list(A)", _distinct, lambda items: len(items) ** 2),
    row("list(A).reverse() -> list(A)", lambda items: items[::-1], elements, _shallow),
    row(
        "list(A).first() -> optional(A)",
        lambda items: OptionalValue(True, items[0]) if items else NONE,
        work=constant_time,
    ),
    row(
        "list(A).last() -> optional(A)",
        lambda items: OptionalValue(True, items[-1]) if items else NONE,
        work=constant_time,
    ),
    row(
        "lists.range(int) -> list(int)",
        _range,
        lambda count: max(0, count) + 11,
        lambda frame, count: frame.charge_nodes(count),
    ),
    row("sets.contains(list(A), list(A)) -> bool", lambda a, b: _keys(b) <= _keys(a), pairs),
    row("sets.equivalent(list(A), list(A)) -> bool", lambda a, b: _keys(a) == _keys(b), pairs),
    row("sets.intersects(list(A), list(A)) -> bool", lambda a, b: not _keys(a).isdisjoint(_keys(b)), pairs),
    row("_+_(list(A), list(A)) -> list(A)", _concatenate, joined, _both),
    row("dyn.includes(dyn) -> bool", _includes),
)
