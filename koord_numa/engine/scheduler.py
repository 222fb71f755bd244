"""
The engine as others see it: facts come in through ``observe_*`` and ``replace_*``, ``run`` decides and binds, views tell why.

Facts are level-based: they may come in any order, merged or repeated. Nothing is decided before every source is synced.
"""

import asyncio
from collections.abc import Iterable
from enum import StrEnum
from logging import getLogger
from typing import Final

from koord_numa.core.budgets import DisruptionBudget
from koord_numa.core.node import Node, NodeResourceTopology
from koord_numa.core.request import Pod
from koord_numa.engine.assumed_pods import AssumedPods
from koord_numa.engine.cache.cache import DELETED, Cache
from koord_numa.engine.cache.namespace_lister import NamespaceLister
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.cache.volume_lister import VolumeLister
from koord_numa.engine.cluster_events import ClusterEvent
from koord_numa.engine.dry_run import DryRun, dry_run
from koord_numa.engine.event_handlers import EventHandlers
from koord_numa.engine.handle import Handle
from koord_numa.engine.kubelet_rejections import NodeBackoff, is_refusal
from koord_numa.engine.metrics import SchedulerMetrics
from koord_numa.engine.pod_status.conditions import PodConditions
from koord_numa.engine.pod_status.messages import why_everywhere
from koord_numa.engine.preemption.executor import Executor
from koord_numa.engine.queue.nominator import Nominator
from koord_numa.engine.queue.request_class import RequestClasses
from koord_numa.engine.queue.scheduling_queue import QueueNumbers, SchedulingQueue
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.selector import Limits, NodeSelection
from koord_numa.engine.schedule_one import SchedulingLoop
from koord_numa.ports import Dependencies
from koord_numa.settings import Settings

__all__ = ["DELETED", "Scheduler", "Source"]

log = getLogger(__name__)

HOUSEKEEPING_SECONDS: Final = 1.0


class Source(StrEnum):
    """Where facts come from; each must have told everything once before the first decision."""

    WAITING = "waiting"
    BOUND = "bound"
    NODES = "nodes"
    TOPOLOGIES = "topologies"
    NAMESPACES = "namespaces"


