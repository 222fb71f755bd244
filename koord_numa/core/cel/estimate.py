"""
Worst-case cost estimate of an expression. kube-apiserver limits this estimate when a selector is written.

Follows cel-go checker/cost.go and ext/lists.go, with the functions of Kubernetes (apiserver/pkg/cel/library/cost.go)
and the sizes of a device (dynamic-resource-allocation/cel/compile.go), version 1.36. The scheduler does not use
estimates: it charges every evaluation.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, Final, NamedTuple

from koord_numa.core.cel.checker import (
    GLOBAL_SCOPE,
    Scope,
    argument_type,
    loop_variables,
    overloads_of,
    type_of,
    unwrapped,
)
from koord_numa.core.cel.functions import DYN, INT, QUALIFIED, STRING, Type
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
    parse,
)
from koord_numa.core.cel.program import compile_selector

UNKNOWN: Final = 2**64 - 1
"""Maximum size and cost. Sums and products saturate at this value."""

_STRING_FACTOR: Final = 0.1
_REGEX_FACTOR: Final = 0.25
_NEW_LIST: Final = 10
_NEW_MAP: Final = 30
_FORMAT_PATTERN: Final = 128 * _REGEX_FACTOR
"""Cost of the pattern of a named format (apiserver/pkg/cel MaxNameFormatRegexSize)."""

_LONGEST_FORMAT: Final = 64  # apiserver/pkg/cel MaxFormatSize
_LONGEST_INCLUDED: Final = 48
_SCALARS: Final = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})


class SizeRange(NamedTuple):
    """Minimum and maximum number of characters of a string, or of entries of a list or map."""

    least: int
    most: int


class EntrySizes(NamedTuple):
    """Sizes of the keys and values of a map, or of the elements of a list."""

    kind: str
    key: SizeRange
    value: SizeRange


class _Local(NamedTuple):
    path: tuple[str, ...]
    size: SizeRange | None
    entry: EntrySizes | None
    scope_type: Type


_ANY_SIZE: Final = SizeRange(0, UNKNOWN)
_ONE: Final = SizeRange(1, 1)
_DEVICE_SIZES: Final[Mapping[tuple[str, ...], int]] = {
    ("device",): 0,
    ("device", "driver"): 63,
    ("device", "allowMultipleAllocations"): 1,
    **{
        ("device", field, *path): size
        for field, value in (("attributes", 64), ("capacity", 0))
        for path, size in (
            ((), 32),
            (("@keys",), 63),
            (("@values",), 32),
            (("@values", "@keys"), 32),
            (("@values", "@values"), value),
        )
    },
}
"""Maximum sizes, by path: domains have 63 characters, identifiers 32, attribute values 64, and maps 32 entries."""


def _add(*values: int) -> int:
    return min(sum(values), UNKNOWN)


def _times(left: int, right: int) -> int:
    return min(left * right, UNKNOWN)


def _scaled(value: int, factor: float) -> int:
    """Multiply in floating point and round up, as cel-go does."""
    return min(ceil(float(value) * factor), UNKNOWN)


def _union(left: SizeRange, right: SizeRange) -> SizeRange:
    return SizeRange(min(left.least, right.least), max(left.most, right.most))


def _union_of_entries(left: EntrySizes | None, right: EntrySizes | None) -> EntrySizes | None:
    if left is None or right is None:
        return None
    return EntrySizes(left.kind, _union(left.key, right.key), _union(left.value, right.value))


class _Node(NamedTuple):
    """An argument of a call."""

    expr: Expr
    kind: Type
    size: SizeRange | None
    path: tuple[str, ...]
    cost: int


class _Estimator:
    def __init__(self) -> None:
        # Keyed by object identity: every node occurs once in the tree, and the tree outlives the estimator.
        self._sizes: dict[int, SizeRange] = {}
        self._entries: dict[int, EntrySizes] = {}
        self._paths: dict[int, tuple[str, ...]] = {}
        self._types: dict[int, Type] = {}
        self._locals: dict[str, _Local] = {}
        self._scope: Scope = GLOBAL_SCOPE

    def cost(self, node: Expr) -> int:
        """Return the cost of a node and record its type, size and path."""
        if id(node) not in self._types:
            self._types[id(node)] = type_of(node, self._scope)
        cost: int = _COSTS[type(node)](self, node)
        return cost

    # --- recorded properties of a node

    def path(self, node: Expr) -> tuple[str, ...]:
        if isinstance(node, Ident) and node.name in self._locals:
            return self._locals[node.name].path
        return self._paths.get(id(node), ())

    def size(self, node: Expr) -> SizeRange | None:
        known = self._sizes.get(id(node)) or _literal_size(node) or _device_size(self.path(node))
        if known is not None:
            return known
        if _is_scalar(self._types[id(node)]):
            return _ONE
        if isinstance(node, Ident) and node.name in self._locals:
            return self._locals[node.name].size
        return None

    def any_size(self, node: Expr) -> SizeRange:
        size = self.size(node)
        return _ANY_SIZE if size is None else size

    def entry(self, node: Expr) -> EntrySizes | None:
        if id(node) in self._entries:
            return self._entries[id(node)]
        if isinstance(node, Ident) and node.name in self._locals:
            return self._locals[node.name].entry
        return None

    def keep(self, node: Expr, size: SizeRange | None, entry: EntrySizes | None = None) -> None:
        if size is not None:
            self._sizes[id(node)] = size
        if entry is not None:
            self._entries[id(node)] = entry

    def node(self, expr: Expr) -> _Node:
        cost = self.cost(expr)
        return _Node(expr, self._types[id(expr)], self.size(expr), self.path(expr), cost)

    # --- nodes other than calls

    def literal(self, _: Literal) -> int:
        return 0

    def ident(self, node: Ident) -> int:
        self._paths[id(node)] = self.path(node) or (node.name,)
        return 1

    def select(self, node: Select) -> int:
        cost = self.cost(node.operand)
        if node.optional:
            return _add(cost, 1)
        if node.test:
            return cost
        self._paths[id(node)] = (*self.path(node.operand), node.field)
        return _add(cost, self._types[id(node.operand)].name in ("map", "device"))

    def index(self, node: Index) -> int:
        cost = _add(self.cost(node.operand), self.cost(node.key), 1)
        kind = self._types[id(node.operand)].name
        if not node.optional and kind in ("list", "map", "dyn", "any"):
            self._paths[id(node)] = (*self.path(node.operand), "@items" if kind == "list" else "@values")
            entry = self.entry(node.operand)
            self.keep(node, entry.value if entry is not None else self.size(node))
        return cost

    def list_literal(self, node: ListLiteral) -> int:
        cost = _add(_NEW_LIST, *map(self.cost, node.elements))
        self.keep(node, None, EntrySizes("list", _ONE, self._largest(node.elements)))
        return cost

    def map_literal(self, node: MapLiteral) -> int:
        keys, values = [key for key, _, _ in node.entries], [value for _, value, _ in node.entries]
        cost = _add(_NEW_MAP, *map(self.cost, (*keys, *values)))
        self.keep(node, None, EntrySizes("map", self._largest(keys), self._largest(values)))
        return cost

    def _largest(self, nodes: Sequence[Expr]) -> SizeRange:
        sizes = [self.any_size(node) for node in nodes] or [SizeRange(0, 0)]
        return SizeRange(min(size.least for size in sizes), max(size.most for size in sizes))

    # --- macros, as cel-go expands them

    def loop(self, node: Loop) -> int:
        cost = self.cost(node.range)
        count, over = self.any_size(node.range), self.entry(node.range)
        kind, container = self._types[id(node.range)], over.kind if over is not None else ""
        container, path = container or kind.name, self.path(node.range)
        types = loop_variables(kind, node)
        keys = _Local((*path, "@indices" if container == "list" else "@keys"), over and over.key, None, INT)
        values = _Local((*path, "@items" if container == "list" else "@values"), over and over.value, None, INT)
        first = values if len(node.names) == 1 and container == "list" else keys
        before = self._locals, self._scope
        self._locals = {**self._locals, **dict(zip(node.names, (first, values), strict=False))}
        self._scope = {**self._scope, **types}
        condition = self.cost(node.condition) if node.condition is not None else 0
        result = self.cost(node.result) if node.result is not None else 0
        element = first.size
        if node.result is not None:
            element = self.size(node.result)
        elif element is None:
            element = _device_size(first.path)
        self._locals, self._scope = before
        step, once, entry = _LOOPS[node.kind](condition, result, node.condition is not None)
        if node.kind in ("all", "exists", "exists_one"):
            size = _ONE
        else:
            size = count
            # The expanded macro appends the elements to an empty list.
            if node.kind in ("filter", "map"):
                entry = EntrySizes("list", _ONE, SizeRange(0, UNKNOWN if element is None else element.most))
        if node.kind == "sortBy":
            key = self._types[id(node.result)] if node.result is not None else DYN
            squared = SizeRange(_times(count.least, count.least), _times(count.most, count.most))
            once = _add(once, _scaled(squared.most, 2 + _STRING_FACTOR * (key.name in ("string", "bytes"))))
            size = squared
        self.keep(node, size, entry)
        return _add(cost, once, _times(count.most, step))

    def bind(self, node: Bind) -> int:
        return _add(_NEW_LIST, self.cost(node.value), self._body(node, node.name, node.value, node.body))

    def _body(self, node: Expr, name: str, value: Expr, body: Expr) -> int:
        local = _Local(self.path(value), self.size(value), self.entry(value), self._types[id(value)])
        return self._within(node, name, local, body)

    def _within(self, node: Expr, name: str, local: _Local, body: Expr) -> int:
        before = self._locals, self._scope
        self._locals = {**self._locals, name: local}
        self._scope = {**self._scope, name: local.scope_type}
        cost = self.cost(body)
        size, entry = self.size(body), self.entry(body)
        self._locals, self._scope = before
        self.keep(node, size, entry)
        return cost

    def optional_map(self, node: OptionalMap) -> int:
        target = self.cost(node.target)
        inner = unwrapped(self._types[id(node.target)], node.target)
        size = _ONE if _is_scalar(inner) else None
        body = self._within(node, node.name, _Local((), size, None, inner), node.body)
        # target.hasValue() ? optional.of(cel.bind(name, target.value(), body)) : optional.none()
        self._sizes.pop(id(node), None)
        self._entries.pop(id(node), None)
        return _add(target, 1, target, 1, _NEW_LIST, body, 0 if node.flat else 1)

    # --- calls

    def call(self, node: CallExpression) -> int:
        target, name = node.target, node.function
        if isinstance(target, Ident) and f"{target.name}.{name}" in QUALIFIED and target.name not in GLOBAL_SCOPE:
            name, target = f"{target.name}.{name}", None
        if name == "dyn":
            cost = _add(1, self.cost(node.args[0]))
            self.keep(node, self.size(node.args[0]), self.entry(node.args[0]))
            return cost
        receiver = self.node(target) if target is not None else None
        for arg in node.args:
            self._types[id(arg)] = argument_type(name, arg, self._scope)
        args = [self.node(arg) for arg in node.args]
        before = _add(receiver.cost if receiver is not None else 0, *(arg.cost for arg in args))
        if name in ("_&&_", "_||_"):
            return before
        if name == "_?:_":
            self.keep(node, _union(self.any_size(node.args[1]), self.any_size(node.args[2])))
            self.keep(node, None, _union_of_entries(self.entry(node.args[1]), self.entry(node.args[2])))
            return _add(args[0].cost, max(args[1].cost, args[2].cost))
        kinds = [arg.kind for arg in ([receiver] if receiver is not None else []) + args]
        most, size = 0, None
        sizes = [arg.size or _ANY_SIZE for arg in args]
        for parameters, _ in overloads_of(name, target is not None, kinds):
            if receiver is not None:
                cost, made = _MEMBERS.get(name, _one)(receiver, receiver.size or _ANY_SIZE, args, sizes)
            else:
                cost, made = _GLOBALS.get(name, _one_of)(parameters, args, sizes)
            most = max(most, cost)
            if made is not None:
                size = made if size is None else _union(size, made)
        if name == "_+_":
            self.keep(node, None, _union_of_entries(self.entry(node.args[0]), self.entry(node.args[1])))
        self.keep(node, size if size is not None else self.size(node))
        return _add(before, most)


def _literal_size(node: Expr) -> SizeRange | None:
    if isinstance(node, Literal):
        count = len(node.value) if isinstance(node.value, str | bytes) else 1
        return SizeRange(count, count)
    if isinstance(node, ListLiteral):
        return SizeRange(len(node.elements), len(node.elements))
    if isinstance(node, MapLiteral):
        return SizeRange(len(node.entries), len(node.entries))
    return None


def _device_size(path: tuple[str, ...]) -> SizeRange | None:
    """Return the size of the value at a path from ``device``. Every attribute name is looked up as ``@values``."""
    if len(path) == 4 and path[:3] == ("device", "attributes", "@values") and not path[3].startswith("@"):
        path = (*path[:3], "@values")
    most = _DEVICE_SIZES.get(path)
    return None if most is None else SizeRange(0, most)


def _is_scalar(kind: Type) -> bool:
    return kind.name in _SCALARS or (kind.name == "optional" and _is_scalar(kind.parameters[0]))


_LoopCost = Callable[[int, int, bool], tuple[int, int, EntrySizes | None]]
_LOOPS: Final[Mapping[str, _LoopCost]] = {
    # Step cost, one-time cost, and entry sizes, computed from the costs of the accumulator's condition and result.
    "all": lambda condition, _, __: (2 + 1 + condition, 1, None),
    "exists": lambda condition, _, __: (3 + 1 + condition, 1, None),
    "exists_one": lambda condition, _, __: (condition + 2, 2, None),
    "filter": lambda condition, _, __: (condition + 12 + 1, _NEW_LIST + 1, None),
    "map": lambda condition, result, _: (condition + result + 12, _NEW_LIST + 1, None),
    "transformMap": lambda condition, result, _: (condition + result + 3, _NEW_MAP + 1, None),
    "transformMapEntry": lambda condition, result, _: (condition + result + 2, _NEW_MAP + 1, None),
    # cel.bind(input, range, input.@sortByAssociatedKeys(input.map(name, key)))
    "sortBy": lambda _, result, __: (result + 12, _NEW_LIST + 1 + 1 + _NEW_LIST + 1 + 11, None),
}
_Made = tuple[int, SizeRange | None]
_Member = Callable[[_Node, SizeRange, Sequence[_Node], Sequence[SizeRange]], _Made]
_Global = Callable[[Sequence[Type], Sequence[_Node], Sequence[SizeRange]], _Made]


def _traversal(_: _Node, of_target: SizeRange, *__: object) -> _Made:
    return _scaled(of_target.most, _STRING_FACTOR), of_target


def _over_elements(target: _Node, of_target: SizeRange, *_: object) -> _Made:
    """Compare every element of a list, or search a text."""
    if not target.kind.parameters:
        return _scaled(of_target.most, _STRING_FACTOR), None
    element = 1
    if target.kind.parameters[0].name in ("string", "bytes"):
        element = _add(1, _scaled(_size_of_element(target).most, _STRING_FACTOR))
    return _times(of_target.most, element), None


def _size_of_element(target: _Node) -> SizeRange:
    return _device_size((*target.path, "@items")) or _ANY_SIZE


def _one(*_: object) -> _Made:
    return 1, None


def _one_of(_: Sequence[Type], __: Sequence[_Node], ___: Sequence[SizeRange]) -> _Made:
    return 1, None


def _read(times: int) -> _Global:
    return lambda _, __, sizes: (_scaled(sizes[0].most, times * _STRING_FACTOR), None)


def _pairs(factor: float) -> _Global:
    return lambda _, __, sizes: (_add(_scaled(_times(sizes[0].most, sizes[1].most), factor), 1), None)


def _range(_: Sequence[Type], args: Sequence[_Node], __: Sequence[SizeRange]) -> _Made:
    value = getattr(args[0].expr, "value", None)
    size = SizeRange(value, value) if type(value) is int and value >= 0 else _ANY_SIZE
    return _add(size.most, _NEW_LIST, 1), size


def _quote(_: Sequence[Type], __: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    return _scaled(sizes[0].most, _STRING_FACTOR), SizeRange(sizes[0].least + 2, _add(_times(sizes[0].most, 2), 2))


def _bytes(parameters: Sequence[Type], _: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    if parameters[0] != STRING:
        return 1, None
    return _scaled(sizes[0].most, _STRING_FACTOR), SizeRange(sizes[0].least, _times(sizes[0].most, 4))


def _string(parameters: Sequence[Type], _: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    if parameters[0].name != "bytes":
        return 1, None
    return _scaled(sizes[0].most, _STRING_FACTOR), SizeRange(sizes[0].least // 4, sizes[0].most)


def _is_in(parameters: Sequence[Type], _: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    return (sizes[1].most if parameters[1].name == "list" else 1), None


def _plus(parameters: Sequence[Type], _: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    if parameters[0].name not in ("string", "bytes", "list"):
        return 1, None
    size = SizeRange(_add(sizes[0].least, sizes[1].least), _add(sizes[0].most, sizes[1].most))
    return (1 if parameters[0].name == "list" else _scaled(size.most, _STRING_FACTOR)), size


def _equal(_: Sequence[Type], args: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    kind = args[0].kind.name if args[0].kind == args[1].kind else ""
    if kind in ("ip", "cidr", "quantity", "semver", "url"):
        return 1, None
    if kind == "format":
        return _scaled(_LONGEST_FORMAT, _STRING_FACTOR), None
    return _compared(_, args, sizes)


def _compared(_: Sequence[Type], __: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    return _scaled(min(sizes[0].most, sizes[1].most), _STRING_FACTOR), None


def _ordered(parameters: Sequence[Type], args: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    return _compared(parameters, args, sizes) if parameters[0].name in ("string", "bytes") else (1, None)


def _replace(_: _Node, text: SizeRange, __: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    old, new = sizes[0], sizes[1]
    if old.least == 0:
        most = _add(_times(_add(text.most, 1), new.most), text.most)
    elif new.most <= old.least:
        most = text.most
    else:
        most = _times(ceil(float(text.most) / float(old.least)), new.most)
    if old.most == 0:
        least = _add(_times(_add(text.least, 1), new.least), text.least)
    elif old.most <= new.least:
        least = text.least
    else:
        least = _times(ceil(float(text.least) / float(old.most)), new.least)
    return _scaled(text.most, 2 * _STRING_FACTOR), SizeRange(least, most)


def _split(_: _Node, text: SizeRange, args: Sequence[_Node], ___: Sequence[SizeRange]) -> _Made:
    most = text.most
    if len(args) > 1:
        value = getattr(args[1].expr, "value", None)
        most = value % 2**64 if type(value) is int else most
    return _scaled(text.most, 2 * _STRING_FACTOR), SizeRange(0, most)


def _join(target: _Node, count: SizeRange, args: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    element = _size_of_element(target)
    size = SizeRange(_times(count.least, element.least), _times(count.most, element.most))
    if args:
        size = SizeRange(
            _add(size.least, _times(sizes[0].least, max(count.least - 1, 0))),
            _add(size.most, _times(sizes[0].most, max(count.most - 1, 0))),
        )
    return _scaled(size.most, _STRING_FACTOR), size


def _pattern(_: _Node, text: SizeRange, __: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    cost = _times(_scaled(_add(text.most, 1), _STRING_FACTOR), _scaled(sizes[0].most, _REGEX_FACTOR))
    return cost, SizeRange(0, text.most)


def _contains(_: _Node, text: SizeRange, __: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    return _times(_scaled(text.most, _STRING_FACTOR), _scaled(sizes[0].most, _STRING_FACTOR)), None


def _affix(_: _Node, __: SizeRange, ___: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
    return _scaled(sizes[0].most, _STRING_FACTOR), None


def _network(base: int) -> _Member:
    def cost(_: _Node, __: SizeRange, args: Sequence[_Node], sizes: Sequence[SizeRange]) -> _Made:
        # Addresses of 16 bytes are compared. A string is parsed first.
        text = args[0].kind.name in ("string", "dyn", "any")
        return _add(base, _scaled(sizes[0].most, _STRING_FACTOR) if text else 0), None

    return cost


def _allocating(cost: Callable[[SizeRange, Sequence[_Node], Type], int], squared: bool) -> _Member:
    """Return the estimate for a member function that builds a list."""

    def estimate(target: _Node, count: SizeRange, args: Sequence[_Node], _: Sequence[SizeRange]) -> _Made:
        element = target.kind.parameters[0] if target.kind.parameters else DYN
        size = SizeRange(_times(count.least, count.least), _times(count.most, count.most)) if squared else count
        return _add(cost(size, args, element), _NEW_LIST, 1), size

    return estimate


def _slice(_: _Node, count: SizeRange, args: Sequence[_Node], ___: Sequence[SizeRange]) -> _Made:
    start, end = (getattr(arg.expr, "value", None) for arg in args)
    first = start if type(start) is int else 0
    last = end if type(end) is int else count.most
    size = SizeRange(last - first, last - first) if last >= first else count
    return _add(size.most, _NEW_LIST, 1), size


def _depth(args: Sequence[_Node]) -> float:
    if not args:
        return 1
    value = getattr(args[0].expr, "value", None)
    return float(value) if type(value) is int and value >= 0 else float(UNKNOWN)


_MEMBERS: Final[Mapping[str, _Member]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _over_elements),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _traversal),
    **dict.fromkeys(("find", "findAll", "matches"), _pattern),
    **dict.fromkeys(("startsWith", "endsWith"), _affix),
    "replace": _replace,
    "split": _split,
    "join": _join,
    "contains": _contains,
    "format": lambda _, text, *__: (_scaled(text.most, _STRING_FACTOR), None),
    "validate": lambda _, __, ___, sizes: (
        _scaled(_scaled(sizes[0].most, _STRING_FACTOR), _FORMAT_PATTERN),
        None,
    ),
    "includes": lambda *_: (_LONGEST_INCLUDED, None),
    "containsIP": _network(4),
    "containsCIDR": _network(7),
    "slice": _slice,
    "flatten": _allocating(lambda size, args, _: _scaled(size.most, _depth(args)), False),
    "reverse": _allocating(lambda size, *_: size.most, False),
    "distinct": _allocating(lambda size, *_: _scaled(size.most, 2.0), True),
    "sort": _allocating(
        lambda size, _, kind: _scaled(size.most, 2 + _STRING_FACTOR * (kind.name in ("string", "bytes"))), True
    ),
}
# The recorded upstream version charges global functions that read a string like member functions.
_GLOBALS: Final[Mapping[str, _Global]] = {
    **dict.fromkeys(("cidr", "ip", "isCIDR", "isIP", "isQuantity", "isSemver", "isURL"), _read(1)),
    **dict.fromkeys(("quantity", "semver", "url"), _read(1)),
    "ip.isCanonical": _read(2),
    "sets.contains": _pairs(1),
    "sets.intersects": _pairs(1),
    "sets.equivalent": _pairs(2),
    "lists.range": _range,
    "strings.quote": _quote,
    "bytes": _bytes,
    "string": _string,
    "@in": _is_in,
    "_+_": _plus,
    "_==_": _equal,
    "_!=_": _compared,
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), _ordered),
}
_COSTS: Final[Mapping[type, Callable[[_Estimator, Any], int]]] = {
    Literal: _Estimator.literal,
    Ident: _Estimator.ident,
    Select: _Estimator.select,
    Index: _Estimator.index,
    ListLiteral: _Estimator.list_literal,
    MapLiteral: _Estimator.map_literal,
    CallExpression: _Estimator.call,
    Loop: _Estimator.loop,
    Bind: _Estimator.bind,
    OptionalMap: _Estimator.optional_map,
}


@lru_cache(maxsize=256)
def estimate_cost(source: str) -> int:
    """Return the worst-case cost of an expression in units, at most ``UNKNOWN``. Raises ``CompileError``."""
    # ``compile_selector`` checks the depth of the tree.
    compile_selector(source)
    return _Estimator().cost(parse(source))
