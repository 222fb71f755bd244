"""Static types, and how the types of arguments meet a signature (cel-go checker/types.go)."""

import re
from collections.abc import Iterator, MutableMapping
from functools import lru_cache
from typing import Final, NamedTuple


class Type(NamedTuple):
    """A type and its parameters. A name of one capital letter is a type parameter of a signature."""

    name: str
    parameters: tuple["Type", ...] = ()

    def __str__(self) -> str:
        if not self.parameters:
            return _SHOWN.get(self.name, self.name)
        return f"{_SHOWN.get(self.name, self.name)}({', '.join(map(str, self.parameters))})"


_SHOWN: Final = {
    "null": "null_type",
    "optional": "optional_type",
    "quantity": "kubernetes.Quantity",
    "semver": "kubernetes.Semver",
    "device": "kubernetes.DRADevice",
    "url": "kubernetes.URL",
    "format": "kubernetes.NamedFormat",
    "ip": "net.IP",
    "cidr": "net.CIDR",
    "timestamp": "google.protobuf.Timestamp",
    "duration": "google.protobuf.Duration",
}

DYN: Final = Type("dyn")
ANY: Final = Type("any")
"""The type of an attribute: a scalar or a list. Like dyn, except as an element of list and map literals."""
BOOL: Final = Type("bool")
INT: Final = Type("int")
STRING: Final = Type("string")
NULL: Final = Type("null")

Bindings = MutableMapping[str, Type]
_PART: Final = re.compile(r"[A-Za-z]+|[(),]")


def list_of(element: Type) -> Type:
    """``list(element)``."""
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """``map(key, value)``."""
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    """``optional(value)``."""
    return Type("optional", (value,))


def is_dynamic(kind: Type) -> bool:
    """Is the type only known at run time?"""
    return kind.name in ("dyn", "any")


@lru_cache(maxsize=1024)
def read_type(text: str) -> Type:
    """A type as signatures write it: ``map(string, A)``."""
    return _read(iter(_PART.findall(text)), "")[0]


def _read(parts: Iterator[str], name: str) -> tuple[Type, str]:
    name = name or next(parts)
    following = next(parts, "")
    if following != "(":
        return Type(name), following
    parameters: list[Type] = []
    while following in ("(", ","):
        inner, following = _read(parts, "")
        parameters.append(inner)
    return Type(name, tuple(parameters)), next(parts, "")


def unify(formal: Type, actual: Type, bindings: Bindings) -> bool:
    """May a value of type ``actual`` stand where ``formal`` is asked for? Binds type parameters on the way."""
    if is_dynamic(formal) or is_dynamic(actual):
        # A type parameter that meets dyn stays open for what comes later.
        if len(formal.name) == 1:
            bindings.setdefault(formal.name, actual)
        return True
    if len(formal.name) == 1:
        bound = bindings.setdefault(formal.name, actual)
        if bound == actual:
            return True
        if unify(bound, actual, {}):
            # dyn is the wider of the two, so that it is what remains.
            bindings[formal.name] = DYN if is_dynamic(bound) else bound
            return True
        return False
    if formal.name != actual.name or len(formal.parameters) != len(actual.parameters):
        return False
    return all(unify(left, right, bindings) for left, right in zip(formal.parameters, actual.parameters, strict=True))


def substitute(formal: Type, bindings: Bindings) -> Type:
    """The type with its parameters replaced; one that nothing bound is dyn."""
    if len(formal.name) == 1:
        return bindings.get(formal.name, DYN)
    return Type(formal.name, tuple(substitute(parameter, bindings) for parameter in formal.parameters))
