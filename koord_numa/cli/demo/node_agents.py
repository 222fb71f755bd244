"""Real node agents on simulated nodes, driven round by round: what they publish, observe and apply is what they would on real nodes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from koord_numa.node.agent import Agent
from koord_numa.node.agent_config import AgentConfig
from koord_numa.node.inputs.api_client import ApiAccess, NodeApi
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.machines import Fleet, NodeServices, Style


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
