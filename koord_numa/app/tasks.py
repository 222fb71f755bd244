"""Supervise long-running tasks, the event loop's delay and garbage collection."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Set
from typing import Any, Final

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


CANCEL_AGAIN: Final = 5.0
"""Seconds that a task gets to end before it is cancelled once more."""


class Ended(Exception):
    """A task that should run for ever ended without an error."""


class TaskSupervisor:
    """Tasks by name. ``failure`` is done, with the error, when one of them has ended before ``stop``."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until ``stop``."""
        task = asyncio.create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(self._ended)

    async def finish(self, seconds: float, *names: str) -> None:
        """Wait until tasks that were asked to end do so; cancel after so many seconds those that have not."""
        # All of them are popped first: one ends while another is waited for, and its end is expected.
        tasks = {task for name in names if (task := self._tasks.pop(name, None)) is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        await _cancelled(tasks)

    async def stop(self, *names: str) -> None:
        """Cancel these tasks, or all when none is named, and wait until they are over."""
        await _cancelled({self._tasks.pop(name) for name in (names or tuple(self._tasks)) if name in self._tasks})

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that was taken out before it ended was asked to end.
        expected = task not in self._tasks.values()
        error = None if task.cancelled() else task.exception()
        # The first failure counts; those that follow are its consequences.
        if expected or self.failure.done():
            return
        self.failure.set_result(error or Ended(f"{task.get_name()} ended by itself"))


async def _cancelled(tasks: Set[asyncio.Task[None]]) -> None:
    """
    Cancel tasks until all of them are over.

    Once is not enough: a task that awaits another one never hears of it when that one ends otherwise at the same moment.
    """
    left = tasks
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN)
    await asyncio.gather(*tasks, return_exceptions=True)
