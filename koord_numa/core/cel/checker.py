"""Type checker for syntax trees. It computes the type of every node or raises ``CompileError``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from koord_numa.core.cel.functions import (
    ANY,
    BOOL,
    DYN,
    INT,
    NULL,
    QUALIFIED,
    STRING,
    Bindings,
    Overload,
    Type,
    is_dynamic,
    list_of,
    map_of,
    optional_of,
    substitute,
    unify,
)
from koord_numa.core.cel.operators import parse_duration, parse_timestamp
from koord_numa.core.cel.parser import (
    Bind,
    CallExpression,
    Expr,
    Ident,
    Index,
    ListLiteral,
    Literal,
    Loop,
    MapLiteral,
    OptionalMap,
    Select,
)
from koord_numa.core.cel.standard_library import TABLE, pattern
from koord_numa.core.cel.values import CompileError, EvaluationError, Uint

Scope = Mapping[str, Type]

DEVICE_FIELDS: Final[Mapping[str, Type]] = {
    "driver": STRING,
    "allowMultipleAllocations": BOOL,
    "attributes": map_of(STRING, map_of(STRING, ANY)),
    "capacity": map_of(STRING, map_of(STRING, Type("quantity"))),
}
_TYPE_NAMES: Final = ("int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type")
GLOBAL_SCOPE: Final[Scope] = {"device": Type("device"), **dict.fromkeys(_TYPE_NAMES, Type("type"))}
LITERALS: Final[Mapping[type, Type]] = {
    bool: BOOL,
    int: INT,
    Uint: Type("uint"),
    float: Type("double"),
    str: STRING,
    bytes: Type("bytes"),
    type(None): NULL,
}
"""CEL types of literals, by the Python type of the value."""


_MIXED: Final = "@mixed literals"
"""
Scope entry that permits literals with mixed element types. The ``@`` keeps the name free from collisions with
variables.
"""


def check(tree: Expr) -> None:
    """
    Check a whole selector.

    Raises ``CompileError`` for a type error, and when the result type can never be bool.
    """
    result = type_of(tree, GLOBAL_SCOPE)
    # As in cel-go, a dynamic result is checked at run time.
    if result != BOOL and not is_dynamic(result):
        raise CompileError(f"must evaluate to bool or the unknown type, not {result}")


def type_of(node: Expr, scope: Scope) -> Type:
    """Return the type of a node. Raises ``CompileError``."""
    return _CHECKS[type(node)](node, scope)


def _literal(node: Literal, _: Scope) -> Type:
    return LITERALS[type(node.value)]


def _ident(node: Ident, scope: Scope) -> Type:
    if node.name not in scope:
        raise CompileError(f"undeclared reference to '{node.name}' (in container '')", node.position)
    return scope[node.name]


def _select(node: Select, scope: Scope) -> Type:
    field = _field(type_of(node.operand, scope), node)
    if node.test:
        return BOOL
    # A selection does not wrap an optional in another optional.
    return optional_of(field) if node.optional and field.name != "optional" else field


def _field(operand: Type, node: Select) -> Type:
    if operand.name == "optional":
        inner = _field(operand.parameters[0], node)
        return inner if inner.name == "optional" else optional_of(inner)
    if operand.name == "device":
        if node.field not in DEVICE_FIELDS:
            raise CompileError(f"undefined field '{node.field}'", node.position)
        return DEVICE_FIELDS[node.field]
    if operand.name == "map":
        return operand.parameters[1]
    if is_dynamic(operand):
        return DYN
    raise CompileError(f"type '{operand}' does not support field selection", node.position)


def _index(node: Index, scope: Scope) -> Type:
    element = _element(type_of(node.operand, scope), type_of(node.key, scope), node)
    return optional_of(element) if node.optional and element.name != "optional" else element


def _element(operand: Type, key: Type, node: Index) -> Type:
    if operand.name == "optional":
        return optional_of(_element(operand.parameters[0], key, node))
    if operand.name == "list" and unify(INT, key, {}):
        return operand.parameters[0]
    if operand.name == "map" and unify(operand.parameters[0], key, {}):
        return operand.parameters[1]
    if is_dynamic(operand):
        return DYN
    raise CompileError(f"found no matching overload for '_[_]' applied to '({operand}, {key})'", node.position)


def _list(node: ListLiteral, scope: Scope) -> Type:
    kinds = [
        unwrapped(type_of(element, scope), element) if at in node.optional else type_of(element, scope)
        for at, element in enumerate(node.elements)
    ]
    return list_of(_common(kinds, node.elements, scope))


def unwrapped(kind: Type, node: Expr) -> Type:
    """Return the type inside an optional. Raises ``CompileError`` for a type that is neither optional nor dynamic."""
    if kind.name == "optional":
        return kind.parameters[0]
    if is_dynamic(kind):
        return DYN
    raise CompileError(f"expected type 'optional_type' but found '{kind}'", node.position)


def _common(kinds: Sequence[Type], nodes: Sequence[Expr], scope: Scope) -> Type:
    """Return the common element type. Literals are homogeneous: the first element determines the type."""
    if _MIXED in scope:
        return kinds[0] if len(set(kinds)) == 1 else DYN
    for kind, node in zip(kinds, nodes, strict=True):
        # dyn is compatible with every type, as the first element and as a later element.
        if kind != kinds[0] and "dyn" not in (kind.name, kinds[0].name):
            raise CompileError(f"expected type '{kinds[0]}' but found '{kind}'", node.position)
    return kinds[0] if kinds else DYN


def _map(node: MapLiteral, scope: Scope) -> Type:
    keys = [type_of(key, scope) for key, _, _ in node.entries]
    values = [
        unwrapped(type_of(value, scope), value) if optional else type_of(value, scope)
        for _, value, optional in node.entries
    ]
    key = _common(keys, [key for key, _, _ in node.entries], scope)
    if key.name not in ("int", "uint", "bool", "string", "dyn", "any"):
        raise CompileError(f"unsupported map key type {key}", node.position)
    return map_of(key, _common(values, [value for _, value, _ in node.entries], scope))


def _call(node: CallExpression, scope: Scope) -> Type:
    if node.function in ("_&&_", "_||_"):
        return _logic(node, scope)
    target, name = node.target, node.function
    # A name that is not a variable may be the namespace of a function: ``sets.contains``.
    if isinstance(target, Ident) and target.name not in scope:
        qualified = f"{target.name}.{name}"
        if qualified not in QUALIFIED:
            raise CompileError(f"undeclared reference to '{target.name}' (in container '')", target.position)
        return _resolve(qualified, False, [type_of(arg, scope) for arg in node.args], node)
    # A variable of the same name that a macro binds hides the namespace.
    if isinstance(target, Ident) and f"{target.name}.{name}" in QUALIFIED and target.name not in GLOBAL_SCOPE:
        return _resolve(f"{target.name}.{name}", False, [type_of(arg, scope) for arg in node.args], node)
    receiver = [] if target is None else [type_of(target, scope)]
    kinds = receiver + [argument_type(name, arg, scope) for arg in node.args]
    result = _resolve(name, target is not None, kinds, node)
    # Only literals are validated: the value of any other pattern is unknown before evaluation.
    if node.function in _CONSTANTS and node.args and isinstance(node.args[-1], Literal):
        value = node.args[-1].value
        try:
            if isinstance(value, str):
                _CONSTANTS[node.function](value)
        except (ValueError, EvaluationError):
            raise CompileError(f"invalid {node.function} argument", node.args[-1].position) from None
    return result


def argument_type(function: str, node: Expr, scope: Scope) -> Type:
    """Return the type of an argument. Literals in arguments of ``format`` may have mixed element types."""
    return type_of(node, {**scope, _MIXED: DYN} if function == "format" else scope)


def _logic(node: CallExpression, scope: Scope) -> Type:
    kinds = [type_of(arg, scope) for arg in node.args]
    # Every operand is checked against bool separately, because two operands share no type parameter.
    if not all(unify(BOOL, kind, {}) for kind in kinds):
        raise _no_overload(node, kinds, member=False)
    return BOOL


def overloads_of(name: str, member: bool, kinds: Sequence[Type]) -> list[tuple[Sequence[Type], Type]]:
    """Return the parameters and the result type of every overload that accepts the types."""
    rows = TABLE.get((name, member), ())
    return [(row.parameters, result) for row in rows if (result := _result(row, kinds)) is not None]


def _resolve(name: str, member: bool, kinds: Sequence[Type], node: CallExpression) -> Type:
    """
    Return the result type of the overloads that accept the types, or dyn when their results differ because of dyn
    operands.
    """
    overloads = TABLE.get((name, member), ())
    # A function that exists only as a member (or only as a global) is a known name, so the overload is missing.
    if not overloads and (name, not member) not in TABLE:
        raise CompileError(f"undeclared reference to '{name}' (in container '')", node.position)
    results = {result for overload in overloads if (result := _result(overload, kinds)) is not None}
    if not results:
        raise _no_overload(node, kinds, member)
    # With dyn operands several overloads may match. The overload is then chosen at run time.
    return results.pop() if len(results) == 1 else DYN


def _result(overload: Overload, kinds: Sequence[Type]) -> Type | None:
    bindings: Bindings = {}
    if len(overload.parameters) != len(kinds):
        return None
    if all(unify(formal, actual, bindings) for formal, actual in zip(overload.parameters, kinds, strict=True)):
        return substitute(overload.result, bindings)
    return None


def _no_overload(node: CallExpression, kinds: Sequence[Type], member: bool) -> CompileError:
    shown = ", ".join(map(str, kinds[1:] if member else kinds))
    applied = f"{kinds[0]}.({shown})" if member else f"({shown})"
    return CompileError(f"found no matching overload for '{node.function}' applied to '{applied}'", node.position)


_CONSTANTS: Final[Mapping[str, Callable[[str], object]]] = {
    "matches": pattern,
    "duration": parse_duration,
    "timestamp": parse_timestamp,
}


def _loop(node: Loop, scope: Scope) -> Type:
    kind = type_of(node.range, scope)
    # Inner variables hide outer variables of the same name.
    inner = {**scope, **loop_variables(kind, node)}
    if node.condition is not None:
        condition = type_of(node.condition, inner)
        if not unify(BOOL, condition, {}):
            raise CompileError(f"expected type 'bool' but found '{condition}'", node.condition.position)
    result = type_of(node.result, inner) if node.result is not None else DYN
    return _LOOP_RESULTS[node.kind](kind, result)


def loop_variables(kind: Type, node: Loop) -> dict[str, Type]:
    """Return the types of the variables of a loop over a range of the given type."""
    kinds: tuple[Type, ...]
    if kind.name == "list":
        kinds = (kind.parameters[0],) if len(node.names) == 1 else (INT, kind.parameters[0])
    elif kind.name == "map":
        kinds = kind.parameters[: len(node.names)]
    elif is_dynamic(kind):
        # The type of an attribute (scalar or list) is known only at run time.
        kinds = (DYN,) * len(node.names)
    else:
        message = f"expression of type '{kind}' cannot be range of a comprehension (must be list, map, or dynamic)"
        raise CompileError(message, node.range.position)
    return dict(zip(node.names, kinds, strict=True))


def _filtered(kind: Type, _: Type) -> Type:
    return list_of(kind.parameters[0]) if kind.name in ("list", "map") else list_of(DYN)


def _remapped(kind: Type, result: Type) -> Type:
    return map_of(kind.parameters[0] if kind.name == "map" else INT if kind.name == "list" else DYN, result)


_LOOP_RESULTS: Final[Mapping[str, Callable[[Type, Type], Type]]] = {
    "all": lambda *_: BOOL,
    "exists": lambda *_: BOOL,
    "exists_one": lambda *_: BOOL,
    "filter": _filtered,
    "map": lambda _, result: list_of(result),
    "sortBy": _filtered,
    "transformMap": _remapped,
    "transformMapEntry": lambda _, result: result if result.name == "map" else map_of(DYN, DYN),
}


def _bind(node: Bind, scope: Scope) -> Type:
    return type_of(node.body, {**scope, node.name: type_of(node.value, scope)})


def _optional_map(node: OptionalMap, scope: Scope) -> Type:
    kind = type_of(node.target, scope)
    body = type_of(node.body, {**scope, node.name: unwrapped(kind, node.target)})
    if not node.flat:
        return optional_of(body)
    return optional_of(unwrapped(body, node.body))


_CHECKS: Final[Mapping[type, Callable[[Any, Scope], Type]]] = {
    Literal: _literal,
    Ident: _ident,
    Select: _select,
    Index: _index,
    ListLiteral: _list,
    MapLiteral: _map,
    CallExpression: _call,
    Loop: _loop,
    Bind: _bind,
    OptionalMap: _optional_map,
}
