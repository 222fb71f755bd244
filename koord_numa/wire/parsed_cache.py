"""
A cache of parsed JSON that is bounded by the amount of text it was parsed from.

An object is as large as its author makes it, up to the one and a half megabytes that an API server stores: a bound on the number of
values would be none on memory.
"""

from collections.abc import Hashable
from operator import itemgetter
from typing import Final, Generic, TypeVar

from cachetools import LRUCache

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_LEAST: Final = 512
"""Characters that every value counts for at least: the smallest parsed pod request and its entry take about 3 kB."""


class ParsedCache(Generic[Key, Value]):
    """Values by key, the least recently used ones forgotten first. What is parsed takes about four times the room of its text."""

    def __init__(self, characters: int) -> None:
        """``characters`` bounds the text of all values together."""
        self._known: LRUCache[Key, tuple[int, Value]] = LRUCache(maxsize=characters, getsizeof=itemgetter(0))

    @property
    def characters(self) -> int:
        """The bound on the text of all values together."""
        return int(self._known.maxsize)

    def __len__(self) -> int:
        """How many values are kept."""
        return len(self._known)

    def get(self, key: Key) -> Value | None:
        """The value, if it is kept."""
        try:  # ``get`` looks twice, and most keys are kept
            return self._known[key][1]
        except KeyError:
            return None

    def put(self, key: Key, value: Value, characters: int) -> Value:
        """Keep a value that was parsed from a text of this length, unless it would take all the room. Returns the value."""
        weight = max(_LEAST, characters)
        if weight * 4 < self._known.maxsize:
            self._known[key] = (weight, value)
        return value
