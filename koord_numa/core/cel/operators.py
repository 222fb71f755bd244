"""Operators, type conversions, optional values, durations, timestamps, lists and sets."""

import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cmp_to_key
from typing import Any, Final

from koord_numa.core.cel.functions import (
    Overload,
    constant_time,
    elements,
    equality,
    joined,
    pairs,
    parsed,
    row,
    traversal,
)
from koord_numa.core.cel.values import (
    INT_MAX,
    NONE,
    TYPE_NAMES,
    Duration,
    EvaluationError,
    MapValue,
    OptionalValue,
    Timestamp,
    TypeValue,
    Uint,
    checked_int,
    checked_uint,
    compare,
    identity,
    same,
)


def _quotient(left: int, right: int) -> int:
    """Divide and round towards zero, as Go."""
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
        # IEEE 754: 0/0 and NaN/0 are NaN, any other division by zero is a signed infinity. Python raises instead.
        return float("nan") if left == 0 or left != left else float("inf") * left
    return left / right


def _double(operation: Callable[[float, float], float]) -> Callable[[float, float], float]:
    def apply(left: float, right: float) -> float:
        try:
            return operation(left, right)
        except OverflowError:
            # Python raises where IEEE 754 returns an infinity.
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
    """
    Return the comparison rows. Numbers compare across types. Quantities and versions have no comparison operators.
    """
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
    """Fill the row of an operator that the compiler evaluates itself, such as ``&&``."""


