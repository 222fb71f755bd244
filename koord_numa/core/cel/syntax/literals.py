"""List and map literals, and which of them are made once for all evaluations."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from koord_numa.core.cel.compile.frame import CelDevice, Frame
from koord_numa.core.cel.errors import NO_SUCH_OVERLOAD, EvaluationError
from koord_numa.core.cel.syntax.syntax import Expr, ListLiteral, Literal, MapLiteral
from koord_numa.core.cel.values.values import MapValue, OptionalValue

Evaluate = Callable[[Frame], Any]

_LIST_COST: Final = 10
_MAP_COST: Final = 30


class NoFrame(Frame):
    """Constants are evaluated without a device."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_NO_DEVICE, 0)


_NO_DEVICE: Final = CelDevice("")


def constant(node: Expr) -> bool:
    """Is the node a literal through and through? Such lists and maps are made once."""
    if isinstance(node, ListLiteral):
        # A list with optional elements depends on their values.
        return not node.optional and all(map(constant, node.elements))
    if isinstance(node, MapLiteral):
        return all(constant(key) and constant(value) and not optional for key, value, optional in node.entries)
    return isinstance(node, Literal)


def once(evaluate: Evaluate) -> Evaluate:
    """The value of a constant, made now."""
    value = evaluate(NoFrame())
    return lambda _: value


def present(value: Any) -> bool:
    """Does the optional hold a value?"""
    if not isinstance(value, OptionalValue):
        raise EvaluationError(NO_SUCH_OVERLOAD)
    return value.present


def make_list(elements: Sequence[tuple[Evaluate, bool]]) -> Evaluate:
    """A list of elements, of which the optional ones may be none."""

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
    """A map of entries, of which the optional ones may be none. A repeated key is an error."""

    def evaluate(frame: Frame) -> Any:
        frame.cost += _MAP_COST
        pairs: list[tuple[Any, Any]] = []
        for key, value, optional in entries:
            name, item = key(frame), value(frame)
            # Doubles and null are no keys in CEL.
            if not isinstance(name, bool | int | str):
                raise EvaluationError("unsupported key type")
            if not optional:
                pairs.append((name, item))
            elif present(item):
                pairs.append((name, item.value))
        made = MapValue(pairs)
        # Repeated keys are noticed by the count: the map keeps one of them.
        if len(made) != len(pairs):
            raise EvaluationError("Failed with repeated key")
        return frame.admit(made)

    return evaluate
