"""
Kubelet-owned nodes beside a whole engine, with every message between them delivered when a test says so.

The engine watches pods and topologies. Each stream delivers in order; the test decides how far each stream and the kubelets have come, and
when an exporter looks.
"""

from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson

from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.ports import DELETED, Conflict, Gone
from koord_numa.sandbox.machines.agents import KubeletAgent, RefusedPod
from koord_numa.sandbox.machines.description import NodeDescription, read_descriptions
from koord_numa.sandbox.machines.topologies import node_object
from koord_numa.wire import parse_node, parse_pod, parse_topology
from koord_numa.wire.pod_annotations import resource_status
from tests.engine.world import FakeBinder, make_world

JsonObject = dict[str, Any]

MACHINE: Final[JsonObject] = {
    "name": "n",
    "style": "kubelet",
    "sockets": 2,
    "numa": 1,
    "cores": 5,
    "threads": 2,
    "memory": "64Gi",
    "reservedCPUs": "0,10,5,15",
    "kubelet": {"topologyPolicy": "single-numa-node", "topologyScope": "pod"},
}
"""Two NUMA nodes with eight CPUs for pods each."""

NODE: Final = read_descriptions({"machines": [MACHINE]}, Path())[0]

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
DEVICE: Final = "example.com/device"
LOWS: Final = tuple(f"low-{number}" for number in range(4))


