"""Simulated nodes of an embedded API server, with a shared watch and history."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from koord_numa.sandbox.apiserver import DirectStore, Subscription
from koord_numa.sandbox.machines.agents.agent import RejectedPod
from koord_numa.sandbox.machines.hardware.description import NodeDescription
from koord_numa.sandbox.machines.hardware.topologies import Json
from koord_numa.sandbox.machines.history import History, SimultaneousHold
from koord_numa.sandbox.machines.simulated_node import Clock, SimulatedNode


def time_of_day() -> str:
    """Return the current time in RFC 3339 with whole seconds in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Fleet:
    """Simulated nodes by name.

    ``start`` registers the nodes and admits pods immediately. ``publish`` updates the topologies, because real agents
    and exporters report with a delay. ``keep_publishing`` calls it periodically.
    """

    def __init__(self, store: DirectStore, nodes: Iterable[NodeDescription], clock: Clock = time_of_day) -> None:
        self.history = History()
        self._store = store
        self._clock = clock
        self._nodes: dict[str, SimulatedNode] = {}
        self._subscription: Subscription | None = None
        for description in nodes:
            self._add(description)

    @property
    def nodes(self) -> Mapping[str, SimulatedNode]:
        """All nodes by name."""
        return self._nodes

    @property
    def violations(self) -> list[RejectedPod]:
        """Placements of the scheduler that violate a rule, on all nodes."""
        return [complaint for node in self._nodes.values() for complaint in node.violations]

    @property
    def refusals(self) -> list[RejectedPod]:
        """Pods that a node rejected for any reason, on all nodes."""
        return [complaint for node in self._nodes.values() for complaint in node.refusals]

    def double_holds(self) -> list[SimultaneousHold]:
        """Return every double hold of a CPU, a device or memory in the history."""
        return self.history.double_holds()

    def start(self) -> None:
        """Register all nodes and admit pods. Pods that are already bound are admitted first."""
        for node in self._nodes.values():
            node.register()
        self._subscription = self._store.subscribe("pods", self._dispatch)

    def stop(self) -> None:
        """Ignore pods. Nodes and topologies remain."""
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None

    def add(self, description: NodeDescription) -> SimulatedNode:
        """Add and register a node."""
        node = self._add(description)
        node.register()
        # As after a restart: pods may already be bound to the name.
        node.restart()
        return node

    def publish(self) -> int:
        """Update all topologies and return the number of changed topologies."""
        changed = [node for node in self._nodes.values() if node.dirty]
        for node in changed:
            node.publish()
        return len(changed)

    async def keep_publishing(self, interval: float) -> None:
        """Publish every ``interval`` seconds until cancelled."""
        while True:
            await asyncio.sleep(interval)
            self.publish()

    def _add(self, description: NodeDescription) -> SimulatedNode:
        if description.name in self._nodes:
            raise ValueError(f"there are two nodes named {description.name}")
        node = SimulatedNode(description, len(self._nodes), self._store, self.history, self._clock)
        self._nodes[description.name] = node
        return node

    def _dispatch(self, event: str, pod: Json) -> None:
        # Unbound pods and pods on other nodes are ignored.
        node = self._nodes.get((pod.get("spec") or {}).get("nodeName") or "")
        if node is not None:
            node.observe(event, pod)
