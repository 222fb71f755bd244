"""Function descriptions: signatures in CEL notation, implementations and costs (cel-go checker/types.go)."""

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from math import ceil
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult

from koord_numa.core.cel.values import (
    Duration,
    MapValue,
    NamedFormat,
    OptionalValue,
    Quantity,
    Semver,
    Timestamp,
    TypeValue,
    Uint,
)


class Type(NamedTuple):
    """A type and its parameters. A name that is a single capital letter is a type parameter of a signature."""

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
"""Type of an attribute: a scalar or a list. Behaves like dyn, except as an element of list and map literals."""
BOOL: Final = Type("bool")
INT: Final = Type("int")
STRING: Final = Type("string")
NULL: Final = Type("null")

Bindings = MutableMapping[str, Type]
_PART: Final = re.compile(r"[A-Za-z]+|[(),]")


def list_of(element: Type) -> Type:
    """Return the type ``list(element)``."""
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """Return the type ``map(key, value)``."""
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    """Return the type ``optional(value)``."""
    return Type("optional", (value,))


def is_dynamic(kind: Type) -> bool:
    """Return whether the type is known only at run time."""
    return kind.name in ("dyn", "any")


@lru_cache(maxsize=1024)
def read_type(text: str) -> Type:
    """Parse a type in signature notation, such as ``map(string, A)``."""
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
    """Return whether a value of type ``actual`` is accepted for ``formal``. Binds type parameters as a side effect."""
    if is_dynamic(formal) or is_dynamic(actual):
        # A type parameter that is unified with dyn stays open for later arguments.
        if len(formal.name) == 1:
            bindings.setdefault(formal.name, actual)
        return True
    if len(formal.name) == 1:
        bound = bindings.setdefault(formal.name, actual)
        if bound == actual:
            return True
        if unify(bound, actual, {}):
            # dyn is the wider type, so the parameter keeps dyn.
            bindings[formal.name] = DYN if is_dynamic(bound) else bound
            return True
        return False
    if formal.name != actual.name or len(formal.parameters) != len(actual.parameters):
        return False
    return all(unify(left, right, bindings) for left, right in zip(formal.parameters, actual.parameters, strict=True))


def substitute(formal: Type, bindings: Bindings) -> Type:
    """Return the type with its parameters replaced. An unbound parameter becomes dyn."""
    if len(formal.name) == 1:
        return bindings.get(formal.name, DYN)
    return Type(formal.name, tuple(substitute(parameter, bindings) for parameter in formal.parameters))


Cost = Callable[..., int]
Work = Callable[..., None]
"""Charges a frame for a call. The first argument is the frame, the others are the arguments of the call."""
Classes = frozenset[type]

_CLASSES: Final[Mapping[str, Classes]] = {
    "bool": frozenset({bool}),
    "int": frozenset({int}),
    "uint": frozenset({Uint}),
    "double": frozenset({float}),
    "string": frozenset({str}),
    "bytes": frozenset({bytes}),
    "null": frozenset({type(None)}),
    "list": frozenset({tuple}),
    "map": frozenset({MapValue}),
    "optional": frozenset({OptionalValue}),
    "type": frozenset({TypeValue}),
    "duration": frozenset({Duration}),
    "timestamp": frozenset({Timestamp}),
    "quantity": frozenset({Quantity}),
    "semver": frozenset({Semver}),
    "url": frozenset({SplitResult}),
    "format": frozenset({NamedFormat}),
    "ip": frozenset({IPv4Address, IPv6Address}),
    "cidr": frozenset({IPv4Interface, IPv6Interface}),
}


_FIXED_SIZE: Final = frozenset(
    {"bool", "int", "uint", "double", "null", "type", "duration", "timestamp", "quantity", "format", "ip", "cidr"}
)
"""Types whose values are read and built in constant time."""


def one(*_: object) -> int:
    """Return one unit, the default cost of a call."""
    return 1


def read_all(frame: Any, *values: object) -> None:
    """Charge for reading all arguments recursively. The default."""
    frame.read(*values)


def constant_time(frame: Any, *_: object) -> None:
    """Check the limits without a charge. For calls whose run time does not depend on the size of the arguments."""
    frame.check_cost()


def parsed(frame: Any, *values: object) -> None:
    """Charge for parsing a text into a network address, a URL, an amount or a time: 15 to 50 microseconds and more."""
    for value in values:
        frame.charge(20 + 4 * len(value) if isinstance(value, str) else 20)


@dataclass(frozen=True, slots=True)
class Overload:
    """
    One signature of a function.

    The ``parameters`` of a member function begin with the receiver.

    ``cost`` returns upstream's cost units of a call. ``work`` charges for all values that the call reads and builds.
    With ``in_frame``, the call takes the frame as its first argument and charges for its result while it builds it.
    """

    name: str
    member: bool
    parameters: tuple[Type, ...]
    result: Type
    call: Callable[..., Any]
    cost: Cost
    work: Work
    in_frame: bool = False

    @property
    def classes(self) -> tuple[Classes | None, ...]:
        """
        The Python types that each parameter accepts, or None for all types. Elements of lists and maps are not checked.
        """
        return tuple(_CLASSES.get(parameter.name) for parameter in self.parameters)

    @property
    def sized(self) -> bool:
        """True if the size of the result varies."""
        return self.result.name not in _FIXED_SIZE


