"""Conversions between types, and ``type`` and ``dyn``."""

import math
import re
from typing import Any, Final

from koord_numa.core.cel.errors import EvaluationError
from koord_numa.core.cel.standard_library.costs import traversal
from koord_numa.core.cel.values.functions import constant_time, row
from koord_numa.core.cel.values.values import TYPE_NAMES, TypeValue, Uint, checked_int, checked_uint

_INTEGER: Final = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_DOUBLE: Final = re.compile(
    r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
_BOOLS: Final = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)


def _to_int(value: str) -> int:
    # Stricter than Python's ``int``, which takes spaces and underscores.
    if not _INTEGER.fullmatch(value):
        raise EvaluationError(f"strconv.ParseInt: parsing {value[:40]!r}: invalid syntax")
    return checked_int(int(value))


def _to_uint(value: str) -> Uint:
    if not value.isascii() or not value.isdigit() or len(value) > 20:
        raise EvaluationError(f"strconv.ParseUint: parsing {value[:40]!r}: invalid syntax")
    return checked_uint(int(value))


def _truncate(value: float) -> int:
    # Infinity and NaN have no integer.
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
    """As Go's ``FormatFloat(v, 'f', -1, 64)``: no exponent, no point where the value is whole."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
    # ``repr`` is the shortest text that reads back as the value; beyond 1e16 it has an exponent.
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


ROWS: Final = (
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
