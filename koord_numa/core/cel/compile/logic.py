"""Logic, equality and membership: the operators whose operands may fail without the whole failing, or whose types are free."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from koord_numa.core.cel.compile.frame import Frame
from koord_numa.core.cel.errors import NO_SUCH_OVERLOAD, EvaluationError
from koord_numa.core.cel.standard_library.costs import equality
from koord_numa.core.cel.values.semver import Semver
from koord_numa.core.cel.values.values import NESTED, MapValue, Quantity, equal, identity, same

Evaluate = Callable[[Frame], Any]


def _short_circuit(decisive: bool, operands: Sequence[Evaluate]) -> Evaluate:
    """One decisive operand decides, whatever error another one raised; without one the first error counts."""

    def evaluate(frame: Frame) -> bool:
        error: EvaluationError | None = None
        for operand in operands:
            value: object
            try:
                value = operand(frame)
            except EvaluationError as caught:
                # The first error is kept; a later operand may still decide.
                error = error or caught
                continue
            # ``is``: True and 1 are equal in Python and not in CEL.
            if value is decisive:
                return decisive
            if not isinstance(value, bool):
                error = error or EvaluationError(NO_SUCH_OVERLOAD)
        if error is not None:
            raise error
        return not decisive

    return evaluate


def _conditional(operands: Sequence[Evaluate]) -> Evaluate:
    condition, chosen, otherwise = operands

    def evaluate(frame: Frame) -> Any:
        value = condition(frame)
        if not isinstance(value, bool):
            raise EvaluationError(NO_SUCH_OVERLOAD)
        return chosen(frame) if value else otherwise(frame)

    return evaluate


def _not(operands: Sequence[Evaluate]) -> Evaluate:
    (operand,) = operands

    def evaluate(frame: Frame) -> bool:
        value = operand(frame)
        # Costs one unit, as every operator that is a function upstream.
        frame.cost += 1
        if not isinstance(value, bool):
            raise EvaluationError(NO_SUCH_OVERLOAD)
        return not value

    return evaluate


def _equal(operands: Sequence[Evaluate]) -> Evaluate:
    left, right = operands

    def evaluate(frame: Frame) -> bool:
        first, second = left(frame), right(frame)
        frame.cost += equality(first, second)
        # Texts are compared most often: upstream's units cover their size.
        if type(first) is str and type(second) is str:
            return first == second
        if type(first) in NESTED and type(second) in NESTED:
            _charge_comparison(frame, first, second)
        return equal(first, second)

    return evaluate


def _unequal(operands: Sequence[Evaluate]) -> Evaluate:
    """``!=`` is true where ``==`` is an error, as cel-go's ``evalNe``."""
    left, right = operands

    def evaluate(frame: Frame) -> bool:
        first, second = left(frame), right(frame)
        frame.cost += equality(first, second)
        if type(first) in NESTED and type(second) in NESTED:
            _charge_comparison(frame, first, second)
        return not same(first, second)

    return evaluate


def _charge_comparison(frame: Frame, left: object, right: object) -> None:
    """A comparison visits no more than the smaller value has."""
    frame.charge(min(frame.size(left).units, frame.size(right).units))


def contained(value: Evaluate, container: Evaluate) -> Evaluate:
    """``value in container``: an element of a list, a key of a map."""

    def evaluate(frame: Frame) -> bool:
        wanted, items = value(frame), container(frame)
        frame.cost += 1
        if isinstance(items, MapValue):
            frame.read(wanted)
            # Only these types can be keys of a CEL map.
            return isinstance(wanted, bool | int | float | str) and wanted in items
        if isinstance(items, tuple):
            frame.read(items)
            return any(same(wanted, item) for item in items)
        raise EvaluationError(NO_SUCH_OVERLOAD)

    return evaluate


def contained_in_constant(value: Evaluate, items: tuple[Any, ...]) -> Evaluate:
    """cel-go turns a constant list into a set, in which Kubernetes' own types cannot be looked up."""
    keys = frozenset(map(identity, items))

    def evaluate(frame: Frame) -> bool:
        wanted = value(frame)
        if isinstance(wanted, Semver | Quantity):
            raise EvaluationError(f"internal error: runtime error: hash of unhashable type cel.{type(wanted).__name__}")
        frame.read(wanted)
        return identity(wanted) in keys

    return evaluate


OPERATORS: Final[Mapping[str, Callable[[Sequence[Evaluate]], Evaluate]]] = {
    "_&&_": partial(_short_circuit, False),
    "_||_": partial(_short_circuit, True),
    "_?:_": _conditional,
    "!_": _not,
    "_==_": _equal,
    "_!=_": _unequal,
}
