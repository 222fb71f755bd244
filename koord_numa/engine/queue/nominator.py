"""
Which pod waits for which node to be freed, and whose wait is over. It decides nothing, evicts no pod, and keeps room in the state.

Theory: a nomination begins when victims are chosen. It *waits* while any pod is there that must be gone; then it is *due*, once, and
again with every change of its node, and the pod is tried there before anything else; with a change of the Node it is due in any case.
It ends when the pod is bound or gone, when a pod of higher priority displaces it, when no eviction helps on the node any more, or when the
node stays too small although every awaited pod has left.

Of pods that wait for schedulers beside us, and of ours until they are looked at after a restart, only ``status.nominatedNodeName`` is
known: room is kept there for what they ask, wherever on the node. This is a *claim*.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from koord_numa.core.objects.request import Pod
from koord_numa.core.preempt.dry_run import ClaimId, Nominee
from koord_numa.core.preempt.victims import PreemptionCandidate
from koord_numa.core.state.ledger import holding_of
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import DELETED, Cache
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.claims.lister import ClaimKey, ClaimLister
from koord_numa.engine.queue.cluster_events import ClusterEvent
from koord_numa.engine.queue.request_class import RequestClass
from koord_numa.ports import Clock

_Key = TypeVar("_Key", str, ClaimKey)


@dataclass(slots=True, eq=False)
class Nomination:
    """
    One pod's claim to a node. ``cleared`` is when every awaited pod had left (monotonic seconds), ``shown`` the version of the
    topology that was published then. ``confirmed`` is the revision of the node at which its victims were found to be right. ``rebuilt``:
    the pod was tried against a state of the kubelet that was rebuilt from what is published.
    """

    pod: Pod
    request_class: RequestClass
    candidate: PreemptionCandidate
    cleared: float | None = None
    shown: str | None = None
    confirmed: int | None = None
    rebuilt: bool = False

    @property
    def node(self) -> str:
        """The node that is being freed."""
        return self.candidate.node


@dataclass(slots=True)
class Nominator:
    """All nominations by the uid of their pod."""

    cache: Cache
    clock: Clock
    claims: ClaimLister
    _by_uid: dict[str, Nomination] = field(default_factory=dict)
    _on: dict[str, dict[str, None]] = field(default_factory=dict)  # uids by node
    _due: dict[str, None] = field(default_factory=dict)
    _claims: dict[str, str] = field(default_factory=dict)  # nodes by uid
    _own_claims: dict[str, Pod] = field(default_factory=dict)  # those of pods that we place
    _by_claim: dict[ClaimKey, dict[str, None]] = field(default_factory=dict)  # uids by the ResourceClaims they wait for

    def __len__(self) -> int:
        return len(self._by_uid)

    def __iter__(self) -> Iterator[Nomination]:
        # A copy: the loop's body may end nominations.
        return iter(list(self._by_uid.values()))

    def of(self, uid: str) -> Nomination | None:
        """The nomination of a pod."""
        return self._by_uid.get(uid)

    def node_of(self, pod: Pod) -> str:
        """The node to try first: the one being freed, else the one that the pod's own status names, else none."""
        known = self._by_uid.get(pod.key.uid)
        return pod.nominated if known is None else known.node

    def observe(self, event: str | None, pod: Pod) -> None:
        """
        A pod without a node whose status may name the one that is being freed for it, as kube-scheduler's nominator takes it from there.
        """
        uid, node = pod.key.uid, pod.nominated
        # What we know of our own nomination is more than its status says.
        if uid in self._by_uid:
            return
        if event == DELETED or pod.node or pod.deleting or pod.finished:
            # Deleted, bound or finished: nothing is to be kept any more.
            node = ""
        if (old := self._claims.pop(uid, "")) and old != node:
            self.cache.withdraw(old, uid)
        if node:
            self._claims[uid] = node
            self.cache.nominate(node, Nominee(pod, holding_of(pod)))

    def observe_own(self, pod: Pod) -> None:
        """
        A pod of ours whose status names a node from before a restart: room is kept for it there, so only it can take that room.

        Others of its class may be queued before it and fit nowhere; so it is due by itself, as if its node had just been freed.
        """
        self.observe(None, pod)
        uid = pod.key.uid
        if node := self._claims.get(uid):
            self._own_claims[uid] = pod
            self._on.setdefault(node, {})[uid] = None
            self._due[uid] = None

    def replace(self, pods: Iterable[Pod], ours: Container[str]) -> None:
        """These pods have claims and no others, apart from ``ours`` by uid."""
        found = {pod.key.uid: pod for pod in pods}
        # Pods of ours are in both lists; only claims of others end with their absence.
        for uid in [uid for uid in self._claims if uid not in found and uid not in ours]:
            self.end(uid)
        for pod in found.values():
            self.observe(None, pod)

    def begin(self, nomination: Nomination) -> None:
        """The node is being freed from now on, and room is kept there for what the pod is to get."""
        pod, placement, counted = nomination.pod, nomination.candidate.placement, nomination.pod
        if placement.counted is not None:
            counted = replace(pod, request=replace(pod.request, counted=placement.counted))
        # A pod has one nomination: a new plan replaces the old one.
        self.end(pod.key.uid)
        self._by_uid[pod.key.uid] = nomination
        self._on.setdefault(nomination.node, {})[pod.key.uid] = None
        for namespace, name, _ in nomination.candidate.claims:
            self._by_claim.setdefault((namespace, name), {})[pod.key.uid] = None
        self.claims.keep(pod.key.uid, placement.allocations)
        self.cache.nominate(nomination.node, Nominee(pod, holding_of(counted, placement.assignment)))

    def end(self, uid: str) -> Nomination | None:
        """The pod waits for no node any more; what was kept for it is free. Returns what ended, if anything did."""
        nomination = self._by_uid.pop(uid, None)
        self._due.pop(uid, None)
        if self._own_claims.pop(uid, None) is not None:
            self._leave_node(self._claims[uid], uid)
        if claimed := self._claims.pop(uid, ""):
            self.cache.withdraw(claimed, uid)
        if nomination is not None:
            self._leave_node(nomination.node, uid)
            for namespace, name, _ in nomination.candidate.claims:
                _discard(self._by_claim, (namespace, name), uid)
            self.claims.end_keeping(uid)
            self.cache.withdraw(nomination.node, uid)
        return nomination

    def claim_changed(self, key: ClaimKey | None) -> None:
        """The claim may have lost its devices: nominations that wait for them are tried again. None: every claim may have."""
        found = (
            self._by_claim.get(key, {}) if key is not None else [uid for by in self._by_claim.values() for uid in by]
        )
        for uid in found:
            info = self.cache.nodes.get(self._by_uid[uid].node)
            if info is not None:
                self.node_changed(info)

    def node_changed(self, record: NodeInfo, event: ClusterEvent | None = None) -> None:
        """Something about this node changed: perhaps the last one awaited has left, or the Node does not take the pod any more."""
        for uid in self._on.get(record.name, ()):
            nomination = self._by_uid.get(uid)
            # A claim from before a restart: no victims are known, so that any change may have freed the node.
            if nomination is None:
                self._due[uid] = None
                continue
            if not nomination.candidate.awaited.isdisjoint(record.pods):
                # Pods may take for ever to leave a node that is cordoned, lost or gone: another one may be freed instead.
                if event is not ClusterEvent.NODE_CHANGED:
                    continue
            # The topology of this moment still shows the victims; the next one tells whether the room is there.
            elif nomination.cleared is None:
                nomination.cleared = self.clock()
                nomination.shown = record.version
            self._due[uid] = None

    def try_again(self, uid: str) -> None:
        """The bind of the pod failed, or trying it did: a nominated pod is due again, as others of its class may fit nowhere."""
        if uid in self._by_uid or uid in self._own_claims:
            self._due[uid] = None

    def next_due(self, backs_off: Callable[[str], bool]) -> Pod | None:
        """The pod whose node has been freed and whose turn it is, once per change. A pod that backs off stays due."""
        ready = [uid for uid in self._due if not backs_off(uid)]
        if not ready:
            return None
        pod = min((self._by_uid[uid].pod if uid in self._by_uid else self._own_claims[uid] for uid in ready), key=_turn)
        del self._due[pod.key.uid]
        return pod

    def is_due(self, uid: str) -> bool:
        """Is the pod's node free, and the pod about to be tried there?"""
        return uid in self._due

    def may_still_fit(self, nomination: Nomination, patience: float) -> bool:
        """
        Is there something to wait for: an awaited pod is there, or since they left a claim of theirs is about to lose its devices, or the
        topology has not been published?

        Claims and topologies that never change are waited for ``patience`` seconds.
        """
        if nomination.cleared is None:
            return True
        if any(map(self._is_being_freed, nomination.candidate.claims)):
            return self.clock() - nomination.cleared < patience
        record = self.cache.nodes.get(nomination.node)
        # Where the scheduler owns the CPUs no topology is waited for: the ledger tells at once.
        if record is None or record.published is None or record.inventory is not None:
            return False
        return not self.has_followed(nomination, record) and self.clock() - nomination.cleared < patience

    def has_followed(self, nomination: Nomination, record: NodeInfo) -> bool:
        """Has the node's topology been published since the last awaited pod has left, which may have been before that was heard?"""
        if record.version != nomination.shown:
            return True
        # Of pods that it does not show yet a newer one will come.
        reading = None if record.unpublished else record.history.read()
        shown = None if reading is None else reading.shown
        return shown is not None and nomination.candidate.awaited.isdisjoint(shown)

    def _is_being_freed(self, claim: ClaimId) -> bool:
        """Whether the claim has devices and no pod on a node uses it. A pod that came later keeps the devices."""
        namespace, name, uid = claim
        found = self.claims.claim((namespace, name))
        if found is None or found.uid != uid or found.allocation is None:
            return False
        return not any(user in self.cache.node_of for user in found.reserved_for)

    def _leave_node(self, node: str, uid: str) -> None:
        _discard(self._on, node, uid)


def _discard(index: dict[_Key, dict[str, None]], key: _Key, uid: str) -> None:
    uids = index[key]
    del uids[uid]
    if not uids:
        del index[key]


def _turn(pod: Pod) -> tuple[int, float, str, str]:
    """Of several whose nodes have been freed: higher priority first, then older, then by name."""
    return (-pod.request.priority, pod.created, str(pod.key), pod.key.uid)
