"""Kopf inside the process: start, restart after failures, and detection of stalls."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from json import JSONDecodeError
from pathlib import Path
from random import SystemRandom
from traceback import walk_tb
from types import CodeType
from typing import Any, Final, Protocol, Self
from weakref import WeakValueDictionary

import kopf

from koord_numa.core.value_objects import ValueObject
from koord_numa.handlers.dispatch import Dispatcher
from koord_numa.handlers.triggers import configure
from koord_numa.ports import ClusterError
from koord_numa.settings import BackoffSettings

LOGIN_PAUSE: Final = 1.0
"""Seconds between attempts to get credentials that are temporarily unavailable."""


class EmbeddingProcess(Protocol):
    """The process that embeds Kopf."""

    dispatcher: Dispatcher

    @property
    def server(self) -> str:
        """URL of the API server."""
        ...

    async def new_session(self) -> Any:
        """Return a session with current credentials (the part of ``aiohttp.ClientSession`` that Kopf uses).

        Kopf closes it. Raises ``Unavailable``.
        """
        ...

    @property
    def failure(self) -> asyncio.Future[BaseException]:
        """Done when a task of the process has failed."""
        ...

    async def stop(self) -> None:
        """Stop the process."""
        ...


def attach(registry: kopf.OperatorRegistry, start: Callable[[], Awaitable[EmbeddingProcess]]) -> None:
    """Register the handlers. ``start`` is called for a memo without a host, which means that Kopf owns the process."""

    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def startup(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
        # Under ``kopf run`` the host does not exist yet; under ``koord-numa run`` the memo contains it.
        if "host" not in memo:
            try:
                memo.host = await start()
            except (OSError, ValueError) as error:  # a port that is taken, or an invalid configuration
                # Kopf would print every exception with a traceback.
                raise SystemExit(f"koord-numa cannot start: {error}") from None
            memo.host_ends_with_kopf = True
        memo.dispatcher = memo.host.dispatcher
        memo.queueing = settings.queueing
        configure(settings, memo.dispatcher.scheduler_names)
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # otherwise a line per event

    @kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def login(memo: kopf.Memo, **_: Any) -> kopf.AiohttpSession:
        """Provide the server and a session with credentials and impersonation. Kopf calls it again after a 401."""
        host: EmbeddingProcess = memo.host
        try:
            session = await host.new_session()
        except ClusterError as error:
            # For example a token file that is being rotated. With any other exception Kopf would wait for credentials
            # forever.
            raise kopf.TemporaryError(str(error), delay=LOGIN_PAUSE) from error
        return kopf.AiohttpSession(server=host.server, aiohttp_session=session)

    @kopf.on.cleanup(registry=registry)
    async def cleanup(memo: kopf.Memo, **_: Any) -> None:
        """Stop the host. A failed task makes ``kopf run`` exit with an error."""
        if "host_ends_with_kopf" in memo:
            host: EmbeddingProcess = memo.host
            await host.stop()
            # The error sets the exit status of ``kopf run``, so that its supervisor restarts it.
            if host.failure.done():
                raise kopf.PermanentError("a task of the scheduler has failed") from host.failure.result()


KOPF: Final = str(Path(kopf.__file__).parent)

EXIT_SECONDS: Final = 5.0
"""Seconds for Kopf's tasks to end after cancellation. A watcher gives its workers two seconds."""

ATTEMPTS: Final = 3
"""Maximum number of cancellations of the remaining tasks of a run."""

ENDING: Final = 12
"""Maximum duration of the end of a run, in multiples of ``EXIT_SECONDS``."""

WATCHER: Final = "watcher for "
"""Prefix of the names of tasks that watch a resource."""

CREDENTIALS: Final = "credentials retriever"
"""The task that gets credentials.

Kopf awaits it only at the end: if it fails, all watchers wait for credentials forever.
"""

WATCHERS_OWN: Final = ("Scheduler.", "worker", "_wait_for_depletion")
"""Prefixes of coroutine names that a watcher of Kopf ends itself.

If they end earlier, the watcher waits for them forever and cannot be cancelled.
"""

