"""The embedded API server, simulated machines and, if wanted, the operator as a child process: put together and taken down."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koord_numa.cli.demo.node_agents import NodeAgents, node_agents
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.bundled import definitions
from koord_numa.sandbox.devices import SimulatedDevices
from koord_numa.sandbox.machines import Fleet, NodeDescription

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
