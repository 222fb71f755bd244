"""
Schedulers that can be killed, frozen and stopped without processes: each has a thread and an event loop of its own.

A killed one does nothing more, not even tidy up: every request in flight is cut off. A frozen one does nothing for a while and does
not know that time has passed.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TypeVar

from koord_numa.app.runtime import Options, Runtime
from koord_numa.handlers.embedding import EmbeddedKopf
from koord_numa.operator import triggers  # with the handlers of its life cycle
from koord_numa.settings import Settings
from tests.chaos.stacks import stacks
from tests.cluster.objects import PATIENCE

T = TypeVar("T")


class Replica:
    """One scheduler process, nearly. ``runtime`` may be looked at from outside only through ``ask``."""

    def __init__(self, settings: Settings, kubeconfig: Path, identity: str) -> None:
        self.identity = identity
        self.errors: list[str] = []
        self._options = Options(settings, kubeconfig, identity, port=None)
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._killed = False
        self._runtime: Runtime | None = None
        self._thread = Thread(target=self._live, name=identity, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Neither stopped nor killed."""
        return self._thread.is_alive()

    def kill(self) -> None:
        """As SIGKILL, as far as the API server can tell."""
        self._killed = True
        self._loop.call_soon_threadsafe(self._ending.set)

    def stop(self) -> None:
        """As SIGTERM."""
        self._loop.call_soon_threadsafe(self._ending.set)

    def freeze(self, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT after so many seconds: the whole event loop stands still."""
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    async def join(self) -> None:
        """Wait until it has ended."""
        await asyncio.to_thread(self._thread.join, PATIENCE)
        if self._thread.is_alive():
            self.errors.append("\n  ".join(("does not end:", *stacks(self._loop))))

    async def ask(self, question: Callable[[Runtime], T], default: T) -> T:
        """Let its own loop answer; the default while it is not there."""
        runtime = self._runtime
        if runtime is None or not self.alive:
            return default

        async def answer() -> T:
            return question(runtime)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer(), self._loop))

    def _live(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except Exception as error:  # noqa: BLE001  (kept for the test to judge)
            self.errors.append(f"ended by {error!r}")

    async def _serve(self) -> None:
        runtime = self._runtime = await Runtime.connect(self._options)
        stop = asyncio.Event()
        await runtime.start()
        watching = asyncio.create_task(self._keep_watching(runtime, stop))
        await self._ending.wait()
        if runtime.tasks.failure.done():
            self.errors.append(f"a task has failed: {runtime.tasks.failure.result()!r}")
        if self._killed:
            await runtime.tasks.stop()
            await runtime.api.close()
        else:
            await runtime.stop()
        stop.set()
        await watching
        await runtime.api.close()  # once more: Kopf has gone on for a moment, and may have asked for a session

    async def _keep_watching(self, runtime: Runtime, stop: asyncio.Event) -> None:
        """Kopf may give up under faults, and starts again as in the real process. What ends it for good is a bug."""
        registry = triggers.registry(runtime.options.settings.pod_source)
        embedded = EmbeddedKopf(runtime, registry, lambda: None, runtime.informers.needs_relist)
        try:
            await embedded.run(stop)
        except Exception as error:  # noqa: BLE001  (kept for the test to judge)
            self.errors.append(f"Kopf: {error!r}")
