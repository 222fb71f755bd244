"""Supervises long-running tasks: the first that ends by itself is the failure of all."""

import asyncio
from collections.abc import Coroutine, Set
from typing import Any, Final

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
