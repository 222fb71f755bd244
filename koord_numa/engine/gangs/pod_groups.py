"""
State of gangs: their PodGroups, and their pending, scheduled and completed members. It makes no decisions.

Pod handlers and the cache report members, and an informer reports PodGroups, in any order.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from enum import Enum
from math import inf
from typing import Final

from koord_numa.core.objects.gangs import (
    MAX_GANGS,
    Dialect,
    GangCounts,
    GangKey,
    GangSpec,
    PodGroup,
    TopologyLevel,
    common_levels,
    group_of,
    missing,
    wait_for_members,
)
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import MutableObject, replace, value_field
from koord_numa.engine.queue import PendingPod
from koord_numa.ports import DELETED

SWITCHED_OFF: Final = "koord-numa does not support: groups of pods (podGroups: Off)"
COMPLETED: Final = ""
"""Node name of a member that has completed. The member counts as scheduled but is on no node."""


class GangState(Enum):
    """State of a gang: pods are missing, all may be placed, some have a node, or the minimal count has nodes."""

    INCOMPLETE = "incomplete"
    WAITING = "waiting"
    PARTIAL = "partial"
    SCHEDULED = "scheduled"


class Gang(MutableObject):
    """
    State of a gang. ``pending`` and ``scheduled`` are by UID, the latter with the node.

    ``declared`` counts members by the definition of the gang in their annotations. ``satisfied``: the minimal count was scheduled once.
    ``since`` is when the first member was observed, in monotonic seconds.
    """

    pending: dict[str, PendingPod] = value_field(default_factory=dict)
    scheduled: dict[str, str] = value_field(default_factory=dict)
    declared: Counter[GangSpec] = value_field(default_factory=Counter)
    satisfied: bool = False
    since: float = inf

    @property
    def counts(self) -> GangCounts:
        """Number of members by state. A member whose bind is in progress counts as scheduled."""
        waiting = len(self.pending) - len(self.pending.keys() & self.scheduled.keys())
        return GangCounts(waiting, len(self.scheduled), self.satisfied)


class PodGroups:
    """All gangs by key. ``enabled`` is false with ``podGroups: Off``."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.objects: dict[GangKey, PodGroup] = {}
        self._together: set[GangKey] = set()  # gangs that are disrupted together
        self.revision = 0  # increases with every change of a PodGroup
        self._gangs: dict[GangKey, Gang] = {}
        self._spec_of: dict[
            str, tuple[GangKey, GangSpec | None]
        ] = {}  # by UID of a member, its gang and its definition of the gang

    def __len__(self) -> int:
        """Return the number of gangs with members."""
        return len(self._gangs)

    def __iter__(self) -> Iterator[GangKey]:
        return iter(list(self._gangs))

    # Updates.

    def observe(self, event: str | None, group: PodGroup) -> None:
        """Process an added, changed or deleted PodGroup."""
        self.revision += 1
        if event == DELETED:
            self.objects.pop(group.key, None)
            self._together.discard(group.key)
            self._forget_if_empty(group.key)
            return
        self.objects[group.key] = group
        (self._together.add if group.spec.disrupted_together else self._together.discard)(group.key)
        if group.satisfied and (gang := self._gangs.get(group.key)) is not None:
            gang.satisfied = True

    def replace(self, dialect: Dialect, groups: Iterable[PodGroup]) -> list[GangKey]:
        """Replace the PodGroups of a dialect by this complete list. Return the keys of added, changed and deleted PodGroups."""
        found = {group.key: group for group in groups}
        former = {key: group for key, group in self.objects.items() if key.dialect is dialect}
        changed = [key for key in {**former, **found} if former.get(key) != found.get(key)]
        for key in former.keys() - found.keys():
            self.observe(DELETED, former[key])
        for group in found.values():
            self.observe(None, group)
        return changed

    def add_pending(self, pending: PendingPod) -> GangKey | None:
        """Add or update a pending member. If it belonged to another gang before, return that gang."""
        ref = pending.pod.request.gang
        if ref is None:
            return None
        known = self._spec_of.get(pending.uid)
        left = known[0] if known is not None and known[0] != ref.key else None
        if left is not None:
            self.remove_pending(pending.uid)
        self._declare(pending.pod)
        gang = self._gangs[ref.key]
        gang.pending[pending.uid] = pending
        gang.since = min(gang.since, pending.since)
        return left

    def remove_pending(self, uid: str) -> GangKey | None:
        """Remove a pending member and return its gang; ``None`` if the pod is no member of a gang."""
        known = self._spec_of.get(uid)
        if known is None:
            return None
        self._gangs[known[0]].pending.pop(uid, None)
        self._forget_member(uid)
        return known[0]

    def note_node(self, pod: Pod, node: str | None) -> GangKey | None:
        """Set the node of a member, ``None`` if it has no node any more. Return its gang; ``None`` if nothing is to be updated."""
        ref, uid = pod.request.gang, pod.key.uid
        if ref is None:
            return None
        if node is None:
            gang = self._gangs.get(ref.key)
            if gang is None or gang.scheduled.get(uid) == COMPLETED:
                return None
            gang.scheduled.pop(uid, None)
            self._forget_member(uid)
            return ref.key
        self._declare(pod)
        gang = self._gangs[ref.key]
        gang.scheduled[uid] = node
        return ref.key

    def settle(self, assumed: Container[str]) -> None:
        """Mark gangs with their minimal count as satisfied. Members that are only ``assumed`` do not count. Called once a second."""
        for key, gang in self._gangs.items():
            if gang.satisfied or (spec := self.spec_of(key)) is None:
                continue
            if len(gang.scheduled) >= spec.min_count:
                gang.satisfied = sum(uid not in assumed for uid in gang.scheduled) >= spec.min_count

    def note_completed(self, pod: Pod) -> GangKey | None:
        """Record that a member has succeeded. It counts as scheduled until its object is deleted. Return its gang."""
        ref = pod.request.gang
        if ref is None:
            return None
        self._declare(pod)
        self._gangs[ref.key].scheduled[pod.key.uid] = COMPLETED
        return ref.key

    def forget_completed(self, uid: str) -> GangKey | None:
        """Remove a member that has succeeded, after its object was deleted. Return its gang; ``None`` if it is not known."""
        known = self._spec_of.get(uid)
        gang = None if known is None else self._gangs.get(known[0])
        if known is None or gang is None or gang.scheduled.get(uid) != COMPLETED:
            return None
        del gang.scheduled[uid]
        self._forget_member(uid)
        return known[0]

    @property
    def completed(self) -> list[str]:
        """UIDs of members that have succeeded."""
        return [uid for gang in self._gangs.values() for uid, node in gang.scheduled.items() if node == COMPLETED]

    # Queries.

    def spec_of(self, key: GangKey) -> GangSpec | None:
        """Return the specification of a gang, from its PodGroup or from annotations of its members; ``None`` without either."""
        if (found := self.objects.get(key)) is not None:
            return found.spec
        gang = self._gangs.get(key)
        if gang is None or not gang.declared:
            return None
        first = next(iter(gang.declared))
        if len(gang.declared) > 1:
            return replace(first, problem=f"the pods of gang {key} define it in {len(gang.declared)} different ways")
        return first

    def named(self, namespace: str, name: str) -> GangKey | None:
        """Return the gang of this name, of several dialects the gang with pending members; ``None`` for an unknown gang."""
        known = {key for key in (*self._gangs, *self.objects) if (key.namespace, key.name) == (namespace, name)}
        return min(known, key=lambda key: (not self.gang(key).pending, key.dialect.value), default=None)

    def gang(self, key: GangKey) -> Gang:
        """Return the state of a gang; an empty state if it has no members."""
        return self._gangs.get(key) or Gang()

    def nodes_of(self, keys: Iterable[GangKey]) -> frozenset[str]:
        """Return the nodes of the members of these gangs."""
        return frozenset(node for key in keys for node in self.gang(key).scheduled.values() if node != COMPLETED)

    @property
    def disrupts_together(self) -> bool:
        """True if the members of any gang are disrupted together. False in most clusters."""
        return bool(self._together)

    def unit_of(self, pod: Pod) -> Collection[str]:
        """Return the UIDs of the scheduled members of the pod's gang if they are disrupted together; empty for other pods."""
        ref = pod.request.gang
        spec = None if ref is None else self.spec_of(ref.key)
        if ref is None or spec is None or not spec.disrupted_together:
            return ()
        return [uid for uid, node in self.gang(ref.key).scheduled.items() if node != COMPLETED]

    def group(self, key: GangKey) -> tuple[tuple[GangKey, ...], str]:
        """Return the gangs that are decided on together with this gang, and why its members wait; empty if they may be tried."""
        if not self.enabled:
            return (key,), SWITCHED_OFF
        own = self.spec_of(key)
        if own is not None and not own.group and not own.problem:  # most gangs
            return (key,), wait_for_members(key, own, self.gang(key).counts)
        specs: dict[GangKey, GangSpec] = {}
        if own is not None:
            specs[key] = own
            for name in own.group[: MAX_GANGS + 1]:
                namespace, _, other = name.partition("/")
                named = GangKey(key.dialect, namespace, other)
                if (spec := self.spec_of(named)) is not None:
                    specs[named] = spec
        keys, problem = group_of(key, specs)
        if problem:
            return keys, problem
        for each in keys:
            if problem := wait_for_members(each, specs[each], self.gang(each).counts):
                return keys, problem
        return keys, self.levels(keys)[1]

    def levels(self, keys: Sequence[GangKey]) -> tuple[tuple[TopologyLevel, ...], str]:
        """Return the topology levels of a group, and the reason if its gangs have different levels."""
        specs = (self.spec_of(key) for key in keys)
        return common_levels(spec for spec in specs if spec is not None)

    def missing(self, key: GangKey) -> int:
        """Return how many pending members must be placed together."""
        spec = self.spec_of(key)
        return 0 if spec is None else missing(spec, self.gang(key).counts)

    def is_partial(self, key: GangKey) -> bool:
        """Return whether some, but too few, members of the gang are scheduled."""
        spec, gang = self.spec_of(key), self._gangs.get(key)
        return spec is not None and gang is not None and 0 < len(gang.scheduled) < spec.min_count

    def state_of(self, key: GangKey) -> GangState:
        """Return the state of a gang with members. A gang that cannot be placed, for instance without PodGroup, is incomplete."""
        gang = self.gang(key)
        if gang.scheduled and not self.missing(key):
            return GangState.SCHEDULED
        if self.is_partial(key):
            return GangState.PARTIAL
        return GangState.INCOMPLETE if self.group(key)[1] else GangState.WAITING

    def _declare(self, pod: Pod) -> None:
        ref, uid = pod.request.gang, pod.key.uid
        if ref is None:
            return
        gang = self._gangs.get(ref.key)
        if gang is None:
            object_ = self.objects.get(ref.key)
            gang = self._gangs[ref.key] = Gang(satisfied=object_ is not None and object_.satisfied)
        known = self._spec_of.get(uid)
        if known is not None and known == (ref.key, ref.spec):
            return
        if known is not None:
            self._undeclare(uid)
        self._spec_of[uid] = (ref.key, ref.spec)
        if ref.spec is not None:
            gang.declared[ref.spec] += 1

    def _undeclare(self, uid: str) -> None:
        key, spec = self._spec_of.pop(uid)
        gang = self._gangs.get(key)
        if gang is not None and spec is not None:
            gang.declared[spec] -= 1
            if not gang.declared[spec]:
                del gang.declared[spec]

    def _forget_member(self, uid: str) -> None:
        key = self._spec_of[uid][0] if uid in self._spec_of else None
        gang = None if key is None else self._gangs.get(key)
        if key is not None and gang is not None and uid not in gang.pending and uid not in gang.scheduled:
            self._undeclare(uid)
            self._forget_if_empty(key)

    def _forget_if_empty(self, key: GangKey) -> None:
        gang = self._gangs.get(key)
        if gang is None or gang.pending or gang.scheduled:
            return
        del self._gangs[key]
