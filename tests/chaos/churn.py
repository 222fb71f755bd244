"""A random life of pods, nodes and topologies, from a seed. ``calm`` puts right again what it took away."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from koord_numa.core.objects.request import PodKey
from koord_numa.sandbox.apiserver import ApiError, ApiServer, DeleteOptions
from koord_numa.sandbox.machines import Fleet, SimulatedNode
from koord_numa.sandbox.machines.simulated_node import TOPOLOGIES
from koord_numa.wire import names
from tests.chaos.kinds import any_pod
from tests.chaos.truth import REFUSED_AS_TOLD
from tests.cluster.objects import until
from tests.e2e.world import JsonObject

AT_ONCE: Final = DeleteOptions(grace=0)
NAMES: Final = 400
"""Pods are named out of a small pool, so that names come back."""

AHEAD: Final = 120
"""So many pods more than twice those that were bound are created at most: the schedulers may take long, but have to keep up."""

FULLEST: Final = 0.6
"""Share of all CPUs that may be asked for at once."""


@dataclass(slots=True)
class Churn:
    """``created`` counts pods."""

    server: ApiServer
    rack: Fleet
    dice: Random
    created: int = 0
    nodes_of: dict[str, set[str]] = field(default_factory=dict)  # uid -> every node that it was ever seen on
    _lagging: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)
    _asked: dict[str, int] = field(default_factory=dict)  # milli-CPU by name
    _there: dict[str, JsonObject] = field(default_factory=dict)  # every pod as last seen, by name

    def observe(self, event: str, pod: JsonObject) -> None:
        """Remember where pods were; collect those whose node is gone, as Kubernetes does."""
        node = pod["spec"].get("nodeName")
        if node:
            self.nodes_of.setdefault(pod["metadata"]["uid"], set()).add(node)
        name = pod["metadata"]["name"]
        if event == "DELETED":
            self._asked.pop(name, None)
            self._there.pop(name, None)
            return
        self._there[name] = pod
        if node and self.server.store.find("nodes", node) is None:
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
            await until(lambda: self.created < 2 * len(self.nodes_of) + AHEAD)

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
            for pod in self._there.values()
            if bool(pod["spec"].get("nodeName")) is bound
            and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
            and not pod["metadata"].get("deletionTimestamp")
        ]

    def _node(self) -> SimulatedNode:
        return self.rack.nodes[self.dice.choice([name for name in self.rack.nodes if name not in self._gone])]

    def _create(self) -> None:
        name = f"pod-{self.dice.randrange(NAMES)}"
        pod, asked = any_pod(name, self.dice)
        if name in self._there or sum(self._asked.values()) + asked > FULLEST * self._capacity():
            return
        self.server.store.create(pod)
        self.created += 1
        self._asked[name] = asked

    def _capacity(self) -> int:
        return 1000 * sum(len(node.description.hardware.machine.cpus) for node in self.rack.nodes.values())

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
            old = self.dice.choice(found)
            name = old["metadata"]["name"]
            self._remove(old)
            pod, asked = any_pod(name, self.dice)
            self.server.store.create(pod)
            self.created += 1
            self._asked[name] = asked

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

    def _publish(self) -> None:
        for node in self.rack.nodes.values():
            if node.dirty and node.name not in self._lagging | self._gone:
                node.publish()
