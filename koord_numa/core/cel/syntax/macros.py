"""The macros: calls that bind variables or look at names, rewritten into nodes of their own while parsing."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from koord_numa.core.cel.errors import CompileError
from koord_numa.core.cel.syntax.syntax import Bind, Expr, Ident, Loop, OptionalMap, Select

Macro = Callable[[int, Expr | None, tuple[Expr, ...]], Expr]


def _variable(node: Expr) -> str:
    if not isinstance(node, Ident):
        raise CompileError("argument must be a simple name", node.position)
    return node.name


def _has(position: int, _: Expr | None, args: tuple[Expr, ...]) -> Expr:
    node = args[0]
    if not isinstance(node, Select) or node.optional:
        raise CompileError("invalid argument to has() macro", node.position)
    return Select(position, node.operand, node.field, test=True)


def _predicate(kind: str, position: int, target: Expr | None, args: tuple[Expr, ...]) -> Expr:
    """``range.all(x, p)`` or ``range.all(i, x, p)``."""
    assert target is not None  # noqa: S101  (a member macro)
    return Loop(position, kind, target, _names(args[:-1]), args[-1], None)


def _transform(kind: str, variables: int, position: int, target: Expr | None, args: tuple[Expr, ...]) -> Expr:
    """``range.map(x, [filter,] result)``."""
    assert target is not None  # noqa: S101  (a member macro)
    condition = args[variables] if len(args) == variables + 2 else None
    return Loop(position, kind, target, _names(args[:variables]), condition, args[-1])


def _names(nodes: tuple[Expr, ...]) -> tuple[str, ...]:
    names = tuple(_variable(node) for node in nodes)
    if len(set(names)) != len(names):
        raise CompileError("the two variables of a comprehension must differ", nodes[0].position)
    return names


def _bind(position: int, _: Expr | None, args: tuple[Expr, ...]) -> Expr:
    return Bind(position, _variable(args[0]), args[1], args[2])


def _optional_map(flat: bool, position: int, target: Expr | None, args: tuple[Expr, ...]) -> Expr:
    assert target is not None  # noqa: S101  (a member macro)
    return OptionalMap(position, target, _variable(args[0]), args[1], flat)


def _sort_by(position: int, target: Expr | None, args: tuple[Expr, ...]) -> Expr:
    assert target is not None  # noqa: S101  (a member macro)
    return Loop(position, "sortBy", target, _names(args[:1]), None, args[1])


GLOBAL_MACROS: Final[Mapping[tuple[str, int], Macro]] = {("has", 1): _has}
NAMESPACE_MACROS: Final[Mapping[tuple[str, int], Macro]] = {("cel.bind", 3): _bind}
MEMBER_MACROS: Final[Mapping[tuple[str, int], Macro]] = {
    ("all", 2): partial(_predicate, "all"),
    ("exists", 2): partial(_predicate, "exists"),
    ("exists_one", 2): partial(_predicate, "exists_one"),
    ("existsOne", 2): partial(_predicate, "exists_one"),
    ("filter", 2): partial(_predicate, "filter"),
    ("map", 2): partial(_transform, "map", 1),
    ("map", 3): partial(_transform, "map", 1),
    # Two-variable comprehensions (cel-go ext.TwoVarComprehensions).
    ("all", 3): partial(_predicate, "all"),
    ("exists", 3): partial(_predicate, "exists"),
    ("existsOne", 3): partial(_predicate, "exists_one"),
    ("exists_one", 3): partial(_predicate, "exists_one"),
    ("transformList", 3): partial(_transform, "map", 2),
    ("transformList", 4): partial(_transform, "map", 2),
    ("transformMap", 3): partial(_transform, "transformMap", 2),
    ("transformMap", 4): partial(_transform, "transformMap", 2),
    ("transformMapEntry", 3): partial(_transform, "transformMapEntry", 2),
    ("transformMapEntry", 4): partial(_transform, "transformMapEntry", 2),
    ("optMap", 2): partial(_optional_map, False),
    ("optFlatMap", 2): partial(_optional_map, True),
    ("sortBy", 2): _sort_by,
}
"""By name and number of arguments."""
