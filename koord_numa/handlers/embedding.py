"""One run of Kopf inside a process that has other things to do: it ends without touching tasks that are not its own."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import CodeType
from typing import Any, Final
from weakref import WeakValueDictionary

import kopf

KOPF: Final = str(Path(kopf.__file__).parent)

Streams = WeakValueDictionary[int, AsyncGenerator[Any, None]]
"""Asynchronous generators in the order in which they were begun: an outer one before those that it reads."""

LAST_WORDS: Final = 5.0
"""Seconds that Kopf's own tasks get to end after they were cancelled; a watcher gives its workers two."""

ATTEMPTS: Final = 3
"""So often they are cancelled."""

WATCHER: Final = "watcher for "
"""Beginning of the names of the tasks that watch a kind."""

WATCHERS_OWN: Final = ("Scheduler.", "worker", "_wait_for_depletion")
"""
Beginnings of the names of coroutines that a watcher of Kopf ends when it ends. Should they end before, it waits for them for ever, and
does not even let itself be cancelled.
"""


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


async def run_kopf(
    memo: kopf.Memo, stop: asyncio.Event, spawned: Callable[[], None], registry: kopf.OperatorRegistry
) -> None:
    """
    Run Kopf with the handlers of a registry until ``stop``, or until it gives up: then its error is raised.

    ``spawned`` is called when Kopf has installed its signal handlers, which would stop only Kopf.
    """
    settings = kopf.OperatorSettings()
    # Kopf would kill the whole process some minutes after it gave up.
    settings.process.ultimate_exiting_timeout = None
    with _kopf_streams() as streams:
        tasks = await kopf.spawn_tasks(
            clusterwide=True, registry=registry, settings=settings, memo=memo, stop_flag=stop
        )
        spawned()
        urging = asyncio.create_task(_urge_watchers(tasks))
        try:
            await kopf.run_tasks(tasks, ignored=EveryTask())
        finally:
            urging.cancel()
            await _end_leftovers()
            await _close(streams)


@contextmanager
def _kopf_streams() -> Iterator[Streams]:
    """Note every stream that Kopf begins to read inside the block."""
    streams: Streams = WeakValueDictionary()
    hooks, numbers = sys.get_asyncgen_hooks(), count()

    def begun(stream: AsyncGenerator[Any, None]) -> None:
        if _is_kopf(getattr(stream, "ag_code", None)):
            streams[next(numbers)] = stream
        if hooks.firstiter is not None:
            hooks.firstiter(stream)

    sys.set_asyncgen_hooks(firstiter=begun)
    try:
        yield streams
    finally:
        sys.set_asyncgen_hooks(firstiter=hooks.firstiter)


async def _close(streams: Streams) -> None:
    """
    Close what Kopf has left half read: a watcher that is cancelled between two events drops its stream, connection and all.

    One after the other, outer ones first: closed all at once, as at the end of the loop, they get into each other's way.
    """
    for stream in list(streams.values()):
        if not getattr(stream, "ag_running", False):  # else the loop is closing it already
            await stream.aclose()


async def _urge_watchers(tasks: Collection[asyncio.Task[Any]]) -> None:
    """
    When Kopf ends, ask its watchers again and again.

    Kopf cancels them once and waits without limit. One that is just about to begin its stream anew loses that (``streaming_block`` in
    Kopf's watching.py suppresses it), and would go on for ever.
    """
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    while True:
        await asyncio.sleep(LAST_WORDS)
        for task in asyncio.all_tasks():
            if runs_kopf(task) and task.get_name().startswith(WATCHER):
                task.cancel()


async def _end_leftovers() -> None:
    """Watchers of a run that failed would go on reporting beside those of the next run."""
    for _ in range(ATTEMPTS):
        left = {task for task in asyncio.all_tasks() if runs_kopf(task)}
        if not left:
            return
        for task in left:
            if not str(getattr(task.get_coro(), "__qualname__", "")).startswith(WATCHERS_OWN):
                task.cancel()
        done, _ = await asyncio.wait(left, timeout=LAST_WORDS)
        await asyncio.gather(*done, return_exceptions=True)  # their errors are those that the run has raised


def runs_kopf(task: asyncio.Task[Any]) -> bool:
    """Is this a task that Kopf made for itself?"""
    return _is_kopf(getattr(task.get_coro(), "cr_code", None))


def _is_kopf(code: CodeType | None) -> bool:
    return code is not None and code.co_filename.startswith(KOPF)
