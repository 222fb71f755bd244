"""One run of Kopf inside a process that has other things to do: it ends without touching tasks that are not its own."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

import kopf

KOPF: Final = str(Path(kopf.__file__).parent)

LAST_WORDS: Final = 2.0
"""Seconds that Kopf's own tasks get to end after they were cancelled."""


class EveryTask(Collection[asyncio.Task[Any]]):
    """
    All tasks of the process, for Kopf to leave alone.

    When Kopf ends, it cancels every task that is younger than itself, and waits without limit until they are over. The engine
    and its binds in flight must outlive a run of Kopf; and a watcher of Kopf that waits for credentials never ends at all.
    """

    def __contains__(self, task: object) -> bool:
        return isinstance(task, asyncio.Task)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(asyncio.all_tasks())

    def __len__(self) -> int:
        return len(asyncio.all_tasks())


async def run_kopf(memo: kopf.Memo, stop: asyncio.Event, spawned: Callable[[], None]) -> None:
    """
    Run Kopf with the handlers registered so far until ``stop``, or until it gives up: then its error is raised.

    ``spawned`` is called when Kopf has installed its signal handlers, which would stop only Kopf.
    """
    settings = kopf.OperatorSettings()
    # Kopf would kill the whole process some minutes after it gave up.
    settings.process.ultimate_exiting_timeout = None
    tasks = await kopf.spawn_tasks(clusterwide=True, settings=settings, memo=memo, stop_flag=stop)
    spawned()
    try:
        await kopf.run_tasks(tasks, ignored=EveryTask())
    finally:
        await _end_leftovers()


async def _end_leftovers() -> None:
    """Watchers of a run that failed would go on reporting beside those of the next run."""
    left = {task for task in asyncio.all_tasks() if runs_kopf(task)}
    for task in left:
        task.cancel()
    if left:
        done, _ = await asyncio.wait(left, timeout=LAST_WORDS)
        await asyncio.gather(*done, return_exceptions=True)  # their errors are those that the run has raised


def runs_kopf(task: asyncio.Task[Any]) -> bool:
    """Is this a task that Kopf made for itself?"""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and str(code.co_filename).startswith(KOPF)
