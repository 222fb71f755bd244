"""Durations and timestamps: making, comparing and adding them. No device carries one, so their parts cannot be asked for."""

import re
from fractions import Fraction
from typing import Final

from koord_numa.core.cel.errors import EvaluationError
from koord_numa.core.cel.values.functions import row
from koord_numa.core.cel.values.values import INT_MAX, Duration, Timestamp

_SECOND: Final = 10**9
_UNITS: Final = {"ns": 1, "us": 1000, "µs": 1000, "ms": 10**6, "s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND}
_PART: Final = re.compile(r"(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(ns|us|µs|ms|s|m|h)", re.ASCII)
_TIME: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9})\d*)?(?:Z|([+-])(\d{2}):(\d{2}))", re.ASCII
)
_MONTHS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def parse_duration(text: str) -> Duration:
    """As Go's ``time.ParseDuration``. Raises ``EvaluationError``."""
    body = text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return Duration(0)
    parts = _PART.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise EvaluationError(f"time: invalid duration {text[:40]!r}")
    # Fractions, as 0.1 of a unit is no binary number; truncated to nanoseconds as in Go.
    total = int(sum(Fraction(number) * _UNITS[unit] for number, unit in parts))
    return _checked(-total if text[0] == "-" else total)


def parse_timestamp(text: str) -> Timestamp:
    """As RFC 3339. Raises ``EvaluationError``."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise EvaluationError(f"cannot parse {text[:40]!r} as a timestamp")
    year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
    # ``year`` 0 is refused, as Go's range of RFC 3339 times begins with 1.
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
    """Days since 1970-01-01 in the proleptic Gregorian calendar."""
    past = year - 1
    # 719162 days lie between 0001-01-01 and 1970-01-01.
    days = past * 365 + past // 4 - past // 100 + past // 400 - 719162
    return days + sum(_days(year, earlier) for earlier in range(1, month)) + day - 1


ROWS: Final = (
    row("duration(string) -> duration", parse_duration),
    row("duration(duration) -> duration", lambda it: it),
    row("timestamp(string) -> timestamp", parse_timestamp),
    row("timestamp(int) -> timestamp", lambda seconds: Timestamp(seconds * _SECOND)),
    row("timestamp(timestamp) -> timestamp", lambda it: it),
    row("_+_(duration, duration) -> duration", lambda a, b: _checked(a.nanoseconds + b.nanoseconds)),
    row("_+_(timestamp, duration) -> timestamp", lambda a, b: Timestamp(a.nanoseconds + b.nanoseconds)),
    row("_+_(duration, timestamp) -> timestamp", lambda a, b: Timestamp(a.nanoseconds + b.nanoseconds)),
    row("_-_(duration, duration) -> duration", lambda a, b: _checked(a.nanoseconds - b.nanoseconds)),
    row("_-_(timestamp, timestamp) -> duration", lambda a, b: _checked(a.nanoseconds - b.nanoseconds)),
    row("_-_(timestamp, duration) -> timestamp", lambda a, b: Timestamp(a.nanoseconds - b.nanoseconds)),
)
