"""Evaluation with cel-go's semantics: limits, costs, field access, logic, equality, membership and comprehension macros."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, isfinite
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult

from koord_numa.core.cel.functions import equality
from koord_numa.core.cel.operators import SORT_KEY, charge_sort
from koord_numa.core.cel.values import (
    EMPTY_MAP,
    MISSING,
    NESTED,
    NO_SUCH_OVERLOAD,
    NONE,
    CostExceededError,
    Duration,
    EvaluationError,
    MapValue,
    OptionalValue,
    Quantity,
    Semver,
    Timestamp,
    Uint,
    ValueTooLargeError,
    equal,
    identity,
    same,
)

# Limits and cost accounting of one evaluation.
#
# Upstream counts *cost units* as cel-go's runtime tracker does. They do not cover every operation: the upstream cost of
# rendering or comparing a nested list depends only on its outermost length. *Work units* close that gap. An operation is
# charged before it starts for all values that it reads and builds, recursively, so its charges bound the CPU time and
# memory of an evaluation.


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one evaluation."""

    cost: int = 1_000_000
    """Maximum cost units, as resource/v1 ``CELSelectorExpressionMaxCost``."""
    work: int = 1_000_000
    """
    Maximum work units: list elements, map entries and tens of characters that are read or built. Bounds memory at about
    100 MB.
    """
    nodes: int = 100_000
    """Maximum number of scalars and containers in one value."""
    characters: int = 1_000_000
    """Maximum number of characters and bytes in one value."""
    cpu_seconds: float = 2.0
    """Maximum CPU time, in seconds: three times the time that the other limits allow on a slow machine. Last resort."""


LIMITS: Final = Limits()
CHARACTERS_PER_UNIT: Final = 10
"""Characters per work unit. The inverse of cel-go's ``StringTraversalCostFactor``."""
_CLOCK_EVERY: Final = 64
"""Number of charges between two readings of the clock."""


MAX_TREE_DEPTH: Final = 200
"""
Maximum depth of a syntax tree. Consecutive operators and selections also count. Go's parser stops at 250 grammar rules.
"""


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
        """True if the expression reads at most the driver name."""
        return not self.names and not self.everything


@dataclass(frozen=True, slots=True)
class CelDevice:
    """Value of the variable ``device``, built once per device and read by every selector."""

    driver: str
    allow_multiple_allocations: bool = False
    attributes: MapValue = EMPTY_MAP  # domain -> name -> value
    capacity: MapValue = EMPTY_MAP  # domain -> name -> Quantity


class Size(NamedTuple):
    """The size of a value: number of scalars and containers in it, and number of characters of its strings."""

    nodes: int
    characters: int

    @property
    def units(self) -> int:
        """Number of work units that one read of the value costs."""
        return self.nodes + ceil(self.characters / CHARACTERS_PER_UNIT)


_SCALAR: Final = Size(1, 0)
_OF_ONE_NODE: Final = frozenset({bool, int, Uint, float, type(None), Quantity, Duration, Timestamp})


