"""Compiler from a syntax tree to Python closures. A closure takes the frame of one evaluation and returns a value."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final

from koord_numa.core.cel.checker import check
from koord_numa.core.cel.functions import QUALIFIED, Overload, constant_time
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
from koord_numa.core.cel.runtime import (
    DEVICE_NAMES,
    LOOPS,
    MAX_TREE_DEPTH,
    OPERATORS,
    CelDevice,
    Evaluate,
    Frame,
    LoopBody,
    Reads,
    contained,
    contained_in_constant,
    index_value,
    optional_index,
    optional_select,
    select_value,
    test_field,
)
from koord_numa.core.cel.standard_library import TABLE
from koord_numa.core.cel.values import (
    NO_SUCH_OVERLOAD,
    NONE,
    CompileError,
    CostExceededError,
    EvaluationError,
    MapValue,
    OptionalValue,
    TypeValue,
)


class BindingScope:
    """
    A chain of variable bindings. Every binding of an expression has its own slot, so inner variables may hide outer
    variables.
    """

    __slots__ = ("_counter", "_slots")

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._counter = [0]

    @property
    def size(self) -> int:
        """Number of slots allocated so far, in all scopes of the expression."""
        return self._counter[0]

    def slot(self, name: str) -> int | None:
        """Return the slot of a variable, or None for a name that no macro binds."""
        return self._slots.get(name)

    def require(self, name: str) -> int:
        """Return the slot of a bound variable. Raises ``CompileError`` for an unbound name."""
        slot = self._slots.get(name)
        if slot is None:
            raise CompileError(f"undeclared reference to '{name}' (in container '')")
        return slot

    def bind(self, *names: str) -> "BindingScope":
        """Return a nested scope with further variables."""
        inner = BindingScope()
        # All scopes of an expression share the counter: slots of inner scopes must not overlap with outer slots.
        inner._counter = self._counter
        inner._slots = {**self._slots, **{name: self._counter[0] + at for at, name in enumerate(names)}}
        self._counter[0] += len(names)
        return inner


_LIST_COST: Final = 10
_MAP_COST: Final = 30


class NoFrame(Frame):
    """A frame without a device, for the evaluation of constants."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_NO_DEVICE, 0)


_NO_DEVICE: Final = CelDevice("")


def constant(node: Expr) -> bool:
    """Return whether the node consists of literals only. Such lists and maps are built once, at compile time."""
    if isinstance(node, ListLiteral):
        # A list with optional elements depends on the values of these elements.
        return not node.optional and all(map(constant, node.elements))
    if isinstance(node, MapLiteral):
        return all(constant(key) and constant(value) and not optional for key, value, optional in node.entries)
    return isinstance(node, Literal)


def once(evaluate: Evaluate) -> Evaluate:
    """Evaluate a constant now and return a closure that returns its value."""
    value = evaluate(NoFrame())
    return lambda _: value


def present(value: Any) -> bool:
    """Return whether the optional holds a value. Raises ``EvaluationError`` for any other type."""
    if not isinstance(value, OptionalValue):
        raise EvaluationError(NO_SUCH_OVERLOAD)
    return value.present


def make_list(elements: Sequence[tuple[Evaluate, bool]]) -> Evaluate:
    """Return a closure that builds a list. Optional elements without a value are left out."""

    def evaluate(frame: Frame) -> Any:
        frame.cost += _LIST_COST
        values: list[Any] = []
        for element, optional in elements:
            value = element(frame)
            if not optional:
                values.append(value)
            elif present(value):
                values.append(value.value)
        return frame.admit(tuple(values))

    return evaluate


def make_map(entries: Sequence[tuple[Evaluate, Evaluate, bool]]) -> Evaluate:
    """
    Return a closure that builds a map.

    Optional entries without a value are left out. The closure raises ``EvaluationError`` for a repeated key.
    """

    def evaluate(frame: Frame) -> Any:
        frame.cost += _MAP_COST
        pairs: list[tuple[Any, Any]] = []
        for key, value, optional in entries:
            name, item = key(frame), value(frame)
            # CEL does not allow doubles and null as map keys.
            if not isinstance(name, bool | int | str):
                raise EvaluationError("unsupported key type")
            if not optional:
                pairs.append((name, item))
            elif present(item):
                pairs.append((name, item.value))
        made = MapValue(pairs)
        # The map keeps one entry per key, so a smaller count reveals repeated keys.
        if len(made) != len(pairs):
            raise EvaluationError("Failed with repeated key")
        return frame.admit(made)

    return evaluate


