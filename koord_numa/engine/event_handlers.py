"""Event handlers for every watched kind, as in `eventhandlers.go` of kube-scheduler."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from koord_numa.core.objects.constraints import DisruptionBudget, Namespace, PodTerm
from koord_numa.core.objects.devices import DeviceInventory
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Reason, Unschedulable
from koord_numa.core.state.inventory import with_kubelet_reserved_cpus
from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.cache.cache import DELETED, Cache, ListedChanges
from koord_numa.engine.containment import Quarantine, Subject
from koord_numa.engine.gangs.group_queue import GroupQueue
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.engine.preemption import Executor
from koord_numa.engine.queue import PendingPod, reasons_of
from koord_numa.ports import EventHandler
from koord_numa.settings import KubeletReservedCpus

T = TypeVar("T")
Observe = Callable[[str | None, T], None]


class KindOf(ValueObject, Generic[T]):
    """Properties of a kind: its quarantine subject, and the known objects by the UID of the subject."""

    subject: Callable[[T], Subject]
    known: Callable[[], Mapping[str, T]]


class ObjectHandler(Generic[T]):
    """
    ``EventHandler`` that processes objects with ``apply``.

    ``on_broken`` is called with the error of an object that raised, and with an empty text when it works again or is gone.
    """

    def __init__(
        self,
        kind: KindOf[T],
        apply: Observe[T],
        quarantine: Quarantine,
        on_synced: Callable[[], None] = lambda: None,
        on_broken: Callable[[T, str], None] = lambda _object, _why: None,
    ) -> None:
        self._kind = kind
        self._apply = apply
        self._quarantine = quarantine
        self.synced = on_synced
        self._on_broken = on_broken
        self._broken: dict[str, T] = {}  # objects that raised, by the UID of their subject, until they work or are gone

    # Deleted objects first, so that a new object of the same name is not processed as a change.
    def replace(self, objects: Iterable[T]) -> None:
        """Replace the objects by this complete list."""
        found = list(objects)
        names = {self._kind.subject(each).uid for each in found}
        for uid, former in list({**self._broken, **self._kind.known()}.items()):
            if uid not in names:
                self.observe(DELETED, former)
        for each in found:
            self.observe(None, each)

    def observe(self, event: str | None, obj: T) -> None:
        """Process an added, changed or deleted object."""
        try:
            self._apply(event, obj)
        # Quarantined, and the node is closed: it is not known what the object holds.
        except Exception as error:  # noqa: BLE001 - contained: affects this object only
            subject = self._kind.subject(obj)
            self._quarantine.put(subject, error)
            self._broken[subject.uid] = obj
            self._on_broken(obj, f"{type(error).__name__}: {error}")
            return
        # An empty quarantine is the usual case and has no cost.
        if self._quarantine or self._broken:
            subject = self._kind.subject(obj)
            self._quarantine.release(subject)
            if self._broken.pop(subject.uid, None) is not None:
                self._on_broken(obj, "")


def _ignore(*_: object) -> None:
    pass


class Callbacks(ValueObject, Generic[T]):
    """An ``EventHandler`` of functions, such as the methods of a lister."""

    replace: Callable[[Iterable[T]], None]
    observe: Observe[T]
    synced: Callable[[], None] = _ignore


class ContainedHandler(Generic[T]):
    """``EventHandler`` that quarantines and omits objects for which the wrapped handler raises an exception."""

    def __init__(self, kind: str, inner: EventHandler[T], quarantine: Quarantine) -> None:
        self._kind = kind
        self._inner = inner
        self.synced = inner.synced
        self._quarantine = quarantine

    def replace(self, objects: Iterable[T]) -> None:
        """Replace the objects by this complete list."""
        found = list(objects)
        try:
            self._inner.replace(found)
        except Exception:  # noqa: BLE001 - one object raises: processed one by one, it affects that object only
            # Restarted, so that the state from before the exception is not kept.
            self._inner.replace([])
            for each in found:
                self.observe(None, each)

    def observe(self, event: str | None, obj: T) -> None:
        """Process an added, changed or deleted object."""
        with self._quarantine.contained(_subject(self._kind, obj)):
            self._inner.observe(event, obj)


def _subject(kind: str, obj: object) -> Subject:
    """Return the quarantine subject of an object of any kind, identified by its name if it has no UID."""
    key = getattr(obj, "key", None)
    name = str(key or getattr(obj, "name", ""))
    return Subject(kind, name, str(getattr(key, "uid", "") or name), str(getattr(obj, "resource_version", "")))


def node_subject(node: Node) -> Subject:
    """Return the quarantine subject of a node, identified by name, because several objects describe a node."""
    return Subject("node", node.name, node.name)


def topology_subject(topology: NodeResourceTopology) -> Subject:
    """Return the quarantine subject of a NodeResourceTopology, identified by the node's name."""
    return Subject("topology", topology.node, topology.node, topology.resource_version)


