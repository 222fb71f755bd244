"""Start and stop of the embedded API server, simulated machines and, if wanted, the operator as a child process."""

import asyncio
import contextlib
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from koord_numa.cluster.credentials import Credentials
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field
from koord_numa.node.agent import Agent
from koord_numa.node.api_client import NodeApi
from koord_numa.node.publisher import AgentConfig
from koord_numa.sandbox import definitions
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.controllers import JobController, collect_pods
from koord_numa.sandbox.devices import SimulatedDevices
from koord_numa.sandbox.machines import Fleet, NodeDescription, NodeServices, Style


class NodeAgents(MutableObject):
    """
    The node agents and the services that their nodes provide.

    The clock of the agents stands still between rounds, so that the demo makes the same decisions in every run.
    """

    agents: dict[str, Agent] = value_field(default_factory=dict)
    services: dict[str, NodeServices] = value_field(default_factory=dict)
    now: float = 0.0

    async def round(self) -> int:
        """Run one round of every agent and return the number of written topologies."""
        before = self._writes()
        self.now += 10.0  # longer than any of their pauses
        for agent in self.agents.values():
            await agent.round()
        return self._writes() - before

    def differences(self) -> list[str]:
        """Return the pods that ran on other CPUs than decided in the last round."""
        return [
            f"{name}: {one.pod.key} {one}"
            for name, agent in self.agents.items()
            for one in agent.observation.differences
        ]

    def __str__(self) -> str:
        """Return a summary of the last round."""
        compared = sum(agent.observation.checked for agent in self.agents.values())
        wrong = len(self.differences())
        where = f"{compared - wrong} pods run on the CPUs that the scheduler decided, {wrong} on other CPUs"
        return f"Node agents on {len(self.agents)} nodes: {where}."

    def _writes(self) -> int:
        return sum(agent.publisher.writes for agent in self.agents.values())


@asynccontextmanager
async def node_agents(
    server: ApiServer, fleet: Fleet, folder: Path, *, devices: bool = False
) -> AsyncIterator[NodeAgents]:
    """
    Run agents on the nodes of a fleet that are described with ``agent``.

    They have published once when the block starts, with ``devices`` also Device objects.

    They apply cpusets where the scheduler chooses CPUs, because such a node has no simulated koordlet.
    """
    running = NodeAgents()
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(NodeApi(Credentials(server.url)))
        for name, node in fleet.nodes.items():
            if not node.description.agent:
                continue
            services = await stack.enter_async_context(NodeServices(folder / name, node))
            config = AgentConfig(
                # The paths of real nodes below a folder, so that the agent runs unchanged.
                node=name,
                sysfs=services.sysfs,
                cgroups=services.cgroups.root,
                kubelet_config=services.kubelet_config,
                podresources=services.podresources,
                root_dir=services.root_dir,
                cri_socket=services.cri,
                devices=devices,
                # The agent refuses to apply cpusets on nodes where the kubelet chooses CPUs.
                apply=node.description.style is Style.KOORDINATOR,
            )
            agent = Agent(config, api, clock=lambda: running.now)
            await stack.enter_async_context(agent.connected())
            running.agents[name], running.services[name] = agent, services
        # One round first, so that the scheduler finds topologies at its start, as in an established cluster.
        await running.round()
        yield running


PUBLISHING: Final = 1.0
"""Seconds between reports of the simulated agents. Real agents take 3 to 60 s."""

NAMESPACE_DELAY: Final = 2.0
"""Seconds until a deleted namespace is emptied (kube-controller-manager: 5).

``kubectl delete -f`` deletes the namespace first and then its content by name.
"""

_PATIENCE: Final = 8.0
"""Seconds that the operator gets to exit."""


class SandboxCluster(ValueObject):
    """A cluster that exists only in this process, and the kubeconfig for it."""

    server: ApiServer
    fleet: Fleet
    kubeconfig: Path
    agents: NodeAgents
    devices: SimulatedDevices

    async def publish(self) -> int:
        """
        Update all topologies, by simulated agents and exporters or by real agents. Returns the number of changed nodes.
        """
        changed = self.fleet.publish()
        # Simulated machines first: the agents observe their pods.
        if changed:
            await self.agents.round()
        return changed


@contextlib.asynccontextmanager
async def sandbox_cluster(
    nodes: Sequence[NodeDescription], kubeconfig: Path, port: int = 0
) -> AsyncIterator[SandboxCluster]:
    """
    Run a cluster of the machines until the end of the block. Raises ``OSError`` when the port is in use.

    Node agents publish when ``publish`` is called, or periodically inside ``agents_publishing``.
    """
    async with ApiServer(port, definitions(), namespace_delay=NAMESPACE_DELAY) as server:
        server.write_kubeconfig(kubeconfig)
        fleet = Fleet(server.store, nodes)
        fleet.start()
        for name in fleet.nodes:
            server.store.create(_lease(name))
        devices = SimulatedDevices(server.store, nodes)
        devices.start()
        jobs = JobController(server.store)
        jobs.start()
        collector = collect_pods(server.store, fleet.nodes)
        try:
            with tempfile.TemporaryDirectory(prefix="koord-numa-nodes-") as folder:
                async with node_agents(server, fleet, Path(folder)) as agents:
                    yield SandboxCluster(server, fleet, kubeconfig, agents, devices)
        finally:
            collector.cancel()
            jobs.stop()
            devices.stop()
            fleet.stop()


def _lease(node: str) -> dict[str, Any]:
    """Return the Lease of a node's kubelet, which ``kubectl describe node`` reads. It is not renewed."""
    spec = {"holderIdentity": node, "leaseDurationSeconds": 40}
    metadata = {"name": node, "namespace": "kube-node-lease"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


@contextlib.asynccontextmanager
async def agents_publishing(cluster: SandboxCluster) -> AsyncIterator[None]:
    """Publish topologies periodically while the block runs."""
    publishing = asyncio.create_task(_keep_publishing(cluster), name="node agents")
    try:
        yield
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)


async def _keep_publishing(cluster: SandboxCluster) -> None:
    while True:
        await asyncio.sleep(PUBLISHING)
        await cluster.publish()


def page_address(log: Path) -> str:
    """Return the URL of the operator's page, as in its log."""
    found = re.search(r"serving the page.*(http://\S+)", log.read_text(errors="replace"))
    return found[1] if found else f"see {log}"


@contextlib.asynccontextmanager
async def operator(kubeconfig: Path, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """
    Run the operator as a child process in its own process group, so that Ctrl-C does not reach it directly.

    Its log goes to a file. It is terminated at the end of the block, and killed if it does not exit.
    """
    command = (
        "run",
        "--kubeconfig",
        str(kubeconfig),
        "--metrics-port",  # a free port, so that demos can run in parallel
        "0",
        "--no-leader-elect",
        "--log-level",
        "info",  # with the address of the page
    )
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "koord_numa", *command, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _PATIENCE)
            except TimeoutError:
                process.kill()
                await process.wait()
