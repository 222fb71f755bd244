"""The syntax tree. Macros are nodes of their own: what they expand to upstream is written beside them in the compiler."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: bool, int, ``Uint``, float, str, bytes or None."""

    position: int
    value: object


@dataclass(frozen=True, slots=True)
class Ident:
    """A variable or the name of a type."""

    position: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """``operand.field``; ``optional`` for ``operand.?field``, ``test`` for ``has(operand.field)``."""

    position: int
    operand: "Expr"
    field: str
    optional: bool = False
    test: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """``operand[key]``; ``optional`` for ``operand[?key]``."""

    position: int
    operand: "Expr"
    key: "Expr"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator. ``target`` is the receiver of a member call."""

    position: int
    function: str
    args: tuple["Expr", ...]
    target: "Expr | None" = None


@dataclass(frozen=True, slots=True)
class ListLiteral:
    """``[a, ?b]``: the elements at ``optional`` positions are left out when they are none."""

    position: int
    elements: tuple["Expr", ...]
    optional: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class MapLiteral:
    """``{k: v, ?k: v}``: key, value, and whether the entry is optional."""

    position: int
    entries: tuple[tuple["Expr", "Expr", bool], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """
    A comprehension macro over a list or map.

    ``kind`` is the macro's name. ``names`` holds one variable, or two: index and element of a list, key and value of a map.
    ``condition`` filters (``map``, ``transformList`` …) or is the predicate; ``result`` makes the new element.
    """

    position: int
    kind: str
    range: "Expr"
    names: tuple[str, ...]
    condition: "Expr | None"
    result: "Expr | None"


@dataclass(frozen=True, slots=True)
class Bind:
    """``cel.bind(name, value, body)``."""

    position: int
    name: str
    value: "Expr"
    body: "Expr"


@dataclass(frozen=True, slots=True)
class OptionalMap:
    """``target.optMap(name, body)``, or ``optFlatMap`` when ``flat``."""

    position: int
    target: "Expr"
    name: str
    body: "Expr"
    flat: bool


Expr = Literal | Ident | Select | Index | Call | ListLiteral | MapLiteral | Loop | Bind | OptionalMap
