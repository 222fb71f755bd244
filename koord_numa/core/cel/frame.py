"""
Limits and cost accounting of one evaluation.

Upstream counts *cost units* as cel-go's runtime tracker does. They do not cover every operation: the upstream cost of
rendering or comparing a nested list depends only on its outermost length. *Work units* close that gap. An operation is
charged before it starts for all values that it reads and builds, recursively, so its charges bound the CPU time and
memory of an evaluation.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult

from koord_numa.core.cel.values import (
    EMPTY_MAP,
    CostExceededError,
    Duration,
    MapValue,
    OptionalValue,
    Quantity,
    Semver,
    Timestamp,
    Uint,
    ValueTooLargeError,
)


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
        """Work units for reading the value once."""
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
