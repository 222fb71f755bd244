"""
A simulated cluster as a process of its own, and schedulers as processes beside it: what the end-to-end figures are measured on.

The cluster's process notes when each pod was created and bound, so that the measuring process costs nobody anything.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import uvloop

from bench._shapes import PRIORITIES, WORKLOADS, Workload, node
from bench.figure import NotMeasurableError
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions, JsonObject
from koord_numa.sandbox.apiserver.kubeconfig import write_kubeconfig
from koord_numa.sandbox.bundled import definitions
from koord_numa.sandbox.machines import Fleet, read_descriptions

LEASES: Final = "leases.coordination.k8s.io"
LEASE: Final = "koord-numa"
LEASE_NAMESPACE: Final = "koord-numa"
PATIENCE: Final = 180.0
"""Seconds after which a measurement is given up."""

KINDS: Final = (("LSR", "2", ""), ("LS", "1", ""), ("LSR", "4", "SingleNUMANode"), ("LS", "500m", ""), ("LSE", "2", ""))
"""QoS class, CPUs and NUMA policy of the pods, in turn."""

IDLE: Final = 0.05
"""CPU seconds in a second of a process that has nothing to do."""

TICKS: Final = os.sysconf("SC_CLK_TCK")


def machines(count: int) -> JsonObject:
    """So many machines of two sockets with 32 CPUs each."""
    shape = {"sockets": 2, "numa": 1, "cores": 16, "threads": 2, "memory": "128Gi"}
    return {"machines": [{"name": "node", "count": count, **shape}]}


def pod(number: int, **spec: Any) -> JsonObject:
    """One of five kinds of pods, small enough that ten of them fit on a machine."""
    qos, cpu, policy = KINDS[number % len(KINDS)]
    amounts = {"cpu": cpu, "memory": "1Gi"}
    metadata: JsonObject = {"name": f"pod-{number:06}", "labels": {"koordinator.sh/qosClass": qos}}
    if policy:
        annotation = f'{{"numaTopologyPolicy":"{policy}"}}'
        metadata["annotations"] = {"scheduling.koordinator.sh/numa-topology-spec": annotation}
    container = {"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "koord-numa", "containers": [container], **spec},
    }


@dataclass(slots=True)
class Cluster:
    """In the cluster's process: the server, and the moments at which pods were created and bound, by name."""

    server: ApiServer
    created: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)  # names of pods that nobody is to bind
    count: int = 0

    def observe(self, event: str, pod: JsonObject) -> None:
        """Take the time of the first look at a pod, and of the first with a node."""
        name = pod["metadata"]["name"]
        if event == "ADDED":
            self.created.setdefault(name, time.perf_counter())
        if pod["spec"].get("nodeName"):
            self.bound.setdefault(name, time.perf_counter())

    async def url(self) -> str:
        """Where the server listens."""
        return self.server.url

    async def nodes(self, count: int) -> int:
        """Register machines with their topologies; nothing acts on pods."""
        rack = Fleet(self.server.store, read_descriptions(machines(count), Path()))
        for machine in rack.nodes.values():
            machine.register()
        return count

    async def workload_nodes(self, name: str, count: int) -> int:
        """The nodes of a workload."""
        make = _workload(name).node or node
        for number in range(count):
            self.server.store.create(make(number))
        for priority in PRIORITIES:
            self.server.store.create(priority)
        labels = {"team": "devops"}
        self.server.store.patch("namespaces", "default", {"metadata": {"labels": labels}})
        return count

    async def workload_before(self, name: str) -> int:
        """The pods that are there before: those that can be are placed first."""
        workload = _workload(name)
        if workload.before is not None:
            await self._create(workload.before, workload.count_before)
            await self.all_bound()
        if workload.idle is not None:
            for number in range(workload.count_idle):
                self.server.store.create(workload.idle(number))
                self.idle.add(workload.idle(number)["metadata"]["name"])
        return workload.count_before

    async def workload_measured(self, name: str) -> tuple[float, float, int]:
        """The pods that are measured; returns when the first and the last was bound, and how many there were."""
        workload = _workload(name)
        begun = time.perf_counter()
        churning = asyncio.create_task(self._churn()) if workload.churn else None
        await self._create(workload.pod, workload.count)
        await self.all_bound()
        if churning is not None:
            churning.cancel()
        moments = [when for each, when in self.bound.items() if self.created[each] >= begun and each not in self.idle]
        return min(moments), max(moments), workload.count

    async def _create(self, make: Callable[[int], JsonObject], count: int) -> None:
        for number in range(count):
            self.server.store.create(make(number))
            if not number % 50:
                await asyncio.sleep(0)

    async def _churn(self) -> None:
        """A node, a pod that fits nowhere and a Service come and go, five times a second (``churn`` of scheduler_perf)."""
        for number in range(1_000_000):
            stranger = pod(0) | {"metadata": {"name": f"churn-{number}"}}
            stranger["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "9999"}}
            self.idle.add(f"churn-{number}")
            self.server.store.create(node(900_000 + number) | {"spec": {"unschedulable": True}})
            self.server.store.create(stranger)
            await asyncio.sleep(0.2)
            self.server.store.delete("nodes", f"node-{900_000 + number:05}", options=DeleteOptions(grace=0))
            self.server.store.delete("pods", f"churn-{number}", "default", DeleteOptions(grace=0))

    async def placed(self, count: int) -> int:
        """Pods that some scheduler has placed already, without CPUs of their own."""
        for number in range(count):
            self.server.store.create(pod(5 * number + 1, nodeName=f"node-{number % 1000}"))
        return count

    async def reign(self) -> None:
        """Somebody who is not there holds the lease for long: schedulers get warm, and wait."""
        spec = {"holderIdentity": "nobody", "leaseDurationSeconds": 3600, "leaseTransitions": 0}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
        self.server.store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}})
        self.server.store.create({**lease, "metadata": {"name": LEASE, "namespace": LEASE_NAMESPACE}})

    async def abdicate(self) -> float:
        """Set the lease free. Returns when."""
        self.server.store.patch(LEASES, LEASE, {"spec": {"holderIdentity": ""}}, LEASE_NAMESPACE)
        return time.perf_counter()

    async def holder(self) -> str:
        """Who holds the lease."""
        lease = self.server.store.find(LEASES, LEASE, LEASE_NAMESPACE)
        return str(lease["spec"]["holderIdentity"]) if lease else ""

    async def create(self, count: int) -> int:
        """More pods, at once."""
        for _ in range(count):
            self.server.store.create(pod(self.count))
            self.count += 1
            if not self.count % 50:
                await asyncio.sleep(0)
        return self.count

    async def stream(self, count: int, rate: float) -> list[float]:
        """More pods, one after the other at a rate; returns for each the seconds from created to bound."""
        first, begun = self.count, time.perf_counter()
        for number in range(count):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            await self.create(1)
        await self.all_bound()
        names = (f"pod-{number:06}" for number in range(first, self.count))
        return [self.bound[name] - self.created[name] for name in names]

    async def all_bound(self) -> tuple[float, float]:
        """Wait until every pod has a node; returns when the first and the last got it."""
        async with asyncio.timeout(PATIENCE):
            while len(self.bound.keys() - self.idle) < len(self.created.keys() - self.idle):  # noqa: ASYNC110  (the server tells nobody that all is done)
                await asyncio.sleep(0.01)
        return min(self.bound.values()), max(self.bound.values())

    async def all_told(self) -> int:
        """Wait until no more events come; returns how many there are."""
        told = -1
        async with asyncio.timeout(PATIENCE):
            while told < (told := self.server.store.count("events.events.k8s.io")):  # noqa: ASYNC110  (as above)
                await asyncio.sleep(1.0)
        return told

    async def first_bound_after(self, moment: float) -> float:
        """When the first pod was bound after that moment."""
        async with asyncio.timeout(PATIENCE):
            while not (later := [when for when in self.bound.values() if when > moment]):  # noqa: ASYNC110  (as above)
                await asyncio.sleep(0.01)
        return min(later)


def _workload(name: str) -> Workload:
    return next(workload for workload in WORKLOADS if workload.name == name)


class ClusterProcess:
    """The cluster seen from outside: ``ask`` calls a method of ``Cluster`` by name."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
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
        server.subscribe("pods", cluster.observe)
        while (asked := await asyncio.to_thread(client.recv)) is not None:
            question, arguments = asked
            try:
                client.send((await getattr(cluster, question)(*arguments), ""))
            except TimeoutError:
                client.send((None, f"gave up after {PATIENCE:.0f} s"))


class SchedulerProcess:
    """``koord-numa run`` as a process of its own."""

    def __init__(self, cluster: ClusterProcess, identity: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "KOORD_NUMA_IDENTITY": identity}
        environment |= {"KOORD_NUMA_METRICS_PORT": str(self.port), "KOORD_NUMA_CONFIG": ""}
        command = (sys.executable, "-m", "koord_numa", "run", "--log-level", "warning")
        self.begun = time.perf_counter()
        self._process = subprocess.Popen(command, env=environment)  # noqa: S603  (our own program)

    @property
    def cpu(self) -> float:
        """Seconds of CPU that the process has used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

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
        process.end(signal.SIGKILL)