class Frame:
    """
    The state of one evaluation: variables, cost units, work units, and the sizes of the containers measured so far.
    """

    __slots__ = ("_sizes", "cost", "device", "variables", "work")

    def __init__(self, device: CelDevice, variables: int) -> None:
        self.device = device
        self.cost = 0
        self.work = 0
        self.variables: list[object] = [None] * variables
        # By object identity. The entry keeps a reference to the value, so that no other object can get the same
        # identity.
        self._sizes: dict[int, tuple[object, Size]] = {}

    @property
    def units(self) -> int:
        """Total units spent. The count stops at the limits: a rejected operation is not counted beyond them."""
        return min(self.cost, LIMITS.cost) + min(self.work, LIMITS.work)

    def check_cost(self) -> None:
        """Raise ``CostExceededError`` when a limit is exceeded."""
        if self.cost > LIMITS.cost or self.work > LIMITS.work:
            raise CostExceededError("operation cancelled: actual cost limit exceeded")

    def charge(self, units: int) -> None:
        """Charge work units before the work is done. Raises ``CostExceededError`` beyond the limit."""
        # A negative argument, as of ``lists.range(-9)``, must not give units back.
        if units > 0:
            self.work += units
        self.check_cost()

    def charge_text(self, characters: int) -> None:
        """Charge for a string before it is built. Raises ``ValueTooLargeError`` when it is too long."""
        if characters > LIMITS.characters:
            raise ValueTooLargeError(f"a text of {characters} characters is longer than {LIMITS.characters}")
        self.charge(characters // CHARACTERS_PER_UNIT)

    def charge_nodes(self, nodes: int) -> None:
        """Charge for a container before it is built. Raises ``ValueTooLargeError`` for too many elements."""
        if nodes > LIMITS.nodes:
            raise ValueTooLargeError(f"a value of {nodes} elements is larger than {LIMITS.nodes}")
        self.charge(nodes)

    def read(self, *values: Any) -> None:
        """Charge for reading the values once, recursively."""
        units = 0
        for value in values:
            kind = type(value)
            if kind is str:
                units += 1 + len(value) // CHARACTERS_PER_UNIT
            else:
                units += 1 if kind in _OF_ONE_NODE else self.size(value).units
        self.charge(units)

    def size(self, value: Any) -> Size:
        """Return the size of a value. A container is measured, and charged for the measurement, once."""
        kind = type(value)
        if kind is str or kind is bytes:
            return Size(1, len(value))
        if kind is tuple or kind is MapValue or kind is CelDevice:
            known = self._sizes.get(id(value))
            return self._measure(value) if known is None else known[1]
        if kind is OptionalValue:
            return self.size(value.value) if value.present else _SCALAR
        if kind is SplitResult:
            return Size(1, sum(map(len, value)))
        if kind is Semver:
            return Size(
                1 + len(value.pre) + len(value.build), sum(len(str(part)) for part in (*value.pre, *value.build))
            )
        return _SCALAR

    def admit(self, value: Any) -> Any:
        """Return a newly built value. Raises ``ValueTooLargeError`` when it is too large."""
        nodes, characters = self.size(value)
        if nodes > LIMITS.nodes:
            raise ValueTooLargeError(f"a value of {nodes} elements is larger than {LIMITS.nodes}")
        if characters > LIMITS.characters:
            raise ValueTooLargeError(f"a value of {characters} characters is larger than {LIMITS.characters}")
        return value

    def _measure(self, value: Any) -> Size:
        self.charge(1 if isinstance(value, CelDevice) else len(value))
        nodes, characters = 1, 0
        for part in _parts(value):
            kind = type(part)
            if kind in _OF_ONE_NODE:
                nodes += 1
            elif kind is str:
                nodes += 1
                characters += len(part)
            else:
                size = self.size(part)
                nodes += size.nodes
                characters += size.characters
        found = Size(nodes, characters)
        self._sizes[id(value)] = (value, found)
        return found


class TimedFrame(Frame):
    """A frame with a deadline. ``clock`` returns the CPU time of the thread in seconds."""

    __slots__ = ("_charges", "_clock", "_deadline")

    def __init__(self, device: CelDevice, variables: int, clock: Callable[[], float]) -> None:
        super().__init__(device, variables)
        self._clock = clock
        self._deadline = clock() + LIMITS.cpu_seconds
        self._charges = 0

    def check_cost(self) -> None:
        """Raise ``CostExceededError`` beyond a limit or after the deadline."""
        super().check_cost()
        self._charges += 1
        if not self._charges % _CLOCK_EVERY and self._clock() > self._deadline:
            # The budget of the claim pays for the time, although the units of the operations do not cover it.
            self.work = LIMITS.work
            raise CostExceededError("operation cancelled: CPU time limit exceeded")


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, MapValue):
        # Unreadable values are measured but not read.
        return (part for key in value for part in (key, value.peek(key)))
    if isinstance(value, CelDevice):
        return (value.driver, value.attributes, value.capacity)
    return value  # type: ignore[no-any-return]  # a list


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
