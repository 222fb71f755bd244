"""
What a run of Kopf must not do unnoticed: neither work nor end. And what it leaves behind, ended.

Theory. Kopf waits for its tasks without limit when it ends, and some ways in which a part of it ends concern no other part: a watcher that
is cancelled, and the task that gets credentials when it fails. Its events then simply stop. A run that stalls is given up here, and
another one takes its place.
"""

import asyncio
from collections.abc import Collection
from pathlib import Path
from types import CodeType
from typing import Any, Final

import kopf

KOPF: Final = str(Path(kopf.__file__).parent)

EXIT_SECONDS: Final = 5.0
"""What Kopf's own tasks get to end after they were cancelled; a watcher gives its workers two."""

ATTEMPTS: Final = 3
"""How often those that a run has left are cancelled."""

ENDING: Final = 12
"""So many times ``EXIT_SECONDS`` a run may take to end."""

WATCHER: Final = "watcher for "
"""Beginning of the names of the tasks that watch a kind."""

CREDENTIALS: Final = "credentials retriever"
"""The task that asks for credentials. Kopf waits for it only at the end: when it fails, every watcher waits for credentials for ever."""

WATCHERS_OWN: Final = ("Scheduler.", "worker", "_wait_for_depletion")
"""
Beginnings of the names of coroutines that a watcher of Kopf ends when it ends. Should they end before, it waits for them for ever, and
does not even let itself be cancelled.
"""

Task = asyncio.Task[Any]


class KopfStalled(Exception):
    """A part of Kopf is over without which it reports nothing, or Kopf does not come to an end."""


async def supervise(roots: Collection[Task]) -> None:
    """
    Look after a run, of which these are the root tasks, until cancelled: watchers that were cancelled are cancelled until they end.

    Kopf cancels them once and waits without limit. One that is about to open its stream again loses that (``streaming_block`` in
    Kopf's watching.py suppresses it), and would go on for ever.

    Raises ``KopfStalled``.
    """
    ending, parts = 0, _parts()
    while True:
        await asyncio.sleep(EXIT_SECONDS)
        # One root task that is over ends the run.
        if any(task.done() for task in roots):
            ending += 1
            if ending > ENDING:
                raise KopfStalled(f"Kopf has not ended for {ENDING * EXIT_SECONDS:g} s")
        elif over := [task for task in parts if task.done()]:
            raise KopfStalled(f"Kopf goes on without its {over[0].get_name()}") from _error(over[0])
        # Looked for once a round: Kopf has a task for every object that changed lately.
        parts = _parts()
        for task in parts:
            if task.get_name().startswith(WATCHER) and (ending or task.cancelling()):
                task.cancel()


async def end_leftovers() -> None:
    """End what a run that failed has left: its watchers would report beside those of the next run."""
    for _ in range(ATTEMPTS):
        left = {task for task in asyncio.all_tasks() if runs_kopf(task)}
        if not left:
            return
        for task in left:
            # Those are ended by their watcher; ended before it, it would wait for ever.
            if not str(getattr(task.get_coro(), "__qualname__", "")).startswith(WATCHERS_OWN):
                task.cancel()
        done, _ = await asyncio.wait(left, timeout=EXIT_SECONDS)
        await asyncio.gather(*done, return_exceptions=True)  # their errors are those that the run has raised


def runs_kopf(task: Task) -> bool:
    """Is this a task that Kopf made for itself?"""
    return _is_kopf(getattr(task.get_coro(), "cr_code", None))


def _parts() -> list[Task]:
    """The tasks without which Kopf reports nothing, that are not over."""
    return [
        task for task in asyncio.all_tasks() if task.get_name().startswith((WATCHER, CREDENTIALS)) and runs_kopf(task)
    ]


def _error(task: Task) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _is_kopf(code: CodeType | None) -> bool:
    return code is not None and code.co_filename.startswith(KOPF)
