"""
The life of one kubelet-owned node, driven by a test: the sandbox's kubelet and exporter on one side, the engine's cache on the other.

What happens on the node reaches the cache late, in the order in which it happened: pods' statuses, deletions, topologies. Pods are placed
by ``core.scheduling.evaluate`` on the cache's snapshot, as in a scheduling cycle, and reach the kubelet late as well.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from koord_numa.core.cpus.kubelet_options import StatedOptions
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.scheduling.filters import evaluate
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.topology_lag import RECENT
from koord_numa.ports import DELETED
from koord_numa.sandbox.machines import NodeDescription
from koord_numa.sandbox.machines.agents import KubeletAgent, RefusedPod
from koord_numa.sandbox.machines.topologies import node_object
from koord_numa.wire import parse_node, parse_pod, parse_topology
from koord_numa.wire.pod_annotations import resource_status

JsonObject = dict[str, Any]

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
OWNER: Final = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "set", "uid": "set", "controller": True}
COINING: Final = {**OWNER, "kind": "ReplicaSet"}
"""A controller whose pods never have a name that another one had."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pod that the engine placed and the kubelet did not admit. ``explored`` are the options that it was to find out about."""

    uid: str
    reason: str
    detail: str
    explored: tuple[str, ...]


@dataclass
class NodeLife:
    """One node. ``time`` is in seconds; every action takes one."""

    description: NodeDescription
    profile: Profile = field(default_factory=Profile)
    stated: tuple[StatedOptions, ...] = ()
    owner: JsonObject | None = field(default_factory=lambda: dict(OWNER))
    now: float = 0.0
    refusals: list[Refusal] = field(default_factory=list)
    placed: int = 0
    waited: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agent = self.new_agent()
        # The first scheduler has run for so long that it has seen every pod of the node.
        begins, self.now = self.now, self.now - RECENT
        self.cache = self._new_cache()
        self.now = begins
        self.tell_node()
        self.running: list[str] = []
        self.arriving: deque[tuple[str, Placement]] = deque()
        self.news: deque[Callable[[], None]] = deque()
        self.scans: deque[JsonObject] = deque()
        self.objects: dict[str, JsonObject] = {}
        self.published: JsonObject = {}
        self._lies = 0
        self._count = 0
        self.scan()
        self.deliver()

    def new_agent(self) -> KubeletAgent:
        """The kubelet, before its first pod."""
        return KubeletAgent(self.description)

    def _new_cache(self) -> Cache:
        return Cache(lambda *_: None, clock=lambda: self.now, wall_clock=lambda: EPOCH + self.now, stated=self.stated)

    def tell_node(self) -> None:
        """The cache sees the Node."""
        self.cache.observe_node(None, parse_node(self.node()))

    def seen(self) -> NodeSnapshot | None:
        """The node as a decision sees it."""
        return self.cache.nodes[self.description.name].candidate()

    def ask(self, spec: JsonObject) -> Placement | Rejection:
        """Return the answer of a scheduling cycle for a new pod."""
        pod = parse_pod(self.pod("question", spec))
        seen = self.seen()
        assert seen is not None
        answer = evaluate(scheduling_request(pod.request, self.profile), seen, self.profile)
        return answer if isinstance(answer, Rejection) else answer.placement

    def place(self, spec: JsonObject) -> None:
        """Place a pod if the engine says yes, and bind it."""
        self._tick()
        answer = self.ask(spec)
        if isinstance(answer, Rejection):
            self.waited.append(answer.detail or answer.message)
            return
        self.placed += 1
        self._count += 1
        uid = f"p{self._count}"
        there = (*self.running, *(uid for uid, _ in self.arriving))
        taken = {self.objects[uid]["metadata"]["name"] for uid in there}
        # The lowest name that is free, as a StatefulSet does: names come back, and exporters tell of names only.
        name = next(name for name in (f"n{number}" for number in range(self._count)) if name not in taken)
        if self.owner is not None and self.owner["kind"] == COINING["kind"]:
            name = uid
        obj = self.objects[uid] = self.pod(uid, spec, name)
        self.log.append(f"{self.now:.0f} bind {uid} {spec} {answer.note} {answer.explores}")
        self.cache.hold(parse_pod(obj), answer)
        obj["metadata"]["annotations"] = resource_status(parse_pod(obj), answer)
        obj["spec"] = {**obj["spec"], "nodeName": self.description.name}
        self.cache.observe_pod("MODIFIED", parse_pod(obj))
        self.arriving.append((uid, answer))

    def admit(self) -> None:
        """The kubelet handles the pod that was bound first."""
        self._tick()
        if not self.arriving:
            return
        uid, placement = self.arriving.popleft()
        pod = parse_pod(self.objects[uid])
        lie = self._lies > 0
        answer = RefusedPod("TopologyAffinityError", "as told") if lie else self.agent.admit(pod)
        self._lies -= lie
        self.log.append(f"{self.now:.0f} admit {uid} {answer}")
        if isinstance(answer, RefusedPod):
            if not lie:
                self.refusals.append(Refusal(uid, answer.reason, answer.message, placement.explores))
            status: JsonObject = {"phase": "Failed", "reason": answer.reason, "startTime": self._time()}
        else:
            self.running.append(uid)
            status = {"phase": "Running", "startTime": self._time(), "containerStatuses": [{}]}
        self.news.append(lambda: self._show(uid, status))

    def end(self, which: int) -> None:
        """One of the running pods ends and is deleted."""
        self._tick()
        if not self.running:
            return
        uid = self.running.pop(which % len(self.running))
        self.agent.remove(uid)
        self.log.append(f"{self.now:.0f} end {uid}")
        self.news.append(lambda: self._gone(uid))

    def hear(self) -> None:
        """The oldest news about a pod reaches the cache."""
        self._tick()
        if self.news:
            self.news.popleft()()

    def scan(self) -> None:
        """The exporter looks."""
        self._tick()
        self.scans.append(self.agent.topology())

    def deliver(self) -> None:
        """The oldest scan reaches the cache."""
        self._tick()
        if self.scans:
            self.published = self.scans.popleft()
            topology = parse_topology({**self.published})
            self.log.append(f"{self.now:.0f} deliver {[dict(z.available) for z in topology.zones]}")
            self.cache.observe_topology("MODIFIED", topology)

    def lie(self) -> None:
        """The kubelet refuses the next pod, though it would fit: an admission plugin of another maker does so."""
        self._tick()
        self._lies = 1

    def restart(self, unpublished: int) -> None:
        """
        Another scheduler takes over: it lists what the API server has, in which so many of the latest scans are missing, and knows
        nothing else.
        """
        self._tick()
        self.log.append(f"{self.now:.0f} restart")
        while self.news:
            self.news.popleft()()
        while len(self.scans) > unpublished:
            self.published = self.scans.popleft()
        self.cache = self._new_cache()
        self.tell_node()
        self.cache.observe_topology("ADDED", parse_topology({**self.published}))
        for obj in self.objects.values():
            self.cache.observe_pod(None, parse_pod(obj))

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.cache.judge_found_pods()
        self.cache.expire_unreported()

    def settle(self) -> None:
        """Deliver all pending events, and publish the topology again."""
        while self.arriving:
            self.admit()
        while self.news:
            self.hear()
        self.scan()
        while self.scans:
            self.deliver()

    def _show(self, uid: str, status: JsonObject) -> None:
        self.objects[uid]["status"] = status
        self.cache.observe_pod("MODIFIED", parse_pod(self.objects[uid]))

    def _gone(self, uid: str) -> None:
        self.cache.observe_pod(DELETED, parse_pod(self.objects.pop(uid)))

    def _tick(self) -> None:
        self.now += 1.0

    def node(self) -> JsonObject:
        """The Node object."""
        obj = node_object(self.description, "")
        obj["metadata"]["uid"] = f"uid-{self.description.name}"
        return obj

    def pod(self, uid: str, spec: JsonObject, name: str = "") -> JsonObject:
        """A pod that waits for a node."""
        return {
            "metadata": {
                "name": name or uid,
                "namespace": "default",
                "uid": uid,
                "creationTimestamp": self._time(),
                **({} if self.owner is None else {"ownerReferences": [self.owner]}),
            },
            "spec": {**spec, "schedulerName": "koord-numa"},
            "status": {"phase": "Pending"},
        }

    def _time(self) -> str:
        return datetime.fromtimestamp(EPOCH + self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
