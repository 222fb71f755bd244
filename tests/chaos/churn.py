"""A random life of pods, nodes and topologies, from a seed. ``calm`` puts right again what it took away."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from koord_numa.core.request import PodKey
from koord_numa.sandbox.apiserver import ApiError, ApiServer, DeleteOptions
from koord_numa.sandbox.machines import Rack, SimulatedNode
from koord_numa.sandbox.machines.simulated_node import TOPOLOGIES
from koord_numa.wire import names
from tests.e2e.world import JsonObject, pinned, shared

AT_ONCE: Final = DeleteOptions(grace=0)
NAMES: Final = 400
"""Pods are named out of a small pool, so that names come back."""

FULLEST: Final = 0.6
"""Share of all CPUs that may be asked for at once."""

REFUSED_AS_TOLD: Final = "TopologyAffinityError"


@dataclass(slots=True)
class Churn:
    """``created`` counts pods; ``told`` are refusals that a kubelet was ordered to give."""

    server: ApiServer
    rack: Rack
    dice: Random
    created: int = 0
    told: int = 0
    nodes_of: dict[str, set[str]] = field(default_factory=dict)  # uid -> every node that it was ever seen on
    _lagging: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)
    _asked: dict[str, int] = field(default_factory=dict)  # milli-CPU by name

    def observe(self, event: str, pod: JsonObject) -> None:
        """Remember where pods were; collect those whose node is gone, as Kubernetes does."""
        node = pod["spec"].get("nodeName")
        if node:
            self.nodes_of.setdefault(pod["metadata"]["uid"], set()).add(node)
        if event == "DELETED":
            self._asked.pop(pod["metadata"]["name"], None)
        elif node and self.server.store.find("nodes", node) is None:
            self._remove(pod, AT_ONCE)

    async def go_on(self, pods: int) -> None:
        """Act until so many pods have been created."""
        actions: tuple[tuple[Callable[[], None], int], ...] = (
            (self._create, 60),
            (self._finish, 12),
            (self._delete, 16),
            (self._create_anew, 6),
            (self._cordon, 4),
            (self._lag, 3),
            (self._lose_node, 1),
            (self._bring_back, 3),
            (self._lose_topology, 2),
            (self._break_topology, 1),
            (self._refuse, 1),
            (self._publish, 4),
        )
        chosen, weights = [action for action, _ in actions], [weight for _, weight in actions]
        while self.created < pods:
            for action in self.dice.choices(chosen, weights, k=self.dice.randint(1, 20)):
                with suppress(ApiError):  # what it was about has just gone
                    action()
            await asyncio.sleep(self.dice.uniform(0.0, 0.05))

    def calm(self) -> None:
        """Everything that was taken away comes back, everything that lags catches up."""
        for name in sorted(self._gone):
            self._revive(self.rack.nodes[name])
        for name in sorted(self._lagging):
            self.rack.nodes[name].catch_up()
        self._lagging.clear()
        for node in self.rack.nodes.values():
            self.server.store.patch("nodes", node.name, {"spec": {"unschedulable": None}})
            node.publish()

    def _pods(self, *, bound: bool) -> list[JsonObject]:
        return [
            pod
            for pod in self.server.store.list("pods")
            if bool(pod["spec"].get("nodeName")) is bound
            and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
            and not pod["metadata"].get("deletionTimestamp")
        ]

    def _node(self) -> SimulatedNode:
        return self.rack.nodes[self.dice.choice([name for name in self.rack.nodes if name not in self._gone])]

    def _create(self) -> None:
        name = f"pod-{self.dice.randrange(NAMES)}"
        cpus = self.dice.choice((1, 1, 2, 2, 4))
        capacity = sum(len(node.description.hardware.machine.cpus) for node in self.rack.nodes.values())
        if sum(self._asked.values()) + cpus * 1000 > FULLEST * capacity * 1000:
            return
        kind = self.dice.randrange(5)
        if kind < 2:
            pod = shared(name, f"{cpus * 250}m")
        else:
            pod = pinned(name, cpus, qos="LSE" if kind == 4 else "LSR", policy="SingleNUMANode" if kind == 3 else "")
        if self.dice.random() < 0.01:
            pod = pinned(name, 500)  # fits nowhere, ever
        if self.server.store.find("pods", name, "default") is None:
            self.server.store.create(pod)
            self.created += 1
            self._asked[name] = cpus * 1000

    def _finish(self) -> None:
        running = [
            pod for node in self.rack.nodes.values() if node.name not in self._gone for pod in node.pods.values()
        ]
        if running:
            pod = self.dice.choice(sorted(running, key=lambda pod: pod.key.uid))
            self.rack.nodes[pod.node].finish(pod.key)
            self._clear_away(pod.key)

    def _clear_away(self, pod: PodKey) -> None:
        self.server.store.delete("pods", pod.name, pod.namespace, AT_ONCE)

    def _delete(self) -> None:
        found = self._pods(bound=self.dice.random() < 0.7)
        if found:
            self._remove(self.dice.choice(found))

    def _create_anew(self) -> None:
        """A controller that likes names: the same name again, at once, with another request."""
        found = [pod for pod in self._pods(bound=self.dice.random() < 0.3) if not self._busy(pod)]
        if found:
            pod = self.dice.choice(found)
            self._remove(pod)
            self.server.store.create(pinned(pod["metadata"]["name"], self.dice.choice((1, 3))))
            self.created += 1
            self._asked[pod["metadata"]["name"]] = 3000

    def _busy(self, pod: JsonObject) -> bool:
        return pod["spec"].get("nodeName") in self._lagging | self._gone

    def _remove(self, pod: JsonObject, options: DeleteOptions | None = None) -> None:
        self.server.store.delete("pods", pod["metadata"]["name"], "default", options)

    def _cordon(self) -> None:
        closed = True if self.dice.random() < 0.4 else None
        self.server.store.patch("nodes", self._node().name, {"spec": {"unschedulable": closed}})

    def _lag(self) -> None:
        node = self._node()
        if node.name in self._lagging:
            self._lagging.discard(node.name)
            node.catch_up()
        elif len(self._lagging) < 3:
            self._lagging.add(node.name)
            node.lag()

    def _lose_node(self) -> None:
        """A machine dies: its node, its topology and its pods are removed."""
        node = self._node()
        if len(self._gone) >= 2 or node.name in self._lagging:
            return
        self._gone.add(node.name)
        node.crash()
        self.server.store.delete("nodes", node.name)
        with suppress(ApiError):
            self.server.store.delete(TOPOLOGIES, node.name)
        for pod in self.server.store.list("pods", fields=f"spec.nodeName={node.name}"):
            self._remove(pod, AT_ONCE)

    def _bring_back(self) -> None:
        if self._gone:
            self._revive(self.rack.nodes[min(self._gone)])

    def _revive(self, node: SimulatedNode) -> None:
        """The machine comes back under its name, as another Node object."""
        self._gone.discard(node.name)
        node.restart()
        node.register()

    def _lose_topology(self) -> None:
        self.server.store.delete(TOPOLOGIES, self._node().name)

    def _break_topology(self) -> None:
        garbage: dict[str, Any] = {"metadata": {"annotations": {names.CPU_TOPOLOGY: '{"detail": [{"id": "x"'}}}
        self.server.store.patch(TOPOLOGIES, self._node().name, garbage)

    def _refuse(self) -> None:
        self._node().refuse_next(REFUSED_AS_TOLD)
        self.told += 1

    def _publish(self) -> None:
        for node in self.rack.nodes.values():
            if node.dirty and node.name not in self._lagging | self._gone:
                node.publish()
