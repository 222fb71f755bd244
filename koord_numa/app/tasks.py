"""Supervision of long-running tasks, event loop delay and garbage collection."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Set
from typing import Any, Final

EVERY: Final = 0.25
"""Seconds between two measurements."""


class LoopLag:
    """
    Measurement of the event loop lag.

    ``last`` and ``worst`` are in seconds. ``told`` is called with each measurement.
    """

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
            # Timers may fire slightly early, which is not a lag.
            self.last = max(0.0, clock() - asked)
            self.worst = max(self.worst, self.last)
            self._told(self.last)


THRESHOLDS: Final = (1_000, 10, 10_000)
"""
Thresholds of the garbage collector: young objects, young collections and middle collections before the next older
generation.

The oldest generation is rarely collected, because that visits the whole cache. The other collections are small, because
every bind waits for them: a collection takes 80 ms for 100,000 objects, and a third less per object that is still in
the CPU cache.
"""

LONGEST: Final = 60.0
"""Maximum seconds without garbage collection, so that garbage does not accumulate while a kind cannot be listed."""

LOOK: Final = 0.2
"""Seconds between two checks whether everything has been read."""


class GarbageCollection:
    """
    Garbage collection that is paused during the initial lists.

    Created inside the running loop. The pause ends when everything is ``known``, after ``longest`` seconds, or with
    ``resume``.
    """

    def __init__(self, known: Callable[[], bool], longest: float = LONGEST) -> None:
        self._known = known
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + longest
        gc.set_threshold(*THRESHOLDS)
        gc.disable()
        self._next = self._loop.call_later(LOOK, self._look)

    def resume(self) -> None:
        """Enable garbage collection."""
        self._next.cancel()
        gc.enable()

    def _look(self) -> None:
        if self._known():
            # Objects that were read stay in memory, so later collections need not visit them.
            gc.freeze()
        elif self._loop.time() < self._end:
            self._next = self._loop.call_later(LOOK, self._look)
            return
        self.resume()


CANCEL_AGAIN: Final = 5.0
"""Seconds that a task gets to end before it is cancelled again."""


class Ended(Exception):
    """A task that should run forever ended without an error."""


class TaskSupervisor:
    """Tasks by name. ``failure`` is done, with the error, when a task ends before ``stop``."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until ``stop``."""
        task = asyncio.create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(self._ended)

    async def finish(self, seconds: float, *names: str) -> None:
        """Wait for tasks that were asked to end. Tasks that still run after the given seconds are cancelled."""
        # All are removed first, because a task may end while another is waited for, and its end is expected.
        tasks = {task for name in names if (task := self._tasks.pop(name, None)) is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        await _cancelled(tasks)

    async def stop(self, *names: str) -> None:
        """Cancel the named tasks, or all tasks, and wait until they have ended."""
        await _cancelled({self._tasks.pop(name) for name in (names or tuple(self._tasks)) if name in self._tasks})

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that was removed before it ended was asked to end.
        expected = task not in self._tasks.values()
        error = None if task.cancelled() else task.exception()
        # Only the first failure is recorded. Later failures are its consequences.
        if expected or self.failure.done():
            return
        self.failure.set_result(error or Ended(f"{task.get_name()} ended by itself"))


async def _cancelled(tasks: Set[asyncio.Task[None]]) -> None:
    """
    Cancel tasks until all of them have ended.

    A single cancellation is not enough: a task that awaits another task misses it if the other ends at the same time.
    """
    left = tasks
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN)
    await asyncio.gather(*tasks, return_exceptions=True)
