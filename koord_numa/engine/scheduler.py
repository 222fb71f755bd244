"""
The engine as others see it: facts come in through ``handlers``, ``run`` decides and binds, views tell why.

Facts are level-based: they may come in any order, merged or repeated. Nothing is decided before every source is synced.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Unschedulable
from koord_numa.engine.binding.assumed_pods import AssumedPods
from koord_numa.engine.cache.cache import DELETED, Cache
from koord_numa.engine.cache.kubelet_evidence import is_kubelet_rejection
from koord_numa.engine.cache.listers import NamespaceLister, VolumeLister, WorkloadLister
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.claims.deallocation import Deallocation
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.claims.pod_claims import PodClaimResolver
from koord_numa.engine.conflicting_writers import ConflictingWriters
from koord_numa.engine.containment import Quarantine, Subject
from koord_numa.engine.decision_log import DecisionLog
from koord_numa.engine.dry_run import DryRunResult, dry_run
from koord_numa.engine.event_handlers import (
    BoundPodHandler,
    BoundPodObjects,
    EventHandlers,
    ListerHandler,
    NominatedPodHandler,
    PendingPodHandler,
    node_handler,
    topology_handler,
)
from koord_numa.engine.gangs.group_queue import GroupQueue
from koord_numa.engine.handle import Handle
from koord_numa.engine.kubelet_rejections import NodeBackoff
from koord_numa.engine.metrics import SchedulerMetrics
from koord_numa.engine.object_events import RESIZE_KEEPS_CPUS, resize_message, tell_quarantine
from koord_numa.engine.pod_status import PodConditions, why_everywhere, with_remark
from koord_numa.engine.preemption.executor import Executor
from koord_numa.engine.queue.cluster_events import FREES_NOTHING, ClusterEvent
from koord_numa.engine.queue.nominator import Nominator
from koord_numa.engine.queue.queueing_hints import NodeChange, wake
from koord_numa.engine.queue.request_class import RequestClass, RequestClasses
from koord_numa.engine.queue.scheduling_queue import QueueNumbers, SchedulingQueue
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.selector import Limits, Listers, NodeSelection
from koord_numa.engine.readiness import Readiness, Source
from koord_numa.engine.schedule_one import SchedulingLoop
from koord_numa.engine.unreadable_topologies import UnreadableTopologies
from koord_numa.ports import Dependencies
from koord_numa.settings import DynamicResources, PodGroupSupport, Settings

__all__ = ["DELETED", "Scheduler", "Source"]

HOUSEKEEPING_SECONDS: Final = 1.0


class Scheduler:
    """One scheduler: its knowledge of the cluster, its queue and its loop."""

    def __init__(self, settings: Settings, dependencies: Dependencies) -> None:
        self.settings = settings
        self.dependencies = dependencies
        self.metrics = SchedulerMetrics()
        self.cache = Cache(
            self._on_change,
            clock=dependencies.clock,
            headroom=settings.headroom_amounts,
            stated=settings.stated_kubelet_options,
        )
        self.volumes = VolumeLister(self._on_volumes, self.cache.index, self.cache.node_exists, dependencies.clock)
        self.namespaces = NamespaceLister(self.cache.index, self._on_namespaces)
        self._node_table = NodeTable()
        self._node_backoff = NodeBackoff(settings.cool_down)
        self.claims = ClaimLister(self._on_claims, self._on_claim, self.cache.set_cpus_by_claim)
        self.claims.features = settings.feature_gates.features
        self.claims.enabled = settings.dynamic_resources is not DynamicResources.OFF
        resolver = PodClaimResolver(self.claims)
        self.workloads = WorkloadLister(lambda terms: self.handlers.pending_pods.reclassify(terms))  # noqa: PLW0108  (made later)
        self.classes = RequestClasses(settings, self.cache.index, resolver.of, self.workloads.selector_for)
        self.queue = SchedulingQueue(settings, dependencies.random)
        self._conditions = PodConditions(dependencies, lambda pending: self.preemption.will_write(pending))  # noqa: PLW0108  (made later)
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
                Listers(self.volumes, self.claims),
                Limits(dependencies.clock, settings.remembered_classes),
            ),
            conditions=self._conditions,
            nominator=Nominator(self.cache, dependencies.clock, self.claims),
            metrics=self.metrics,
            volumes=self.volumes,
            resource_claims=resolver,
            quarantine=Quarantine(dependencies.clock, lambda subject, why: tell_quarantine(self.handle, subject, why)),
            decisions=DecisionLog(dependencies.clock),
        )
        self.handle.pod_groups.enabled = settings.pod_groups is not PodGroupSupport.OFF
        self.groups = GroupQueue(self.handle)
        self.handle.on_forgotten = self.groups.forget
        self.writers = ConflictingWriters(self.handle)
        self.unreadable = UnreadableTopologies(self.handle)
        self._node_table.on_error = self._quarantine_node
        self.preemption = Executor(self.handle)
        self._deallocation = Deallocation.through(dependencies, self.claims, resolver, self.cache.pods)
        self.loop = SchedulingLoop(self.handle, self.groups, self._after_unschedulable)
        self.assumed_pods = AssumedPods(
            self.handle, self._node_table, self._node_backoff, lambda pod: self.handlers.bound_pods.observe(None, pod)
        )
        self.handlers = self._event_handlers()
        self._readiness = Readiness(frozenset() if settings.needs_workloads else frozenset({Source.WORKLOADS}))

    def _event_handlers(self) -> EventHandlers:
        """Where facts come in, kind by kind."""
        handle, cache, quarantine = self.handle, self.cache, self.handle.quarantine
        synced = {source: partial(self.synced, source) for source in Source}
        bound = BoundPodObjects(cache, quarantine, self._apply_bound_pod, synced[Source.BOUND])
        return EventHandlers(
            pending_pods=PendingPodHandler(
                handle, self.groups, self.preemption, self.loop.kick, synced[Source.WAITING]
            ),
            bound_pods=BoundPodHandler(handle, bound, self._after_pods, self.preemption),
            nominated_pods=NominatedPodHandler(handle),
            nodes=node_handler(cache, quarantine, synced[Source.NODES]),
            topologies=topology_handler(
                cache, quarantine, synced[Source.TOPOLOGIES], self.settings.kubelet_reserved_cpus
            ),
            namespaces=ListerHandler(self.namespaces.replace, self.namespaces.observe, synced[Source.NAMESPACES]),
            budgets=ListerHandler(self.preemption.replace_budgets, self.preemption.evaluator.observe_budget),
        )

    def known(self, uid: str) -> Pod | None:
        """A pod as the API server showed it last, if it waits here or is counted."""
        if (pending := self.handle.pending.get(uid)) is not None:
            return pending.pod
        return None if uid in self.cache.assumed else self.cache.pod(uid)

    def waits(self, uid: str) -> bool:
        """Is this a pod that still waits for a node here, or whose bind is not settled?"""
        return uid in self.handle.pending

    def synced(self, source: Source) -> None:
        """This source has told everything that exists."""
        self._readiness.synced(source)

    @property
    def ready(self) -> bool:
        """Is everything known that a decision needs?"""
        return bool(self._readiness)

    @property
    def missing(self) -> frozenset[Source]:
        """Sources that have not told everything yet."""
        return self._readiness.missing

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
        await self._readiness.wait()
        chores = (self._keep_house, self.assumed_pods.read_back_overdue, self.loop.expire_volumes)
        work = [
            self._conditions.run(),
            self.loop.group_statuses.run(),
            self.preemption.run(),
            *map(self._repeat, chores),
        ]
        if self._deallocation is not None:
            work.append(self._deallocation.run())
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
        self._readiness.end()

    def queue_numbers(self) -> QueueNumbers:
        """How many pods are active, backing off, and parked."""
        return self.queue.numbers()

    def explain(self, uid: str) -> str:
        """Why a pod waits, as last decided; empty when it was not tried yet or does not wait."""
        verdict = self.queue.verdict(pending := self.handle.pending.get(uid))
        if pending is not None and pending.pod.request.gang is not None:
            return pending.message
        return "" if verdict is None or pending is None else with_remark(why_everywhere(verdict), pending.remark)

    def dry_run(self, pod: Pod) -> DryRunResult | None:
        """What would be decided about a pod now, node by node; ``None`` when its scheduler name is none of ours."""
        return dry_run(self.handle, pod)

    def waiting(self) -> list[Pod]:
        """Pods that want a node, in no particular order."""
        return [pending.pod for pending in self.handle.pending]

    def _apply_bound_pod(self, event: str | None, pod: Pod) -> None:
        if event != DELETED and is_kubelet_rejection(pod):
            self.assumed_pods.note_rejection(pod, counts=self.ready)
        self.writers.pod_observed(event, pod)
        if event != DELETED and (said := resize_message(self.cache.pod(pod.key.uid), pod)):
            self._say_resized(pod, said)
        self.cache.observe_pod(event, pod)

    def _say_resized(self, pod: Pod, message: str) -> None:
        if self.ready and self.dependencies.lease.fresh():
            self.dependencies.recorder.event(pod.key, warning=True, reason=RESIZE_KEEPS_CPUS, message=message)

    def _after_pods(self) -> None:
        self.cache.judge_found_pods()
        self.handlers.pending_pods.reclassify_by_news()

    def _on_change(self, event: ClusterEvent | None, info: NodeInfo, pod: Pod | None) -> None:
        """Results about this node are out of date, and classes that such a change may help are tried again."""
        self._node_table.changed(info)
        if pod is not None and pod.request.gang is not None:
            self._member_changed(pod)
        self.writers.node_changed(info)
        if pod is None:  # no pod changes the node's objects
            self.unreadable.node_changed(info)
        self.handle.nominator.node_changed(info, event)
        if info.node is None:
            self.claims.forget_node(info.name)
        if event not in FREES_NOTHING or (pod is not None and pod.deleting):
            self.preemption.nodes_changed(info.name)  # no eviction helps because a pod came; after other news one may
        if event is not None and self.queue.parked:
            wake(self.queue, self.dependencies.clock(), NodeChange(event, info, pod, self.cache.index.namespaces))
        self.assumed_pods.say_cpu_conflict(info)
        if len(self.handle.pending):
            self.loop.kick()

    def _member_changed(self, pod: Pod) -> None:
        """A member of a gang got a node, or has none any more."""
        key = self.handle.pod_groups.note_node(pod, self.cache.node_of.get(pod.key.uid))
        if key is not None:
            self.groups.changed(key)

    def _quarantine_node(self, name: str, error: Exception) -> None:
        """A decision cannot look at this node; other nodes are looked at all the same."""
        self.handle.quarantine.put(Subject("node", name, name), error)

    def _after_unschedulable(self, pod: Pod, request_class: RequestClass, verdict: Unschedulable) -> None:
        if self._deallocation is not None:
            self._deallocation.consider(pod, verdict, partial(self.queue.pods_of, request_class))
        self.preemption.consider(pod, request_class, verdict)

    def _on_claims(self) -> None:
        """Devices may have become free, or new ones are there."""
        self.queue.wake(ClusterEvent.CLAIM_CHANGED, self.dependencies.clock())
        self.loop.kick()

    def _on_claim(self, key: tuple[str, str] | None) -> None:
        """Waiting pods that use the claim may belong to other classes now, and pods that wait for its devices may fit."""
        self.handle.nominator.claim_changed(key)
        for uid in self.handle.resource_claims.users(key):
            pending = self.handle.pending.get(uid)
            if pending is not None:
                self.handlers.pending_pods.observe(None, pending.pod)

    def _on_volumes(self) -> None:
        self.queue.wake(ClusterEvent.VOLUME_CHANGED, self.dependencies.clock())
        self.loop.kick()

    def _on_namespaces(self) -> None:
        self.handlers.pending_pods.reclassify_by_news()
        self.queue.wake(ClusterEvent.NAMESPACE_CHANGED, self.dependencies.clock())
        self.loop.kick()

    async def _repeat(self, chore: Callable[[], Awaitable[None]]) -> None:
        """A task for each: answers of the API server, which one waits for, must not delay what time alone brings."""
        while True:
            await self.dependencies.sleep(HOUSEKEEPING_SECONDS)
            await chore()

    async def _keep_house(self) -> None:
        self.writers.tick()
        self.unreadable.tick()
        self.preemption.nodes_changed(*self.assumed_pods.end_node_backoffs())
        self.cache.judge_again()
        self.cache.expire_unreported()
        self.preemption.look_again()
        self.handlers.pending_pods.tell_untold()
        self.loop.group_statuses.tell_scheduled()
        self.kick()