FOLDED: Final = 64
"""Maximum size in work units of a folded constant that a compiled program holds."""


def compile_tree(tree: Expr) -> tuple[Evaluate, int]:
    """Return the closure of a checked tree and the number of variable slots that its frame needs."""
    scope = BindingScope()
    return _compile(tree, scope), scope.size


def _compile(node: Expr, scope: BindingScope) -> Evaluate:
    return _COMPILERS[type(node)](node, scope)


def _literal(node: Literal, _: BindingScope) -> Evaluate:
    value = node.value
    return lambda _: value


_TYPE_VALUES: Final = {
    name: TypeValue(name) for name in ("int", "uint", "double", "bool", "string", "bytes", "list", "map")
} | {
    "null_type": TypeValue("null_type"),
    "type": TypeValue("type"),
}


def _ident(node: Ident, scope: BindingScope) -> Evaluate:
    # The slot is resolved at compile time, so that reading a variable is one list access.
    slot = scope.slot(node.name)
    if slot is not None:
        return lambda frame: _charged(frame, 1).variables[slot]
    if node.name == "device":
        return lambda frame: _charged(frame, 1).device
    value = _TYPE_VALUES[node.name]
    return _costing(value, 1)


def _charged(frame: Frame, units: int) -> Frame:
    frame.cost += units
    return frame


def _costing(value: Any, units: int) -> Evaluate:
    def evaluate(frame: Frame) -> Any:
        frame.cost += units
        return value

    return evaluate


def _base_cost(operand: Expr) -> int:
    """
    Return the cost of a selection: one unit, plus one unit when the operand is not a variable or another selection.
    """
    return 1 if isinstance(operand, Ident | Select | Index) else 2


def _select(node: Select, scope: BindingScope) -> Evaluate:
    operand, field, cost = _compile(node.operand, scope), node.field, _base_cost(node.operand)
    read = test_field if node.test else optional_select if node.optional else select_value
    # ``device.x`` is by far the most common selection, so it gets a single closure.
    if (
        not node.test
        and not node.optional
        and isinstance(node.operand, Ident)
        and scope.slot(node.operand.name) is None
    ):
        return _device_field(field)
    # ``has()`` reads the map but not the value and costs one unit less.
    if node.test:
        cost -= 1

    def evaluate(frame: Frame) -> Any:
        value = operand(frame)
        frame.cost += cost
        return read(value, field)

    return evaluate


def _device_field(field: str) -> Evaluate:
    """Return a closure that reads a field of the device, such as ``device.attributes``."""
    name = DEVICE_NAMES[field]

    def evaluate(frame: Frame) -> Any:
        frame.cost += 2
        return getattr(frame.device, name)

    return evaluate


def _index(node: Index, scope: BindingScope) -> Evaluate:
    operand, key, cost = _compile(node.operand, scope), _compile(node.key, scope), _base_cost(node.operand)
    read = optional_index if node.optional else index_value

    def evaluate(frame: Frame) -> Any:
        value = operand(frame)
        frame.cost += cost
        return read(value, key(frame))

    return evaluate


def _list(node: ListLiteral, scope: BindingScope) -> Evaluate:
    made = make_list([(_compile(element, scope), at in node.optional) for at, element in enumerate(node.elements)])
    # A constant list is built once instead of once per device.
    return once(made) if constant(node) else made


def _map(node: MapLiteral, scope: BindingScope) -> Evaluate:
    made = make_map([(_compile(key, scope), _compile(value, scope), optional) for key, value, optional in node.entries])
    return once(made) if constant(node) else made


def _call(node: CallExpression, scope: BindingScope) -> Evaluate:
    if node.function == "@in":
        container = _compile(node.args[1], scope)
        if isinstance(node.args[1], ListLiteral) and constant(node.args[1]):
            return contained_in_constant(_compile(node.args[0], scope), container(NoFrame()))
        return contained(_compile(node.args[0], scope), container)
    if node.function in OPERATORS:
        return OPERATORS[node.function]([_compile(arg, scope) for arg in node.args])
    name, target, args = node.function, node.target, node.args
    qualified = f"{target.name}.{name}" if isinstance(target, Ident) else ""
    if isinstance(target, Ident) and qualified in QUALIFIED and scope.slot(target.name) is None:
        name, target = qualified, None
    operands = [_compile(operand, scope) for operand in ((target, *args) if target is not None else args)]
    # Rows are selected by the number of arguments here and by the argument types at run time.
    evaluate = _dispatch(operands, _rows_by_kinds(name, target is not None, len(operands)))
    # Only calls of global functions are folded: upstream does not fold member calls of a constant target either.
    return _folded(evaluate) if target is None and args and all(map(constant, args)) else evaluate


