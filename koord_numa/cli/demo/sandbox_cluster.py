"""The embedded API server, simulated machines and, if wanted, the operator as a child process: put together and taken down."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from koord_numa.node.agent import Agent
from koord_numa.node.agent_config import AgentConfig
from koord_numa.node.inputs.api_client import ApiAccess, NodeApi
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.bundled import definitions
from koord_numa.sandbox.devices import SimulatedDevices
from koord_numa.sandbox.machines import Fleet, NodeDescription, NodeServices, Style


@dataclass(slots=True)
class NodeAgents:
    """
    The agents of all nodes that have one, and what their nodes offer to them.

    Their clock stands still between rounds, so that a demo decides the same in every run however long its rounds take.
    """

    agents: dict[str, Agent] = field(default_factory=dict)
    services: dict[str, NodeServices] = field(default_factory=dict)
    now: float = 0.0

    async def round(self) -> int:
        """One round of every agent; returns how many topologies were written."""
        before = self._writes()
        self.now += 10.0  # longer than any of their pauses
        for agent in self.agents.values():
            await agent.round()
        return self._writes() - before

    def differences(self) -> list[str]:
        """The pods that ran on other CPUs than decided when the agents last looked."""
        return [
            f"{name}: {one.pod.key} {one}"
            for name, agent in self.agents.items()
            for one in agent.observation.differences
        ]

    def __str__(self) -> str:
        """What they have seen in their last round."""
        compared = sum(agent.observation.checked for agent in self.agents.values())
        wrong = len(self.differences())
        where = f"{compared - wrong} pods run on the decided CPUs, {wrong} elsewhere"
        return f"Node agents on {len(self.agents)} nodes: {where}."

    def _writes(self) -> int:
        return sum(agent.publisher.writes for agent in self.agents.values())


@asynccontextmanager
async def node_agents(server: ApiServer, fleet: Fleet, folder: Path) -> AsyncIterator[NodeAgents]:
    """
    Agents on the nodes of a fleet that are described with ``agent``, which have published once when the block begins.

    They apply cpusets where the scheduler decides on CPUs, as no koordlet is simulated on such a node.
    """
    running = NodeAgents()
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(NodeApi(ApiAccess(server.url)))
        for name, node in fleet.nodes.items():
            if not node.description.agent:
                continue
            services = await stack.enter_async_context(NodeServices(folder / name, node))
            config = AgentConfig(
                # The paths of real nodes, below a folder: the agent runs unchanged.
                node=name,
                sysfs=services.sysfs,
                cgroups=services.cgroups.root,
                kubelet_config=services.kubelet_config,
                podresources=services.podresources,
                root_dir=services.root_dir,
                cri_socket=services.cri,
                # Where the kubelet decides, the agent must not apply, and would refuse to.
                apply=node.description.style is Style.KOORDINATOR,
            )
            agent = Agent(config, api, clock=lambda: running.now)
            await stack.enter_async_context(agent.connected())
            running.agents[name], running.services[name] = agent, services
        # One round first: the scheduler finds topologies when it starts, as in a cluster that has been up for a while.
        await running.round()
        yield running


PUBLISHING: Final = 1.0
"""Seconds between reports of the simulated agents; real ones take 3 to 60."""

_PATIENCE: Final = 8.0
"""Seconds that the operator gets to end by itself."""


@dataclass(frozen=True, slots=True)
class SandboxCluster:
    """A cluster that exists only in this process, and the kubeconfig that leads to it."""

    server: ApiServer
    fleet: Fleet
    kubeconfig: Path
    agents: NodeAgents
    devices: SimulatedDevices

    async def publish(self) -> int:
        """Bring every topology up to date, by simulated agents and exporters or by real ones; returns how many nodes had changed."""
        changed = self.fleet.publish()
        # Simulated machines first: their pods are what the agents on them see.
        if changed:
            await self.agents.round()
        return changed


@contextlib.asynccontextmanager
async def sandbox_cluster(
    nodes: Sequence[NodeDescription], kubeconfig: Path, port: int = 0
) -> AsyncIterator[SandboxCluster]:
    """
    A cluster of these machines; everything is gone when the block ends. Raises ``OSError`` when the port is taken.

    Node agents publish when ``publish`` is called, or periodically inside ``agents_publishing``.
    """
    async with ApiServer(port, definitions()) as server:
        server.write_kubeconfig(kubeconfig)
        fleet = Fleet(server.store, nodes)
        fleet.start()
        devices = SimulatedDevices(server.store, nodes)
        devices.start()
        try:
            with tempfile.TemporaryDirectory(prefix="koord-numa-nodes-") as folder:
                async with node_agents(server, fleet, Path(folder)) as agents:
                    yield SandboxCluster(server, fleet, kubeconfig, agents, devices)
        finally:
            devices.stop()
            fleet.stop()


@contextlib.asynccontextmanager
async def agents_publishing(cluster: SandboxCluster) -> AsyncIterator[None]:
    """The agents report by themselves while the block runs."""
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


@contextlib.asynccontextmanager
async def operator(kubeconfig: Path, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """
    The operator as users run it, in a process group of its own so that Ctrl-C reaches it only through us.

    Its log goes to a file. It is asked to end when the block ends, and killed if it does not.
    """
    command = (
        "run",
        "--kubeconfig",
        str(kubeconfig),
        "--metrics-port",  # any free one: demos run side by side
        "0",
        "--no-leader-elect",
        "--log-level",
        "warning",
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
