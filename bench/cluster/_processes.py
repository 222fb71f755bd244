"""
A simulated cluster as a process of its own, and schedulers as processes beside it: what the end-to-end figures are measured on.

CPU time is read by the kernel's clock of the process, so that no other process's work counts.
"""

import asyncio
import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import uvloop

from bench.cluster._cluster import PATIENCE, Cluster, cpu_seconds
from bench.figure import NotMeasurableError
from koord_numa.sandbox import definitions
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.apiserver.server import write_kubeconfig

IDLE: Final = 0.05
"""CPU seconds in a second of a process that has nothing to do."""


class ClusterProcess:
    """The cluster seen from outside: ``ask`` calls a method of ``Cluster`` by name."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")  # # not fork, which would copy this process's locks and threads
        self._ours, theirs = context.Pipe()
        self._child = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"

    def __enter__(self) -> Self:
        self._child.start()
        write_kubeconfig(self.kubeconfig, self.ask("url"))
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send(None)
        self._child.join(10)

    def ask(self, question: str, *arguments: object) -> Any:
        """Call a method in the other process and wait for what it returns. Raises ``RuntimeError`` when it failed."""
        self._ours.send((question, arguments))
        answer, error = self._ours.recv()
        if error:
            raise RuntimeError(f"{question}: {error}")
        return answer


def _serve(client: Connection) -> None:
    # Nothing that a real API server does: a walk over all its objects would hold every request for 0.4 s. JSON has no cycles.
    gc.disable()
    uvloop.run(_serving(client))


async def _serving(client: Connection) -> None:
    async with ApiServer(crds=definitions()) as server:
        cluster = Cluster(server)
        server.store.subscribe("pods", cluster.observe)
        # In a thread: the pipe blocks, and the server must go on.
        while (asked := await asyncio.to_thread(client.recv)) is not None:
            question, arguments = asked
            try:
                client.send((await getattr(cluster, question)(*arguments), ""))
            except TimeoutError:
                client.send((None, f"gave up after {PATIENCE:.0f} s"))


class SchedulerProcess:
    """``koord-numa run`` as a process of its own."""

    def __init__(self, cluster: ClusterProcess, identity: str) -> None:
        # A free port, given back at once: nothing else here takes ports in between.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "KOORD_NUMA_IDENTITY": identity}
        # Whatever configuration this machine has stays out.
        environment |= {"KOORD_NUMA_METRICS_PORT": str(self.port), "KOORD_NUMA_CONFIG": ""}
        command = (sys.executable, "-m", "koord_numa", "run", "--log-level", "warning")
        self.begun = time.perf_counter()
        self._process = subprocess.Popen(command, env=environment)  # noqa: S603  (our own program)

    @property
    def cpu(self) -> float:
        """Seconds of CPU that the process has used so far."""
        return cpu_seconds(self.pid)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def memory(self) -> float:
        """Resident memory in MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1000

    def until_ready(self) -> float:
        """Wait until it says so; returns the seconds since the process was started."""
        while time.perf_counter() - self.begun < PATIENCE:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                    return time.perf_counter() - self.begun
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise NotMeasurableError("the scheduler never got ready")

    def settled(self) -> float:
        """Wait until it has nothing to do; returns the seconds of CPU so far."""
        used = self.cpu
        while True:
            time.sleep(1.0)
            before, used = used, self.cpu
            if used - before < IDLE:
                return used

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        if self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(30)

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; returns when."""
        self._process.send_signal(number)
        return time.perf_counter()


@contextmanager
def cluster() -> Iterator[ClusterProcess]:
    """A running cluster without anything in it."""
    if not Path("/proc/self/stat").exists():
        raise NotMeasurableError("CPU time of other processes is read from /proc")
    with TemporaryDirectory() as folder, ClusterProcess(Path(folder)) as made:
        yield made


@contextmanager
def scheduler(cluster: ClusterProcess, identity: str = "bench") -> Iterator[SchedulerProcess]:
    """A scheduler that is ready; it is killed at the end."""
    process = SchedulerProcess(cluster, identity)
    try:
        process.until_ready()
        yield process
    finally:
        # Killed: a graceful end would release the lease, and take seconds of the next measurement.
        process.end(signal.SIGKILL)
