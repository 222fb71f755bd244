"""Optional values (cel-go cel/optional.go). ``optMap`` and ``optFlatMap`` are macros."""

from typing import Any, Final

from koord_numa.core.cel.errors import EvaluationError
from koord_numa.core.cel.values.functions import constant_time, row
from koord_numa.core.cel.values.values import NONE, MapValue, OptionalValue


def _value(optional: OptionalValue) -> Any:
    if not optional.present:
        raise EvaluationError("optional.none() dereference")
    return optional.value


# Upstream evaluates these by itself and counts nothing for the call.
def _free(*_: object) -> int:
    return 0


def _shallow(frame: Any, items: tuple[OptionalValue, ...]) -> None:
    frame.charge(len(items))


def _of_non_zero(value: Any) -> OptionalValue:
    empty = value is None or (
        isinstance(value, bool | int | float | str | bytes | tuple | MapValue) and not _filled(value)
    )
    return NONE if empty else OptionalValue(True, value)


def _filled(value: Any) -> bool:
    return len(value) > 0 if isinstance(value, MapValue) else bool(value)


ROWS: Final = (
    row("optional.of(A) -> optional(A)", lambda value: OptionalValue(True, value), work=constant_time),
    row("optional.ofNonZeroValue(A) -> optional(A)", _of_non_zero, work=constant_time),
    row("optional.none() -> optional(A)", lambda: NONE),
    row(
        "optional.unwrap(list(optional(A))) -> list(A)",
        lambda items: tuple(item.value for item in items if item.present),
        work=_shallow,
    ),
    row(
        "list(optional(A)).unwrapOpt() -> list(A)",
        lambda items: tuple(item.value for item in items if item.present),
        work=_shallow,
    ),
    row("optional(A).hasValue() -> bool", lambda optional: optional.present, _free, constant_time),
    row("optional(A).value() -> A", _value, work=constant_time),
    row(
        "optional(A).or(optional(A)) -> optional(A)",
        lambda first, other: first if first.present else other,
        _free,
        constant_time,
    ),
    row(
        "optional(A).orValue(A) -> A",
        lambda first, other: first.value if first.present else other,
        _free,
        constant_time,
    ),
)
