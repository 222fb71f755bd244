"""A simulated node with its services and the agent on it, over real sockets; rounds of the agent are called one by one."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koord_numa.cluster.credentials import Credentials
from koord_numa.core.value_objects import replace
from koord_numa.node.agent import Agent
from koord_numa.node.api_client import NodeApi
from koord_numa.node.publisher import AgentConfig
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.machines.description import NodeDescription
from koord_numa.sandbox.machines.node_services import NodeServices
from koord_numa.sandbox.machines.simulated_node import Fleet, SimulatedNode
from tests.node.trees import ROOT

CRDS = sorted((ROOT / "crds").glob("*.yaml"))
TOPOLOGIES = "noderesourcetopologies.topology.node.k8s.io"
NODE = "n0"


@dataclass
class FakeClock:
    """Time that passes when told."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """Everything around one agent."""

    server: ApiServer
    fleet: Fleet
    services: NodeServices
    api: NodeApi
    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)

    @property
    def node(self) -> SimulatedNode:
        """The node that the agent runs on."""
        return self.fleet.nodes[NODE]

    def topology(self) -> dict[str, Any] | None:
        """The published object."""
        return self.server.store.find(TOPOLOGIES, NODE)

    def new_agent(self, clock: Callable[[], float], **config: Any) -> Agent:
        """An agent with the paths of this node."""
        settings: dict[str, Any] = {
            "node": NODE,
            "sysfs": self.services.sysfs,
            "cgroups": self.services.cgroups.root,
            "kubelet_config": self.services.kubelet_config,
            "podresources": self.services.podresources,
            "root_dir": self.services.root_dir,
            "cri_socket": self.services.cri,
        }
        return Agent(AgentConfig(**(settings | config)), self.api, clock)

    @asynccontextmanager
    async def agent(self, **config: Any) -> AsyncIterator[Agent]:
        """An agent that is connected and has seen the pods; its loops do not run."""
        agent = self.new_agent(self.clock, **config)
        async with agent.connected():
            self.see_pods(agent)
            yield agent

    def see_pods(self, agent: Agent) -> None:
        """The agent's watch has caught up."""
        agent.pods.observe("LIST", self.server.store.list("pods", fields=f"spec.nodeName={NODE}"))

    async def publish(self, agent: Agent) -> int:
        """One round a second later; returns how many writes there have been."""
        self.see_pods(agent)
        self.clock.now += 1
        await agent.publish()
        return agent.publisher.writes


@asynccontextmanager
async def world(
    folder: Path, description: NodeDescription, *, exported: bool = False, crds: Sequence[Path] = CRDS
) -> AsyncIterator[World]:
    """A cluster of one node without a published topology, unless an exporter runs."""
    async with ApiServer(crds=crds) as server:
        fleet = Fleet(server.store, [replace(description, agent=not exported)])
        fleet.start()
        async with NodeServices(folder, fleet.nodes[NODE]) as services, NodeApi(Credentials(server.url)) as api:
            yield World(server, fleet, services, api, folder)
        fleet.stop()
