"""
Heap in which every item has one key that may change, like the scheduling heap of ``k8s.io/client-go``.

Changing or removing an item leaves a stale entry. Entries are swept when most of them are stale, so that the heap holds
at most about twice its items.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

SPARE: Final = 64
"""Number of stale entries that are tolerated before a sweep."""


class KeyedHeap(Generic[Item]):
    """Items by key, smallest first; among equal keys, the item that was set first. Items are never compared."""

    def __init__(self) -> None:
        self._live: dict[Item, tuple[tuple[Any, ...], int]] = {}  # key of every item and the number of its entry
        self._heap: list[tuple[tuple[Any, ...], int, Item]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: object) -> bool:
        return item in self._live

    @property
    def entries(self) -> int:
        """Number of entries, including stale entries."""
        return len(self._heap)

    def set(self, item: Item, key: tuple[Any, ...]) -> None:
        """Add the item, or change its key."""
        known = self._live.get(item)
        if known is not None and known[0] == key:
            return
        self._count += 1
        self._live[item] = (key, self._count)
        # The number precedes the item, so that items with equal keys are never compared.
        heappush(self._heap, (key, self._count, item))
        self._sweep()

    def key(self, item: Item) -> tuple[Any, ...]:
        """Return the key of an item in the heap."""
        return self._live[item][0]

    def discard(self, item: Item) -> None:
        """Remove the item if it is in the heap."""
        if self._live.pop(item, None) is not None:
            self._sweep()

    def first(self) -> tuple[tuple[Any, ...], Item] | None:
        """Return the smallest key and its item, ``None`` if the heap is empty."""
        while self._heap:
            key, number, item = self._heap[0]
            known = self._live.get(item)
            # An entry is live only with the number of its last ``set``.
            if known is not None and known[1] == number:
                return key, item
            heappop(self._heap)
        return None

    def pop_until(self, limit: tuple[Any, ...]) -> Item | None:
        """Remove and return the first item if its key is at most ``limit``."""
        found = self.first()
        if found is None or found[0] > limit:
            return None
        heappop(self._heap)
        del self._live[found[1]]
        return found[1]

    def _sweep(self) -> None:
        # Swept at twice the number of items, so that the amortized cost per entry is constant.
        if len(self._heap) > 2 * len(self._live) + SPARE:
            self._heap = [(key, number, item) for item, (key, number) in self._live.items()]
            heapify(self._heap)
