"""Evaluation of field access, logic, equality, membership and comprehension macros, with cel-go's costs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, Final

from koord_numa.core.cel.frame import CelDevice, Frame
from koord_numa.core.cel.functions import equality
from koord_numa.core.cel.standard_library.lists import SORT_KEY, charge_sort
from koord_numa.core.cel.values import (
    MISSING,
    NESTED,
    NO_SUCH_OVERLOAD,
    NONE,
    EvaluationError,
    MapValue,
    OptionalValue,
    Quantity,
    Semver,
    equal,
    identity,
    same,
)

DEVICE_NAMES: Final = {
    "driver": "driver",
    "allowMultipleAllocations": "allow_multiple_allocations",
    "attributes": "attributes",
    "capacity": "capacity",
}
"""Attribute names of ``CelDevice``, by CEL field name."""


def select_value(value: Any, field: str) -> Any:
    """Evaluate ``value.field``."""
    if type(value) is MapValue:
        # ``MISSING`` instead of ``None``, because None is CEL's null and a valid value.
        found = value.find(field)
        if found is not MISSING:
            return found
    elif isinstance(value, CelDevice):
        return getattr(value, DEVICE_NAMES[field])
    elif isinstance(value, OptionalValue):
        return optional_select(value, field)
    raise EvaluationError(f"no such key: {field}")


def optional_select(value: Any, field: str) -> OptionalValue:
    """Evaluate ``value.?field``. Returns ``NONE`` when the field does not exist."""
    # Optionals chain: ``a.?b.?c`` is none when any part is none.
    if isinstance(value, OptionalValue):
        return optional_select(value.value, field) if value.present else NONE
    if isinstance(value, CelDevice):
        return OptionalValue(True, getattr(value, DEVICE_NAMES[field]))
    found = value.find(field) if isinstance(value, MapValue) else MISSING
    return NONE if found is MISSING else OptionalValue(True, found)


def test_field(value: Any, field: str) -> bool:
    """Evaluate ``has(value.field)``."""
    # Every field of a device exists. Only maps behind the fields can lack a key.
    if isinstance(value, CelDevice):
        return True
    if isinstance(value, MapValue):
        return value.peek(field) is not MISSING
    return optional_select(value, field).present


def index_value(value: Any, key: Any) -> Any:
    """Evaluate ``value[key]`` of a map or a list."""
    if type(value) is MapValue:
        found = value.find(key)
        if found is MISSING:
            raise EvaluationError(f"no such key: {key}")
        return found
    if isinstance(value, tuple):
        at = _position(key)
        if not 0 <= at < len(value):
            raise EvaluationError(f"index out of bounds: {at}")
        return value[at]
    if isinstance(value, OptionalValue):
        return optional_index(value, key)
    raise EvaluationError(NO_SUCH_OVERLOAD)


def optional_index(value: Any, key: Any) -> OptionalValue:
    """Evaluate ``value[?key]``. Returns ``NONE`` when the element does not exist."""
    if isinstance(value, OptionalValue):
        return optional_index(value.value, key) if value.present else NONE
    if isinstance(value, MapValue):
        found = value.find(key)
        return NONE if found is MISSING else OptionalValue(True, found)
    if isinstance(value, tuple):
        at = _position(key)
        return OptionalValue(True, value[at]) if 0 <= at < len(value) else NONE
    raise EvaluationError(NO_SUCH_OVERLOAD)


def _position(key: Any) -> int:
    """Return the key as an index. Whole numbers of every numeric type are accepted."""
    # bool is a subclass of int in Python, but not a number in CEL.
    if isinstance(key, bool) or not isinstance(key, int | float) or not isfinite(key) or key != int(key):
        raise EvaluationError(NO_SUCH_OVERLOAD)
    return int(key)


Evaluate = Callable[[Frame], Any]


def _short_circuit(decisive: bool, operands: Sequence[Evaluate]) -> Evaluate:
    """
    Return a closure for ``&&`` or ``||``. A decisive operand overrides errors, otherwise the first error is raised.
    """

    def evaluate(frame: Frame) -> bool:
        error: EvaluationError | None = None
        for operand in operands:
            value: object
            try:
                value = operand(frame)
            except EvaluationError as caught:
                # The first error is kept, because a later operand may still be decisive.
                error = error or caught
                continue
            # ``is``, because True and 1 are equal in Python but not in CEL.
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
        # One unit, like every operator that is a function upstream.
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
        # Strings are compared most often. Upstream's cost units already cover their size.
        if type(first) is str and type(second) is str:
            return first == second
        if type(first) in NESTED and type(second) in NESTED:
            _charge_comparison(frame, first, second)
        return equal(first, second)

    return evaluate


def _unequal(operands: Sequence[Evaluate]) -> Evaluate:
    """Return a closure for ``!=``. As in cel-go's ``evalNe``, the result is true where ``==`` raises an error."""
    left, right = operands

    def evaluate(frame: Frame) -> bool:
        first, second = left(frame), right(frame)
        frame.cost += equality(first, second)
        if type(first) in NESTED and type(second) in NESTED:
            _charge_comparison(frame, first, second)
        return not same(first, second)

    return evaluate


def _charge_comparison(frame: Frame, left: object, right: object) -> None:
    """Charge a comparison. It visits at most as many parts as the smaller value has."""
    frame.charge(min(frame.size(left).units, frame.size(right).units))


def contained(value: Evaluate, container: Evaluate) -> Evaluate:
    """Return a closure for ``value in container``: an element of a list or a key of a map."""

    def evaluate(frame: Frame) -> bool:
        wanted, items = value(frame), container(frame)
        frame.cost += 1
        if isinstance(items, MapValue):
            frame.read(wanted)
            # Only values of these types can be keys of a CEL map.
            return isinstance(wanted, bool | int | float | str) and wanted in items
        if isinstance(items, tuple):
            frame.read(items)
            return any(same(wanted, item) for item in items)
        raise EvaluationError(NO_SUCH_OVERLOAD)

    return evaluate


