"""A simulated cluster in the tests' process, and schedulers as processes of their own beside it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.apiserver.storage import HISTORY
from koord_numa.sandbox.machines.description import read_descriptions
from koord_numa.sandbox.machines.simulated_node import Fleet
from tests.cluster.objects import PATIENCE, pod_document
from tests.preloaded import Forked, Running

ROOT: Final = Path(__file__).parents[2]
CRDS: Final = (ROOT / "crds" / "noderesourcetopologies.yaml", ROOT / "crds" / "rebindresources.yaml")
BIN: Final = Path(sys.executable).parent

RUN: Final = ("run", "--log-level", "warning")
PROGRAM: Final = (str(BIN / "koord-numa"), *RUN)
"""The installed script, for tests of what only a process of its own shows: how it starts, and what differs from process to process."""

PAIR: Final = {"sockets": 2, "numa": 1, "cores": 8, "threads": 2, "memory": "64Gi"}
"""Two NUMA nodes of sixteen CPUs: 0-7,16-23 and 8-15,24-31."""

KUBELET_PAIR: Final = {"style": "kubelet", **PAIR, "reservedCPUs": "0,16"}
"""The same machine, whose kubelet chooses CPUs and keeps one core."""

MACHINES: Final = {
    "machines": [
        {"name": "pair", "count": 8, **PAIR},
        {"name": "quad", "count": 4, "sockets": 1, "numa": 4, "cores": 4, "threads": 2, "memory": "16Gi"},
        {"name": "arm", "count": 4, "sockets": 1, "numa": 2, "cores": 16, "threads": 1, "memory": "64Gi"},
        {"name": "kubelet", "count": 4, **KUBELET_PAIR},
    ]
}
"""Twenty nodes of four kinds."""

LEASE: Final = "lease: {duration: 60.0, renew: 45.0, retry: 2.0}"
"""A lease that is not lost because the machine is busy."""

BRIEF_LEASE: Final = "lease: {duration: 3.0, renew: 2.0, retry: 0.3}"
"""A lease that runs out soon, for tests in which another process takes over."""

LAST_LINES: Final = 40
"""So much of what a scheduler wrote is shown of a run that has failed."""

JsonObject = dict[str, Any]


def pinned(name: str, cpus: int, *, qos: str = "LSR", policy: str = "", scheduler: str = "koord-numa") -> JsonObject:
    """A pod with CPUs of its own on Koordinator's nodes; Guaranteed, so that a static kubelet would pin it too."""
    amounts = {"cpu": str(cpus), "memory": f"{cpus}Gi"}
    annotations = (
        {"scheduling.koordinator.sh/numa-topology-spec": f'{{"numaTopologyPolicy":"{policy}"}}'} if policy else {}
    )
    containers = [{"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}]
    labels = {"koordinator.sh/qosClass": qos, "koordinator.sh/priority-class": "koord-prod"}
    spec = {"schedulerName": scheduler, "containers": containers}
    return pod_document(name, spec, labels=labels, annotations=annotations)


def shared(name: str, cpu: str = "500m") -> JsonObject:
    """A pod of the shared pool."""
    amounts = {"cpu": cpu, "memory": "256Mi"}
    containers = [{"name": "main", "image": "none", "resources": {"requests": amounts}}]
    return pod_document(name, {"containers": containers}, labels={"koordinator.sh/qosClass": "LS"})


def mixed_pods(count: int) -> list[JsonObject]:
    """Pods of all kinds, small enough to fit together on ``MACHINES``."""
    kinds = (
        lambda name: pinned(name, 2),
        shared,
        lambda name: pinned(name, 4, policy="SingleNUMANode"),
        lambda name: shared(name, "1"),
        lambda name: pinned(name, 1, qos="LSE"),
    )
    return [kinds[number % len(kinds)](f"pod-{number:03}") for number in range(count)]


@dataclass(slots=True)
class World:
    """An API server with simulated nodes."""

    server: ApiServer
    rack: Fleet
    folder: Path
    schedulers: list[Running] = field(default_factory=list)

    @property
    def kubeconfig(self) -> Path:
        """Return the path of a kubeconfig for the server."""
        return self.folder / "kubeconfig"

    @property
    def configuration(self) -> Path:
        """A configuration with a lease that tests can wait for."""
        return self.folder / "config.yaml"

    def create(self, pods: Sequence[JsonObject]) -> None:
        """Submit pods."""
        for pod in pods:
            self.server.store.create(pod)

    def unbound(self) -> list[str]:
        """Names of pods without a node."""
        return [pod["metadata"]["name"] for pod in self.server.store.list("pods") if not pod["spec"].get("nodeName")]

    def binds(self) -> dict[str, int]:
        """Count the successful binds of each pod."""
        counts: dict[str, int] = {}
        for asked in self.server.requests:
            if asked.subresource == "binding" and asked.status == 201:
                counts[asked.name] = counts.get(asked.name, 0) + 1
        return counts

    def holder(self) -> str:
        """Identity of the leader, empty without one."""
        lease = self.server.store.find("leases.coordination.k8s.io", "koord-numa", "koord-numa")
        return str(lease["spec"]["holderIdentity"]) if lease else ""

    def complaints(self) -> list[str]:
        """Everything that no run may bring about: broken promises, CPUs held twice, pods that did not start."""
        failed = [pod["metadata"]["name"] for pod in self.server.store.list("pods", fields="status.phase=Failed")]
        return [*map(str, self.rack.refusals), *map(str, self.rack.double_holds()), *failed]

    async def schedule(self, *command: str, **environment: str) -> Running:
        """
        Start a scheduler as its own process: ``koord-numa run``, forked with its imports done, unless told otherwise.

        All have one identity unless told otherwise: one that follows a killed one has its lease.
        """
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "KOORD_NUMA_CONFIG": str(self.configuration),
            "KOORD_NUMA_METRICS_PORT": "0",
            "KOORD_NUMA_IDENTITY": "scheduler",
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        process: Running
        output = self.log_of(len(self.schedulers))
        if command:
            with output.open("ab") as log:
                process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
        else:
            process = await Forked.start(*RUN, environment=environment, output=output)
        self.schedulers.append(process)
        return process

    def log_of(self, number: int) -> Path:
        """Return the log of this scheduler; the first one has number 0."""
        return self.folder / f"scheduler-{number}.log"

    def account(self) -> str:
        """Describe a failed run: the running schedulers, their last log lines, and the status of waiting pods."""
        lines = []
        for number, process in enumerate(self.schedulers):
            ended = "runs" if process.returncode is None else f"has ended with {process.returncode}"
            log = self.log_of(number)
            said = log.read_text(errors="replace").splitlines()[-LAST_LINES:] if log.exists() else []
            lines += [
                f"scheduler {number} {ended}; the last it wrote:",
                *(f"    {line}" for line in said or ["nothing"]),
            ]
        for pod in self.server.store.list("pods"):
            if not pod["spec"].get("nodeName"):
                lines.append(f"pod {pod['metadata']['name']} has no node: {json.dumps(pod.get('status'))}")
        lines += [f"complaint: {complaint}" for complaint in self.complaints()]
        return "\n".join(lines)


@asynccontextmanager
async def world(
    folder: Path,
    machines: JsonObject = MACHINES,
    lease: str = LEASE,
    history: int = HISTORY,
    crds: Sequence[Path] = CRDS,
) -> AsyncIterator[World]:
    """A running cluster, whose server keeps so many changes a kind; schedulers that still run at the end are killed."""
    async with ApiServer(crds=crds, history=history, bookmark_interval=1.0) as server:
        server.store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "koord-numa"}})
        rack = Fleet(server.store, read_descriptions(machines, folder))
        rack.start()
        server.write_kubeconfig(folder / "kubeconfig")
        (folder / "config.yaml").write_text(
            f"apiVersion: koord-numa.io/v1alpha1\nkind: KoordNumaConfiguration\n{lease}\n"
        )
        made = World(server, rack, folder)
        try:
            yield made
        except Exception as error:
            error.add_note(made.account())
            raise
        finally:
            rack.stop()
            for process in made.schedulers:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


@asynccontextmanager
async def publishing(rack: Fleet, interval: float) -> AsyncIterator[None]:
    """Exporters publish in intervals; what ends one of them ends the block too, so that no test waits for a topology in vain."""
    async with asyncio.TaskGroup() as tasks:
        exporters = tasks.create_task(rack.keep_publishing(interval))
        try:
            yield
        finally:
            exporters.cancel()


def kopf_watches(server: ApiServer) -> list[str]:
    """Return the kinds that Kopf watches, in order, of all schedulers together."""
    return [asked.resource for asked in server.requests if asked.verb == "watch" and "kopf" in asked.user_agent.lower()]


async def ended(process: Running, number: signal.Signals) -> int:
    """Send a signal and wait for the end; returns the exit code."""
    process.send_signal(number)
    return await asyncio.wait_for(process.wait(), PATIENCE)