OPERATOR_ROWS: Final = (
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


def _value(optional: OptionalValue) -> Any:
    if not optional.present:
        raise EvaluationError("optional.none() dereference")
    return optional.value


# Upstream evaluates these functions outside the cost tracker and charges nothing for the call.
def _free(*_: object) -> int:
    return 0


def _shallow(frame: Any, items: tuple[Any, ...], *_: object) -> None:
    """Charge for the list without the contents of its elements."""
    frame.charge(len(items))


def _of_non_zero(value: Any) -> OptionalValue:
    empty = value is None or (
        isinstance(value, bool | int | float | str | bytes | tuple | MapValue) and not _filled(value)
    )
    return NONE if empty else OptionalValue(True, value)


def _filled(value: Any) -> bool:
    return len(value) > 0 if isinstance(value, MapValue) else bool(value)


OPTIONALS: Final = (
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


_INTEGER: Final = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_DOUBLE: Final = re.compile(
    r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
_BOOLS: Final = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)


def _to_int(value: str) -> int:
    # Stricter than Python's ``int``, which accepts spaces and underscores.
    if not _INTEGER.fullmatch(value):
        raise EvaluationError(f"strconv.ParseInt: parsing {value[:40]!r}: invalid syntax")
    return checked_int(int(value))


def _to_uint(value: str) -> Uint:
    if not value.isascii() or not value.isdigit() or len(value) > 20:
        raise EvaluationError(f"strconv.ParseUint: parsing {value[:40]!r}: invalid syntax")
    return checked_uint(int(value))


def _truncate(value: float) -> int:
    # Infinity and NaN cannot be converted to an integer.
    if not math.isfinite(value):
        raise EvaluationError("integer overflow")
    return checked_int(int(value))


def _truncate_unsigned(value: float) -> Uint:
    if not math.isfinite(value):
        raise EvaluationError("unsigned integer overflow")
    return checked_uint(int(value))


def _to_double(value: str) -> float:
    if not _DOUBLE.fullmatch(value):
        raise EvaluationError(f"strconv.ParseFloat: parsing {value[:40]!r}: invalid syntax")
    return float(value)


def _to_bool(value: str) -> bool:
    if value not in _BOOLS:
        raise EvaluationError(f"strconv.ParseBool: parsing {value[:40]!r}: invalid syntax")
    return _BOOLS[value]


def format_double(value: float) -> str:
    """Format a number as Go's ``FormatFloat(v, 'f', -1, 64)``: no exponent, and no point for a whole number."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
    # ``repr`` returns the shortest text that parses to the same value. Beyond 1e16 it has an exponent.
    text = format(value, "f") if abs(value) >= 1e16 else repr(value)
    if "e" in text:
        text = f"{value:.340f}".rstrip("0")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _to_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def _type(value: Any) -> TypeValue:
    return TypeValue(TYPE_NAMES.get(type(value), "kubernetes.DRADevice"))


def _same(value: Any) -> Any:
    return value


CONVERSIONS: Final = (
    row("int(int) -> int", _same),
    row("int(uint) -> int", lambda value: checked_int(int(value))),
    row("int(double) -> int", _truncate),
    row("int(string) -> int", _to_int),
    row("int(timestamp) -> int", lambda value: value.nanoseconds // 10**9),
    row("uint(uint) -> uint", _same),
    row("uint(int) -> uint", checked_uint),
    row("uint(double) -> uint", _truncate_unsigned),
    row("uint(string) -> uint", _to_uint),
    row("double(double) -> double", _same),
    row("double(int) -> double", float),
    row("double(uint) -> double", float),
    row("double(string) -> double", _to_double),
    row("string(string) -> string", _same, work=constant_time),
    row("string(int) -> string", str),
    row("string(uint) -> string", lambda value: str(int(value))),
    row("string(double) -> string", format_double),
    row("string(bool) -> string", lambda value: "true" if value else "false"),
    row("string(bytes) -> string", _to_text, traversal),
    row("bytes(bytes) -> bytes", _same, work=constant_time),
    row(
        "bytes(string) -> bytes",
        str.encode,
        traversal,
        lambda frame, text: frame.charge_text(4 * len(text) if not text.isascii() else len(text)),
    ),
    row("bool(bool) -> bool", _same),
    row("bool(string) -> bool", _to_bool),
    row("type(A) -> type", _type, work=constant_time),
    row("dyn(A) -> dyn", _same, lambda _: 0, constant_time),
)


_SECOND: Final = 10**9
_UNITS: Final = {"ns": 1, "us": 1000, "µs": 1000, "ms": 10**6, "s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND}
_PART: Final = re.compile(r"(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(ns|us|µs|ms|s|m|h)", re.ASCII)
_TIME: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9})\d*)?(?:Z|([+-])(\d{2}):(\d{2}))", re.ASCII
)
_MONTHS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def parse_duration(text: str) -> Duration:
    """Parse a duration as Go's ``time.ParseDuration``. Raises ``EvaluationError``."""
    body = text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return Duration(0)
    parts = _PART.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise EvaluationError(f"time: invalid duration {text[:40]!r}")
    # Fractions, because 0.1 has no exact binary representation. Truncated to nanoseconds, as in Go.
    total = int(sum(Fraction(number) * _UNITS[unit] for number, unit in parts))
    return _checked(-total if text[0] == "-" else total)


def parse_timestamp(text: str) -> Timestamp:
    """Parse a time in RFC 3339. Raises ``EvaluationError``."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise EvaluationError(f"cannot parse {text[:40]!r} as a timestamp")
    year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
    # Year 0 is rejected: Go's range of RFC 3339 times begins with year 1.
    if not (1 <= month <= 12 and 1 <= day <= _days(year, month) and hour < 24 and minute < 60 and second < 60 and year):
        raise EvaluationError(f"cannot parse {text[:40]!r} as a timestamp")
    seconds = _days_before(year, month, day) * 86400 + hour * 3600 + minute * 60 + second
    if match[8]:
        offset = int(match[9]) * 3600 + int(match[10]) * 60
        seconds += offset if match[8] == "-" else -offset
    return Timestamp(seconds * _SECOND + int((match[7] or "0").ljust(9, "0")))


def _checked(nanoseconds: int) -> Duration:
    if abs(nanoseconds) > INT_MAX:
        raise EvaluationError("duration overflow")
    return Duration(nanoseconds)


def _leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _days(year: int, month: int) -> int:
    return 29 if month == 2 and _leap(year) else _MONTHS[month - 1]


def _days_before(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 in the proleptic Gregorian calendar."""
    past = year - 1
    # 719162 days lie between 0001-01-01 and 1970-01-01.
    days = past * 365 + past // 4 - past // 100 + past // 400 - 719162
    return days + sum(_days(year, earlier) for earlier in range(1, month)) + day - 1


TIMES: Final = (
    row("duration(string) -> duration", parse_duration, work=parsed),
    row("duration(duration) -> duration", lambda it: it),
    row("timestamp(string) -> timestamp", parse_timestamp, work=parsed),
    row("timestamp(int) -> timestamp", lambda seconds: Timestamp(seconds * _SECOND)),
    row("timestamp(timestamp) -> timestamp", lambda it: it),
    row("_+_(duration, duration) -> duration", lambda a, b: _checked(a.nanoseconds + b.nanoseconds)),
    row("_+_(timestamp, duration) -> timestamp", lambda a, b: Timestamp(a.nanoseconds + b.nanoseconds)),
    row("_+_(duration, timestamp) -> timestamp", lambda a, b: Timestamp(a.nanoseconds + b.nanoseconds)),
    row("_-_(duration, duration) -> duration", lambda a, b: _checked(a.nanoseconds - b.nanoseconds)),
    row("_-_(timestamp, timestamp) -> duration", lambda a, b: _checked(a.nanoseconds - b.nanoseconds)),
    row("_-_(timestamp, duration) -> timestamp", lambda a, b: Timestamp(a.nanoseconds - b.nanoseconds)),
)


LONGEST_ATTRIBUTE: Final = 48
"""Maximum number of values of a device attribute (resource/v1 ResourceSliceMaxAttributeValuesPerDevice)."""

SORT_KEY: Final = cmp_to_key(compare)


def charge_sort(frame: Any, items: tuple[Any, ...], *_: object) -> None:
    """Charge a sort: every element is compared in at most log2(n) rounds."""
    frame.charge(frame.size(items).units * len(items).bit_length())


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

LIST_ROWS: Final = (
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