def contained_in_constant(value: Evaluate, items: tuple[Any, ...]) -> Evaluate:
    """
    Return a closure for ``value in items`` with a constant list.

    cel-go turns the list into a set, and a lookup of a quantity or semver in a set is an error.
    """
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


@dataclass(frozen=True, slots=True)
class LoopBody:
    """A loop: the range, the slots of its variables, the condition and the result."""

    items: Evaluate
    slots: tuple[int, ...]
    condition: Evaluate | None
    result: Evaluate | None

    def each(self, frame: Frame) -> Iterator[Any]:
        """
        Iterate over the range and set the variables for each element. Yields the key of a map or the index of a list.
        """
        items = self.items(frame)
        if not isinstance(items, tuple | MapValue):
            raise EvaluationError(NO_SUCH_OVERLOAD)
        single = len(self.slots) == 1
        pairs: Iterable[tuple[Any, Any]]
        if isinstance(items, tuple):
            pairs = enumerate(items)
        else:
            # A loop over the keys only does not read the values.
            pairs = zip(items, items, strict=True) if single else items.items()
        for key, value in pairs:
            # Charged before every element, so that a nested loop stops close to the limit.
            frame.charge(1)
            if single:
                frame.variables[self.slots[0]] = value
            else:
                frame.variables[self.slots[0]], frame.variables[self.slots[1]] = key, value
            yield key

    def holds(self, frame: Frame) -> bool:
        """Return whether the condition holds. Raises ``EvaluationError`` when it is not a bool."""
        if self.condition is None:
            return True
        value = self.condition(frame)
        if not isinstance(value, bool):
            raise EvaluationError(NO_SUCH_OVERLOAD)
        return value

    def make(self, frame: Frame) -> Any:
        """Return the result for the current element."""
        return self.result(frame) if self.result is not None else frame.variables[self.slots[0]]


def _quantifier(body: LoopBody, decisive: bool, check: int) -> Evaluate:
    """Return a closure for ``all`` or ``exists``. A decisive element overrides errors of other elements."""

    def evaluate(frame: Frame) -> bool:
        error: EvaluationError | None = None
        answer = not decisive
        for _ in body.each(frame):
            frame.cost += check + 1
            try:
                if body.holds(frame) is decisive:
                    # A decisive element makes errors of other elements irrelevant.
                    error, answer = None, decisive
                    frame.cost += check
                    break
            except EvaluationError as caught:
                error = error or caught
        frame.cost += 1
        if error is not None:
            raise error
        return answer

    return evaluate


def _all(body: LoopBody) -> Evaluate:
    return _quantifier(body, decisive=False, check=2)


def _exists(body: LoopBody) -> Evaluate:
    return _quantifier(body, decisive=True, check=3)


def _exists_one(body: LoopBody) -> Evaluate:
    def evaluate(frame: Frame) -> bool:
        count = 0
        for _ in body.each(frame):
            if body.holds(frame):
                count += 1
                frame.cost += 2
        frame.cost += 2
        return count == 1

    return evaluate


def _list(body: LoopBody) -> Evaluate:
    """Return a closure for ``map``, ``filter`` or ``transformList``."""
    # ``filter`` has no result expression and reads the variable once more.
    plain = 1 if body.result is None else 0

    def evaluate(frame: Frame) -> Any:
        made: list[Any] = []
        for _ in body.each(frame):
            if body.holds(frame):
                frame.cost += 12 + plain
                made.append(body.make(frame))
        frame.cost += 1
        return frame.admit(tuple(made))

    return evaluate


def _transform_map(body: LoopBody) -> Evaluate:
    def evaluate(frame: Frame) -> Any:
        made: list[tuple[Any, Any]] = []
        for key in body.each(frame):
            if body.holds(frame):
                frame.cost += 3
                made.append((key, body.make(frame)))
        frame.cost += 1
        return frame.admit(MapValue(made))

    return evaluate


def _transform_entries(body: LoopBody) -> Evaluate:
    def evaluate(frame: Frame) -> Any:
        made: list[tuple[Any, Any]] = []
        for _ in body.each(frame):
            if body.holds(frame):
                frame.cost += 2
                entries = body.make(frame)
                if not isinstance(entries, MapValue):
                    raise EvaluationError(NO_SUCH_OVERLOAD)
                frame.charge_nodes(len(made) + len(entries))
                made.extend(entries.items())
        frame.cost += 1
        result = MapValue(made)
        # As in cel-go's mutable map, a repeated key is an error.
        if len(result) != len(made):
            raise EvaluationError("insert failed: key already exists")
        return frame.admit(result)

    return evaluate


def _sort_by(body: LoopBody) -> Evaluate:
    def evaluate(frame: Frame) -> Any:
        keyed = [(body.make(frame), frame.variables[body.slots[0]]) for _ in body.each(frame)]
        frame.cost += 11 * len(keyed) + 1
        charge_sort(frame, tuple(key for key, _ in keyed))
        # ``sorted`` is stable, so elements with equal keys keep their order.
        ranked = sorted(keyed, key=lambda it: SORT_KEY(it[0]))
        return frame.admit(tuple(value for _, value in ranked))

    return evaluate


LOOPS: Final[Mapping[str, Callable[[LoopBody], Evaluate]]] = {
    "all": _all,
    "exists": _exists,
    "exists_one": _exists_one,
    "filter": _list,
    "map": _list,
    "transformMap": _transform_map,
    "transformMapEntry": _transform_entries,
    "sortBy": _sort_by,
}