class BoundPodObjects(ObjectHandler[Pod]):
    """
    Handler of pods with a node. A pod that cannot be counted closes its node, because it is not known what the pod holds.

    A list may be older than a bind: assumed pods are kept, and known objects are not processed again.
    """

    def __init__(
        self, cache: Cache, quarantine: Quarantine, apply: Observe[Pod], on_synced: Callable[[], None] = lambda: None
    ) -> None:
        kind: KindOf[Pod] = KindOf(subject_of, dict)
        super().__init__(
            kind, apply, quarantine, on_synced, lambda pod, why: cache.set_broken(pod.node, pod.key.uid, why)
        )
        self._cache = cache

    def replace(self, objects: Iterable[Pod]) -> None:
        """Replace the pods with a node by this complete list, except for assumed pods."""
        cache, found = self._cache, {pod.key.uid: pod for pod in objects}
        # Assumed pods are newer than the list.
        for uid in [uid for uid in (*cache.node_of, *self._broken) if uid not in found and uid not in cache.assumed]:
            former = cache.pod(uid) or self._broken.get(uid)
            if former is not None:
                self.observe(DELETED, former)
        for uid, pod in found.items():
            # Identity with the known object: a relist of thousands of pods costs a comparison per pod.
            if uid in cache.assumed or cache.pod(uid) is not pod:
                self.observe(None, pod)
        cache.judge_found_pods()


def node_handler(cache: Cache, quarantine: Quarantine, on_synced: Callable[[], None]) -> ObjectHandler[Node]:
    """Return the handler of Nodes."""
    kind = KindOf(node_subject, lambda: {it.name: it.node for it in cache.nodes.values() if it.node is not None})
    return ObjectHandler(
        kind, cache.observe_node, quarantine, on_synced, lambda node, why: cache.set_broken(node.name, "node", why)
    )


def topology_handler(
    cache: Cache,
    quarantine: Quarantine,
    on_synced: Callable[[], None],
    reserved: KubeletReservedCpus = KubeletReservedCpus.KEPT,
) -> ObjectHandler[NodeResourceTopology]:
    """Return the handler of NodeResourceTopologies, which may arrive before or after their nodes, or without them."""

    def observe(event: str | None, topology: NodeResourceTopology) -> None:
        is_released = reserved is KubeletReservedCpus.ALLOCATABLE and bool(topology.kubelet_reserved)
        cache.observe_topology(event, with_kubelet_reserved_cpus(topology) if is_released else topology)

    kind = KindOf(
        topology_subject, lambda: {it.name: it.published for it in cache.nodes.values() if it.published is not None}
    )
    return ObjectHandler(
        kind,
        observe,
        quarantine,
        on_synced,
        lambda topology, why: cache.set_broken(topology.node, "topology", why),
    )


