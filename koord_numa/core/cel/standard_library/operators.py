"""Arithmetic, comparison and membership. The compiler evaluates equality, logic, membership and indexing itself: see there."""

from collections.abc import Callable
from typing import Any, Final

from koord_numa.core.cel.errors import EvaluationError
from koord_numa.core.cel.standard_library.costs import equality, joined
from koord_numa.core.cel.values.functions import Overload, constant_time, row
from koord_numa.core.cel.values.values import checked_int, checked_uint, compare


def _quotient(left: int, right: int) -> int:
    """Towards zero, as Go divides."""
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("modulus by zero")
    rest = abs(left) % abs(right)
    return rest if left >= 0 else -rest


def _divide(left: float, right: float) -> float:
    if right == 0:
        # IEEE 754: 0/0 and NaN/0 are NaN, anything else is an infinity of its sign; Python would raise.
        return float("nan") if left == 0 or left != left else float("inf") * left
    return left / right


def _double(operation: Callable[[float, float], float]) -> Callable[[float, float], float]:
    def apply(left: float, right: float) -> float:
        try:
            return operation(left, right)
        except OverflowError:
            # Python raises where IEEE 754 has an infinity.
            return float("inf")

    return apply


def _arithmetic() -> list[Overload]:
    integers: tuple[tuple[str, Callable[[int, int], int]], ...] = (
        ("_+_", lambda a, b: int(a) + int(b)),
        ("_-_", lambda a, b: int(a) - int(b)),
        ("_*_", lambda a, b: int(a) * int(b)),
        ("_/_", _quotient),
        ("_%_", _remainder),
    )
    doubles: tuple[tuple[str, Callable[[float, float], float]], ...] = (
        ("_+_", lambda a, b: a + b),
        ("_-_", lambda a, b: a - b),
        ("_*_", lambda a, b: a * b),
        ("_/_", _divide),
    )
    rows: list[Overload] = []
    for name, integer in integers:
        rows.append(row(f"{name}(int, int) -> int", _then(integer, checked_int)))
        rows.append(row(f"{name}(uint, uint) -> uint", _then(integer, checked_uint)))
    rows.extend(row(f"{name}(double, double) -> double", _double(double)) for name, double in doubles)
    return rows


def _then(operation: Callable[[int, int], int], check: Callable[[int], int]) -> Callable[[int, int], int]:
    return lambda left, right: check(operation(left, right))


_COMPARABLE: Final = ("bool", "string", "bytes", "duration", "timestamp")
_NUMBERS: Final = ("int", "uint", "double")
_ORDERS: Final[tuple[tuple[str, Callable[[int], bool]], ...]] = (
    ("_<_", lambda order: order < 0),
    ("_<=_", lambda order: order <= 0),
    ("_>_", lambda order: order > 0),
    ("_>=_", lambda order: order >= 0),
)


def _ordering() -> list[Overload]:
    """Numbers compare across their types; quantities and versions have no order by operator."""
    kinds = [(kind, kind) for kind in _COMPARABLE] + [(left, right) for left in _NUMBERS for right in _NUMBERS]
    return [
        row(f"{name}({left}, {right}) -> bool", _ordered(holds), equality)
        for name, holds in _ORDERS
        for left, right in kinds
    ]


def _ordered(holds: Callable[[int], bool]) -> Callable[[Any, Any], bool]:
    return lambda left, right: holds(compare(left, right))


_COUNTABLE: Final = ("string", "bytes", "list(A)", "map(A, B)")


def _both_texts(frame: Any, left: str | bytes, right: str | bytes) -> None:
    frame.charge_text(len(left) + len(right))


def _unused(*_: object) -> None:
    """The compiler evaluates this operator without the row."""


ROWS: Final = (
    *_arithmetic(),
    *_ordering(),
    row("_+_(string, string) -> string", lambda a, b: a + b, joined, _both_texts),
    row("_+_(bytes, bytes) -> bytes", lambda a, b: a + b, joined, _both_texts),
    row("-_(int) -> int", lambda value: checked_int(-value)),
    row("-_(double) -> double", lambda value: -value),
    row("!_(bool) -> bool", _unused),
    row("_&&_(bool, bool) -> bool", _unused),
    row("_||_(bool, bool) -> bool", _unused),
    row("_?:_(bool, A, A) -> A", _unused),
    row("_==_(A, A) -> bool", _unused, equality),
    row("_!=_(A, A) -> bool", _unused, equality),
    row("@in(A, list(A)) -> bool", _unused),
    row("@in(A, map(A, B)) -> bool", _unused),
    *[row(f"size({kind}) -> int", len, work=constant_time) for kind in _COUNTABLE],
    *[row(f"{kind}.size() -> int", len, work=constant_time) for kind in _COUNTABLE],
)
