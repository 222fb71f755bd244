"""
When Python looks for garbage in cycles: seldom, and not at all while everything is read for the first time.

A walk visits all objects that are younger than the last one, whether they are garbage or not. While a cluster is read nearly everything
that is made stays, so that all walks of that time are in vain: a twentieth of the start of a large cluster.
"""

import asyncio
import gc
from collections.abc import Callable
from typing import Final

THRESHOLDS: Final = (1_000, 10, 10_000)
"""
So many young objects, walks over them, and walks over what these left before the next older generation is walked over. The old one hardly
ever is: its walk visits the whole cache. The others are small: every bind waits for a walk, which takes 80 ms for 100,000 objects, and a
walk over objects that are still in the processor's cache takes a third less for each.
"""

LONGEST: Final = 60.0
"""Seconds without any walk at most: where some kind cannot be listed for hours, garbage must not pile up meanwhile."""

LOOK: Final = 0.2
"""Seconds between two looks whether everything has been read."""


class GarbageCollection:
    """Made inside of the running loop: no walks until everything is ``known``, for ``longest`` seconds at most, or until ``resume``."""

    def __init__(self, known: Callable[[], bool], longest: float = LONGEST) -> None:
        self._known = known
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + longest
        gc.set_threshold(*THRESHOLDS)
        gc.disable()
        self._next = self._loop.call_later(LOOK, self._look)

    def resume(self) -> None:
        """Walk again from now on."""
        self._next.cancel()
        gc.enable()

    def _look(self) -> None:
        if self._known():
            # What was read stays: no later walk has to visit it.
            gc.freeze()
        elif self._loop.time() < self._end:
            self._next = self._loop.call_later(LOOK, self._look)
            return
        self.resume()
