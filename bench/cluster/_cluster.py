"""
Commands to a simulated cluster during a measurement. The cluster runs in a process of its own, see ``_processes``.

The moments at which pods are created and bound are noted here, and the CPU time of the scheduler at each bind, so that the measuring
process costs the measured one nothing.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count as counter
from pathlib import Path
from typing import Final

from bench.cluster._background import Background
from bench.cluster._machines import MACHINES, pod, running
from bench.cluster._shapes import PRIORITIES, Churn, Workload
from bench.cluster._suite import WORKLOADS
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions, JsonObject
from koord_numa.sandbox.machines import Fleet, read_descriptions

LEASES: Final = "leases.coordination.k8s.io"
LEASE: Final = "koord-numa"
LEASE_NAMESPACE: Final = "koord-numa"
PATIENCE: Final = 300.0
"""Seconds after which a measurement is given up."""

PLURALS: Final[Mapping[str, str]] = {
    "Node": "nodes",
    "Pod": "pods",
    "RebindResource": "rebindresources.scheduling.koordinator.sh",
}

BY_WORKLOAD: Final[Mapping[str, Workload]] = {workload.name: workload for workload in WORKLOADS}


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU that a process has used so far, by its clock (``clock_getcpuclockid``)."""
    # # CPUCLOCK_SCHED of <linux/posix-timers.h>: nanoseconds, where /proc/<pid>/stat has hundredths
    return time.clock_gettime(~pid << 3 | 2)


@dataclass(slots=True)
class Stopwatch:
    """When the first and the last of some pods were bound, and what CPU time a process had used by then."""

    pid: int
    first: tuple[float, float] | None = None
    last: tuple[float, float] = (0.0, 0.0)

    def bound(self) -> None:
        """One more pod is bound."""
        # Read in the callback of the bind: asking later would count what the scheduler does after it.
        self.last = (time.perf_counter(), cpu_seconds(self.pid))
        if self.first is None:
            self.first = self.last


