"""
Amounts of resources.

Parses and formats Kubernetes quantities such as ``2500m`` and ``8Gi``, and calculates with mappings from resource name to integer.

``cpu`` is in milli-CPU, all other resources in whole base units (bytes, pieces; ``kubernetes.io/batch-cpu`` in
milli-CPU by its definition). Only the code that created amounts may modify them.
"""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import ceil, floor
from typing import Final

ResourceList = Mapping[str, int]

CPU: Final = "cpu"
MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
PODS: Final = "pods"
HUGEPAGES_PREFIX: Final = "hugepages-"
MILLI: Final = 1000
"""One CPU in the unit of ``cpu`` amounts."""

NOTHING: Final[ResourceList] = {}


def add(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """Return the sum by resource, with every resource of either."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0) + amount
    return total


def total(parts: Iterable[ResourceList]) -> dict[str, int]:
    """Return the sum of all parts."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def subtract(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """Return ``left - right``. May be negative, also for a resource that is only in ``right``."""
    rest = dict(left)
    for name, amount in right.items():
        rest[name] = rest.get(name, 0) - amount
    return rest


def subtract_to_zero(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """Return ``left - right``, at least zero. Includes resources that are only in ``right`` (Koordinator's SubtractNonNegative)."""
    rest = {name: max(0, amount - right.get(name, 0)) for name, amount in left.items()}
    for name in right:
        rest.setdefault(name, 0)
    return rest


def largest(left: ResourceList, right: ResourceList) -> dict[str, int]:
    """Return the maximum by resource."""
    result = dict(left)
    for name, amount in right.items():
        result[name] = max(amount, result.get(name, amount))
    return result


def without_zeros(amounts: ResourceList) -> dict[str, int]:
    """Return the resources with a non-zero amount."""
    return {name: amount for name, amount in amounts.items() if amount}


def is_native(resource: str) -> bool:
    """Return whether this is a native resource: no slash in the name, or the ``kubernetes.io/`` domain."""
    return "/" not in resource or "kubernetes.io/" in resource


def is_hugepages(resource: str) -> bool:
    """Return whether this is a ``hugepages-<size>`` resource."""
    return resource.startswith(HUGEPAGES_PREFIX)


def is_batch(resource: str) -> bool:
    """Return whether this is a resource of Koordinator for batch pods, which is computed from unused resources."""
    return "/batch-" in resource


_SUFFIXES: Final = {
    "": (1, 1),
    "n": (1, 10**9),
    "u": (1, 10**6),
    "m": (1, 10**3),
    "k": (10**3, 1),
    "M": (10**6, 1),
    "G": (10**9, 1),
    "T": (10**12, 1),
    "P": (10**15, 1),
    "E": (10**18, 1),
    "Ki": (2**10, 1),
    "Mi": (2**20, 1),
    "Gi": (2**30, 1),
    "Ti": (2**40, 1),
    "Pi": (2**50, 1),
    "Ei": (2**60, 1),
}
"""Numerator and denominator."""
_QUANTITY: Final = re.compile(
    r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,2})?", re.ASCII
)
_BINARY: Final = (("Ei", 2**60), ("Pi", 2**50), ("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def parse_quantity(text: str | int | float) -> Fraction:
    """Return the exact value of a Kubernetes quantity. Raises ``ValueError`` if it is malformed."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"{text!r} is not a quantity")  # noqa: TRY004  (one error type for all malformed values)
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{str(text)[:40]!r} is not a quantity")
    number, suffix = match.group(1), match.group(2) or ""
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return Fraction(number) * Fraction(10) ** int(suffix[1:])
    whole, _, decimals = number.partition(".")
    up, down = _SUFFIXES[suffix]
    return Fraction(int(whole + decimals) * up, down * 10 ** len(decimals))


def amount(resource: str, text: str | int | float) -> int:
    """Return a request in internal units: milli-CPU for ``cpu``, else whole units, rounded **up** as Kubernetes rounds requests."""
    value = parse_quantity(text)
    return ceil(value * MILLI) if resource == CPU else ceil(value)


def supply(resource: str, text: str | int | float) -> int:
    """Return a supplied amount in internal units, rounded **down**: a fraction of a unit cannot be allocated."""
    value = parse_quantity(text)
    return floor(value * MILLI) if resource == CPU else floor(value)


def format_amount(resource: str, value: int) -> str:
    """Return the canonical quantity text of an amount: ``2500m``, ``4``, or ``8Gi`` for byte resources if exact."""
    if resource == CPU:
        whole, rest = divmod(value, MILLI)
        return f"{value}m" if rest else str(whole)
    if "memory" in resource or "storage" in resource or resource.startswith("hugepages-"):
        for suffix, size in _BINARY:
            if value and value % size == 0:
                return f"{value // size}{suffix}"
    return str(value)


def format_nano(value: int) -> str:
    """Return the canonical quantity text of an amount in 10^-9 units: with a binary suffix if exact, else decimal."""
    whole, rest = divmod(value, 10**9)
    if rest:
        suffix, size = next((suffix, size) for suffix, size in _SMALL if value % size == 0)
        return f"{value // size}{suffix}"
    for suffix, size in _BINARY:
        if whole and whole % size == 0:
            return f"{whole // size}{suffix}"
    return str(whole)


_SMALL: Final = (("m", 10**6), ("u", 10**3), ("n", 1))