class Scheduler:
    """One scheduler: its knowledge of the cluster, its queue and its loop."""

    def __init__(self, settings: Settings, dependencies: Dependencies) -> None:
        self.settings = settings
        self.dependencies = dependencies
        self.metrics = SchedulerMetrics()
        self.cache = Cache(self._on_change, clock=dependencies.clock)
        self.volumes = VolumeLister(self._on_volumes, self.cache.index, self.cache.node_exists, dependencies.clock)
        self.namespaces = NamespaceLister(self.cache.index, self._on_namespaces)
        self._node_table = NodeTable()
        self._node_backoff = NodeBackoff(settings.cool_down)
        self.classes = RequestClasses(settings, self.cache.index)
        self.queue = SchedulingQueue(settings.wake_pause, settings.parked_retry_seconds, dependencies.random)
        self._conditions = PodConditions(dependencies)
        self.handle = Handle(
            settings=settings,
            dependencies=dependencies,
            cache=self.cache,
            queue=self.queue,
            classes=self.classes,
            selector=NodeSelection(
                self.cache,
                self._node_table,
                self._node_backoff,
                self.volumes,
                Limits(dependencies.clock, settings.remembered_classes),
            ),
            conditions=self._conditions,
            nominator=Nominator(self.cache, dependencies.clock),
            metrics=self.metrics,
        )
        self.preemption = Executor(self.handle)
        self.loop = SchedulingLoop(self.handle, self.preemption.consider)
        self.assumed_pods = AssumedPods(
            self.handle, self._node_table, self._node_backoff, lambda pod: self.observe_bound(None, pod)
        )
        self._pods = EventHandlers(self.handle, self.preemption, self.loop.kick)
        self._missing = set(Source)
        self._begin = asyncio.Event()

    # Facts in: cheap, synchronous, idempotent.

    def known(self, uid: str) -> Pod | None:
        """A pod as the API server showed it last, if it waits here or is counted."""
        waiting = self.handle.waiting.get(uid)
        return waiting if waiting is not None or uid in self.cache.assumed else self.cache.pod(uid)

    def waits(self, uid: str) -> bool:
        """Is this a pod that still waits for a node here, or whose bind is not settled?"""
        return uid in self.handle.waiting

    def observe_waiting(self, event: str | None, pod: Pod) -> None:
        """
        A pod that has no node yet. ``DELETED`` only says that it waits no longer: the server's field selector reports a bound pod
        that way too, so what a pod holds is settled by ``observe_bound`` and by the answer to the bind.
        """
        self._pods.observe(event, pod)

    def observe_bound(self, event: str | None, pod: Pod) -> None:
        """A pod that has a node, whoever put it there: it is counted the moment it is seen, and no longer once it is gone."""
        self._note(event, pod)
        self.cache.observe_pod(event, pod)
        self.cache.look_again()
        self._pods.mind_terms()
        if event == DELETED or pod.node:
            self._pods.leave(pod.key.uid)

    def observe_node(self, event: str | None, node: Node) -> None:
        """A Node object."""
        self.cache.observe_node(event, node)

    def observe_topology(self, event: str | None, topology: NodeResourceTopology) -> None:
        """A NodeResourceTopology; it may come before its node, after it, or never."""
        self.cache.observe_topology(event, topology)

    def observe_budget(self, event: str | None, budget: DisruptionBudget) -> None:
        """A PodDisruptionBudget, which nobody is preempted against."""
        self.preemption.planner.observe_budget(event, budget)

    def observe_nominated(self, event: str | None, pod: Pod) -> None:
        """A pod of another scheduler without a node, for which a node may be being freed."""
        self.handle.nominator.observe(event, pod)

    # A list is the whole truth about its kind: what it does not show is gone.

    def replace_waiting(self, pods: Iterable[Pod]) -> None:
        """All pods without a node."""
        self._pods.replace(pods)

    def replace_bound(self, pods: Iterable[Pod]) -> None:
        """All pods with a node. Pods whose bind was just confirmed stay: the list may be older."""
        found = list(pods)
        for pod in found:
            self._note(None, pod)
        self.cache.replace_pods(found)
        self._pods.mind_terms()
        for pod in found:
            if pod.node:
                self._pods.leave(pod.key.uid)

    def replace_nodes(self, nodes: Iterable[Node]) -> None:
        """All nodes."""
        self.cache.replace_nodes(nodes)

    def replace_topologies(self, topologies: Iterable[NodeResourceTopology]) -> None:
        """All NodeResourceTopologies; none at all when their CRD is not installed."""
        self.cache.replace_topologies(topologies)

    def replace_budgets(self, budgets: Iterable[DisruptionBudget]) -> None:
        """All PodDisruptionBudgets. Nobody is preempted before they are known; decisions do not wait for them."""
        self.preemption.replace_budgets(budgets)

    def replace_nominated(self, pods: Iterable[Pod]) -> None:
        """All pods of other schedulers for which nodes are being freed."""
        self.handle.nominator.replace(pods, self.handle.waiting)

    def _note(self, event: str | None, pod: Pod) -> None:
        if event != DELETED and is_refusal(pod):
            self.assumed_pods.note_refusal(pod, counts=self.ready)

    def synced(self, source: Source) -> None:
        """This source has told everything that exists."""
        self._missing.discard(source)
        if not self._missing:
            self._begin.set()

    @property
    def ready(self) -> bool:
        """Is everything known that a decision needs?"""
        return not self._missing

    @property
    def missing(self) -> frozenset[Source]:
        """Sources that have not told everything yet."""
        return frozenset(self._missing)

    def lock_node(self, node: str, why: str) -> None:
        """Place nothing on this node until it is unlocked: a rebind works on it."""
        self.cache.lock(node, why)

    def unlock_node(self, node: str) -> None:
        """The rebind is over; pods that waited for the node are tried again."""
        self.cache.lock(node, "")

    def kick(self) -> None:
        """Look whether there is something to do, for instance because the lease was won."""
        self.loop.kick()

    async def run(self) -> None:
        """Decide and bind until ``stop``: returns when every bind in flight has been settled."""
        await self._begin.wait()
        work = (self._conditions.run(), self._keep_house(), self.preemption.run())
        side = [asyncio.create_task(each) for each in work]
        for task in side:
            task.add_done_callback(self._side_ended)
        try:
            await self.loop.run()
        finally:
            for task in side:
                task.cancel()
            ends = await asyncio.gather(*side, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def _side_ended(self, task: asyncio.Task[None]) -> None:
        """Work beside the loop never ends by itself: whatever ended it is a bug, and half an engine must not go on."""
        if not task.cancelled():
            self.loop.stop()

    async def stop(self) -> None:
        """Decide nothing more; ``run`` returns when binds in flight are settled."""
        self.loop.stop()
        self._begin.set()

    # Views.

    def queue_numbers(self) -> QueueNumbers:
        """How many pods are active, backing off, and parked."""
        return self.queue.numbers()

    def explain(self, uid: str) -> str:
        """Why a pod waits, as last decided; empty when it was not tried yet or does not wait."""
        verdict = self.queue.verdict(uid)
        return "" if verdict is None else self._conditions.with_remark(uid, why_everywhere(verdict))

    def dry_run(self, pod: Pod) -> DryRun | None:
        """What would be decided about a pod now, node by node; ``None`` when its scheduler name is none of ours."""
        return dry_run(self.handle, pod)

    def waiting(self) -> list[Pod]:
        """Pods that want a node, in no particular order."""
        return list(self.handle.waiting.values())

    # Reactions.

    def _on_change(self, cause: ClusterEvent, record: NodeInfo) -> None:
        """Results about this node are out of date, and those who wait for such a change are tried again."""
        self._node_table.changed(record)
        self.handle.nominator.node_changed(record)
        if cause is ClusterEvent.CAPACITY_FREED:
            self.preemption.node_freed(record.name)
        if self.queue.parked:
            now = self.dependencies.clock()
            self.queue.wake(cause, now, record.room)
            if cause is ClusterEvent.CAPACITY_FREED:
                self.queue.wake(ClusterEvent.POD_GONE, now)
        if record.topology is not None and record.topology.kubelet_pods:
            self.assumed_pods.mind_trust(record)
        self.loop.kick()

    def _on_volumes(self) -> None:
        self.queue.wake(ClusterEvent.VOLUME_CHANGED, self.dependencies.clock())
        self.loop.kick()

    def _on_namespaces(self) -> None:
        self._pods.mind_terms()
        self.queue.wake(ClusterEvent.NAMESPACE_CHANGED, self.dependencies.clock())
        self.loop.kick()

    async def _keep_house(self) -> None:
        """Things that only time brings: rests end, and binds that nobody has shown are read back."""
        while True:
            await self.dependencies.sleep(HOUSEKEEPING_SECONDS)
            self.assumed_pods.end_rests()
            self.cache.look_again()
            self.preemption.look_again()
            self.loop.kick()
            await self.assumed_pods.read_back_overdue()