def row(
    signature: str, call: Callable[..., Any], cost: Cost = one, work: Work | None = None, *, in_frame: bool = False
) -> Overload:
    """
    Build an overload from its signature.

    ``size(string) -> int`` is a global function, ``string.size() -> int`` a member function. The receiver is written
    like any other type, also with a type parameter: ``list(A).sum() -> A``.
    """
    head, _, result = signature.partition(" -> ")
    name, arguments = _last_call(head)
    receiver, member, name = _receiver(name)
    parameters = tuple(map(read_type, ([receiver] if member else []) + _split(arguments)))
    if work is None:
        work = constant_time if all(each.name in _FIXED_SIZE for each in parameters) else read_all
    return Overload(name, member, parameters, read_type(result), call, cost, work, in_frame)


def _last_call(head: str) -> tuple[str, str]:
    depth = 0
    # Scan from the end, because parameters may contain parentheses: ``list(list(A)).flatten()``.
    for at in range(len(head) - 1, -1, -1):
        depth += (head[at] == ")") - (head[at] == "(")
        if depth == 0:
            return head[:at], head[at + 1 : -1]
    raise ValueError(f"{head!r} is not a signature")


_NAMESPACES: Final = frozenset({"sets", "lists", "optional", "format", "ip", "strings"})


def _receiver(name: str) -> tuple[str, bool, str]:
    receiver, dot, function = name.rpartition(".")
    # A name without a dot, or with a known namespace before the dot, has no receiver.
    if not dot or (receiver in _NAMESPACES and f"{receiver}.{function}" in QUALIFIED):
        return "", False, name
    return receiver, True, function


QUALIFIED: Final = frozenset(
    {
        "sets.contains", "sets.equivalent", "sets.intersects", "lists.range", "optional.of", "optional.none", "optional.ofNonZeroValue",
        "optional.unwrap", "ip.isCanonical", "strings.quote", "format.named", "format.dns1123Label", "format.dns1123Subdomain",
        "format.dns1035Label", "format.qualifiedName", "format.dns1123LabelPrefix", "format.dns1123SubdomainPrefix",
        "format.dns1035LabelPrefix", "format.labelValue", "format.uri", "format.uuid", "format.byte", "format.date", "format.datetime",
    }
)  # fmt: skip
"""Global functions whose names have a namespace. ``ip.family()`` on a variable ``ip`` is a member function."""


def _split(arguments: str) -> list[str]:
    parts: list[str] = []
    depth = start = 0
    for at, character in enumerate(arguments):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(arguments[start:at].strip())
            start = at + 1
    last = arguments[start:].strip()
    return [*parts, last] if last else parts


def table(rows: Sequence[Overload]) -> Mapping[tuple[str, bool], tuple[Overload, ...]]:
    """Group the overloads by name and by whether they are member functions, in the order of the rows."""
    grouped: dict[tuple[str, bool], list[Overload]] = {}
    for overload in rows:
        grouped.setdefault((overload.name, overload.member), []).append(overload)
    return {key: tuple(overloads) for key, overloads in grouped.items()}


STRING_FACTOR: Final = 0.1
REGEX_FACTOR: Final = 0.25


def traversal(text: object, *_: object) -> int:
    """Return the cost of reading a string once."""
    return ceil(len(text) * STRING_FACTOR)  # type: ignore[arg-type]  # calls are checked before


def joined(left: object, right: object) -> int:
    """Return the cost of reading two strings or lists."""
    return ceil((len(left) + len(right)) * STRING_FACTOR)  # type: ignore[arg-type]  # calls are checked before


def search(text: object, part: object, *_: object) -> int:
    """Return the cost of searching for a string in another string."""
    # As in cel-go's estimator, both lengths are rounded up before the multiplication.
    return ceil(len(text) * STRING_FACTOR) * ceil(len(part) * STRING_FACTOR)  # type: ignore[arg-type]  # calls are checked before


def regex(text: object, pattern: object, *_: object) -> int:
    """
    Return the cost of matching a regular expression. One character is added, so an empty string costs one character.
    """
    return ceil((len(text) + 1) * STRING_FACTOR) * ceil(len(pattern) * REGEX_FACTOR)  # type: ignore[arg-type]  # calls are checked before


def elements(items: object, *_: object) -> int:
    """Return one unit per element."""
    return len(items)  # type: ignore[arg-type]  # calls are checked before


def pairs(left: object, right: object) -> int:
    """Return the cost of comparing every element of one list with every element of the other list."""
    return len(left) * len(right) + 1  # type: ignore[arg-type]  # calls are checked before


def equality(left: object, right: object) -> int:
    """Return the cost of a comparison: the shorter length for strings and collections, one unit for other types."""
    try:
        return ceil(min(len(left), len(right)) * STRING_FACTOR)  # type: ignore[arg-type]  # calls are checked before
    except TypeError:
        return 1
