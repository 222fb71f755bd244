"""
A fleet of kubelet-owned nodes in virtual time: the real engine with its handlers, the sandbox's API objects, kubelets and exporters.

Everything that a scheduler learns comes late, as in a cluster: watches by ``WATCH`` seconds, pods to kubelets by ``KUBELET``, topologies
at the exporter's period and ``DELIVERY`` later. A ReplicaSet replaces each pod that a kubelet refuses, and keeps the failed pod.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from time import process_time
from typing import Any, Final

from bench.fleet._shapes import Template
from bench.fleet._virtual_time import Timed
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.engine import Dependencies, Scheduler, Source
from koord_numa.engine.event_handlers import EventHandlers
from koord_numa.ports import DELETED, Conflict, Gone, ObjectReference
from koord_numa.sandbox import definitions
from koord_numa.sandbox.apiserver import ApiError, ApiServer, DeleteOptions, JsonObject
from koord_numa.sandbox.machines import Fleet, NodeDescription
from koord_numa.settings import Settings
from koord_numa.wire import parse_node, parse_pod, parse_topology
from koord_numa.wire.pod_annotations import resource_status

Work = Coroutine[Any, Any, Any] | Generator[Any, None, Any]

_OF_SCHEDULER: Final[ContextVar[bool]] = ContextVar("of scheduler", default=False)

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
TOPOLOGIES: Final = "noderesourcetopologies.topology.node.k8s.io"

WATCH: Final = (0.002, 0.05)
"""Seconds until a watch shows a change, at least and at most."""

KUBELET: Final = (0.05, 1.0)
"""Seconds until a kubelet has handled a pod that was bound or deleted."""

DELIVERY: Final = (0.05, 1.0)
"""Seconds from an exporter's look to the topology's arrival."""

BIND: Final = 0.01
"""Seconds until the API server has answered a bind."""


DOWN: Final = 3.0
"""Seconds from the end of a scheduler until the next one decides."""


@dataclass(slots=True)
class Outcome:
    """What became of the pods. Times are virtual seconds; ``waits`` those from a pod's creation to its bind."""

    waits: list[float] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)  # by node
    reasons: Counter[str] = field(default_factory=Counter)
    waiting: dict[str, str] = field(default_factory=dict)  # pods that were never placed, and why
    named: list[str] = field(default_factory=list)  # each refusal in words


class _Replica:
    """One scheduler process, which decides while it ``leads``."""

    scheduler: Scheduler
    running: asyncio.Task[None]

    def __init__(self, leads: bool) -> None:
        self.leads = leads

    def fresh(self) -> bool:
        """Whether it holds the lease."""
        return self.leads

    def end(self) -> None:
        """End as by SIGKILL."""
        self.leads = False
        self.running.cancel()