Task = asyncio.Task[Any]


class KopfStalled(Exception):
    """An essential task of Kopf has ended, or Kopf does not end."""


async def supervise(roots: Collection[Task]) -> None:
    """Supervise a run with these root tasks until cancelled: cancelled watchers are cancelled again until they end.

    Kopf cancels them once and waits without limit. A watcher that is reopening its stream loses the cancellation
    (``streaming_block`` in Kopf's watching.py suppresses it) and would continue forever. Raises ``KopfStalled``.
    """
    ending, parts = 0, _parts()
    while True:
        await asyncio.sleep(EXIT_SECONDS)
        # A single finished root task ends the run.
        if any(task.done() for task in roots):
            ending += 1
            if ending > ENDING:
                raise KopfStalled(f"Kopf has not ended for {ENDING * EXIT_SECONDS:g} s")
        elif over := [task for task in parts if task.done()]:
            raise KopfStalled(f"Kopf runs without its {over[0].get_name()}") from _error(over[0])
        # Collected once per iteration: Kopf has a task for every recently changed object.
        parts = _parts()
        for task in parts:
            if task.get_name().startswith(WATCHER) and (ending or task.cancelling()):
                task.cancel()


async def end_leftovers() -> None:
    """Cancel the remaining tasks of a failed run. Its watchers would report in parallel to the next run."""
    for _ in range(ATTEMPTS):
        left = {task for task in asyncio.all_tasks() if runs_kopf(task)}
        if not left:
            return
        for task in left:
            # Their watcher ends these tasks. If they end earlier, it waits forever.
            if not str(getattr(task.get_coro(), "__qualname__", "")).startswith(WATCHERS_OWN):
                task.cancel()
        done, _ = await asyncio.wait(left, timeout=EXIT_SECONDS)
        await asyncio.gather(*done, return_exceptions=True)  # the run has already raised their errors


def runs_kopf(task: Task) -> bool:
    """Report whether Kopf created the task for itself."""
    return _is_kopf(getattr(task.get_coro(), "cr_code", None))


def _parts() -> list[Task]:
    """Return the running tasks without which Kopf reports nothing."""
    return [
        task for task in asyncio.all_tasks() if task.get_name().startswith((WATCHER, CREDENTIALS)) and runs_kopf(task)
    ]


def _error(task: Task) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _is_kopf(code: CodeType | None) -> bool:
    return code is not None and code.co_filename.startswith(KOPF)


PER_EVENT: Final = str(Path(KOPF, "_core")) + os.sep
"""Path of Kopf's generators that are context managers of single events instead of streams."""

Streams = WeakValueDictionary[int, AsyncGenerator[Any, None]]
"""Asynchronous generators in the order of their start: an outer generator precedes the generators that it reads."""

RESTART: Final = BackoffSettings(initial=1.0, max=30.0)
"""Back-off between two runs of Kopf."""

STEADY: Final = 60.0
"""Seconds after which a run of Kopf counts as successful, which resets the back-off."""

_log = logging.getLogger(__name__)


class SharedMemo(kopf.Memo):
    """A single memo for all objects. Kopf copies the memo for every object, but this memo has no state of objects."""

    def __copy__(self) -> Self:
        return self


class EveryTask(Collection[asyncio.Task[Any]]):
    """All tasks of the process, which Kopf must ignore.

    The scheduler and its binds in flight outlive a run of Kopf. A watcher of Kopf that waits for credentials never
    ends itself.
    """

    def __contains__(self, task: object) -> bool:
        return isinstance(task, asyncio.Task)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(asyncio.all_tasks())

    def __len__(self) -> int:
        return len(asyncio.all_tasks())