def device_handler(
    cache: Cache, quarantine: Quarantine, on_synced: Callable[[], None]
) -> ObjectHandler[DeviceInventory]:
    """Return the handler of Device objects, which may arrive before or after their nodes, or without them."""
    known: Callable[[], Mapping[str, DeviceInventory]] = lambda: {  # noqa: E731  (declares its type)
        it.name: it.device_inventory for it in cache.nodes.values() if it.device_inventory is not None
    }
    kind = KindOf(lambda devices: Subject("devices", devices.node, devices.node, devices.resource_version), known)
    return ObjectHandler(
        kind,
        cache.observe_devices,
        quarantine,
        on_synced,
        lambda devices, why: cache.set_broken(devices.node, "devices", why),
    )


UNTOLD_SECONDS: Final = 5.0
"""Seconds in the queue after which a pod reports that there is no decision yet. Leaves 5 s of 10 s for writing the condition."""


MOST_UNDECIDED: Final = 20
"""Maximum number of pods per second with a report that there is no decision yet, so that conditions do not slow down a long queue."""


class PendingPodHandler:
    """Handler of pods without a node. ``kick`` is called when there is a pod to try."""

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
        self.synced = on_synced
        self._leads_from = 0.0  # pods are not updated earlier, because a former leader may have done so

    def replace(self, objects: Iterable[Pod]) -> None:
        """Replace the pods without a node by this complete list. New pods are queued by age, then by name."""
        found = {pod.key.uid: pod for pod in objects}
        for pending in self._handle.pending:
            if pending.uid not in found:
                self._handle.forget(pending.uid)
        # Oldest first, so that a restart queues pods in the order of their creation.
        for pod in sorted(found.values(), key=lambda pod: (pod.created, str(pod.key))):
            self.observe(None, pod)

    def observe(self, event: str | None, obj: Pod) -> None:
        """
        Process a pod that has no node yet.

        ``DELETED`` only means that it does not wait any more: the server's field selector also reports a bound pod in this way. What a pod
        holds is determined by the handler of bound pods.
        """
        # A pod that needs no node any more is removed like a deleted pod: terminating, gated, finished and mirror pods need none.
        if event == DELETED or obj.node or obj.deleting or obj.gated or obj.mirror or obj.finished:
            self._handle.forget(obj.key.uid)
            return
        with self._handle.quarantine.contained(subject_of(obj)):
            self._observe(obj)

    def reclassify_by_news(self) -> None:
        """Reclassify the waiting pods that changed terms of placed pods select."""
        terms = self._handle.cache.index.take_news()
        if terms != ():
            self.reclassify(terms)

    def reclassify(self, terms: tuple[PodTerm, ...] | None) -> None:
        """Reclassify the waiting pods that one of these terms selects; all pods with ``None``."""
        pending = self._handle.pending
        for each in pending if terms is None else pending.selected_by(terms):
            if not each.binding:  # its own term is the most frequent change; a failed bind determines the class again
                self.observe(None, each.pod)

    def _observe(self, pod: Pod) -> None:
        handle, uid = self._handle, pod.key.uid
        known = handle.pending.get(uid)
        # Two watches run concurrently: this watch may still show the pod before its bind.
        if uid in handle.cache.node_of and not (known is not None and known.binding):
            return  # bound already; this source shows an older version
        request_class = handle.classes.of(pod)
        if request_class is None:
            return
        # The object has changed and may fit now, so that its back-off ends.
        has_changed = known is not None and known.pod.resource_version != pod.resource_version
        pending = handle.pending.observe(pod, request_class, handle.dependencies.clock())
        if known is None and pod.nominated and handle.settings.preemption.enabled:
            handle.nominator.observe_own(pod)
        if pod.problem:
            # Not queued: a pod that cannot be parsed is not tried until it changes.
            handle.queue.remove(pending)
            handle.conditions.waits(pending, f"the pod is malformed: {pod.problem}")
        elif not pending.binding:
            self._enqueue(pending, is_new=known is None or has_changed)
            self._kick()

    def _enqueue(self, pending: PendingPod, *, is_new: bool) -> None:
        handle = self._handle
        if is_new and pending.backoff_until is not None and not pending.failed_binds:
            handle.queue.remove(pending)  # it was quarantined for its former version
        if pending.pod.request.gang is not None:
            self._groups.observe(pending)
            return
        was_queued = pending.queued_in is not None
        verdict = handle.queue.add(pending)
        if verdict is not None and not was_queued:
            self._tell(pending, verdict)

    def tell_untold(self) -> None:
        """
        Report to every pod that has no message why it waits, for whatever reason it waits. Called once a second.

        A pod has an event and a condition within 10 s, even if there is no decision.
        """
        handle = self._handle
        now = handle.dependencies.clock()
        if not handle.dependencies.lease.fresh():
            self._leads_from = now
            return
        self._groups.tick()
        active, undecided = handle.queue.numbers().active, 0
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
                handle.conditions.waits(pending, self._without_decision(pending, active))
                pending.provisional = True

    def _tell(self, pending: PendingPod, verdict: Unschedulable) -> None:
        """Process a pod whose class is parked: inform preemption, and report to the pod why it waits."""
        self._preemption.consider(pending.pod, pending.request_class, verdict)
        self._handle.conditions.waits(pending, self._handle.messages.current(pending.request_class, verdict))

    def _without_decision(self, pending: PendingPod, active: int) -> str:
        if pending.failed_binds:
            return f"the bind has failed {pending.failed_binds} times; the pod is tried again after a pause"
        if self._handle.queue.is_unexplained(pending.request_class):
            return "no node fits; the reasons of the nodes are being determined"
        return f"the pod has not been tried yet; {active} pods are in the active queue"


