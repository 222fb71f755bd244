"""How long ago something was, as kubectl prints it."""

from datetime import UTC, datetime
from typing import Any, Final

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY


def age(moment: Any, now: datetime | None = None) -> str:
    """The time since an API timestamp: ``5s``, ``3m20s``, ``2d``; ``<unknown>`` when it is none."""
    try:
        since = datetime.fromisoformat(str(moment))
    except ValueError:
        return "<unknown>"
    if since.tzinfo is None:
        return "<unknown>"
    return human_duration(int(((now or datetime.now(UTC)) - since).total_seconds()))


def human_duration(seconds: int) -> str:
    """A duration in the one or two units that matter, as k8s.io/apimachinery duration.HumanDuration rounds it."""
    if seconds < 0:
        return "0s"
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 10 * _MINUTE:
        return _two(seconds, _MINUTE, "m", 1, "s")
    if seconds < 3 * _HOUR:
        return f"{seconds // _MINUTE}m"
    if seconds < 8 * _HOUR:
        return _two(seconds, _HOUR, "h", _MINUTE, "m")
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR}h"
    if seconds < 8 * _DAY:
        return _two(seconds, _DAY, "d", _HOUR, "h")
    if seconds < 2 * _YEAR:
        return f"{seconds // _DAY}d"
    return _two(seconds, _YEAR, "y", _DAY, "d") if seconds < 8 * _YEAR else f"{seconds // _YEAR}y"


def _two(seconds: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    first, rest = divmod(seconds, large)
    second = rest // small
    return f"{first}{large_unit}{second}{small_unit}" if second else f"{first}{large_unit}"
