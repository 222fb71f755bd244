"""Lists of resource quantities as they stand in API objects, turned into amounts in our units."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from koord_numa.core import quantity
from koord_numa.wire.errors import FieldPath, quoted
from koord_numa.wire.names import RENAMED_RESOURCES
from koord_numa.wire.parsing import Quantity

LARGEST: Final = 2**60
"""Upper bound of an amount (an exbibyte), so that sums over a cluster stay below 2**63."""

_LONGEST: Final = 64  # of a quantity's text; the memory of the cache below stays bounded


def requested(values: Mapping[str, Quantity] | None, path: FieldPath) -> dict[str, int]:
    """Requests in our units, rounded up as ``resource.Quantity.MilliValue`` does. A negative amount raises ``WireError``."""
    if not values:
        return {}
    amounts = {name: _parsed(_request, name, value, path) for name, value in values.items()}
    for name, amount in amounts.items():
        # After parsing, since a sign may be anywhere in Go's notation.
        if amount < 0:
            raise path.at(name).error(f"{quoted(values[name])} is negative")
    return _renamed(amounts)


def supplied(values: Mapping[str, Quantity] | None, path: FieldPath) -> dict[str, int]:
    """What there is, rounded down; less than nothing is nothing."""
    return {} if not values else _renamed({name: supply(name, value, path) for name, value in values.items()})


def supply(name: str, value: Quantity, path: FieldPath) -> int:
    """What there is of one resource."""
    return max(0, _parsed(_supply, name, value, path))


def below_zero(name: str, value: Quantity | None, path: FieldPath) -> int:
    """By how much an amount of one resource is below zero, 0 where it is not."""
    # Few amounts are, and their text tells: the others are not parsed twice.
    return max(0, -_parsed(_supply, name, value, path)) if value is not None and str(value).startswith("-") else 0


def current_name(resource: str) -> str:
    """The name in use today of a resource that may be spelled in a deprecated way."""
    return RENAMED_RESOURCES.get(resource, resource)


def _renamed(amounts: dict[str, int]) -> dict[str, int]:
    if RENAMED_RESOURCES.keys().isdisjoint(amounts):
        return amounts
    old = {current_name(name): amount for name, amount in amounts.items() if name in RENAMED_RESOURCES}
    # A name in use today wins over its deprecated spelling.
    return old | {name: amount for name, amount in amounts.items() if name not in RENAMED_RESOURCES}


def _parsed(parse: Callable[[str, Quantity], int | None], name: str, value: Quantity, path: FieldPath) -> int:
    # Checked before the cache, which would keep texts of any length.
    short = len(name) <= 4 * _LONGEST and (not isinstance(value, str) or len(value) <= _LONGEST)
    # Amounts of a status have no model that knows their types.
    found = parse(name, value) if short and isinstance(value, str | int | float) else None
    if found is None:
        raise path.at(name).error(f"{quoted(value)} is not a quantity")
    return found


@lru_cache(maxsize=32768)
def _request(name: str, value: Quantity) -> int | None:
    try:
        # Cut at an exbibyte: sums over a cluster must stay within 64 bits.
        return min(LARGEST, quantity.amount(name, value))
    except ValueError:
        return None


@lru_cache(maxsize=32768)
def _supply(name: str, value: Quantity) -> int | None:
    try:
        return min(LARGEST, quantity.supply(name, value))
    except ValueError:
        return None