class ApiServer(FakeBinder):
    """A binder in front of pods as JSON. Every change is news for the engine and for the kubelet."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, JsonObject] = {}
        self.news: deque[tuple[str, JsonObject]] = deque()  # for the engine
        self.orders: deque[tuple[str, JsonObject]] = deque()  # for the kubelets
        self.version = 0

    def write(self, uid: str, event: str = "MODIFIED") -> None:
        """The pod has changed, or it is gone."""
        self.version += 1
        obj = self.objects[uid]
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.news.append((event, copied(obj)))
        if obj["spec"].get("nodeName"):
            self.orders.append((event, copied(obj)))
        if event == DELETED:
            del self.objects[uid]

    def _found(self, pod: PodKey) -> JsonObject:
        if pod.uid not in self.objects:
            raise Gone(f"no pod {pod}")
        return self.objects[pod.uid]

    async def bind(self, pod: PodKey, node: str, annotations: Mapping[str, str]) -> None:
        """Bind once."""
        self.calls.append(f"bind {pod.name} {node}")
        self.fail("bind before")
        obj = self._found(pod)
        if obj["spec"].get("nodeName"):
            raise Conflict(f"{pod} is bound")
        obj["spec"]["nodeName"] = node
        obj["metadata"]["annotations"].update(annotations)
        self.write(pod.uid)
        self.fail("bind after")

    async def read_pod(self, pod: PodKey) -> Pod:
        """The pod as it is."""
        self.fail("read")
        return parse_pod(self._found(pod))

    async def nominate(self, pod: PodKey, node: str, why: str = "") -> Pod:
        """Write the node into the status."""
        self.calls.append(f"nominate {pod.name} {node}")
        self.fail("nominate")
        obj = self._found(pod)
        obj["status"]["nominatedNodeName"] = node
        self.write(pod.uid)
        return parse_pod(obj)

    async def evict(self, pod: PodKey, message: str) -> None:
        """The pod begins to leave."""
        self.calls.append(f"evict {pod.name}")
        self.fail("evict before")
        obj = self._found(pod)
        if "deletionTimestamp" not in obj["metadata"]:
            obj["metadata"]["deletionTimestamp"] = time_of(0)
            self.write(pod.uid)
        self.fail("evict after")


class KubeletLife:
    """
    Kubelet-owned nodes, one by default, and one engine. Actions are methods without arguments; ``dice`` draws the node that an exporter
    looks at. ``held`` are the uids of the pods that kubelets run, ``refused`` of those that they rejected.
    """

    def __init__(self, *nodes: NodeDescription, dice: Random | None = None) -> None:
        self._begin(ApiServer(), {node.name: KubeletAgent(node) for node in nodes or (NODE,)}, dice=dice)

    def _begin(
        self, server: ApiServer, agents: dict[str, KubeletAgent], versions: int = 0, dice: Random | None = None
    ) -> None:
        self.server, self.agents, self.versions, self.dice = server, agents, versions, dice
        self.world = make_world(annotate=resource_status, server=server)
        self.engine = self.world.engine
        self.held: set[str] = set()
        self.refused: set[str] = set()
        self.scans: deque[JsonObject] = deque()
        self.scanned: dict[str, JsonObject] = {}
        self.changed = set(agents)  # nodes that admitted or ended a pod since their exporter looked
        self.heard: tuple[str, JsonObject] | None = None
        self.told: JsonObject | None = None
        self.engine.handle.decisions._next = inf  # placements are not compared with others
        self.engine.handlers.budgets.replace([])
        for agent in agents.values():
            self.engine.handlers.nodes.observe(None, parse_node(node_of(agent.node)))
        self.scan_all()
        while self.scans:
            self.topology()

    def restarted(self) -> "KubeletLife":
        """A copy of this world in which a scheduler starts now."""
        server = ApiServer()
        server.objects, server.version = deepcopy(self.server.objects), self.server.version
        fresh = KubeletLife.__new__(KubeletLife)
        shared = [part for agent in self.agents.values() for part in (agent.node, agent.kubelet, agent._state)]
        fresh._begin(server, deepcopy(self.agents, {id(part): part for part in shared}), self.versions)
        fresh.held, fresh.world.clock.now = set(self.held), self.world.clock.now
        fresh.relist()
        return fresh

    def create(self, name: str, cpus: int, priority: int, memory: int = 0, devices: int = 0) -> None:
        """A Guaranteed pod of one container. Memory is in GiB, by default as many as CPUs."""
        amounts = {"cpu": str(cpus), "memory": f"{memory or cpus}Gi"}
        if devices:
            amounts[DEVICE] = str(devices)
        self.server.objects[f"uid-{name}"] = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "creationTimestamp": time_of(self.world.clock.now),
                "labels": {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"},
                "annotations": {},
            },
            "spec": {
                "schedulerName": "koord-numa",
                "priority": priority,
                "containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}],
            },
            "status": {"phase": "Pending"},
        }
        self.server.write(f"uid-{name}", "ADDED")

    def bind_elsewhere(self, name: str) -> None:
        """Another scheduler binds the pod, without regard to what is free."""
        obj = self.server.objects[f"uid-{name}"]
        obj["spec"].update(schedulerName="other", nodeName=self._drawn())
        self.server.write(f"uid-{name}")

    def delete(self, uid: str) -> None:
        """Delete a pod; its kubelet ends it if it has a node."""
        obj = self.server.objects[uid]
        if not obj["spec"].get("nodeName"):
            self.server.write(uid, DELETED)
        elif "deletionTimestamp" not in obj["metadata"]:
            obj["metadata"]["deletionTimestamp"] = self._time()
            self.server.write(uid)

    def waiting(self) -> list[str]:
        """Uids of the pods that have no node."""
        return [uid for uid, obj in self.server.objects.items() if not obj["spec"].get("nodeName")]

    def node_of(self, name: str) -> str:
        """Return the node of the pod in the API server."""
        return str(self.server.objects[f"uid-{name}"]["spec"].get("nodeName", ""))

    async def decide(self) -> None:
        """The scheduling loop has its turn, and replays are finished."""
        await self.world.settle()
        while self.engine.cache.explore():
            await self.world.settle()

    async def plan(self) -> None:
        """So has preemption."""
        await self.engine.preemption.work()

    async def hear(self) -> None:
        """The oldest news of a pod reaches the engine."""
        if self.server.news:
            self.heard = self.server.news.popleft()
            self._tell(*self.heard)

    def _tell(self, event: str, obj: JsonObject) -> None:
        pod, handlers = parse_pod(copied(obj)), self.engine.handlers
        if pod.node:
            handlers.bound_pods.observe(event, pod)
        else:
            handlers.pending_pods.observe(event, pod)

    async def hear_all(self) -> None:
        """All news of pods reaches the engine."""
        while self.server.news:
            await self.hear()

    async def obey(self) -> None:
        """The next change of a pod reaches its kubelet."""
        if not self.server.orders:
            return
        event, obj = self.server.orders.popleft()
        uid, agent = obj["metadata"]["uid"], self.agents[obj["spec"]["nodeName"]]
        self.changed.add(obj["spec"]["nodeName"])
        pod = parse_pod(obj)
        if event == DELETED or pod.deleting or pod.finished:
            agent.remove(uid)
            self.held.discard(uid)
            if pod.deleting and uid in self.server.objects and event != DELETED:
                self.server.write(uid, DELETED)
        elif uid in self.server.objects and self.server.objects[uid]["status"]["phase"] == "Pending":
            answer = agent.admit(pod)
            status: JsonObject = {"phase": "Running", "startTime": self._time(), "containerStatuses": [{}]}
            if isinstance(answer, RefusedPod):
                status = {"phase": "Failed", "reason": answer.reason, "startTime": self._time()}
                self.refused.add(uid)
            else:
                self.held.add(uid)
            self.server.objects[uid]["status"] = status
            self.server.write(uid)

    def scan(self) -> None:
        """An exporter looks, and publishes what has changed."""
        self._scan(self._drawn())

    def scan_all(self) -> None:
        """All exporters look."""
        for name in self.agents:
            self._scan(name)

    def _scan(self, name: str) -> None:
        if name not in self.changed:
            return
        self.changed.discard(name)
        seen = self.agents[name].topology()
        if seen == self.scanned.get(name):
            return
        self.scanned[name], self.versions = copied(seen), self.versions + 1
        seen["metadata"]["resourceVersion"] = str(self.versions)
        self.scans.append(seen)

    def _drawn(self) -> str:
        names = [*self.agents]
        return names[0] if self.dice is None else self.dice.choice(names)

    def topology(self) -> None:
        """The oldest topology reaches the engine."""
        if self.scans:
            self.told = self.scans.popleft()
            self.engine.handlers.topologies.observe("MODIFIED", parse_topology(copied(self.told)))

    def again(self) -> None:
        """The last topology and the last news of a pod are told once more."""
        if self.heard is not None:
            self._tell(*self.heard)
        if self.told is not None:
            self.engine.handlers.topologies.observe("MODIFIED", parse_topology(copied(self.told)))

    def relist(self) -> None:
        """The watch of pods has ended; the next one begins with a list, and what the last one had on its way is lost."""
        self.server.news.clear()
        self.heard = None
        pods = [parse_pod(copied(obj)) for obj in self.server.objects.values()]
        self.engine.handlers.pending_pods.replace([pod for pod in pods if not pod.node])
        self.engine.handlers.bound_pods.replace([pod for pod in pods if pod.node])

    def end(self, name: str) -> None:
        """A pod that its kubelet runs finishes."""
        self._finish(f"uid-{name}", "Succeeded")

    def _finish(self, uid: str, phase: str) -> None:
        obj = self.server.objects[uid]
        obj["status"]["phase"] = phase
        self.agents[obj["spec"]["nodeName"]].remove(uid)
        self.changed.add(obj["spec"]["nodeName"])
        self.held.discard(uid)
        self.server.write(uid)

    def finish(self) -> None:
        """The first pod that is to leave has ended, and is there for a while yet."""
        for uid, obj in self.server.objects.items():
            if "deletionTimestamp" in obj["metadata"] and obj["status"]["phase"] == "Running":
                self._finish(uid, "Failed")
                return

    def lease(self) -> None:
        """The lease is lost, or won."""
        self.world.lease.held = not self.world.lease.held
        self.engine.kick()

    async def second(self) -> None:
        """A second passes, with what the engine does once a second."""
        self.world.clock.now += 1
        await self.engine._keep_house()
        await self.engine.assumed_pods.read_back_overdue()

    async def arrive(self) -> None:
        """Deliver everything that is under way, and let the engine act on it."""
        self.scan_all()
        while self.server.news or self.server.orders or self.scans:
            await self.hear()
            await self.obey()
            self.scan_all()
            self.topology()
            await self.decide()
        await self.plan()
        await self.decide()

    async def rest(self, seconds: int) -> None:
        """Seconds in which nothing is late."""
        for _ in range(seconds):
            await self.arrive()
            await self.second()

    def _time(self) -> str:
        return time_of(self.world.clock.now)


def node_of(node: NodeDescription) -> JsonObject:
    """The Node object."""
    obj = node_object(node, "")
    obj["metadata"]["uid"] = f"uid-{node.name}"
    return obj


def copied(obj: JsonObject) -> JsonObject:
    """A copy of a JSON object, a tenth of the time of ``deepcopy``."""
    copy: JsonObject = orjson.loads(orjson.dumps(obj))
    return copy


def time_of(seconds: float) -> str:
    """As Kubernetes writes it."""
    return datetime.fromtimestamp(EPOCH + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
