"""
A cache of parsed JSON that is bounded by the amount of text it was parsed from.

An object is as large as its author makes it, up to the one and a half megabytes that an API server stores: a bound on the number of
values would be none on memory.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_LEAST: Final = 256
"""Characters that every value counts for at least: a key, and the entry itself."""


class ParsedCache(Generic[Key, Value]):
    """Values by key, the least recently used ones forgotten first. What is parsed takes about four times the room of its text."""

    __slots__ = ("_known", "_room", "_used")

    def __init__(self, characters: int) -> None:
        """``characters`` bounds the text of all values together."""
        # Not cachetools' LRUCache: its look-ups are calls within calls, a twentieth of what an update of a pod's status costs.
        self._known: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._room = characters
        self._used = 0

    def __len__(self) -> int:
        """How many values are kept."""
        return len(self._known)

    def get(self, key: Key) -> Value | None:
        """The value, if it is kept."""
        found = self._known.get(key)
        if found is None:
            return None
        self._known.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, characters: int) -> Value:
        """Keep a value that was parsed from a text of this length, unless it would take all the room. Returns the value."""
        weight = max(_LEAST, characters)
        if weight * 4 >= self._room:
            return value
        former = self._known.pop(key, None)
        self._used += weight - (0 if former is None else former[1])
        self._known[key] = (value, weight)
        while self._used > self._room:
            self._used -= self._known.popitem(last=False)[1][1]
        return value