class FleetWorld:
    """The cluster, the schedulers and time. ``period`` is the exporters' interval in seconds."""

    def __init__(self, nodes: list[NodeDescription], period: float, seed: int = 1) -> None:
        self.dice = Random(seed)
        self.outcome = Outcome()
        self._period = period
        self._server = ApiServer(crds=definitions())
        self._fleet = Fleet(self._server.store, nodes, self._time_of_day)
        self._created: dict[str, float] = {}
        self._templates: dict[str, tuple[Template, float]] = {}
        # Delays are drawn for each message; without this, a later event could overtake an earlier one, which watches never do.
        self._queues: dict[str, float] = {}  # when the last message of each kind arrives: watches keep their order
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._nodes: dict[str, Node] = {}
        self._topologies: dict[str, NodeResourceTopology] = {}
        self._pods: dict[str, Pod] = {}
        self._replicas: list[_Replica] = []  # the leader and perhaps a standby
        self.steps: list[float] = []  # seconds of CPU of each event and of each step of the schedulers' tasks
        self._of_schedulers = copy_context()
        self._of_schedulers.run(_OF_SCHEDULER.set, True)
        asyncio.get_running_loop().set_task_factory(self._task)

    async def run(self, arrivals: list[tuple[float, Template, float]], patience: float) -> Outcome:
        """
        Pods of these templates, each with its moment of creation and its lifetime in seconds.

        Returns when every pod has been placed, or ``patience`` seconds after the last one was created.
        """
        self._start()
        self._replicas.append(self._replica(leads=True))
        accidents = asyncio.create_task(self._accidents(arrivals[-1][0]))
        exporting = [asyncio.create_task(self._export(name)) for name in self._fleet.nodes]
        for when, template, lifetime in arrivals:
            await asyncio.sleep(max(0.0, when - self._clock()))
            self._create(template, lifetime)
        end = self._clock() + patience
        while self._created and self._clock() < end:  # noqa: ASYNC110  (in virtual time polling costs nothing)
            await asyncio.sleep(1.0)
        await accidents
        # Asked before the scheduler stops: its reasons go with it.
        self.outcome.waiting = {name: self._why(name) for name in self._created}
        for task in exporting:
            task.cancel()
        await self._replicas[0].scheduler.stop()
        await self._replicas[0].running
        return self.outcome

    async def _accidents(self, last: float) -> None:
        """Restart the scheduler after a third of the time, and after two thirds let a standby take over."""
        await asyncio.sleep(last / 3)
        self._replicas.pop().end()
        await asyncio.sleep(DOWN)
        self._replicas.append(self._replica(leads=True))
        await asyncio.sleep(last / 6)
        self._replicas.append(standby := self._replica(leads=False))
        await asyncio.sleep(last / 6)
        self._replicas.pop(0).end()
        await asyncio.sleep(DOWN)
        standby.leads = True
        standby.scheduler.kick()

    def _replica(self, *, leads: bool) -> "_Replica":
        """A scheduler that has just listed everything."""
        replica = _Replica(leads)
        dependencies = Dependencies(self, self, replica, resource_status, self._clock, asyncio.sleep, self.dice.random)
        replica.scheduler = Scheduler(Settings(), dependencies)
        handlers = replica.scheduler.handlers
        handlers.nodes.replace(self._nodes.values())
        handlers.topologies.replace(self._topologies.values())
        handlers.bound_pods.replace([pod for pod in self._pods.values() if pod.node])
        handlers.pending_pods.replace([pod for pod in self._pods.values() if not pod.node])
        for source in Source:
            replica.scheduler.synced(source)
        replica.scheduler.loop.burst = 1  # time stands still while a task runs, which otherwise ends a burst
        replica.running = asyncio.create_task(replica.scheduler.run(), context=self._of_schedulers)
        return replica

    def _task(self, loop: asyncio.AbstractEventLoop, work: Work, **how: Any) -> asyncio.Task[Any]:
        """Create a task, whose steps are timed if it belongs to a scheduler."""
        if isinstance(work, Coroutine) and _OF_SCHEDULER.get():
            work = Timed(work, self.steps)
        return asyncio.Task(work, loop=loop, **how)

    # What a scheduler asks of the outside world.

    def event(self, pod: PodKey, *, warning: bool, reason: str, message: str) -> None:
        """Events are for people."""

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        """Events are for people."""

    def object_event(self, about: ObjectReference, *, warning: bool, reason: str, message: str) -> None:
        """Likewise."""

    async def bind(self, pod: PodKey, node: str, annotations: Mapping[str, str]) -> None:
        """Bind a pod as the API server does."""
        await asyncio.sleep(BIND)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            self._server.store.bind(pod.namespace, pod.name, binding)
        # As cluster/writers tell them apart: 409 means that the pod has a node already.
        except ApiError as problem:
            raise (Conflict if problem.code == 409 else Gone)(str(problem)) from None

    async def read_pod(self, pod: PodKey) -> Pod:
        """The pod as it is."""
        found = self._server.store.find("pods", pod.name, pod.namespace)
        if found is None:
            raise Gone(f"no pod {pod}")
        return parse_pod(found)

    async def set_unschedulable(self, pod: PodKey, message: str) -> None:
        """Conditions are for people."""

    async def nominate(self, pod: PodKey, node: str, why: str = "") -> Pod:  # noqa: ARG002  (as ``Binder``)
        """All pods have one priority, so room is made for none."""
        return await self.read_pod(pod)

    async def evict(self, pod: PodKey, message: str) -> None:
        """As above."""

    async def delete(self, pod: PodKey) -> None:
        """As above."""

    # The rest of the cluster.

    def _time_of_day(self) -> str:
        return datetime.fromtimestamp(EPOCH + self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _later(self, bounds: tuple[float, float], stream: str, act: Callable[[], None]) -> None:
        """Act after a delay, and after what was sent on this stream before."""
        # # a microsecond apart, because equal times have no order
        when = max(self._clock() + self.dice.uniform(*bounds), self._queues.get(stream, 0.0) + 1e-6)
        self._queues[stream] = when
        asyncio.get_running_loop().call_at(when, act)

    def _start(self) -> None:
        store = self._server.store
        store.subscribe("nodes", self._on_node)
        store.subscribe(TOPOLOGIES, self._on_topology)
        store.subscribe("pods", self._on_pod)
        for node in self._fleet.nodes.values():
            node.register()

    def _tell(self, event: Callable[[EventHandlers], None]) -> None:
        began = process_time()
        for replica in self._replicas:
            event(replica.scheduler.handlers)
        self.steps.append(process_time() - began)

    def _on_node(self, event: str, obj: JsonObject) -> None:
        node = self._nodes[obj["metadata"]["name"]] = parse_node(obj)
        self._tell(lambda handlers: handlers.nodes.observe(event, node))

    def _on_topology(self, event: str, obj: JsonObject) -> None:
        topology = self._topologies[obj["metadata"]["name"]] = parse_topology(obj)
        self._later(DELIVERY, "topologies", lambda: self._tell(lambda it: it.topologies.observe(event, topology)))

    def _on_pod(self, event: str, obj: JsonObject) -> None:
        # Parsed at once: the object is shared and changes before the delay is over.
        pod = self._pods[obj["metadata"]["uid"]] = parse_pod(obj)
        if event == DELETED:
            del self._pods[pod.key.uid]
        node = self._fleet.nodes.get(pod.node)

        def tell(handlers: EventHandlers) -> None:
            (handlers.bound_pods if pod.node else handlers.pending_pods).observe(event, pod)

        self._later(WATCH, "pods", lambda: self._tell(tell))
        if node is None:
            return
        self._later(KUBELET, f"kubelet {node.name}", lambda: node.observe(event, obj))
        # The bind is seen here without a watch's delay: waits end at the bind and not when it is noticed.
        if (created := self._created.pop(pod.key.name, None)) is not None:
            self.outcome.waits.append(self._clock() - created)
            lifetime = self._templates[pod.key.name][1]
            asyncio.get_running_loop().call_later(lifetime, self._end, pod.key)
        if pod.phase == "Failed" and event == "MODIFIED" and pod.key.name in self._templates:
            self._refused(pod)

    def _refused(self, pod: Pod) -> None:
        template, lifetime = self._templates.pop(pod.key.name)
        self.outcome.refusals[pod.node] += 1
        self.outcome.reasons[pod.reason] += 1
        self.outcome.named.append(f"{self._clock():.0f} s, {pod.node}: {pod.reason}, {pod.key.name} of {template.name}")
        asyncio.get_running_loop().call_later(0.1, self._create, template, lifetime)

    def _create(self, template: Template, lifetime: float) -> None:
        # A name that cannot repeat, also after templates were popped.
        name = f"{template.name}-{len(self._templates) + len(self.outcome.named):05}-{self.dice.randrange(1 << 30):08x}"
        self._templates[name] = template, lifetime
        self._created[name] = self._clock()
        self._server.store.create(template.pod(name))

    def _end(self, pod: PodKey) -> None:
        # Failed pods stay, as in a cluster: they are collected when more than 12,500 pods have ended.
        if pod.name not in self._templates:
            return
        try:
            self._server.store.delete("pods", pod.name, pod.namespace, DeleteOptions(uid=pod.uid))
        except ApiError as problem:
            if problem.code != 404:
                raise

    async def _export(self, name: str) -> None:
        """One node's exporter, which began at some moment of its period."""
        await asyncio.sleep(self.dice.uniform(0.0, self._period))
        while True:
            if self._fleet.nodes[name].dirty:
                self._fleet.nodes[name].publish()
            await asyncio.sleep(self._period)

    def _why(self, name: str) -> str:
        scheduler = self._replicas[0].scheduler
        found = next((pod for pod in scheduler.waiting() if pod.key.name == name), None)
        return "" if found is None else scheduler.explain(found.key.uid)
