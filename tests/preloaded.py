"""
``koord-numa`` as a process that has no need to load it: forked by a server that has imported it once, which is most of what a start costs.

What follows the imports is the program's own: command line, environment, signals, event loop, exit status. What Python draws once for a
process is shared by all that are forked: the seed of its hashes. Tests of that, and one of each command, start the installed script.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from koord_numa.cli import main

_SERVERS = multiprocessing.get_context("forkserver")
_SERVERS.set_forkserver_preload(["tests.loaded_program", __name__])

_STATUSES = threading.Lock()
"""An exit status can be read once, and a start looks which of the others have ended."""


class Running(Protocol):
    """The methods of ``asyncio.subprocess.Process`` that tests use."""

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; ``None`` while it runs."""

    def send_signal(self, number: signal.Signals, /) -> None:
        """Send a signal."""

    def kill(self) -> None:
        """Send SIGKILL."""

    async def wait(self) -> int:
        """Wait for the end; returns the exit status."""


class Forked:
    """One process, which writes to a file, and has nothing to read."""

    def __init__(self, arguments: tuple[str, ...], environment: Mapping[str, str], output: Path) -> None:
        self._process = _SERVERS.Process(target=_main, args=(arguments, dict(environment), output), daemon=True)

    @classmethod
    async def start(cls, *arguments: str, environment: Mapping[str, str], output: Path) -> "Forked":
        """``koord-numa`` with these arguments."""
        made = cls(arguments, environment, output)
        await asyncio.to_thread(made._start)  # the first one waits for the server's imports
        return made

    def _start(self) -> None:
        with _STATUSES:
            self._process.start()

    @property
    def returncode(self) -> int | None:
        with _STATUSES:
            return self._process.exitcode

    def send_signal(self, number: signal.Signals, /) -> None:
        if self._process.pid is not None and self.returncode is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        status = self.returncode
        assert status is not None
        return status


def _main(arguments: tuple[str, ...], environment: dict[str, str], output: Path) -> None:
    # What it would inherit is what the server had, which is of the test that started that one.
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["koord-numa", *arguments]
    main()
