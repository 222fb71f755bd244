"""Lists a resource that Kopf watches: at the start, then every few minutes, and soon after Kopf has listed again.

Failures are retried with back-off; ``problem`` has the last error message.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from random import SystemRandom
from typing import Final, Generic, TypeVar

from koord_numa.cluster.client import CLIENT, Backoff
from koord_numa.ports import DELETED, ClusterError, EventHandler, Unavailable
from koord_numa.settings import BackoffSettings

T = TypeVar("T")


class ResyncStore(Generic[T]):
    """The objects of a resource by their key: the uid, or the name if only the name matters."""

    def __init__(self, handler: EventHandler[T], key: Callable[[T], Hashable]) -> None:
        self.relisted = asyncio.Event()
        """Set when Kopf has listed again: objects that were deleted in the meantime are still in the store."""
        self._handler = handler
        self._key = key
        self._objects: dict[Hashable, T] = {}
        self._deleted: set[Hashable] | None = None  # keys deleted while a list is in progress; None otherwise

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Hashable) -> T | None:
        """Return the last reported object, or ``None``."""
        return self._objects.get(key)

    def observe(self, event: str | None, obj: T) -> None:
        """Process an object from Kopf. The event type ``None`` marks an item of a list."""
        key = self._key(obj)
        if event == DELETED:
            self.discard(key)
        else:
            # Kopf reports a known object without an event type only when it lists again.
            if event is None and key in self._objects:
                self.relisted.set()
            self._objects[key] = obj
        self._handler.observe(event, obj)

    def discard(self, key: Hashable) -> None:
        """Process a deletion that the handler already knows."""
        self._objects.pop(key, None)
        # A list in progress may still show the object.
        if self._deleted is not None:
            self._deleted.add(key)

    async def resync(self, list_all: Callable[[], Awaitable[Iterable[T]]]) -> None:
        """Compare with a new list. Pass on objects without an event, and report absent objects as ``DELETED``.

        Raises the errors of ``list_all``; the store is then unchanged.
        """
        self.relisted.clear()
        # Deletions are recorded from here on: the list may be older.
        self._deleted = set()
        before = dict(self._objects)
        try:
            listed = {self._key(obj): obj for obj in await list_all()}
            for key, obj in listed.items():
                # An event is newer than the list: the object was deleted or updated.
                if key not in self._objects and key not in self._deleted:
                    self._objects[key] = obj
                    self._handler.observe(None, obj)
        finally:
            self._deleted = None
        for key, obj in before.items():
            # An object that an event replaced in the meantime is newer than the list.
            if key not in listed and self._objects.get(key) is obj:
                del self._objects[key]
                self._handler.observe(DELETED, obj)

    def synced(self) -> None:
        """Report that the first list is complete."""
        self._handler.synced()


PERIOD: Final = 300.0
"""Seconds between two lists, randomized by a fifth, so that replicas do not list together."""

DEBOUNCE: Final = 1.0
"""Seconds after Kopf starts to list again, so that a single list covers all of Kopf's pages."""

_log = logging.getLogger(__name__)


class Resync(Generic[T]):
    """Periodic resync of a store. ``run`` must be called once. ``synced`` is true after the first successful list."""

    def __init__(
        self,
        name: str,
        store: ResyncStore[T],
        list_all: Callable[[], Awaitable[Iterable[T]]],
        pauses: BackoffSettings | None = None,
    ) -> None:
        self.name = name
        self.problem = ""
        self.synced = False
        self._store = store
        self._list_all = list_all
        self._pauses = pauses or CLIENT
        self._random = SystemRandom()

    async def run(self) -> None:
        """List periodically until cancelled."""
        backoff = Backoff(self._pauses)
        while True:
            try:
                await self._store.resync(self._list_all)
            except ClusterError as error:
                self._report(str(error))
                asked = error.retry_after if isinstance(error, Unavailable) else None
                await asyncio.sleep(backoff.pause(asked or 0.0))
                continue
            backoff.reset()
            self.problem = ""
            if not self.synced:
                self.synced = True
                self._store.synced()
            await self._until_due()

    def needs_relist(self) -> None:
        """Request a list soon.

        Objects may have been deleted without an event, for example while another replica led.
        """
        self._store.relisted.set()

    async def _until_due(self) -> None:
        with contextlib.suppress(TimeoutError):
            # Randomized, so that replicas do not list together.
            async with asyncio.timeout(PERIOD * self._random.uniform(0.8, 1.2)):
                await self._store.relisted.wait()
            # Kopf lists in pages. A single list covers all of them.
            await asyncio.sleep(DEBOUNCE)

    def _report(self, problem: str) -> None:
        """Log a problem once, however often it repeats."""
        if problem != self.problem:
            self.problem = problem
            _log.warning("%s cannot be listed: %s", self.name, problem)
