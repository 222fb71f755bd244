"""Interface of the package: compile a selector once, convert devices once, evaluate often."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from koord_numa.core.cel.checker import check
from koord_numa.core.cel.compiler import Evaluate, compile_tree
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
from koord_numa.core.cel.runtime import CelDevice, Frame, TimedFrame
from koord_numa.core.cel.values import TYPE_NAMES, CelError, CompileError, CostExceededError, EvaluationError


@dataclass(frozen=True, slots=True)
class Reads:
    """
    The attributes and capacities that an expression reads.

    ``names`` are attributes and capacities as (domain, name). ``everything`` marks an expression whose reads cannot be
    determined from its text, such as a loop over all attributes.
    """

    names: frozenset[tuple[str, str]] = frozenset()
    everything: bool = False

    @property
    def driver_only(self) -> bool:
        """Whether the result depends on the driver name only."""
        return not self.names and not self.everything


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


MAX_TREE_DEPTH: Final = 200
"""
Maximum depth of a syntax tree. Consecutive operators and selections also count. Go's parser stops at 250 grammar rules.
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled selector."""

    source: str
    evaluate: Evaluate
    variables: int  # number of comprehension variable slots
    reads: Reads  # attributes that determine the result

    def matches(self, device: CelDevice) -> bool:
        """
        Return whether the device matches.

        Raises ``EvaluationError``, or ``CostExceededError`` beyond the limit of one million units.
        """
        return self.run(device)[0]

    def frame_for(self, device: CelDevice, clock: Callable[[], float] | None = None) -> Frame:
        """Return a frame for one evaluation, with a deadline if a CPU clock is given."""
        return Frame(device, self.variables) if clock is None else TimedFrame(device, self.variables, clock)

    def run(self, device: CelDevice, frame: Frame | None = None) -> tuple[bool, int]:
        """
        Return the result and its cost in units. A frame from ``frame_for`` keeps the cost also when the evaluation
        fails.
        """
        frame = frame or Frame(device, self.variables)
        try:
            result = self.evaluate(frame)
        # Python's stack can overflow below the depth limit. The result is then an error instead of a crash.
        except RecursionError:
            raise EvaluationError("the expression is nested too deeply") from None
        # An operand outside of the domain of a Python function, such as a lone surrogate that cannot be encoded.
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise EvaluationError(f"internal error: {error}") from None
        frame.check_cost()
        # ``is``, because the int 1 is not a bool.
        if result is True or result is False:
            return result, frame.cost
        kind = TYPE_NAMES.get(type(result), type(result).__name__)
        raise EvaluationError(
            f"CEL result of type {kind} could not be converted to bool: unsupported native conversion from {kind} to 'bool'"
        )


def _compile(source: str) -> Program | CompileError:
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
    return Program(source, evaluate, variables, reads_of(tree))


class ProgramCache:
    """An LRU cache of compiled expressions, bounded by the total number of characters of the expressions."""

    def __init__(self, characters: int) -> None:
        self._most = characters
        self._characters = 0
        self._programs: OrderedDict[str, Program | CompileError] = OrderedDict()

    def __len__(self) -> int:
        return len(self._programs)

    def __contains__(self, source: str) -> bool:
        return source in self._programs

    def get(self, source: str) -> Program | CompileError:
        """Return the program of an expression, or its compile error."""
        known = self._programs.get(source)
        if known is not None:
            self._programs.move_to_end(source)
            return known
        made = self._programs[source] = _compile(source)
        self._characters += len(source)
        while self._characters > self._most:
            oldest, _ = self._programs.popitem(last=False)
            self._characters -= len(oldest)
        return made


CACHE: Final = ProgramCache(2 << 20)
"""
Capacity of 2 MiB of text, enough for the largest object of an API server. A program takes about 40 times the memory of
its text.
"""


def is_compiled(source: str) -> bool:
    """Return whether the compiled expression is in the cache."""
    return source in CACHE


def compile_selector(source: str) -> Program:
    """Return the program of an expression, from the cache if possible. Raises ``CompileError``."""
    result = CACHE.get(source)
    if isinstance(result, CompileError):
        raise CompileError(f"compilation failed: {result}", result.position)
    return result


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


__all__ = [
    "CelDevice",
    "CelError",
    "CompileError",
    "CostExceededError",
    "EvaluationError",
    "Program",
    "compile_selector",
]
