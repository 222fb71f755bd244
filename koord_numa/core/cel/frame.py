"""
Limits of one evaluation, and the account that it is charged to.

Upstream counts *cost units* as cel-go's runtime tracker does. They do not cover every operation: rendering or comparing a nested list
costs upstream by its outermost length. *Work units* close that gap. An operation is charged before it starts for everything that it
reads and makes, recursively, so CPU time and memory of an evaluation are bounded by its charges.
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
    """Cost units, as resource/v1 ``CELSelectorExpressionMaxCost``."""
    work: int = 1_000_000
    """Work units: list elements, map entries and tens of characters that are read or made. Bounds memory at about 100 MB."""
    nodes: int = 100_000
    """Values and containers that one value may consist of."""
    characters: int = 1_000_000
    """Characters and bytes that one value may contain."""
    cpu_seconds: float = 2.0
    """CPU time, three times what the other limits allow on a slow machine. The last resort."""


LIMITS: Final = Limits()
CHARACTERS_PER_UNIT: Final = 10
"""As cel-go's ``StringTraversalCostFactor``."""
_CLOCK_EVERY: Final = 64
"""Charges between two readings of the clock."""


@dataclass(frozen=True, slots=True)
class CelDevice:
    """The variable ``device``, made once and read by every selector."""

    driver: str
    allow_multiple_allocations: bool = False
    attributes: MapValue = EMPTY_MAP  # domain -> name -> value
    capacity: MapValue = EMPTY_MAP  # domain -> name -> Quantity


class Size(NamedTuple):
    """The size of a value: values and containers in it, and characters of its texts."""

    nodes: int
    characters: int

    @property
    def units(self) -> int:
        """Work units of reading the value once."""
        return self.nodes + ceil(self.characters / CHARACTERS_PER_UNIT)


_SCALAR: Final = Size(1, 0)
_OF_ONE_NODE: Final = frozenset({bool, int, Uint, float, type(None), Quantity, Duration, Timestamp})


class Frame:
    """The state of one evaluation: variables, cost units, work units, and the sizes of the containers it has met."""

    __slots__ = ("_sizes", "cost", "device", "variables", "work")

    def __init__(self, device: CelDevice, variables: int) -> None:
        self.device = device
        self.cost = 0
        self.work = 0
        self.variables: list[object] = [None] * variables
        # By identity. The value is kept, so that no other one can get its identity.
        self._sizes: dict[int, tuple[object, Size]] = {}

    @property
    def units(self) -> int:
        """All units spent. An operation that was refused is not counted beyond the limit."""
        return min(self.cost, LIMITS.cost) + min(self.work, LIMITS.work)

    def check_cost(self) -> None:
        """Raise ``CostExceededError`` beyond a limit."""
        if self.cost > LIMITS.cost or self.work > LIMITS.work:
            raise CostExceededError("operation cancelled: actual cost limit exceeded")

    def charge(self, units: int) -> None:
        """Charge work units before the work is done. Raises ``CostExceededError`` beyond a limit."""
        self.work += units
        self.check_cost()

    def charge_text(self, characters: int) -> None:
        """Charge for a text that is about to be made. Raises ``ValueTooLargeError`` when it would be too long."""
        if characters > LIMITS.characters:
            raise ValueTooLargeError(f"a text of {characters} characters is longer than {LIMITS.characters}")
        self.charge(characters // CHARACTERS_PER_UNIT)

    def charge_nodes(self, nodes: int) -> None:
        """Charge for a container of so many elements that is about to be made. Raises ``ValueTooLargeError`` for too many."""
        if nodes > LIMITS.nodes:
            raise ValueTooLargeError(f"a value of {nodes} elements is larger than {LIMITS.nodes}")
        self.charge(nodes)

    def read(self, *values: Any) -> None:
        """Charge for reading these values once, recursively."""
        units = 0
        for value in values:
            kind = type(value)
            if kind is str:
                units += 1 + len(value) // CHARACTERS_PER_UNIT
            else:
                units += 1 if kind in _OF_ONE_NODE else self.size(value).units
        self.charge(units)

    def size(self, value: Any) -> Size:
        """The size of a value. Containers are measured once and charged for that."""
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
        """Return a value that was just made. Raises ``ValueTooLargeError`` when it is too large."""
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
    """A frame with a deadline. ``clock`` gives the CPU time of the thread in seconds."""

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
            raise CostExceededError("operation cancelled: CPU time limit exceeded")


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, MapValue):
        # Unreadable values are measured as well, and not read.
        return (part for key in value for part in (key, value.peek(key)))
    if isinstance(value, CelDevice):
        return (value.driver, value.attributes, value.capacity)
    return value  # type: ignore[no-any-return]  # a list
