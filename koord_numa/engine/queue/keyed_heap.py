"""
A heap in which every item has one key that may change, as ``k8s.io/client-go``'s scheduling heap.

Changing or removing an item leaves a stale entry behind; entries are swept when most of them are stale, so that the heap never holds more
than about twice its items, however it is drained and however seldom.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

SPARE: Final = 64
"""Stale entries that are not worth a sweep."""


class KeyedHeap(Generic[Item]):
    """Items by key, the smallest first; of equal keys the one that was set first. Items are never compared."""

    def __init__(self) -> None:
        self._live: dict[Item, tuple[tuple[Any, ...], int]] = {}  # the key of every item and the number of its entry
        self._heap: list[tuple[tuple[Any, ...], int, Item]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: object) -> bool:
        return item in self._live

    @property
    def entries(self) -> int:
        """How many entries are kept, stale ones among them."""
        return len(self._heap)

    def set(self, item: Item, key: tuple[Any, ...]) -> None:
        """Put the item in, or change its key."""
        known = self._live.get(item)
        if known is not None and known[0] == key:
            return
        self._count += 1
        self._live[item] = (key, self._count)
        # The number is before the item, so that items of equal keys are never compared.
        heappush(self._heap, (key, self._count, item))
        self._sweep()

    def key(self, item: Item) -> tuple[Any, ...]:
        """The key of an item that is in."""
        return self._live[item][0]

    def discard(self, item: Item) -> None:
        """Take the item out; one that is not in is no error."""
        if self._live.pop(item, None) is not None:
            self._sweep()

    def first(self) -> tuple[tuple[Any, ...], Item] | None:
        """The smallest key and its item, ``None`` when there is none."""
        while self._heap:
            key, number, item = self._heap[0]
            known = self._live.get(item)
            # An entry is live only with the number of its last ``set``.
            if known is not None and known[1] == number:
                return key, item
            heappop(self._heap)
        return None

    def pop_until(self, limit: tuple[Any, ...]) -> Item | None:
        """Take out and return the first item if its key is at most ``limit``."""
        found = self.first()
        if found is None or found[0] > limit:
            return None
        heappop(self._heap)
        del self._live[found[1]]
        return found[1]

    def _sweep(self) -> None:
        # Swept at twice the items: the cost of a sweep is paid by the entries that made it necessary.
        if len(self._heap) > 2 * len(self._live) + SPARE:
            self._heap = [(key, number, item) for item, (key, number) in self._live.items()]
            heapify(self._heap)
