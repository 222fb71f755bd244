"""
Lists one kind that Kopf watches: once at the start, then every few minutes, and soon after Kopf has listed again.

Failures are waited out with growing pauses; ``problem`` has the last one in words.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from random import SystemRandom
from typing import Final, Generic, TypeVar

from koord_numa.cluster.backoff import CLIENT, Backoff
from koord_numa.cluster.watch.resync_store import ResyncStore
from koord_numa.ports import ClusterError, Unavailable
from koord_numa.settings import BackoffSettings

T = TypeVar("T")

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
