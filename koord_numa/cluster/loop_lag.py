"""Watches the event loop itself: how much later than asked does it wake a task? It only measures."""

import asyncio
from collections.abc import Callable
from typing import Final

EVERY: Final = 0.25
"""Seconds between two measurements."""

BAD: Final = 1.0
"""Seconds of lag that are worth a warning: the lease is renewed by this loop too."""


class LoopLag:
    """``last`` and ``worst`` are seconds; ``told`` is called with each measurement."""

    def __init__(self, told: Callable[[float], None] = lambda _: None) -> None:
        self.last = 0.0
        self.worst = 0.0
        self._told = told

    async def run(self) -> None:
        """Measure until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            asked = clock() + EVERY
            await asyncio.sleep(EVERY)
            # Timers may fire a little early, which is no lag.
            self.last = max(0.0, clock() - asked)
            self.worst = max(self.worst, self.last)
            self._told(self.last)