Row = tuple[Any, Any, Any, Any]


class _RowsByKinds(dict[tuple[type, ...], Row]):
    """The rows of a function, by argument types. Filled on demand, because few type combinations occur."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, kinds: tuple[type, ...]) -> Row:
        for row in self._rows:
            if _accepted(row[0], kinds):
                self[kinds] = row
                return row
        raise EvaluationError(NO_SUCH_OVERLOAD)


@lru_cache(maxsize=1_000)
def _rows_by_kinds(name: str, member: bool, parameters: int) -> _RowsByKinds:
    """Return the rows of a function. The result is cached, so that all programs share one object."""
    return _RowsByKinds([_row(it) for it in TABLE[name, member] if len(it.parameters) == parameters])


def _dispatch(operands: list[Evaluate], rows: _RowsByKinds) -> Evaluate:
    if len(operands) == 2:
        return _dispatch_two(operands[0], operands[1], rows)

    def evaluate(frame: Frame) -> Any:
        # Arguments are evaluated before the overload is chosen, because the overload depends on the run-time types.
        values = [operand(frame) for operand in operands]
        _, cost, call, charged = rows[tuple(map(type, values))]
        frame.cost += cost(*values)
        return call(*values) if call is not None else charged(frame, *values)

    return evaluate


@cache
def _row(overload: Overload) -> Row:
    """
    Return the accepted classes, the cost function, the plain call and the charged call of an overload.

    A constant-time overload has only the plain call. Any other overload has only the charged call, which charges work
    units before it runs.
    """
    call: Any = overload.call
    if overload.work is constant_time and not overload.sized:
        return overload.classes, overload.cost, call, None

    def charged(frame: Frame, *values: Any) -> Any:
        overload.work(frame, *values)
        made = call(frame, *values) if overload.in_frame else call(*values)
        return frame.admit(made) if overload.sized else made

    return overload.classes, overload.cost, None, charged


def _dispatch_two(left: Evaluate, right: Evaluate, rows: _RowsByKinds) -> Evaluate:
    """Return the dispatch closure for two operands, the number of operands of nearly all calls in selectors."""

    def evaluate(frame: Frame) -> Any:
        first, second = left(frame), right(frame)
        _, cost, call, charged = rows[type(first), type(second)]
        frame.cost += cost(first, second)
        return call(first, second) if call is not None else charged(frame, first, second)

    return evaluate


def _accepted(classes: tuple[frozenset[type] | None, ...], kinds: tuple[type, ...]) -> bool:
    for allowed, kind in zip(classes, kinds, strict=True):  # noqa: SIM110  (a generator costs more than what it runs here)
        if allowed is not None and kind not in allowed:
            return False
    return True


def _folded(evaluate: Evaluate) -> Evaluate:
    """
    Evaluate a call of constants such as ``quantity("40Gi")`` at compile time. As upstream, every evaluation is charged
    its cost.

    Results above ``FOLDED`` are computed in every evaluation, because a compiled program must not hold them.
    """
    frame = NoFrame()
    try:
        value = evaluate(frame)
    # A failing call is not folded: it must fail only in the evaluations that reach it.
    except (EvaluationError, CostExceededError):
        return evaluate
    return _costing(value, frame.cost) if frame.size(value).units <= FOLDED else evaluate


def _loop(node: Loop, scope: BindingScope) -> Evaluate:
    items = _compile(node.range, scope)
    inner = scope.bind(*node.names)
    condition = _compile(node.condition, inner) if node.condition is not None else None
    result = _compile(node.result, inner) if node.result is not None else None
    body = LoopBody(items, tuple(inner.require(name) for name in node.names), condition, result)
    return LOOPS[node.kind](body)


def _bind(node: Bind, scope: BindingScope) -> Evaluate:
    value, inner = _compile(node.value, scope), scope.bind(node.name)
    slot, body = inner.require(node.name), _compile(node.body, inner)

    def evaluate(frame: Frame) -> Any:
        # Slots are never reused within an expression, so no earlier value has to be restored.
        frame.variables[slot] = value(frame)
        return body(frame)

    return evaluate


def _optional_map(node: OptionalMap, scope: BindingScope) -> Evaluate:
    target, inner = _compile(node.target, scope), scope.bind(node.name)
    slot, body, flat = inner.require(node.name), _compile(node.body, inner), node.flat

    def evaluate(frame: Frame) -> OptionalValue:
        before = frame.cost
        optional = target(frame)
        if not present(optional):
            return NONE
        # The macro evaluates its target twice: once for hasValue() and once for value().
        frame.cost += frame.cost - before + 3
        frame.variables[slot] = optional.value
        value = body(frame)
        if not flat:
            return OptionalValue(True, value)
        return value if present(value) else NONE

    return evaluate


_COMPILERS: Final[Mapping[type, Callable[[Any, BindingScope], Evaluate]]] = {
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


def reads_of(tree: Expr) -> Reads:
    """Return the attributes and capacities that the expression reads besides ``device.driver``."""
    names: set[tuple[str, str]] = set()
    return Reads(frozenset(names), True) if _opaque(tree, names) else Reads(frozenset(names))


def _opaque(node: Expr, names: set[tuple[str, str]]) -> bool:
    """Collect the names that are read below the node. Returns True when other data may be read."""
    if isinstance(node, Ident):
        # The device is used as a whole.
        return node.name == "device"
    path = _path(node)
    if path is not None:
        if len(path) == 2 and path[0] in ("attributes", "capacity"):
            # ``device.attributes["d"]`` used as a map: any of its names may be read.
            return True
        if len(path) >= 3:
            names.add((path[1], path[2]))
        # A field of the device itself, such as ``allowMultipleAllocations``, is a name with an empty domain.
        elif path != ["driver"]:
            names.add(("", path[0]))
        return False
    return any(_opaque(child, names) for child in children(node))


def _path(node: Expr) -> list[str] | None:
    """
    Return ``device.attributes["d"].x`` as ``[attributes, d, x]``, or None for a node that is not a chain of constant
    names.
    """
    steps: list[str] = []
    while not isinstance(node, Ident):
        if isinstance(node, Select):
            steps.append(node.field)
            node = node.operand
        elif isinstance(node, Index) and isinstance(node.key, Literal) and isinstance(node.key.value, str):
            steps.append(node.key.value)
            node = node.operand
        else:
            return None
    # ``device`` alone, or all attributes at once, is not a chain of constant names.
    if node.name != "device" or not steps or (len(steps) == 1 and steps[0] in ("attributes", "capacity")):
        return None
    return steps[::-1]


def children(node: Expr) -> tuple[Expr, ...]:
    """Return the child nodes."""
    match node:
        case Select(operand=operand):
            return (operand,)
        case Index(operand=operand, key=key):
            return (operand, key)
        case CallExpression(args=args, target=target):
            return args if target is None else (target, *args)
        case ListLiteral(elements=elements):
            return elements
        case MapLiteral(entries=entries):
            return tuple(part for key, value, _ in entries for part in (key, value))
        case Loop(range=items, condition=condition, result=result):
            return tuple(part for part in (items, condition, result) if part is not None)
        case Bind(value=value, body=body):
            return (value, body)
        case OptionalMap(target=target, body=body):
            return (target, body)
        case _:
            return ()


def compile_text(source: str) -> tuple[Evaluate, int, Reads] | CompileError:
    """Return the function, the number of variable slots and the reads of an expression, or its compile error."""
    try:
        tree = parse(source)
        _check_depth(tree)
        check(tree)
        evaluate, variables = compile_tree(tree)
    except CompileError as error:
        return error.with_traceback(None)  # the traceback refers to the syntax tree
    # A constant that cannot be built, such as a map with a repeated key.
    except (EvaluationError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return CompileError(str(error))
    except RecursionError:
        return CompileError("the expression is nested too deeply")
    return evaluate, variables, reads_of(tree)


# The depth of the tree is limited, not that of the text: a long chain of operators nests without parentheses.
def _check_depth(tree: Expr) -> None:
    """Check the depth level by level without recursion, before any recursive function sees the tree."""
    level: list[Expr] = [tree]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_TREE_DEPTH:
            raise CompileError(f"the expression has more than {MAX_TREE_DEPTH} levels")
        level = [child for node in level for child in children(node)]
