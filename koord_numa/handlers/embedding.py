"""Run Kopf inside the process: start it, restart it when it gives up, and notice when it stops working."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from json import JSONDecodeError
from pathlib import Path
from random import SystemRandom
from traceback import walk_tb
from types import CodeType
from typing import Any, Final, Protocol, Self
from weakref import WeakValueDictionary

import kopf

from koord_numa.handlers.dispatch import Dispatcher
from koord_numa.handlers.triggers import configure
from koord_numa.ports import ClusterError
from koord_numa.settings import BackoffSettings

LOGIN_PAUSE: Final = 1.0
"""Seconds until credentials are asked for again that cannot be had at the moment."""


class Host(Protocol):
    """The process around Kopf."""

    dispatcher: Dispatcher

    @property
    def server(self) -> str:
        """URL of the API server."""
        ...

    async def new_session(self) -> Any:
        """What Kopf uses of an ``aiohttp.ClientSession``, with fresh credentials. Kopf closes it. Raises ``Unavailable``."""
        ...

    @property
    def failure(self) -> asyncio.Future[BaseException]:
        """Done when a task of the process has died."""
        ...

    async def stop(self) -> None:
        """End everything."""
        ...


def attach(registry: kopf.OperatorRegistry, start: Callable[[], Awaitable[Host]]) -> None:
    """Register the handlers. ``start`` is called for a memo without a host: the process is Kopf's then."""

    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def startup(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
        # Under ``kopf run`` no process exists yet; under ``koord-numa run`` the memo brings it.
        if "host" not in memo:
            memo.host = await start()
            memo.host_ends_with_kopf = True
        memo.dispatcher = memo.host.dispatcher
        memo.queueing = settings.queueing
        configure(settings, memo.dispatcher.scheduler_names)
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # otherwise a line for every event

    @kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def login(memo: kopf.Memo, **_: Any) -> kopf.AiohttpSession:
        """The server, credentials and impersonation of our own requests. Kopf asks again after a 401."""
        host: Host = memo.host
        try:
            session = await host.new_session()
        except ClusterError as error:
            # A token file that is being written. Any other error would leave Kopf waiting for credentials for ever.
            raise kopf.TemporaryError(str(error), delay=LOGIN_PAUSE) from error
        return kopf.AiohttpSession(server=host.server, aiohttp_session=session)

    @kopf.on.cleanup(registry=registry)
    async def cleanup(memo: kopf.Memo, **_: Any) -> None:
        """A task that died makes ``kopf run`` end with an error."""
        if "host_ends_with_kopf" in memo:
            host: Host = memo.host
            await host.stop()
            # The error is the exit status of ``kopf run``, by which its supervisor restarts it.
            if host.failure.done():
                raise kopf.PermanentError("a task of the scheduler has died") from host.failure.result()


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
