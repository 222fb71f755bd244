"""
Lists one kind that Kopf watches: once at the start, then every few minutes, and soon after Kopf has listed again.

Failures are waited out with growing pauses; ``problem`` has the last one in words.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from random import SystemRandom
from typing import Final, Generic, TypeVar

from koord_numa.cluster.errors import CLIENT, Backoff
from koord_numa.ports import DELETED, ClusterError, EventHandler, Unavailable
from koord_numa.settings import BackoffSettings

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


PERIOD: Final = 300.0
"""Seconds between two lists, spread by a fifth, so that replicas do not list together."""

DEBOUNCE: Final = 1.0
"""Seconds after Kopf began to list again; one list of our own then covers all of Kopf's pages."""

_log = logging.getLogger(__name__)


class Resync(Generic[T]):
    """``run`` it once. ``synced`` is true after the first list that worked."""

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
        """List, wait, list again, until cancelled."""
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
        """Objects may have vanished without an event, as while another replica led: list soon."""
        self._store.relisted.set()

    async def _until_due(self) -> None:
        with contextlib.suppress(TimeoutError):
            # Spread, so that replicas do not list at the same moment.
            async with asyncio.timeout(PERIOD * self._random.uniform(0.8, 1.2)):
                await self._store.relisted.wait()
            # Kopf lists in pages: one list of our own then covers all of them.
            await asyncio.sleep(DEBOUNCE)

    def _report(self, problem: str) -> None:
        """One log line per problem, however often it is met."""
        if problem != self.problem:
            self.problem = problem
            _log.warning("%s cannot be listed: %s", self.name, problem)