class EmbeddedKopf(ValueObject):
    """Kopf as a part of ``host``, with the handlers of a registry.

    ``spawned`` is called when Kopf has installed its signal handlers, which would stop only Kopf. ``restarted`` is
    called before every run but the first, because objects may have been deleted in the meantime.
    """

    host: EmbeddingProcess
    registry: kopf.OperatorRegistry
    spawned: Callable[[], None]
    restarted: Callable[[], None]

    async def run(self, stop: asyncio.Event) -> None:
        """Run Kopf until ``stop``, and restart it when it fails because of the API server.

        Raises all other errors, which are bugs.
        """
        clock, dice, failures = asyncio.get_running_loop().time, SystemRandom().random, 0
        while not stop.is_set():
            begun = clock()
            # A separate task: Kopf cancels tasks that are younger than itself, and must not cancel this coroutine.
            run = asyncio.create_task(self._run_once(stop), name="kopf operator")
            await asyncio.wait({run})
            error = run.exception()
            if error is None or stop.is_set():
                return
            if not is_transient(error):
                raise error
            # A successful run resets the back-off.
            failures = 1 if clock() - begun > STEADY else failures + 1
            pause = RESTART.pause(failures, dice())
            _log.error("Kopf failed and is restarted in %.1f s: %r", pause, error)
            # The pause ends early when the process stops.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
            self.restarted()

    async def _run_once(self, stop: asyncio.Event) -> None:
        """Run Kopf once, until ``stop`` or until Kopf fails. Raises the error of the run."""
        settings = kopf.OperatorSettings()
        # Kopf would kill the process some minutes after it failed.
        settings.process.ultimate_exiting_timeout = None
        memo = SharedMemo(host=self.host)
        with _kopf_streams() as streams:
            tasks = await kopf.spawn_tasks(
                clusterwide=True, registry=self.registry, settings=settings, memo=memo, stop_flag=stop
            )
            # Kopf has installed its signal handlers; the host replaces them.
            self.spawned()
            running = asyncio.create_task(kopf.run_tasks(tasks, ignored=EveryTask()), name="kopf run")
            supervision = asyncio.create_task(supervise(tasks), name="supervision of kopf")
            try:
                # The first task to end determines the result.
                done, _ = await asyncio.wait({running, supervision}, return_when=asyncio.FIRST_COMPLETED)
                await (running if running in done else supervision)
            finally:
                supervision.cancel()
                await end_leftovers()
                # After the tasks: a stream cannot be closed while it is read.
                await _close(streams)


def is_transient(error: BaseException) -> bool:
    """Report whether the error comes from the API server, an uninstalled resource, or credentials.

    Other errors are bugs.
    """
    library = type(error).__module__.partition(".")[0] in ("kopf", "aiohttp")
    if library or isinstance(error, OSError | TimeoutError | JSONDecodeError | KopfStalled) or _of_a_connection(error):
        return True
    # Kopf raises a RuntimeError from the original error when the task of an object fails, for example in discovery.
    cause = error.__cause__
    return isinstance(error, RuntimeError) and cause is not None and is_transient(cause)


def _of_a_connection(error: BaseException) -> bool:
    """Report whether aiohttp raised the error.

    Kopf closes connections when credentials expire, so their users may get any error.
    """
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    return bool(modules) and modules[-1].startswith("aiohttp.")


@contextmanager
def _kopf_streams() -> Iterator[Streams]:
    """Collect all streams that Kopf starts to read inside the block."""
    streams: Streams = WeakValueDictionary()
    # Other hooks are kept: the event loop uses a hook for its own bookkeeping.
    hooks, numbers = sys.get_asyncgen_hooks(), count()

    def begun(stream: AsyncGenerator[Any, None]) -> None:
        code: CodeType | None = getattr(stream, "ag_code", None)
        file = "" if code is None else code.co_filename
        # Occurs with every event. The task that enters the generator closes it, so none stays open.
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
    """Close the streams that Kopf has not read to the end.

    A watcher that is cancelled between events drops its stream and connection.

    They are closed one after the other, outer streams first. Closed concurrently, as at the end of the loop, an inner
    stream fails with "already running".
    """
    for stream in list(streams.values()):
        if not getattr(stream, "ag_running", False):  # otherwise the loop is already closing it
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_SECONDS):
                    await stream.aclose()
