"""
Nominations of pods to nodes that are being freed. It makes no decisions, evicts no pods, and reserves amounts in the cache.

A nomination *waits* while awaited pods are on the node. Then it is *due*, and again with every change of the node: the pod is tried there
first. A change of the Node object also makes it due. It ends when the pod is bound or gone, a pod of higher priority displaces it, no
eviction helps on the node any more, or the node is still insufficient after every awaited pod has left.

Of pods of other schedulers, and of own pods after a restart, only ``status.nominatedNodeName`` is known: their requests are reserved on
that node. This is a *nomination by status*.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from typing import TypeVar

from koord_numa.core.objects.request import Pod
from koord_numa.core.preempt.dry_run import ClaimId, Nominee
from koord_numa.core.preempt.victims import PreemptionCandidate
from koord_numa.core.scheduling.filters import ClusterEvent
from koord_numa.core.state.ledger import holding_of
from koord_numa.core.value_objects import MutableObject, replace, value_field
from koord_numa.engine.cache.cache import DELETED, Cache
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.claims.lister import ClaimKey, ClaimLister
from koord_numa.engine.queue.pending_pod import RequestClass
from koord_numa.ports import Clock

_Key = TypeVar("_Key", str, ClaimKey)


class Nomination(MutableObject, eq=False):
    """
    Nomination of a pod to a node.

    ``cleared`` is the time at which the last awaited pod had left (monotonic seconds). ``shown`` is the version of the topology at that
    time. ``confirmed`` is the revision of the node at which the victims were confirmed. ``rebuilt`` is true if the pod was tried with a
    kubelet state that was rebuilt from published data. ``together`` are the UIDs of all pods of a group that were nominated at once.
    """

    pod: Pod
    request_class: RequestClass
    candidate: PreemptionCandidate
    cleared: float | None = None
    shown: str | None = None
    confirmed: int | None = None
    rebuilt: bool = False
    together: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The node that is being freed."""
        return self.candidate.node


