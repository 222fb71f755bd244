"""
Where facts come in: one ``ports.EventHandler`` a kind of object, as kube-scheduler's ``eventhandlers.go``. They place nothing.

Facts are level-based: they may come late, repeated or merged, and in any order between kinds. What is broken about one object is contained
(``containment``): its node takes no pods until the object is read well or gone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from koord_numa.core.objects.constraints import PodTerm
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Reason, Unschedulable
from koord_numa.core.objects.workloads import DisruptionBudget, Namespace
from koord_numa.engine.cache.cache import DELETED
from koord_numa.engine.cache.listed_changes import ListedChanges
from koord_numa.engine.gangs.group_queue import GroupQueue
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.engine.object_handlers import ListerHandler, ObjectHandler
from koord_numa.engine.preemption.executor import Executor
from koord_numa.engine.queue.cluster_events import reasons_of
from koord_numa.engine.queue.pending_pod import PendingPod

UNTOLD_SECONDS: Final = 5.0
"""Seconds in the queue after which a pod is told that there is no decision yet. Leaves 5 s of 10 s for writing the condition."""


MOST_UNDECIDED: Final = 50
"""Pods a second that are told that there is no decision yet. A long queue must not be slowed down by conditions of pods in it."""


class PendingPodHandler:
    """The pods that want a node: who is queued, and who is forgotten. ``kick`` is called when there is a pod to try."""

    def __init__(
        self,
        handle: Handle,
        groups: GroupQueue,
        preemption: Executor,
        kick: Callable[[], None],
        on_synced: Callable[[], None],
    ) -> None:
        self._handle = handle
        self._groups = groups
        self._preemption = preemption
        self._kick = kick
        self._on_synced = on_synced
        self._leads_from = 0.0  # no earlier: an earlier leader may have told the pods

    def replace(self, objects: Iterable[Pod]) -> None:
        """These pods have no node and no others. New ones are queued oldest first, then by name."""
        found = {pod.key.uid: pod for pod in objects}
        for pending in self._handle.pending:
            if pending.uid not in found:
                self._handle.forget(pending.uid)
        # Oldest first, so that a restart queues pods in the order in which they came.
        for pod in sorted(found.values(), key=lambda pod: (pod.created, str(pod.key))):
            self.observe(None, pod)

    def observe(self, event: str | None, obj: Pod) -> None:
        """
        A pod that has no node yet. ``DELETED`` only says that it waits no longer: the server's field selector reports a bound pod
        that way too, so what a pod holds is for others to say.
        """
        # A pod that wants no node any more is forgotten in the same way as one that is gone.
        if event == DELETED or not _wants_node(obj):
            self._handle.forget(obj.key.uid)
            return
        with self._handle.quarantine.contained(subject_of(obj)):
            self._observe(obj)

    def synced(self) -> None:
        """Every pod without a node has been told."""
        self._on_synced()

    def reclassify_by_news(self) -> None:
        """Terms of placed pods that came or went put the waiting pods that they select into other classes."""
        terms = self._handle.cache.index.take_news()
        if terms != ():
            self.reclassify(terms)

    def reclassify(self, terms: tuple[PodTerm, ...] | None) -> None:
        """Waiting pods that one of these terms selects (or any, with ``None``) may belong to other classes now."""
        pending = self._handle.pending
        for each in pending if terms is None else pending.selected_by(terms):
            self.observe(None, each.pod)

    def _observe(self, pod: Pod) -> None:
        handle, uid = self._handle, pod.key.uid
        known = handle.pending.get(uid)
        # Two watches run beside each other: this one may still show the pod as it was before its bind.
        if uid in handle.cache.node_of and not (known is not None and known.binding):
            return  # bound already; what this source shows is older
        request_class = handle.classes.of(pod)
        if request_class is None:
            return
        # A real change of the object: it may fit now, so that its backoff ends.
        has_changed = known is not None and known.pod.resource_version != pod.resource_version
        pending = handle.pending.observe(pod, request_class, handle.dependencies.clock())
        if known is None and pod.nominated and pod.request.gang is None and handle.settings.preemption.enabled:
            handle.nominator.observe_own(pod)
        if pod.problem:
            # Not queued: a pod that cannot be read is not tried until it changes.
            handle.queue.remove(pending)
            handle.conditions.waits(pending, f"the pod cannot be understood: {pod.problem}")
        elif not pending.binding:
            self._enqueue(pending, is_new=known is None or has_changed)
            self._kick()

    def _enqueue(self, pending: PendingPod, *, is_new: bool) -> None:
        handle = self._handle
        if is_new and pending.backoff_until is not None and not pending.failed_binds:
            handle.queue.remove(pending)  # quarantined for what it was
        if pending.pod.request.gang is not None:
            self._groups.observe(pending)
            return
        was_queued = pending.queued_in is not None
        verdict = handle.queue.add(pending)
        if verdict is not None and not was_queued:
            self._tell(pending, verdict)

    def tell_untold(self) -> None:
        """
        Tell every pod why it waits that was not told yet, whatever way it came to wait. Called once a second.

        A pod has an event and a condition within 10 s, also where there is no decision to be told.
        """
        handle = self._handle
        now = handle.dependencies.clock()
        if not handle.dependencies.lease.fresh():
            self._leads_from = now
            return
        self._groups.tick()
        undecided = 0
        for pending in handle.pending:
            if not pending.untold or pending.binding:
                continue
            of_group = pending.pod.request.gang is not None
            verdict = None if of_group else handle.queue.verdict(pending)
            if of_group and (said := self._groups.message(pending)):
                handle.conditions.waits(pending, said)
            elif verdict is not None and Reason.BIND_QUEUE not in reasons_of(verdict):
                self._tell(pending, verdict)
            elif now - max(pending.since, self._leads_from) < UNTOLD_SECONDS or pending.message:
                continue
            elif (undecided := undecided + 1) <= MOST_UNDECIDED:
                handle.conditions.waits(pending, self._without_decision(pending))
                pending.provisional = True

    def _tell(self, pending: PendingPod, verdict: Unschedulable) -> None:
        """The class of the pod is parked: preemption hears of the pod, and the pod is told why it waits."""
        self._preemption.consider(pending.pod, pending.request_class, verdict)
        self._handle.conditions.waits(pending, self._handle.messages.current(pending.request_class, verdict))

    def _without_decision(self, pending: PendingPod) -> str:
        if pending.failed_binds:
            return f"the bind has failed {pending.failed_binds} times; the pod is tried again after a pause"
        if self._handle.queue.is_unexplained(pending.request_class):
            return "no node fits; the reasons of the nodes are being determined"
        return f"the pod has not been tried yet; {self._handle.queue.numbers().active} pods are in the active queue"


class BoundPodHandler:
    """Pods that have a node, by whichever scheduler: counted the moment they are seen, and no longer once they are gone."""

    def __init__(
        self, handle: Handle, pods: ObjectHandler[Pod], after: Callable[[], None], preemption: Executor
    ) -> None:
        self._handle = handle
        self._pods = pods
        self._after = after
        self._preemption = preemption

    def replace(self, objects: Iterable[Pod]) -> None:
        """All pods with a node. Pods whose bind was just confirmed stay: the list may be older."""
        found = list(objects)
        quarantine = self._handle.quarantine
        self._note_confirmed(found)
        changes = ListedChanges.of(self._handle.cache, found, lambda pod: quarantine.contained(subject_of(pod)))
        self._pods.replace(found)
        changes.lose_order(self._handle.cache)
        # A pod that has a node waits no more, whichever source said so first.
        for pod in found:
            if pod.node:
                self._handle.forget(pod.key.uid)
        self._after()

    def observe(self, event: str | None, obj: Pod) -> None:
        """One pod with a node."""
        self._note_confirmed((obj,))
        self._pods.observe(event, obj)
        self._after()
        if event == DELETED or obj.node:
            self._handle.forget(obj.key.uid)

    def synced(self) -> None:
        """Every pod with a node has been told."""
        self._pods.synced()

    def _note_confirmed(self, pods: Iterable[Pod]) -> None:
        """Pods whose bind is confirmed may be evicted from now on."""
        assumed = self._handle.cache.assumed
        for pod in pods if assumed else ():
            if pod.key.uid in assumed:
                self._preemption.bind_confirmed(pod.node)


class NominatedPodHandler:
    """Pods of other schedulers without a node, for which a node may be being freed."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def replace(self, objects: Iterable[Pod]) -> None:
        """All such pods."""
        self._handle.nominator.replace(objects, self._handle.pending)

    def observe(self, event: str | None, obj: Pod) -> None:
        """One such pod."""
        with self._handle.quarantine.contained(subject_of(obj)):
            self._handle.nominator.observe(event, obj)

    def synced(self) -> None:
        """No decision waits for these."""


@dataclass(frozen=True, slots=True)
class EventHandlers:
    """One handler a kind."""

    pending_pods: PendingPodHandler
    bound_pods: BoundPodHandler
    nominated_pods: NominatedPodHandler
    nodes: ObjectHandler[Node]
    topologies: ObjectHandler[NodeResourceTopology]
    namespaces: ListerHandler[Namespace]
    budgets: ListerHandler[DisruptionBudget]


def _wants_node(pod: Pod) -> bool:
    """Pods with a node, leaving, gated, finished or run by a kubelet on its own are never tried."""
    return not (pod.node or pod.deleting or pod.gated or pod.mirror or pod.finished)
