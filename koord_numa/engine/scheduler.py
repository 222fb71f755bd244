"""
Facade of the engine: ``handlers`` receive events, ``run`` decides and binds, views explain.

Events are level-based: they may arrive in any order, merged or repeated. No decision is made before every source is synced.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial
from typing import Final

from koord_numa.core.objects.constraints import PodTerm
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Unschedulable
from koord_numa.core.scheduling.filters import Answers, ClusterEvent
from koord_numa.engine.binding.assumed_pods import AssumedPods, ConflictingWriters
from koord_numa.engine.cache.cache import DELETED, Cache, is_kubelet_rejection
from koord_numa.engine.cache.listers import NamespaceLister, VolumeLister, WorkloadLister
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.claims.late_check import Deallocation
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.claims.pod_claims import PodClaimResolver
from koord_numa.engine.containment import NodeBackoff, Quarantine, Subject
from koord_numa.engine.event_handlers import (
    BoundPodHandler,
    BoundPodObjects,
    Callbacks,
    EventHandlers,
    NominatedPodHandler,
    PendingPodHandler,
    device_handler,
    node_handler,
    topology_handler,
)
from koord_numa.engine.gangs.group_cycle import Refusal
from koord_numa.engine.gangs.group_queue import GroupQueue, PartialGangs
from koord_numa.engine.gangs.pod_groups import PodGroups
from koord_numa.engine.handle import Handle
from koord_numa.engine.metrics import DecisionLog, SchedulerMetrics
from koord_numa.engine.object_events import (
    RESIZE_KEEPS_CPUS,
    PodConditions,
    UnreadableTopologies,
    resize_message,
    tell_quarantine,
    why_everywhere,
    with_remark,
)
from koord_numa.engine.preemption import Executor
from koord_numa.engine.queue import (
    FREES_NOTHING,
    NodeChange,
    Nominator,
    PendingPod,
    RequestClass,
    RequestClasses,
    SchedulingQueue,
    wake,
)
from koord_numa.engine.ranking import Limits, Listers, NodeSelection, NodeTable
from koord_numa.engine.schedule_one import SchedulingLoop
from koord_numa.ports import Dependencies
from koord_numa.settings import DeviceObjectSupport, DynamicResources, PodGroupSupport, Settings


class Source(StrEnum):
    """Sources of objects. Each must be listed completely before the first decision."""

    WAITING = "waiting"
    BOUND = "bound"
    NODES = "nodes"
    TOPOLOGIES = "topologies"
    NAMESPACES = "namespaces"
    DEVICES = "devices"  # only where Device objects are read
    WORKLOADS = "workloads"  # only where a default spread constraint may reject a node


class Readiness:
    """State of the sources. ``wait`` returns when all sources that are not ``optional`` have synced, or after ``end``."""

    def __init__(self, optional: frozenset[Source] = frozenset()) -> None:
        self._missing = set(Source) - optional
        self._begin = asyncio.Event()

    def __bool__(self) -> bool:
        """Return whether everything is known that a decision needs."""
        return not self._missing

    @property
    def missing(self) -> frozenset[Source]:
        """Sources that have not synced yet."""
        return frozenset(self._missing)

    def synced(self, source: Source) -> None:
        """Record that this source is listed completely."""
        self._missing.discard(source)
        if not self._missing:
            self._begin.set()

    def end(self) -> None:
        """Stop waiting, because the process stops."""
        self._begin.set()

    async def wait(self) -> None:
        """Return when decisions may start, or after ``end``."""
        await self._begin.wait()


def verdict_on(handle: Handle, pod: Pod, request_class: RequestClass) -> Placement | Unschedulable:
    """Return the placement of a pod, or why there is none, from cached results as in a scheduling cycle. Suited for many pods."""
    nominated = handle.nominator.node_of(pod)
    freed = handle.selector.try_node(request_class, nominated, pod) if nominated else None
    return freed if isinstance(freed, Placement) else handle.selector.decide(request_class, pod.images)


__all__ = ["DELETED", "Scheduler", "Source"]

HOUSEKEEPING_SECONDS: Final = 1.0

EXPLORATION_PAUSE: Final = 0.025
"""Seconds between two slices of 3 to 12 ms, which evaluate the possible states of a kubelet. Decisions have most of the time."""


class Scheduler:
    """One scheduler: its cluster state, queue and loop."""

    def __init__(self, settings: Settings, dependencies: Dependencies) -> None:
        self.settings = settings
        self.dependencies = dependencies
        self.metrics = SchedulerMetrics()
        self._unfinished = asyncio.Event()
        self.cache = Cache(
            self._on_change,
            clock=dependencies.clock,
            headroom=settings.headroom_amounts,
            stated=settings.stated_kubelet_options,
            on_unfinished=self._unfinished.set,
            on_error=self._quarantine_node,
        )
        self.volumes = VolumeLister(self._on_volumes, self.cache.index, self.cache.node_exists, dependencies.clock)
        self.namespaces = NamespaceLister(self.cache.index, self._on_namespaces)
        self._node_table = NodeTable()
        self._node_backoff = NodeBackoff(settings.cool_down)
        self.claims = ClaimLister(self._on_claims, self._on_claim, self.cache.set_cpus_by_claim)
        self.claims.features = settings.feature_gates.features
        self.claims.enabled = settings.dynamic_resources is not DynamicResources.OFF
        pod_groups = PodGroups(enabled=settings.pod_groups is not PodGroupSupport.OFF)
        resolver = PodClaimResolver(self.claims, pod_groups)
        self.workloads = WorkloadLister(self._on_workloads)
        self.classes = RequestClasses(settings, self.cache.index, resolver.of, self.workloads.selector_for)
        self.queue = SchedulingQueue(settings, dependencies.random)
        self._conditions = PodConditions(dependencies, self._will_write)
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
            quarantine=Quarantine(dependencies.clock, self._tell_quarantine),
            decisions=DecisionLog(dependencies.clock),
            pod_groups=pod_groups,
        )
        self.groups = GroupQueue(self.handle)
        self.handle.on_forgotten = self.groups.forget
        self.writers = ConflictingWriters(self.handle)
        self.unreadable = UnreadableTopologies(dependencies)
        self._node_table.on_error = self._quarantine_node
        self.preemption = Executor(self.handle)
        self._deallocation = Deallocation.through(dependencies, self.claims, resolver, self.cache.pods)
        self.loop = SchedulingLoop(self.handle, self.groups, self._after_unschedulable, self._after_group_refused)
        self.assumed_pods = AssumedPods(self.handle, self._node_table, self._node_backoff, self._on_found_pod)
        self.handlers = self._event_handlers()
        reads_devices = settings.device_objects is not DeviceObjectSupport.OFF
        needed = {Source.WORKLOADS: settings.needs_workloads, Source.DEVICES: reads_devices}
        self._readiness = Readiness(frozenset(source for source, is_needed in needed.items() if not is_needed))

    def _event_handlers(self) -> EventHandlers:
        """Return the event handlers of all kinds."""
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
            devices=device_handler(cache, quarantine, synced[Source.DEVICES]),
            namespaces=Callbacks(self.namespaces.replace, self.namespaces.observe, synced[Source.NAMESPACES]),
            budgets=Callbacks(self.preemption.replace_budgets, self.preemption.evaluator.observe_budget),
        )

    def _tell_quarantine(self, subject: Subject, why: str) -> None:
        tell_quarantine(self.handle.pending, self._conditions, self.dependencies.recorder, subject, why)

    def known(self, uid: str) -> Pod | None:
        """Return the last observed version of a pod that waits here or is counted."""
        if (pending := self.handle.pending.get(uid)) is not None:
            return pending.pod
        return None if uid in self.cache.assumed else self.cache.pod(uid)

    def waits(self, uid: str) -> bool:
        """Return whether the pod still waits for a node here, or its bind is not settled."""
        return uid in self.handle.pending

    def synced(self, source: Source) -> None:
        """Record that this source is listed completely."""
        self._readiness.synced(source)

    @property
    def ready(self) -> bool:
        """True if every source that a decision needs has been listed."""
        return bool(self._readiness)

    @property
    def missing(self) -> frozenset[Source]:
        """Sources that have not synced yet."""
        return self._readiness.missing

    def lock_node(self, node: str, why: str) -> None:
        """Reject placements on this node until it is unlocked, because a rebind uses it."""
        self.cache.lock(node, why)

    def unlock_node(self, node: str) -> None:
        """Unlock the node after a rebind. Pods that waited for the node are retried."""
        self.cache.lock(node, "")

    def kick(self) -> None:
        """Wake the loop, for instance because the lease was acquired."""
        self.loop.kick()

    async def run(self) -> None:
        """Decide and bind until ``stop``. Return when every bind in flight has been settled."""
        await self._readiness.wait()
        partial_gangs = PartialGangs(self.handle)
        chores = (
            self._keep_house,
            self.assumed_pods.read_back_overdue,
            self.loop.binding.expire_volumes,
            partial_gangs.evict_overdue,
        )
        work = [
            self._conditions.run(),
            self.loop.group_statuses.run(),
            self.preemption.run(),
            self._explore(),
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
        """Stop the loop when a background task ended: the tasks never end normally, and the engine must not run without them."""
        if not task.cancelled():
            self.loop.stop()

    async def stop(self) -> None:
        """Make no more decisions. ``run`` returns when binds in flight are settled."""
        self.loop.stop()
        self._readiness.end()

    def explain(self, uid: str) -> str:
        """Return why a pod waits by the last decision; empty when it was not tried yet or does not wait."""
        verdict = self.queue.verdict(pending := self.handle.pending.get(uid))
        if pending is not None and pending.pod.request.gang is not None:
            return pending.message
        return "" if verdict is None or pending is None else with_remark(why_everywhere(verdict), pending.remark)

    def dry_run(self, pod: Pod) -> Answers | None:
        """
        Return the result of every node for a pod: its rejection, or the placement with its complete score and the points of each scorer.

        ``None`` for an unknown scheduler name.
        """
        request_class = self.classes.of(pod)
        return None if request_class is None else self.handle.selector.answers(request_class, pod)

    def waiting(self) -> list[Pod]:
        """Return the pods that wait for a node, unordered."""
        return [pending.pod for pending in self.handle.pending]

    def _apply_bound_pod(self, event: str | None, pod: Pod) -> None:
        if event != DELETED and is_kubelet_rejection(pod):
            self.assumed_pods.note_rejection(pod, counts=self.ready)
        self.writers.pod_observed(event, pod)
        said = "" if event == DELETED else resize_message(self.cache.pod(pod.key.uid), pod)
        if said and self.ready and self.dependencies.lease.fresh():
            self.dependencies.recorder.event(pod.key, warning=True, reason=RESIZE_KEEPS_CPUS, message=said)
        self.cache.observe_pod(event, pod)

    def _after_pods(self) -> None:
        self.cache.judge_found_pods()
        self.handlers.pending_pods.reclassify_by_news()

    def _on_change(self, event: ClusterEvent | None, info: NodeInfo, pod: Pod | None) -> None:
        """Invalidate the results of this node, and wake the classes that the change may help."""
        self._node_table.changed(info)
        if pod is not None and pod.request.gang is not None:
            # Process a gang member that was bound or lost its node.
            key = self.handle.pod_groups.note_node(pod, self.cache.node_of.get(pod.key.uid))
            if key is not None:
                self.groups.changed(key)
        self.writers.node_changed(info)
        if pod is None:  # pods do not change the node's objects
            self.unreadable.node_changed(info)
        self.handle.nominator.node_changed(info, event)
        if info.node is None:
            self.claims.forget_node(info.name)
        if event not in FREES_NOTHING or (pod is not None and pod.deleting):
            self.preemption.nodes_changed(info.name)  # an added pod makes no preemption possible; other changes may
        if event is not None and self.queue.parked:
            wake(self.queue, self.dependencies.clock(), NodeChange(event, info, pod, self.cache.index.namespaces))
        self.assumed_pods.say_cpu_conflict(info)
        self.assumed_pods.say_device_conflict(info)
        if len(self.handle.pending):
            self.loop.kick()

    def _quarantine_node(self, name: str, error: Exception) -> None:
        """Quarantine a node that cannot be evaluated. Other nodes are not affected."""
        self.handle.quarantine.put(Subject("node", name, name), error)

    def _after_unschedulable(self, pod: Pod, request_class: RequestClass, verdict: Unschedulable) -> None:
        if self._deallocation is not None:
            self._deallocation.consider(pod, verdict, lambda: [it.pod for it in self.queue.pods_of(request_class)])
        self.preemption.consider(pod, request_class, verdict)

    def _after_group_refused(self, refusal: Refusal) -> None:
        if self._deallocation is not None and refusal.blocked is not None and refusal.verdict is not None:
            self._deallocation.consider(refusal.blocked, refusal.verdict, lambda: refusal.pods)
        self.preemption.groups.consider(refusal.keys, refusal.nodes)

    def _on_claims(self) -> None:
        """Wake pods, because devices may have become available."""
        self.queue.wake(ClusterEvent.CLAIM_CHANGED, self.dependencies.clock())
        self.loop.kick()

    def _on_claim(self, key: tuple[str, str] | None) -> None:
        """Reclassify waiting pods that use the claim, and inform the nominator."""
        self.handle.nominator.claim_changed(key)
        for uid in self.handle.resource_claims.users(key):
            pending = self.handle.pending.get(uid)
            if pending is not None:
                self.handlers.pending_pods.observe(None, pending.pod)

    def _on_volumes(self) -> None:
        self.queue.wake(ClusterEvent.VOLUME_CHANGED, self.dependencies.clock())
        self.loop.kick()

    def _on_workloads(self, terms: tuple[PodTerm, ...]) -> None:
        self.handlers.pending_pods.reclassify(terms)

    def _on_found_pod(self, pod: Pod) -> None:
        self.handlers.bound_pods.observe(None, pod)

    def _will_write(self, pending: PendingPod) -> bool:
        return self.preemption.will_write(pending)

    def _on_namespaces(self) -> None:
        self.handlers.pending_pods.reclassify_by_news()
        self.queue.wake(ClusterEvent.NAMESPACE_CHANGED, self.dependencies.clock())
        self.loop.kick()

    async def _repeat(self, chore: Callable[[], Awaitable[None]]) -> None:
        """Repeat a chore in its own task: waiting for responses of the API server must not delay the other chores."""
        while True:
            await self.dependencies.sleep(HOUSEKEEPING_SECONDS)
            await chore()

    async def _explore(self) -> None:
        """Continue replays and evaluations of kubelet states until cancelled."""
        while True:
            await self._unfinished.wait()
            while self.cache.explore():
                await self.dependencies.sleep(EXPLORATION_PAUSE)
            self._unfinished.clear()

    async def _keep_house(self) -> None:
        self.writers.tick()
        self.unreadable.tick()
        self.preemption.nodes_changed(*self.assumed_pods.end_node_backoffs())
        for _ in self.cache.judge_again():
            await self.dependencies.sleep(0)
        self.cache.expire_unreported()
        self.preemption.look_again()
        self.handlers.pending_pods.tell_untold()
        self.loop.group_statuses.tell_all()
        self.kick()
