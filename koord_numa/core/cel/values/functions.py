"""
Functions as rows: a signature in CEL's own notation, what it does, and what a call costs.

The checker reads the parameter types, the compiler the accepted Python types: one row is everything there is to say about an overload.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any, Final
from urllib.parse import SplitResult

from koord_numa.core.cel.values.semver import Semver
from koord_numa.core.cel.values.types import Type, read_type
from koord_numa.core.cel.values.values import (
    Duration,
    MapValue,
    NamedFormat,
    OptionalValue,
    Quantity,
    Timestamp,
    TypeValue,
    Uint,
)

Cost = Callable[..., int]
Work = Callable[..., None]
"""Charges the frame, its first argument, for a call with the values that follow."""
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
"""Types whose values are read and made in constant time."""


def one(*_: object) -> int:
    """Calls cost one unit unless the library says otherwise."""
    return 1


def read_all(frame: Any, *values: object) -> None:
    """The call reads its arguments recursively: the default."""
    frame.read(*values)


def constant_time(frame: Any, *_: object) -> None:
    """The call takes the same time whatever the size of its arguments."""
    frame.check_cost()


@dataclass(frozen=True, slots=True)
class Overload:
    """
    One signature of a function. ``parameters`` begin with the receiver of a member function.

    ``cost`` gives upstream's units of a call. ``work`` charges for everything that the call reads and makes. With ``in_frame`` the
    call takes the frame as its first argument and charges for its result while it makes it.
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
        """The Python types that each parameter takes; None takes everything. Elements of lists and maps are not looked at."""
        return tuple(_CLASSES.get(parameter.name) for parameter in self.parameters)

    @property
    def sized(self) -> bool:
        """Whether the size of a result differs from value to value."""
        return self.result.name not in _FIXED_SIZE


def row(
    signature: str, call: Callable[..., Any], cost: Cost = one, work: Work | None = None, *, in_frame: bool = False
) -> Overload:
    """
    An overload from its signature: ``size(string) -> int`` is a function, ``string.size() -> int`` a member function.

    A type parameter as receiver is written like any other type: ``list(A).sum() -> A``.
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
    # From the end, as parameters may have parentheses of their own: ``list(list(A)).flatten()``.
    for at in range(len(head) - 1, -1, -1):
        depth += (head[at] == ")") - (head[at] == "(")
        if depth == 0:
            return head[:at], head[at + 1 : -1]
    raise ValueError(f"{head!r} is no signature")


_NAMESPACES: Final = frozenset({"sets", "lists", "optional", "format", "ip", "strings"})


def _receiver(name: str) -> tuple[str, bool, str]:
    receiver, dot, function = name.rpartition(".")
    # Without a dot, or with a known namespace before it, there is no receiver.
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
"""Global functions whose names have a namespace; ``ip.family()`` with a variable ``ip`` is none of them."""


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
    """The overloads by name and whether they are member functions, in the order of the rows."""
    grouped: dict[tuple[str, bool], list[Overload]] = {}
    for overload in rows:
        grouped.setdefault((overload.name, overload.member), []).append(overload)
    return {key: tuple(overloads) for key, overloads in grouped.items()}
