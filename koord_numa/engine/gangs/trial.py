"""
Trial of a group on the cache: members are assumed one by one, and all are released in the same turn of the event loop.

A member counts as a nominee of its node (``NodeInfo.nominees``), so that the node's snapshot has it in the ledger and in the states of its
kubelet. It counts as a placed pod for affinity, topology spread and volumes. No event is reported, and no node history is changed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from koord_numa.core.objects.claims import Allocation, ResourceClaim
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.preempt.dry_run import Nominee
from koord_numa.core.resources import CPU, MEMORY
from koord_numa.core.scheduling.gangs import Domain, Member, Pause
from koord_numa.core.scheduling.request import depends_on_other_pods
from koord_numa.core.state.ledger import holding_of
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.claims.lister import AssumedClaim
from koord_numa.engine.handle import Handle
from koord_numa.engine.queue import PendingPod, RequestClass

TURN_STEPS: Final = 2_000
"""Steps after which a decision about a group yields to other tasks: about 0.2 s."""


class Suspended(ValueObject):
    """Suspended trial: members with placements, in the order in which they were assumed, and the node revisions without them."""

    members: list[tuple[str, Placement]]
    revisions: dict[str, int]


class ClusterTrial(MutableObject):
    """
    Implementation of ``core.scheduling.gangs.Trial`` on the cache.

    ``pods`` are the members by UID, ``scheduled`` the nodes of scheduled members. The context manager ``begun`` releases all members.
    """

    handle: Handle
    pods: Mapping[str, Pod]
    scheduled: frozenset[str] = frozenset()
    _assumed: dict[str, tuple[NodeInfo, Pod, Placement, Nominee | None]] = value_field(default_factory=dict)
    _domains: dict[tuple[str, ...], list[Domain]] = value_field(default_factory=dict)
    _classes: dict[str, RequestClass] = value_field(default_factory=dict)
    _changes_classes: bool = False  # whether an assumed member may change the classes of other members
    interruptible: bool = False  # whether ``choose`` returns ``PAUSE`` after a turn
    _nominated: dict[str, str] = value_field(default_factory=dict)  # by UID, the nodes to which members are nominated
    _reserved: list[tuple[NodeInfo, str, Nominee, tuple[Allocation, ...]]] = value_field(default_factory=list)
    _nodes: frozenset[str] | None = None  # nodes of the last choice
    _until: int = 0  # steps of the selector at which this turn ends
    _shared: dict[str, set[str]] = value_field(default_factory=dict)  # assumed members by UID of a shared claim

    @contextmanager
    def begun(self) -> Iterator["ClusterTrial"]:
        """Run a trial. All members are released at the end. Amounts reserved for members are free for all members."""
        for uid, pod in self.pods.items():
            demands = pod.request.constraints
            terms = (
                demands.affinity,
                demands.anti_affinity,
                demands.preferred_affinity,
                demands.preferred_anti_affinity,
            )
            self._changes_classes = self._changes_classes or any(terms)
            if (request_class := self.handle.classes.of(pod)) is not None:
                self._classes[uid] = request_class
        self._shared = {uid: set() for uid in self.shared_claims}
        self._changes_classes = self._changes_classes or bool(self._shared)
        self._lift_reservations()
        self._begin_turn()
        try:
            yield self
        finally:
            self._undo_all()

    def suspend(self) -> Suspended:
        """Release all members and restore the reservations, so that the trial does not affect other tasks."""
        members = [(uid, placement) for uid, (_, _, placement, _) in self._assumed.items()]
        self._undo_all()
        nodes = self.handle.cache.nodes
        return Suspended(members, {it.node: nodes[it.node].revision for _, it in members if it.node in nodes})

    def resume(self, suspended: Suspended) -> dict[str, Placement] | None:
        """
        Assume the members again. Return the new placements of members whose nodes have changed.

        Return ``None`` if a member fits on no node any more.
        """
        nodes, moved = self.handle.cache.nodes, dict[str, Placement]()
        changed = {
            name
            for name in {placement.node for _, placement in suspended.members}
            if name not in nodes or nodes[name].revision != suspended.revisions.get(name)
        }
        self._lift_reservations()
        for uid, placement in suspended.members:
            chosen = placement
            if placement.node in changed or self._looks_around(uid):
                elsewhere = self._at(uid, placement.node) or self._best(uid, self._nodes)
                if elsewhere is None:
                    return None
                chosen = moved[uid] = elsewhere
            self._put(uid, chosen)
        self._begin_turn()
        return moved

    def _looks_around(self, uid: str) -> bool:
        """Return whether the placement of a member may depend on pods of other nodes."""
        request_class = self._classes[uid]
        around = request_class.pickers or request_class.claims is not None
        return self._changes_classes or bool(around) or depends_on_other_pods(request_class.request)

    def _begin_turn(self) -> None:
        # Releasing and assuming a member again takes about as long as a step.
        self._until = self.handle.selector.steps + max(TURN_STEPS, 2 * len(self._assumed))

    def _undo_all(self) -> None:
        self._undo(list(reversed(self._assumed)))
        while self._reserved:
            info, uid, nominee, allocations = self._reserved.pop()
            info.nominees[uid] = nominee
            info.touch()
            self._count_devices(allocations, 1)
            self._changed(info)

    def _lift_reservations(self) -> None:
        for uid, pod in self.pods.items():
            info = self.handle.cache.nodes.get(node) if (node := self.handle.nominator.node_of(pod)) else None
            if info is not None and (nominee := info.nominees.pop(uid, None)) is not None:
                allocations = self.handle.selector.claims.kept_for(uid)
                self._reserved.append((info, uid, nominee, allocations))
                self._nominated[uid] = info.name
                info.touch()
                self._count_devices(allocations, -1)
                self._changed(info)

    @property
    def shared_claims(self) -> frozenset[str]:
        """UIDs of unallocated claims that several members use. The first assumed member determines their devices."""
        claims = self.handle.resource_claims
        users = Counter(
            claim.uid
            for pod in self.pods.values()
            if pod.resource_claims
            for claim in claims.claims_of(pod)
            if claim.allocation is None
        )
        return frozenset(uid for uid, count in users.items() if count > 1)

    def class_of(self, uid: str) -> RequestClass:
        """Return the request class of a member, given the members that are assumed now."""
        if self._changes_classes:
            found = self.handle.classes.of(self.pods[uid])
            if found is not None:
                return found
        return self._classes[uid]

    def choose(self, member: Member, nodes: frozenset[str] | None) -> Placement | Pause | None:
        """Implement ``Trial.choose``."""
        if self.interruptible and self.handle.selector.steps >= self._until:
            return Pause.PAUSE
        if nodes is not None and len(nodes) == 1:
            return self._at(member.uid, next(iter(nodes)))
        self._nodes = nodes
        return self._best(member.uid, nodes)

    def _best(self, uid: str, nodes: frozenset[str] | None) -> Placement | None:
        if (first := self._nominated.get(uid)) is not None and (nodes is None or first in nodes):
            placement = self._at(uid, first)
            if placement is not None:
                return placement
        return self.handle.selector.choose(self.class_of(uid), self.pods[uid].images, nodes)

    def _at(self, uid: str, node: str) -> Placement | None:
        answer = self.handle.selector.try_node(self.class_of(uid), node)
        return answer if isinstance(answer, Placement) else None

    def assume(self, member: Member, placement: Placement) -> None:
        """Implement ``Trial.assume``."""
        self._put(member.uid, placement)

    def _put(self, uid: str, placement: Placement) -> None:
        pod, info = self.pods[uid], self.handle.cache.nodes[placement.node]
        counted = pod
        if placement.counted is not None:
            counted = replace(pod, request=replace(pod.request, counted=placement.counted))
        here = counted.placed(placement.node, placement.assignment, placement.devices)
        self._assumed[uid] = (info, here, placement, info.nominees.get(uid))
        info.expect(Nominee(pod, holding_of(here, placement.assignment), counted=True))
        if placement.explores:
            info.history.evidence.explore(uid, placement.explores)
        self.handle.cache.index.add(info, here)
        if self._shared:
            self._assume_shared(pod, placement)
        self._count_devices(placement.allocations, 1)
        self._changed(info)

    def undo(self, *members: Member) -> None:
        """Implement ``Trial.undo``."""
        self._undo([member.uid for member in members])

    def domains(self, keys: Sequence[str]) -> Sequence[Domain]:
        """Implement ``Trial.domains``. Nodes that lack any of the labels are in no domain."""
        wanted = tuple(keys)
        if wanted not in self._domains:
            found: dict[tuple[str, ...], list[NodeInfo]] = {}
            for info in self.handle.cache.nodes.values():
                if info.node is not None and (values := _values(info.node, wanted)) is not None:
                    found.setdefault(values, []).append(info)
            domains = (_domain(wanted, values, infos) for values, infos in found.items())
            self._domains[wanted] = [domain for domain in domains if self.scheduled <= domain.nodes]
        return self._domains[wanted]

    def _undo(self, uids: Sequence[str]) -> None:
        by_node: dict[str, tuple[NodeInfo, list[str]]] = {}
        for uid in uids:
            info, here, placement, _ = self._assumed[uid]
            by_node.setdefault(info.name, (info, []))[1].append(uid)
            if placement.explores:
                info.history.evidence.decided(uid)
            self.handle.cache.index.remove(info, here)
            self._free_devices(uid, placement)
        for info, its in by_node.values():
            info.expect_no_more(*its)
            for uid in its:
                if (former := self._assumed.pop(uid)[3]) is not None:
                    info.nominees[uid] = former
                    info.touch()
            self._changed(info)

    def _free_devices(self, uid: str, placement: Placement) -> None:
        """Release the devices of a member, and those of shared claims that no other assumed member uses."""
        if not self._shared:
            self._count_devices(placement.allocations, -1)
            return
        assumed = self.handle.selector.claims.assumed
        shared = [claim.uid for claim in self._shared_by(self.pods[uid])]
        for each in shared:
            self._shared[each].discard(uid)
        own = [it for it in placement.allocations if all(assumed[each].allocation is not it for each in shared)]
        self._count_devices(own, -1)
        for each in shared:
            if not self._shared[each]:
                self._count_devices((assumed.pop(each).allocation,), -1)

    def _assume_shared(self, pod: Pod, placement: Placement) -> None:
        """Assume the devices of shared claims that this member allocates."""
        claims, lister = self.handle.resource_claims, self.handle.selector.claims
        found = iter(placement.allocations)
        for claim in claims.claims_of(pod):
            allocation = next(found, None) if claims.allocation_of(pod, claim) is None else None
            if allocation is not None and claim.uid in self._shared:
                gang = pod.request.gang
                lister.assumed[claim.uid] = AssumedClaim(allocation, pod.key.uid, None if gang is None else gang.key)
        for claim in self._shared_by(pod):
            self._shared[claim.uid].add(pod.key.uid)

    def _shared_by(self, pod: Pod) -> list[ResourceClaim]:
        return [claim for claim in self.handle.resource_claims.claims_of(pod) if claim.uid in self._shared]

    def _count_devices(self, allocations: Iterable[Allocation], sign: int) -> None:
        for allocation in allocations:
            self.handle.selector.claims.count_tentatively(allocation, sign)

    def _changed(self, info: NodeInfo) -> None:
        self.handle.selector.node_changed(info)


def _values(node: Node, keys: Sequence[str]) -> tuple[str, ...] | None:
    values = [node.labels.get(key) for key in keys]
    return None if None in values else tuple(str(value) for value in values)


def _domain(keys: Sequence[str], values: Sequence[str], infos: Sequence[NodeInfo]) -> Domain:
    name = ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
    rooms = tuple(max(0, info.free.get(CPU, 0)) for info in infos)
    return Domain(name, frozenset(info.name for info in infos), sum(rooms), rooms)


def member_of(pending: PendingPod) -> Member:
    """Return the ``Member`` of a pending pod, with the sort key of its request class."""
    request_class, ref = pending.request_class, pending.pod.request.gang
    if ref is None:
        raise AssertionError(f"pod {pending.pod.key} is in no gang")
    amounts, demands = request_class.amounts, request_class.request.constraints
    rare = bool(request_class.claims) or any(name not in (CPU, MEMORY) and "/" in name for name in amounts)
    tied = bool(demands.node_selector or demands.node_terms or demands.anti_affinity)
    # Pods without affinity terms first: pods with such terms follow them.
    size = (int(not demands.affinity), int(rare), int(tied), amounts.get(CPU, 0), amounts.get(MEMORY, 0))
    # Devices may bring CPUs with them.
    cpu = 0 if request_class.claims else amounts.get(CPU, 0)
    return Member(pending.uid, ref.key, request_class, size, cpu)
