"""A small world for the engine: objects in few words, and ports that answer as a test tells them to."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.objects.node import Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner
from koord_numa.core.value_objects import replace
from koord_numa.engine import Dependencies, Scheduler, Source
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.containment import Quarantine
from koord_numa.engine.event_handlers import BoundPodObjects, node_handler, topology_handler
from koord_numa.engine.queue.pending_pod import PendingPod
from koord_numa.ports import AnnotationWriter, ClaimWriter, ClusterError, Conflict, Gone, ObjectReference
from koord_numa.settings import Settings, load_settings

GIB = 1 << 30


def make_node(name: str, cpu: int = 8, memory: int = 32, **changes: object) -> Node:
    """A node of so many CPUs and GiB."""
    amounts = {"cpu": cpu * 1000, "memory": memory * GIB, "pods": 110}
    node = Node(name=name, uid=f"uid-{name}", allocatable=amounts)
    return replace(node, **changes)  # type: ignore[arg-type]  # changes are named fields


def make_topology(node: str, sockets: int = 1, numa: int = 2, cores: int = 2, memory: int = 32) -> NodeResourceTopology:
    """A scheduler-owned topology of two threads a core: ``sockets`` of ``numa`` NUMA nodes of ``cores`` cores."""
    machine = regular_topology(sockets, numa, cores, 2)
    count = len(machine.numa_ids)
    amounts = {"cpu": cores * 2 * 1000, "memory": memory * GIB // count}
    zones = tuple(Zone(number, amounts, amounts, amounts) for number in machine.numa_ids)
    return NodeResourceTopology(
        node=node, owner=CpuOwner.SCHEDULER, zones=zones, machine=machine, node_uid=f"uid-{node}"
    )


def make_pod(name: str, cpu: int = 1000, memory: int = 1, **changes: object) -> Pod:
    """A pod of one container that asks for milli-CPUs and GiB, for our scheduler."""
    amounts = {"cpu": cpu, "memory": memory * GIB}
    container = Container("app", ContainerKind.APP, amounts, amounts)
    pod = Pod(PodKey("default", name, f"uid-{name}"), PodRequest(containers=(container,)), scheduler="koord-numa")
    return replace(pod, **changes)  # type: ignore[arg-type]  # changes are named fields


def bound(pod: Pod, node: str, **changes: object) -> Pod:
    """The pod as the API server shows it once it has a node."""
    return replace(pod, node=node, **changes)  # type: ignore[arg-type]  # changes are named fields


@dataclass
class FakeClock:
    """Time stands still until a test moves it; sleeping moves it."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Sleep without waiting, but let others run."""
        self.now += seconds
        await asyncio.sleep(0)


@dataclass
class FakeBinder:
    """A binder that keeps pods as an API server does. ``fail`` may raise instead of, or after, any call."""

    pods: dict[str, Pod] = field(default_factory=dict)
    refuse: set[str] = field(default_factory=set)  # nodes that take no pods
    calls: list[str] = field(default_factory=list)
    fail: Callable[[str], None] = lambda call: None
    annotations: dict[str, Mapping[str, str]] = field(default_factory=dict)

    async def bind(self, pod: PodKey, node: str, annotations: Mapping[str, str]) -> None:
        """Bind once."""
        self.calls.append(f"bind {pod.name} {node}")
        self.fail("bind before")
        seen = self.pods.get(pod.uid)
        if seen is None:
            raise Gone(f"no pod {pod}")
        if seen.node:
            raise Conflict(f"{pod} is bound")
        self.pods[pod.uid] = replace(seen, node=node)
        self.annotations[pod.uid] = annotations
        self.fail("bind after")

    async def read_pod(self, pod: PodKey) -> Pod:
        """The pod as it is."""
        self.calls.append(f"read {pod.name}")
        self.fail("read")
        if pod.uid not in self.pods:
            raise Gone(f"no pod {pod}")
        return self.pods[pod.uid]

    async def set_unschedulable(self, pod: PodKey, message: str) -> None:
        """Record the condition."""
        self.calls.append(f"condition {pod.name}: {message}")
        self.fail("condition")

    async def nominate(self, pod: PodKey, node: str, why: str = "") -> Pod:
        """Take note, of the condition as if it were a call of its own."""
        if why:
            self.calls.append(f"condition {pod.name}: {why}")
        self.calls.append(f"nominate {pod.name} {node}")
        self.fail(f"nominate {pod.name}")
        if pod.uid not in self.pods:
            raise Gone(f"no pod {pod}")
        return self.pods[pod.uid]

    async def delete(self, pod: PodKey) -> None:
        """Record the deletion."""
        self.calls.append(f"delete {pod.name}")
        self.fail(f"delete {pod.name}")

    async def evict(self, pod: PodKey, message: str) -> None:
        """Record the eviction."""
        self.calls.append(f"evict {pod.name}")
        self.fail(f"evict {pod.name}")