class BoundPodHandler:
    """Handler of pods with a node, of any scheduler: counted when observed, and removed when gone."""

    def __init__(
        self, handle: Handle, pods: ObjectHandler[Pod], after: Callable[[], None], preemption: Executor
    ) -> None:
        self._handle = handle
        self._pods = pods
        self.synced = pods.synced
        self._after = after
        self._preemption = preemption

    def replace(self, objects: Iterable[Pod]) -> None:
        """Replace the pods with a node by this complete list. Pods with a just confirmed bind are kept: the list may be older."""
        found = list(objects)
        quarantine = self._handle.quarantine
        self._note_confirmed(found)
        changes = ListedChanges.of(self._handle.cache, found, lambda pod: quarantine.contained(subject_of(pod)))
        self._pods.replace(found)
        changes.lose_order(self._handle.cache)
        # A pod with a node does not wait any more, whichever source reports it first.
        for pod in found:
            if pod.node:
                self._handle.forget(pod.key.uid)
        self._after()

    def observe(self, event: str | None, obj: Pod) -> None:
        """Process a pod with a node."""
        self._note_confirmed((obj,))
        self._pods.observe(event, obj)
        self._after()
        if event == DELETED or obj.node:
            self._handle.forget(obj.key.uid)

    def _note_confirmed(self, pods: Iterable[Pod]) -> None:
        """Inform preemption about confirmed binds: these pods may be evicted from now on."""
        assumed = self._handle.cache.assumed
        for pod in pods if assumed else ():
            if pod.key.uid in assumed:
                self._preemption.bind_confirmed(pod.node)


class NominatedPodHandler:
    """Handler of unbound pods of other schedulers, which may have a nominated node."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def replace(self, objects: Iterable[Pod]) -> None:
        """Replace these pods by this complete list."""
        self._handle.nominator.replace(objects, self._handle.pending)

    def observe(self, event: str | None, obj: Pod) -> None:
        """Process one of these pods."""
        with self._handle.quarantine.contained(subject_of(obj)):
            self._handle.nominator.observe(event, obj)

    def synced(self) -> None:
        """Ignore the end of the first list. Decisions do not need it to be complete."""


class EventHandlers(ValueObject):
    """Event handlers by kind."""

    pending_pods: PendingPodHandler
    bound_pods: BoundPodHandler
    nominated_pods: NominatedPodHandler
    nodes: ObjectHandler[Node]
    topologies: ObjectHandler[NodeResourceTopology]
    devices: ObjectHandler[DeviceInventory]
    namespaces: Callbacks[Namespace]
    budgets: Callbacks[DisruptionBudget]