@dataclass(slots=True)
class Cluster:
    """The server, and the moments at which pods were created and bound, by name."""

    server: ApiServer
    created: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)  # names of pods that are not to be bound
    count: int = 0
    stopwatch: Stopwatch | None = None

    def observe(self, event: str, pod: JsonObject) -> None:
        """Take the time of the first look at a pod, and of the first with a node."""
        name = pod["metadata"]["name"]
        if event == "ADDED":
            self.created.setdefault(name, time.perf_counter())
        if pod["spec"].get("nodeName") and name not in self.bound:
            self.bound[name] = time.perf_counter()
            if self.stopwatch is not None and name not in self.idle:
                self.stopwatch.bound()

    async def url(self) -> str:
        """Where the server listens."""
        return self.server.url

    async def nodes(self, count: int, machines: str = "scheduler") -> int:
        """Register machines of a kind with their topologies; nothing acts on pods."""
        fleet = Fleet(self.server.store, read_descriptions(MACHINES[machines](count), Path()))
        for number, machine in enumerate(fleet.nodes.values()):
            machine.register()
            # Now and then the server answers: a scheduler that watches would time out otherwise.
            if not number % 50:
                await asyncio.sleep(0)
        return count

    async def workload_nodes(self, name: str, count: int) -> int:
        """The nodes of a workload."""
        workload, store = BY_WORKLOAD[name], self.server.store
        if workload.machines:
            await self.nodes(count, workload.machines)
        else:
            for number in range(count):
                store.create(workload.node(number))
        if workload.extra_node is not None:
            store.create(workload.extra_node)
        for priority in PRIORITIES:
            store.create(priority)
        # The label that the suite's namespaceSelector workloads look for.
        store.patch("namespaces", "default", {"metadata": {"labels": {"team": "devops"}}})
        return count

    async def workload_before(self, name: str, nodes: int) -> int:
        """The pods that are there before: those that can be are placed first."""
        workload = BY_WORKLOAD[name]
        count = workload.count_before + workload.before_a_node * nodes
        if workload.before is not None:
            # Bound before anything is measured, so that they cost the scheduler nothing later.
            await self._create(workload.before, count)
            await self.all_bound()
        if workload.idle is not None:
            for number in range(workload.count_idle):
                self.idle.add(self.server.store.create(workload.idle(number))["metadata"]["name"])
        return count

    async def workload_measured(self, name: str, pid: int) -> tuple[float, float, int]:
        """
        The pods that are measured. Returns the seconds from the first to the last bind, the CPU seconds that the process used between
        them, and how many pods there were.
        """
        workload = BY_WORKLOAD[name]
        churning = None if workload.churn is None else asyncio.create_task(self._churn(workload.churn))
        self.stopwatch = watch = Stopwatch(pid)
        await self._create(workload.pod, workload.count)
        await self.all_bound()
        self.stopwatch = None
        if churning is not None:
            churning.cancel()
            await asyncio.gather(churning, return_exceptions=True)
        first, last = watch.first or watch.last, watch.last
        return last[0] - first[0], last[1] - first[1], workload.count

    async def _create(self, make: Callable[[int], JsonObject], count: int) -> None:
        for number in range(count):
            self.server.store.create(make(number))
            if not number % 50:
                await asyncio.sleep(0)

    async def _churn(self, churn: Churn) -> None:
        """Objects come five times a second, and go again unless they are to stay (``churn`` of scheduler_perf)."""
        store = self.server.store
        for number in counter():
            objects = churn.objects(number)
            # Before they are created: their ADDED events must not count as pods to wait for.
            self.idle.update(each["metadata"]["name"] for each in objects)
            for each in objects:
                store.create(each)
            await asyncio.sleep(churn.pause)
            for each in objects if churn.go else ():
                about = each["metadata"]
                options = DeleteOptions(grace=0)
                store.delete(PLURALS[each["kind"]], about["name"], about.get("namespace", ""), options)

    async def placed(self, count: int, nodes: int = 1_000) -> int:
        """Pods that some scheduler has placed already, without CPUs of their own, and that run."""
        for number in range(count):
            made = self.server.store.create(pod(5 * number + 1, nodeName=f"node-{number % nodes}"))
            about, status = made["metadata"], {"status": running(made)}
            self.server.store.patch("pods", about["name"], status, about["namespace"], subresource="status")
            if not number % 200:
                await asyncio.sleep(0)
        self.count = 5 * count  # those that come later have other names
        return count

    async def background(self, seconds: float, rates: Mapping[str, float]) -> dict[str, int]:
        """Updates of kinds at rates for so long; returns how many of each there were."""
        return await Background(self.server.store).run(seconds, rates)

    async def reign(self) -> None:
        """An absent process holds the lease for long: schedulers get warm, and wait."""
        # # seconds; longer than any measurement
        spec = {"holderIdentity": "absent", "leaseDurationSeconds": 3600, "leaseTransitions": 0}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
        self.server.store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}})
        self.server.store.create({**lease, "metadata": {"name": LEASE, "namespace": LEASE_NAMESPACE}})

    async def abdicate(self) -> float:
        """Set the lease free. Returns when."""
        # An empty holder is free at once, as client-go's leader election releases a lease.
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
            # To a schedule, not after a pause: slow creation must not lower the rate.
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            await self.create(1)
        await self.all_bound()
        names = (f"pod-{number:06}" for number in range(first, self.count))
        return [self.bound[name] - self.created[name] for name in names]

    async def stream_beside(self, seconds: float, rate: float, updates: Mapping[str, float]) -> list[float]:
        """As ``stream`` for so long, beside updates of kinds at their own rates."""
        background = Background(self.server.store)  # reads everything, for which the pods do not wait
        waits, _ = await asyncio.gather(self.stream(int(seconds * rate), rate), background.run(seconds, updates))
        return waits

    async def all_bound(self) -> tuple[float, float]:
        """Wait until every pod has a node; returns when the first and the last got it."""
        # Patience for the next bind and not for all: at 5,000 nodes there are 20,000 pods to wait for.
        seen, since = -1, time.perf_counter()
        while (count := len(self.bound.keys() - self.idle)) < len(self.created.keys() - self.idle):
            if count > seen:
                seen, since = count, time.perf_counter()
            elif time.perf_counter() - since > PATIENCE:
                raise TimeoutError(f"no pod was bound for {PATIENCE:.0f} s")
            # Seldom, where there are many pods: the look at all of them would take the server's time.
            await asyncio.sleep(max(0.01, len(self.created) * 1e-5))
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
