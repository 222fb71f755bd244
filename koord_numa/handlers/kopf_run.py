"""One run of Kopf inside a process that has other things to do: it ends without touching tasks that are not its own."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

import kopf

KOPF: Final = str(Path(kopf.__file__).parent)


class ForeignTasks(Collection[asyncio.Task[Any]]):
    """
    Every task that does not run Kopf's code.

    When Kopf ends, it waits for every task that is younger than itself and then cancels it, except for a collection that it is
    given: this one. The engine and its binds in flight must outlive a run of Kopf.
    """

    def __contains__(self, task: object) -> bool:
        code = getattr(task.get_coro(), "cr_code", None) if isinstance(task, asyncio.Task) else None
        return code is None or not code.co_filename.startswith(KOPF)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return (task for task in asyncio.all_tasks() if task in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
    await kopf.run_tasks(tasks, ignored=ForeignTasks())
