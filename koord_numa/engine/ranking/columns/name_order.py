"""
Numbers that sort as node names do, so that "the name that comes first" can be compared inside an array of integers.

A new name gets a number between its neighbours'; only when there is none left are all numbers spread again.
"""

from bisect import bisect_left
from typing import Final

SPACE: Final = 1 << 40
"""Numbers are from 1 to this, exclusively."""


class NameOrder:
    """A growing and shrinking set of names, each with its number. ``epoch`` changes when all numbers did."""

    def __init__(self) -> None:
        self.epoch = 0
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._unplaced: set[str] = set()

    def add(self, name: str) -> None:
        """Take a name in; it gets its number when one is asked for, so that many can come at once."""
        # Placed lazily: thousands of nodes at the start get their numbers in one sort.
        if name not in self._numbers:
            self._unplaced.add(name)

    def discard(self, name: str) -> None:
        """Forget a name; the numbers of the others stay."""
        self._unplaced.discard(name)
        if self._numbers.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]

    def number(self, name: str) -> int:
        """The number of a name that was added. Smaller numbers belong to names that come first."""
        if self._unplaced:
            self._place()
        return self._numbers[name]

    def _place(self) -> None:
        arrivals, self._unplaced = sorted(self._unplaced), set()
        # Many arrivals beside few names would halve the gaps again and again: spread them all at once.
        if len(arrivals) > 16 + len(self._names) // 8:
            self._spread(arrivals)
            return
        for index, name in enumerate(arrivals):
            place = bisect_left(self._names, name)
            low = self._numbers[self._names[place - 1]] if place else 0
            high = self._numbers[self._names[place]] if place < len(self._names) else SPACE
            # No number is left between the neighbours.
            if high - low < 2:
                self._spread(arrivals[index:])
                return
            self._names.insert(place, name)
            # The middle: 2**40 leaves room for 40 arrivals at one place in a row.
            self._numbers[name] = (low + high) // 2

    def _spread(self, arrivals: list[str]) -> None:
        self._names = sorted({*self._names, *arrivals})
        # ``+ 1`` keeps room before the first and behind the last name.
        step = SPACE // (len(self._names) + 1)
        self._numbers = {name: step * (index + 1) for index, name in enumerate(self._names)}
        self.epoch += 1
