"""
Objects of one kind as Kopf has reported them, reconciled with a list now and then; it feeds an ``EventHandler``.

Theory. After a lost connection Kopf reports again what exists and nothing about what vanished meanwhile, and it has no public signal
for the end of its first list. A list of our own settles both, but it is older than the events that arrive while it is on its way. So
the store keeps the keys that were present when the list began, and of what the list does not show it deletes only those that no event
has touched since. The store itself never asks the API server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

from koord_numa.ports import DELETED, EventHandler

T = TypeVar("T")


class ResyncStore(Generic[T]):
    """The objects of one kind by a key that identifies them: the uid, or the name where only the name matters."""

    def __init__(self, handler: EventHandler[T], key: Callable[[T], Hashable]) -> None:
        self.relisted = asyncio.Event()
        """Set when Kopf has listed again: objects that vanished meanwhile are still in the store."""
        self._handler = handler
        self._key = key
        self._objects: dict[Hashable, T] = {}
        self._deleted: set[Hashable] | None = None  # keys deleted while a list is on its way; None while there is none

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Hashable) -> T | None:
        """An object as last reported."""
        return self._objects.get(key)

    def observe(self, event: str | None, obj: T) -> None:
        """Kopf reports an object. The event type ``None`` marks a part of a list."""
        key = self._key(obj)
        if event == DELETED:
            self.discard(key)
        else:
            # An object that is known is reported again without an event type only when Kopf lists again.
            if event is None and key in self._objects:
                self.relisted.set()
            self._objects[key] = obj
        self._handler.observe(event, obj)

    def discard(self, key: Hashable) -> None:
        """Kopf reports a deletion that the handler knows of already."""
        self._objects.pop(key, None)
        # A list that is on its way may still show the object.
        if self._deleted is not None:
            self._deleted.add(key)

    async def resync(self, list_all: Callable[[], Awaitable[Iterable[T]]]) -> None:
        """
        Compare with a list that begins now: hand over what it shows and no event has, and as ``DELETED`` what it does not show.

        Raises whatever ``list_all`` raises; the store is as before then.
        """
        self.relisted.clear()
        # From here on deletions are noted: the list may be older than they are.
        self._deleted = set()
        before = dict(self._objects)
        try:
            listed = {self._key(obj): obj for obj in await list_all()}
            for key, obj in listed.items():
                # An event has said more: the object was deleted, or is newer.
                if key not in self._objects and key not in self._deleted:
                    self._objects[key] = obj
                    self._handler.observe(None, obj)
        finally:
            self._deleted = None
        for key, obj in before.items():
            # An object that an event replaced meanwhile is newer than the list.
            if key not in listed and self._objects.get(key) is obj:
                del self._objects[key]
                self._handler.observe(DELETED, obj)

    def synced(self) -> None:
        """The first list is complete."""
        self._handler.synced()