@dataclass
class RecordingEvents:
    """A recorder that remembers."""

    events: list[tuple[str, str, str]] = field(default_factory=list)

    def event(self, pod: PodKey, *, warning: bool, reason: str, message: str) -> None:
        """Record the event."""
        self.events.append((pod.name, reason, message))

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        """Record the event."""
        self.events.append((node, reason, message))

    def object_event(self, about: ObjectReference, *, warning: bool, reason: str, message: str) -> None:
        """Record the event."""
        self.events.append((f"{about.kind} {about.name}", reason, message))

    def reasons(self, name: str) -> list[str]:
        """The reasons of the events about one object."""
        return [reason for who, reason, _ in self.events if who == name]


@dataclass
class FakeLease:
    """A lease that is held for as long as a test says."""

    held: bool = True

    def fresh(self) -> bool:
        """Return true while the test holds the lease."""
        return self.held


def annotate(pod: Pod, placement: Placement) -> Mapping[str, str]:
    """Enough to see what was decided."""
    return {"cpus": str(placement.cpus)}


@dataclass
class World:
    """An engine with everything around it."""

    engine: Scheduler
    server: FakeBinder
    diary: RecordingEvents
    lease: FakeLease
    clock: FakeClock

    def waits(self, *pods: Pod) -> None:
        """These pods are created."""
        for pod in pods:
            self.server.pods[pod.key.uid] = pod
            self.engine.handlers.pending_pods.observe("ADDED", pod)

    async def step(self) -> Pod | None:
        """Try the pod that is next."""
        pending = self.engine.loop.next_pod()
        if pending is None:
            return None
        await self.engine.loop.schedule_one(pending)
        return pending.pod

    def pending(self, pod: Pod) -> PendingPod:
        """The record of a pod that waits."""
        found = self.engine.handle.pending.get(pod.key.uid)
        if found is None:
            raise AssertionError(f"{pod.key} does not wait")
        return found

    async def settle(self, limit: int = 1000) -> None:
        """Try pods until none may be tried."""
        for _ in range(limit):
            if await self.step() is None:
                return
        raise AssertionError("the queue never comes to rest")

    def nodes_of(self) -> dict[str, str]:
        """Return the nodes of the pods in the server, by pod name."""
        return {pod.key.name: pod.node for pod in self.server.pods.values()}

    def ledgers(self) -> dict[str, dict[str, object]]:
        """Return the content of every node's ledger."""
        return {name: dict(record.ledger.holdings) for name, record in self.engine.cache.nodes.items()}


def make_world(
    *nodes: Node,
    settings: str | Settings = "",
    synced: bool = True,
    annotate: AnnotationWriter = annotate,
    claim_writer: ClaimWriter | None = None,
    server: FakeBinder | None = None,
) -> World:
    """An engine that knows these nodes."""
    server, diary, lease, clock = server or FakeBinder(), RecordingEvents(), FakeLease(), FakeClock()
    outside = Dependencies(server, diary, lease, annotate, clock, clock.sleep, lambda: 0.0, claim_writer=claim_writer)
    chosen = load_settings(settings) if isinstance(settings, str) else settings
    world = World(Scheduler(chosen, outside), server, diary, lease, clock)
    for node in nodes:
        world.engine.handlers.nodes.observe("ADDED", node)
    for source in Source if synced else ():
        world.engine.synced(source)
    return world


def list_into(
    cache: Cache,
    nodes: Iterable[Node] | None = None,
    topologies: Iterable[NodeResourceTopology] | None = None,
    pods: Iterable[Pod] | None = None,
) -> None:
    """Complete lists of these kinds, as the scheduler's handlers hand them to its cache."""
    quarantine = Quarantine(lambda: 0.0, lambda subject, why: None)
    if nodes is not None:
        node_handler(cache, quarantine, lambda: None).replace(nodes)
    if topologies is not None:
        topology_handler(cache, quarantine, lambda: None).replace(topologies)
    if pods is not None:
        BoundPodObjects(cache, quarantine, cache.observe_pod).replace(pods)
    if quarantine:
        raise AssertionError(f"{quarantine.counts} could not be taken in")


Failure = type[ClusterError] | Callable[[], ClusterError]
