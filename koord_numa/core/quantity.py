"""Kubernetes quantities: exact parsing of ``2500m``, ``8Gi``, ``1e3``, and the canonical text of written amounts."""

import re
from fractions import Fraction
from math import ceil, floor
from typing import Final

from koord_numa.core.resources import CPU, MILLI

_SUFFIXES: Final = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
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
    return Fraction(number) * _SUFFIXES[suffix]


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