class Nominator(MutableObject):
    """All nominations by the UID of their pod."""

    cache: Cache
    clock: Clock
    claims: ClaimLister
    _by_uid: dict[str, Nomination] = value_field(default_factory=dict)
    _on: dict[str, dict[str, None]] = value_field(default_factory=dict)  # UIDs by node
    _due: dict[str, None] = value_field(default_factory=dict)
    _by_status: dict[str, str] = value_field(default_factory=dict)  # nominations by status: nodes by UID
    _own_by_status: dict[str, Pod] = value_field(default_factory=dict)  # own pods that are nominated by status
    _by_claim: dict[ClaimKey, dict[str, None]] = value_field(
        default_factory=dict
    )  # UIDs by the ResourceClaims that they wait for

    def __len__(self) -> int:
        return len(self._by_uid)

    def __iter__(self) -> Iterator[Nomination]:
        # A copy, because the loop body may end nominations.
        return iter(list(self._by_uid.values()))

    def of(self, uid: str) -> Nomination | None:
        """Return the nomination of a pod."""
        return self._by_uid.get(uid)

    def node_of(self, pod: Pod) -> str:
        """Return the node to try first: the node being freed, else the nominated node in the pod's status, else an empty string."""
        known = self._by_uid.get(pod.key.uid)
        return pod.nominated if known is None else known.node

    def observe(self, event: str | None, pod: Pod) -> None:
        """Process an unbound pod whose status may have a nominated node, like the nominator of kube-scheduler."""
        uid, node = pod.key.uid, pod.nominated
        # An own nomination has more data than the status.
        if uid in self._by_uid:
            return
        if event == DELETED or pod.node or pod.deleting or pod.finished:
            # Deleted, bound or finished: nothing is reserved any more.
            node = ""
        if (old := self._by_status.pop(uid, "")) and old != node:
            self.cache.withdraw(old, uid)
        if node:
            self._by_status[uid] = node
            self.cache.nominate(node, Nominee(pod, holding_of(pod)))

    def observe_own(self, pod: Pod) -> None:
        """
        Process an own pod whose status has a nominated node from before a restart. Its request is reserved there.

        The nomination is due at once: other pods of the class may precede this pod in the queue and be unschedulable.
        """
        self.observe(None, pod)
        uid = pod.key.uid
        if node := self._by_status.get(uid):
            self._own_by_status[uid] = pod
            self._on.setdefault(node, {})[uid] = None
            self._due[uid] = None

    def replace(self, pods: Iterable[Pod], ours: Container[str]) -> None:
        """Replace the nominations by status by those of this complete list, except for own pods (``ours``, by UID)."""
        found = {pod.key.uid: pod for pod in pods}
        # Own pods are in both lists; only nominations of other schedulers' pods end with their absence.
        for uid in [uid for uid in self._by_status if uid not in found and uid not in ours]:
            self.end(uid)
        for pod in found.values():
            self.observe(None, pod)

    def begin(self, *nominations: Nomination) -> None:
        """Start nominations and reserve the amounts of their placements on the nodes."""
        for nomination in nominations:
            uid = nomination.pod.key.uid
            # A pod has one nomination: a new plan replaces the old plan.
            self.end(uid)
            self._by_uid[uid] = nomination
            self._on.setdefault(nomination.node, {})[uid] = None
            for namespace, name, _ in nomination.candidate.claims:
                self._by_claim.setdefault((namespace, name), {})[uid] = None
        # All of a group are known before the first change of a node.
        for nomination in nominations:
            pod, placement = nomination.pod, nomination.candidate.placement
            counted = pod
            if placement.counted is not None:
                counted = replace(pod, request=replace(pod.request, counted=placement.counted))
            self.claims.keep(pod.key.uid, placement.allocations)
            self.cache.nominate(
                nomination.node, Nominee(pod, holding_of(counted, placement.assignment, placement.devices))
            )

    def end(self, uid: str) -> Nomination | None:
        """End the nomination of a pod and release the reservation. Return the nomination, unless it was by status only."""
        nomination = self._by_uid.pop(uid, None)
        self._due.pop(uid, None)
        if self._own_by_status.pop(uid, None) is not None:
            self._leave_node(self._by_status[uid], uid)
        if node := self._by_status.pop(uid, ""):
            self.cache.withdraw(node, uid)
        if nomination is not None:
            self._leave_node(nomination.node, uid)
            for namespace, name, _ in nomination.candidate.claims:
                _discard(self._by_claim, (namespace, name), uid)
            self.claims.end_keeping(uid)
            self.cache.withdraw(nomination.node, uid)
        return nomination

    def end_together(self, uid: str) -> list[Nomination]:
        """End the nomination of a pod and, for a member of a group, those of the other members. Return the nominations."""
        nomination = self._by_uid.get(uid)
        uids = nomination.together if nomination is not None and nomination.together else (uid,)
        return [ended for other in uids if (ended := self.end(other)) is not None]

    def claim_changed(self, key: ClaimKey | None) -> None:
        """Retry the nominations that wait for the claim's devices; with ``None``, for the devices of any claim."""
        found = (
            self._by_claim.get(key, {}) if key is not None else [uid for by in self._by_claim.values() for uid in by]
        )
        for uid in found:
            info = self.cache.nodes.get(self._by_uid[uid].node)
            if info is not None:
                self.node_changed(info)

    def node_changed(self, record: NodeInfo, event: ClusterEvent | None = None) -> None:
        """Update the nominations to a changed node: the last awaited pod may have left, or the Node may reject the pod."""
        for uid in self._on.get(record.name, ()):
            nomination = self._by_uid.get(uid)
            # A nomination from before a restart: its victims are not known, so that any change may have freed the node.
            if nomination is None:
                self._due[uid] = None
                continue
            if not nomination.candidate.awaited.isdisjoint(record.pods):
                # Pods may never leave a node that is cordoned, lost or deleted: another node may be freed instead.
                if event is not ClusterEvent.NODE_CHANGED:
                    continue
            # The current topology still shows the victims; the next topology shows whether the resources are free.
            elif nomination.cleared is None:
                nomination.cleared = self.clock()
                nomination.shown = record.version
            if event is ClusterEvent.NODE_CHANGED or self._all_cleared(nomination):
                self._due[uid] = None

    def try_again(self, uid: str) -> None:
        """Make a nominated pod due again after a failed attempt or bind, because its class may be unschedulable."""
        if uid in self._by_uid or uid in self._own_by_status:
            self._due[uid] = None

    def next_due(self, backs_off: Callable[[str], bool]) -> Pod | None:
        """Return the next pod whose node has been freed, once per change. A pod that backs off stays due."""
        ready = [uid for uid in self._due if not backs_off(uid)]
        if not ready:
            return None
        pod = min(
            (self._by_uid[uid].pod if uid in self._by_uid else self._own_by_status[uid] for uid in ready), key=_turn
        )
        del self._due[pod.key.uid]
        return pod

    def is_due(self, uid: str) -> bool:
        """Return whether the pod's node is free and the pod will be tried there next."""
        return uid in self._due

    def may_still_fit(self, nomination: Nomination, patience: float) -> bool:
        """
        Return whether waiting may help.

        It may while an awaited pod is on the node, a claim is about to lose its devices, or the topology has not been published since the
        pods left. Claims and topologies that do not change are awaited for ``patience`` seconds.
        """
        if nomination.cleared is None:
            return True
        if any(map(self._is_being_freed, nomination.candidate.claims)):
            return self.clock() - nomination.cleared < patience
        record = self.cache.nodes.get(nomination.node)
        # Where the scheduler allocates CPUs no topology is awaited: the ledger is current.
        if record is None or record.published is None or record.inventory is not None:
            return False
        return not self.has_followed(nomination, record) and self.clock() - nomination.cleared < patience

    def has_followed(self, nomination: Nomination, record: NodeInfo) -> bool:
        """Return whether the topology was published after the last awaited pod left, possibly before that was observed."""
        if record.version != nomination.shown:
            return True
        # A newer topology will follow if pods are not shown yet.
        reading = None if record.unpublished else record.history.read()
        shown = None if reading is None else reading.shown
        return shown is not None and nomination.candidate.awaited.isdisjoint(shown)

    def _is_being_freed(self, claim: ClaimId) -> bool:
        """Return whether the claim has devices and no pod on a node uses it. A pod that arrived later keeps the devices."""
        namespace, name, uid = claim
        found = self.claims.claim((namespace, name))
        if found is None or found.uid != uid or found.allocation is None:
            return False
        return not any(user in self.cache.node_of for user in found.reserved_for)

    def _all_cleared(self, nomination: Nomination) -> bool:
        """Return whether the nodes of all members of the group are free. A member alone is not tried."""
        others = (self._by_uid.get(uid) for uid in nomination.together)
        return all(it is None or it.cleared is not None for it in others)

    def _leave_node(self, node: str, uid: str) -> None:
        _discard(self._on, node, uid)


def _discard(index: dict[_Key, dict[str, None]], key: _Key, uid: str) -> None:
    uids = index[key]
    del uids[uid]
    if not uids:
        del index[key]


def _turn(pod: Pod) -> tuple[int, float, str, str]:
    """Return the sort key among freed nodes: higher priority first, then older, then by name."""
    return (-pod.request.priority, pod.created, str(pod.key), pod.key.uid)
