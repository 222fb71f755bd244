"""
Kopf inside a process that has other things to do: started, started again when it gives up, and ended without touching foreign tasks.

Theory. Kopf expects to own the process: when it ends, it cancels every task that is younger than itself and waits for all of them without
limit. The scheduler's binds in flight must outlive it. So foreign tasks are declared as ignored, and Kopf's own tasks, which are
recognized by the file that their code comes from, are ended here.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from json import JSONDecodeError
from pathlib import Path
from random import SystemRandom
from traceback import walk_tb
from types import CodeType
from typing import Any, Final, Self
from weakref import WeakValueDictionary

import kopf

from koord_numa.handlers.lifecycle import Host
from koord_numa.handlers.supervision import EXIT_SECONDS, KOPF, KopfStalled, end_leftovers, supervise
from koord_numa.settings import BackoffSettings

PER_EVENT: Final = str(Path(KOPF, "_core")) + os.sep
"""Where Kopf's generators are that are no streams, but context managers of single events."""

Streams = WeakValueDictionary[int, AsyncGenerator[Any, None]]
"""Asynchronous generators in the order in which they were begun: an outer one before those that it reads."""

RESTART: Final = BackoffSettings(initial=1.0, max=30.0)
"""Pauses between two runs of Kopf."""

STEADY: Final = 60.0
"""Seconds after which a run of Kopf counts as one that worked: its end begins a new series of pauses."""

_log = logging.getLogger(__name__)


class SharedMemo(kopf.Memo):
    """One memo for all objects. Kopf copies the one that it is given for every object that it hears of; nothing here is of one object."""

    def __copy__(self) -> Self:
        return self


class EveryTask(Collection[asyncio.Task[Any]]):
    """
    All tasks of the process, for Kopf to leave alone.

    The scheduler and its binds in flight outlive a run of Kopf, and a watcher of Kopf that waits for credentials never ends by itself.
    """

    def __contains__(self, task: object) -> bool:
        return isinstance(task, asyncio.Task)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(asyncio.all_tasks())

    def __len__(self) -> int:
        return len(asyncio.all_tasks())


@dataclass(frozen=True, slots=True)
class EmbeddedKopf:
    """
    Kopf as a part of ``host``, with the handlers of a registry.

    ``spawned`` is called when Kopf has installed its signal handlers, which would stop only Kopf; ``restarted`` before every run but the
    first, as objects may have vanished meanwhile.
    """

    host: Host
    registry: kopf.OperatorRegistry
    spawned: Callable[[], None]
    restarted: Callable[[], None]

    async def run(self, stop: asyncio.Event) -> None:
        """Run Kopf until ``stop``, again when it gives up on the API server. Raises what is no trouble with the API server: a bug."""
        clock, dice, failures = asyncio.get_running_loop().time, SystemRandom().random, 0
        while not stop.is_set():
            begun = clock()
            # A task of its own: Kopf cancels what it finds younger than itself, and must not cancel this coroutine.
            run = asyncio.create_task(self._run_once(stop), name="kopf operator")
            await asyncio.wait({run})
            error = run.exception()
            if error is None or stop.is_set():
                return
            if not is_transient(error):
                raise error
            # A run that worked for a while begins a new series of pauses.
            failures = 1 if clock() - begun > STEADY else failures + 1
            pause = RESTART.pause(failures, dice())
            _log.error("Kopf gave up and is started again in %.1f s: %r", pause, error)
            # The pause ends early when the process does.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
            self.restarted()

    async def _run_once(self, stop: asyncio.Event) -> None:
        """One run, until ``stop`` or until Kopf gives up: then its error is raised."""
        settings = kopf.OperatorSettings()
        # Kopf would kill the whole process some minutes after it gave up.
        settings.process.ultimate_exiting_timeout = None
        memo = SharedMemo(host=self.host)
        with _kopf_streams() as streams:
            tasks = await kopf.spawn_tasks(
                clusterwide=True, registry=self.registry, settings=settings, memo=memo, stop_flag=stop
            )
            # Kopf has installed its signal handlers by now; ours replace them.
            self.spawned()
            running = asyncio.create_task(kopf.run_tasks(tasks, ignored=EveryTask()), name="kopf run")
            supervision = asyncio.create_task(supervise(tasks), name="supervision of kopf")
            try:
                # Whichever ends first says how the run went.
                done, _ = await asyncio.wait({running, supervision}, return_when=asyncio.FIRST_COMPLETED)
                await (running if running in done else supervision)
            finally:
                supervision.cancel()
                await end_leftovers()
                # After the tasks: a stream that is being read cannot be closed.
                await _close(streams)


def is_transient(error: BaseException) -> bool:
    """Trouble with the API server, a kind that was uninstalled, or credentials; anything else is a bug."""
    library = type(error).__module__.partition(".")[0] in ("kopf", "aiohttp")
    if library or isinstance(error, OSError | TimeoutError | JSONDecodeError | KopfStalled) or _of_a_connection(error):
        return True
    # Kopf raises a RuntimeError, from the error proper, when the task of an object fails, such as one that asks for kinds.
    cause = error.__cause__
    return isinstance(error, RuntimeError) and cause is not None and is_transient(cause)


def _of_a_connection(error: BaseException) -> bool:
    """Kopf closes connections when credentials expire; what still uses one meets any error, raised inside of aiohttp."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    return bool(modules) and modules[-1].startswith("aiohttp.")


@contextmanager
def _kopf_streams() -> Iterator[Streams]:
    """Collect every stream that Kopf begins to read inside the block."""
    streams: Streams = WeakValueDictionary()
    # Other hooks stay in place: the event loop has one for its own bookkeeping.
    hooks, numbers = sys.get_asyncgen_hooks(), count()

    def begun(stream: AsyncGenerator[Any, None]) -> None:
        code: CodeType | None = getattr(stream, "ag_code", None)
        file = "" if code is None else code.co_filename
        # With every event: the task that enters it closes it, so that none is left open.
        if file.startswith(PER_EVENT):
            return
        if file.startswith(KOPF):
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
    Close what Kopf has left half read: a watcher that is cancelled between two events drops its stream together with its connection.

    One after the other, outer ones first: closed all at once, as at the end of the loop, an inner one fails with "already running".
    """
    for stream in list(streams.values()):
        if not getattr(stream, "ag_running", False):  # else the loop is closing it already
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_SECONDS):
                    await stream.aclose()
