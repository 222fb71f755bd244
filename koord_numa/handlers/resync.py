"""
Keeps a roll honest: the first list says that everything is known, later ones settle what Kopf missed.

It asks through a function handed in and waits out every failure; ``problem`` says what the last one was.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from random import SystemRandom
from typing import Final, Generic, TypeVar

from koord_numa.handlers.resync_store import ResyncStore
from koord_numa.ports import ClusterError, Forbidden, Unavailable

T = TypeVar("T")

EVERY: Final = 300.0
"""Seconds between two lists; sooner when Kopf listed again, which is when objects can vanish unseen."""

AGAIN: Final = (1.0, 30.0)
"""Seconds until a failed list is tried again: the first pause and the longest."""

_log = logging.getLogger(__name__)


class Resync(Generic[T]):
    """Lists one kind now and then. ``complete`` is called once, after the first list that worked."""

    def __init__(
        self,
        what: str,
        roll: ResyncStore[T],
        everything: Callable[[], Awaitable[Iterable[T]]],
        complete: Callable[[], None] = lambda: None,
    ) -> None:
        self.what = what
        self.problem = ""
        self.synced = False
        self._roll = roll
        self._everything = everything
        self._complete = complete
        self._jitter = SystemRandom()

    async def run(self) -> None:
        """List, wait, list again, until cancelled."""
        first, longest = AGAIN
        pause = first
        while True:
            try:
                await self._roll.check(self._everything)
            except ClusterError as error:
                self._say(error)
                asked = error.retry_after if isinstance(error, Unavailable) else None
                await asyncio.sleep(max(asked or 0.0, pause * self._jitter.uniform(0.5, 1.0)))
                pause = min(pause * 2, longest)
                continue
            pause = first
            self.problem = ""
            self._tell_complete()
            await self._wait()

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVERY * self._jitter.uniform(0.8, 1.2)):
                await self._roll.doubtful.wait()
            await asyncio.sleep(AGAIN[0])  # Kopf's own list is still coming in: one check for all of it

    def _tell_complete(self) -> None:
        if not self.synced:
            self.synced = True
            self._complete()

    def _say(self, error: ClusterError) -> None:
        text = f"{error}; missing rule: {error.rule}" if isinstance(error, Forbidden) else str(error)
        if text != self.problem:
            self.problem = text
            _log.warning("%s cannot be listed: %s", self.what, text)
