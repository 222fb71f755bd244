"""
Scheduling queue: the order of pending pods and the events that they wait for. It depends on neither nodes nor the API server.

Pods wait by request class. Every node treats the pods of a class alike: when one is unschedulable, the whole class becomes unschedulable.
When an event may help, the class is woken, and only its first pod is tried.

    ACTIVE ──park──▶ UNSCHEDULABLE ──wake──▶ BACKOFF ──pause over, or no other class to try──▶ ACTIVE

``ClassOrder`` selects the next class. A single pod whose bind failed leaves its class and waits for its own pause (``back_off``).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import takewhile
from math import inf
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.fit.node_filters import fits_node_affinity, fits_node_name, fits_taints, fits_unschedulable
from koord_numa.core.objects.constraints import Labels, PodTerm, selects
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.objects.verdicts import Reason, Unschedulable
from koord_numa.core.resources import PODS, ResourceList
from koord_numa.core.scheduling.filters import EVENTS as LIFTED_BY
from koord_numa.core.scheduling.filters import ON_CAPACITY, PLUGINS, ClusterEvent
from koord_numa.core.scheduling.request import may_be_refused_for_others
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.keyed_heap import KeyedHeap
from koord_numa.engine.queue.pending_pod import PendingPod, RequestClass
from koord_numa.settings import Settings

__all__ = [
    "ANY_EVENT",
    "BACKOFF_COMPLETE",
    "EVENTS",
    "FAILURE",
    "FREES_NOTHING",
    "POD_ADD",
    "POD_UPDATE",
    "RESOLVED_BY",
    "TIMEOUT",
    "Arrivals",
    "ClusterEvent",
    "Wakers",
    "reasons_of",
    "wakers_of",
]

# Reasons without a filter row: they come from the scheduler's own state of a node.
RESOLVED_BY: Final[Mapping[Reason, frozenset[ClusterEvent]]] = {
    **LIFTED_BY,
    Reason.COOLING_DOWN: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED, ClusterEvent.BACKOFF_ENDED}),
    Reason.BIND_QUEUE: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.BINDS_DONE}),
}
"""For every rejection, the events that may resolve it on the same node, or add another node."""

FREES_NOTHING: Final = (None, ClusterEvent.POD_BOUND)
"""Events after which the node does not have more free resources than before."""

ACROSS_NODES: Final = frozenset({Reason.SPREAD, Reason.POD_AFFINITY, Reason.VOLUME})
"""Rejections that a change of one node may resolve on another node."""


class Wakers(ValueObject):
    """Events that may help a pod: on a node with sufficient free resources (``here``), or on any node (``anywhere``)."""

    here: frozenset[ClusterEvent]
    anywhere: frozenset[ClusterEvent]


ANY_EVENT: Final = Wakers(frozenset(ClusterEvent), frozenset(ClusterEvent))
"""Wakers of a pod whose rejections are not known yet."""


def reasons_of(verdict: Unschedulable) -> frozenset[Reason]:
    """Return the reasons for which any node rejected the pod."""
    # By identity first, because hashing thousands of rejections would be the largest cost.
    distinct = dict(zip(map(id, verdict.rejections.values()), verdict.rejections.values(), strict=True))
    return frozenset(rejection.reason for rejection in distinct.values())  # thousands of nodes share few rejections


def wakers_of(reasons: Iterable[Reason]) -> Wakers:
    """
    Return every event that may help a pod rejected for these reasons.

    Freed resources on a node that admits the pod always may help: a node reports only its first reason, and an event that resolves this
    reason is ignored while the node has too few free resources (``UnschedulableClasses``). Resources freed later therefore have to count.
    """
    found = frozenset(reasons)
    # Freed resources always count, see the docstring.
    here = ON_CAPACITY.union(*(RESOLVED_BY[reason] for reason in found))
    return Wakers(here, frozenset[ClusterEvent]().union(*(RESOLVED_BY[reason] for reason in found & ACROSS_NODES)))


Arrivals: TypeAlias = Counter[tuple[str, str]]
"""Pods by queue (``active``, ``backoff``, ``unschedulable``) and event."""

POD_ADD: Final = "PodAdd"
POD_UPDATE: Final = "PodUpdate"
FAILURE: Final = "ScheduleAttemptFailure"
BACKOFF_COMPLETE: Final = "BackoffComplete"
TIMEOUT: Final = "UnschedulableTimeout"

EVENTS: Final[Mapping[ClusterEvent, str]] = {
    ClusterEvent.NODE_ADDED: "NodeAdd",
    ClusterEvent.NODE_CHANGED: "NodeUpdate",
    ClusterEvent.TOPOLOGY_CHANGED: "NodeResourceTopologyUpdate",
    ClusterEvent.CAPACITY_FREED: "AssignedPodDelete",
    ClusterEvent.POD_BOUND: "AssignedPodAdd",
    ClusterEvent.POD_GONE: "AssignedPodDelete",
    ClusterEvent.NAMESPACE_CHANGED: "NamespaceUpdate",
    ClusterEvent.VOLUME_CHANGED: "VolumeUpdate",
    ClusterEvent.CLAIM_CHANGED: "ResourceClaimUpdate",
    ClusterEvent.NODE_UNLOCKED: "NodeUnlocked",
    ClusterEvent.BACKOFF_ENDED: "NodeBackoffEnded",
    ClusterEvent.BINDS_DONE: "NodeBindsDone",
}
"""Event names, those of kube-scheduler where it has the event."""


class Stage(Enum):
    """Queue of a class, with the names of kube-scheduler's metrics."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    UNSCHEDULABLE = "unschedulable"


class ClassQueue(MutableObject, eq=False):
    """
    Queued pods of one class.

    ``verdict`` is why its pods are unschedulable, while the stage is not ``ACTIVE``. ``failures`` counts consecutive rejections. A woken
    class may be tried from ``rested`` on if no other class is active, and is active again from ``not_before`` on.
    """

    request_class: RequestClass
    pods: OrderedDict[str, PendingPod] = value_field(
        default_factory=OrderedDict
    )  # by UID; the first item is found in constant time
    stage: Stage = Stage.ACTIVE
    verdict: Unschedulable | None = None
    reasons: frozenset[Reason] = frozenset()
    failures: int = 0
    rested: float = 0.0
    not_before: float = 0.0

    def head(self) -> PendingPod | None:
        """Return the pod to try next."""
        return next(iter(self.pods.values()), None)

    @property
    def turn(self) -> tuple[int, int, int]:
        """Sort key among classes: higher priority first, then the order of the first pod plus the handicap for its size."""
        head = self.head()
        # The class number is the last key, so that two classes are never equal.
        order = head.order + self.request_class.handicap if head else 0
        return (-self.request_class.priority, order, self.request_class.number)


class QueueNumbers(ValueObject):
    """Number of pods by queue, as in ``scheduler_pending_pods`` of kube-scheduler."""

    active: int
    backoff: int
    unschedulable: int


class ClassOrder:
    """Order of the classes with pods to try. ``in_vain`` is set by the queue if the last attempt was a retry that failed."""

    def __init__(self) -> None:
        self.in_vain = False
        self._fresh: KeyedHeap[ClassQueue] = KeyedHeap()  # active, not rejected since a pod was last placed
        self._retries: KeyedHeap[ClassQueue] = KeyedHeap()  # active, rejected before
        self._woken: KeyedHeap[ClassQueue] = KeyedHeap()  # in BACKOFF
        self._rested: KeyedHeap[ClassQueue] = KeyedHeap()  # woken classes that may be tried when no class is active

    @property
    def any_active(self) -> bool:
        """True if a class can be tried that does not back off."""
        return bool(self._fresh or self._retries)

    @property
    def any_rested(self) -> bool:
        """True if a class can be tried when no other class is active."""
        return bool(self._rested)

    @property
    def entries(self) -> int:
        """Number of entries in the heaps, including stale entries."""
        return sum(heap.entries for heap in (self._fresh, self._retries, self._woken, self._rested))

    def offer(self, chosen: ClassQueue) -> None:
        """Add a class to the heap of its stage, or update its position."""
        if chosen.stage is Stage.ACTIVE:
            # An unschedulable class must not go before classes that were never rejected; both heaps have the same
            # order.
            (self._retries if chosen.failures else self._fresh).set(chosen, chosen.turn)
        elif chosen.stage is Stage.BACKOFF:
            self._woken.set(chosen, chosen.turn)

    def rest_over(self, chosen: ClassQueue) -> None:
        """Allow a class in BACKOFF to be tried when no class is active."""
        self._rested.set(chosen, chosen.turn)

    def withdraw(self, chosen: ClassQueue) -> None:
        """Remove the class from all heaps."""
        # A class may be in several heaps while its stage changes; ``discard`` of an absent class costs a look-up.
        for heap in (self._fresh, self._retries, self._woken, self._rested):
            heap.discard(chosen)

    def next(self) -> ClassQueue | None:
        """Return the class to try now without removing it, ``None`` when there is none."""
        fresh, retry, woken = self._fresh.first(), self._retries.first(), self._woken.first()
        # After a failed retry the next attempt goes to a class that was not rejected.
        if fresh is not None and self.in_vain:
            return fresh[1]
        best = min((found for found in (fresh, retry) if found is not None), key=lambda found: found[0], default=None)
        if best is None:
            rested = self._rested.first()
            return None if rested is None else rested[1]
        # Only a higher priority ends the pause early; equal priorities wait.
        if woken is not None and woken[1].request_class.priority > best[1].request_class.priority:
            return woken[1]
        return best[1]


FIRST_ROWS: Final = 64
MOST: Final = 1 << 60
"""Amounts saturate at this value, so that they fit 64 bits."""
_BIT: Final = {event: 1 << number for number, event in enumerate(ClusterEvent)}


def _bits(events: frozenset[ClusterEvent]) -> int:
    return sum(_BIT[event] for event in events)


class UnschedulableClasses(MutableObject):
    """
    Parked classes.

    Arrays have a row per class, reused when the class leaves: ``_needs[resource, row]`` in units of the core, ``_here[row]`` and
    ``_anywhere[row]`` the events, as bits, that may help the class on the changed node or on any node. ``_offered[row]`` is whether nodes
    have offered every resource that the class needs.
    """

    _rows: dict[RequestClass, int] = value_field(default_factory=dict)
    _classes: list[RequestClass | None] = value_field(default_factory=list)
    _vacant: list[int] = value_field(default_factory=list)
    _lines: dict[str, int] = value_field(default_factory=lambda: {PODS: 0})
    _needs: NDArray[np.int64] = value_field(default_factory=lambda: np.zeros((1, FIRST_ROWS), dtype=np.int64))
    _offered: NDArray[np.bool_] = value_field(default_factory=lambda: np.zeros(FIRST_ROWS, dtype=np.bool_))
    _here: NDArray[np.int64] = value_field(default_factory=lambda: np.zeros(FIRST_ROWS, dtype=np.int64))
    _anywhere: NDArray[np.int64] = value_field(default_factory=lambda: np.zeros(FIRST_ROWS, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[RequestClass]:
        return iter(self._rows)

    @property
    def rows(self) -> int:
        """Number of rows of the arrays."""
        return len(self._here)

    def park(self, request_class: RequestClass, wakers: Wakers) -> None:
        """Park a class until one of these events."""
        row = self._rows.get(request_class)
        if row is None:
            row = self._rows[request_class] = self._take_row(request_class)
            self._write_needs(row, request_class.amounts)
        # Written again for a parked class, because its verdict and events may have changed.
        self._here[row], self._anywhere[row] = _bits(wakers.here), _bits(wakers.anywhere)

    def forget(self, request_class: RequestClass) -> None:
        """Remove the class if it is parked."""
        row = self._rows.pop(request_class, None)
        if row is None:
            return
        self._classes[row] = None
        self._here[row] = self._anywhere[row] = 0
        # Zero needs and no events: a vacant row is never selected.
        self._needs[:, row] = 0
        self._vacant.append(row)

    def helped_by(self, event: ClusterEvent, free: ResourceList | None) -> list[RequestClass]:
        """
        Return the classes that wait for this event, oldest class first.

        ``free`` are the free amounts of the changed node; classes that need more are omitted, unless the event may help them on any node.
        """
        used = len(self._classes)
        here = (self._here[:used] & _BIT[event]) != 0
        if free is not None and here.any():
            if not self._lines.keys() >= free.keys():
                self._add_lines(free)
            # int64[lines, 1] against int64[lines, rows]; a resource that a node does not list is 0.
            limits = np.array([[min(max(0, free.get(name, 0)), MOST)] for name in self._lines], dtype=np.int64)
            here &= self._offered[:used] & (self._needs[:, :used] <= limits).all(axis=0)
        chosen = np.flatnonzero(here | ((self._anywhere[:used] & _BIT[event]) != 0))
        found = [self._classes[row] for row in chosen.tolist()]
        return sorted(
            # By number, because the order of reused rows is arbitrary.
            (request_class for request_class in found if request_class is not None),
            key=lambda request_class: request_class.number,
        )

    def _take_row(self, request_class: RequestClass) -> int:
        if self._vacant:
            row = self._vacant.pop()
            self._classes[row] = request_class
            return row
        self._classes.append(request_class)
        row = len(self._classes) - 1
        if row >= len(self._here):
            self._here, self._anywhere = (np.append(old, np.zeros_like(old)) for old in (self._here, self._anywhere))
            self._offered = np.append(self._offered, np.zeros_like(self._offered))
            self._needs = np.hstack([self._needs, np.zeros_like(self._needs)])
        return row

    def _add_lines(self, free: ResourceList) -> None:
        """Add lines for resources that no node has offered before."""
        names = [name for name in free if name not in self._lines]
        self._lines.update(zip(names, range(len(self._lines), len(self._lines) + len(names)), strict=True))
        self._needs = np.vstack([self._needs, np.zeros((len(names), self._needs.shape[1]), dtype=np.int64)])
        for request_class, row in self._rows.items():
            if not self._offered[row]:
                self._write_needs(row, request_class.amounts)

    def _write_needs(self, row: int, amounts: ResourceList) -> None:
        self._needs[:, row] = 0
        # Iterates over the shorter of both, because a pod may name thousands of resources.
        for name in self._lines if len(self._lines) < len(amounts) else amounts:
            if name in self._lines and name in amounts:
                self._needs[self._lines[name], row] = min(amounts[name], MOST)
        self._offered[row] = all(name in self._lines for name, amount in amounts.items() if amount)
        # One pod, in the line of ``PODS``.
        self._needs[0, row] = 1


Help = Callable[[RequestClass], bool]
"""Returns whether the change may help pods of this class. True if uncertain."""

HelpRefused = Callable[[RequestClass, Unschedulable], bool]
"""Returns whether an event helps a request class, by the last rejection of the class."""

TESTED: Final = 256
"""Maximum number of classes that a change is tested against individually; if it may help more of them, all are woken."""


class SchedulingQueue:
    """Queue of pending pods. Times are monotonic seconds, passed by the caller."""

    def __init__(self, settings: Settings, random: Callable[[], float]) -> None:
        self.arrivals = Arrivals()
        self._settings = settings
        self._random = random
        self._classes: dict[RequestClass, ClassQueue] = {}
        self._failures: WeakKeyDictionary[RequestClass, int] = (
            WeakKeyDictionary()
        )  # consecutive; kept when the class has no pods
        self._order = ClassOrder()
        self._timers: KeyedHeap[ClassQueue] = KeyedHeap()  # classes that are not active, by their next relevant time
        self._alone: KeyedHeap[PendingPod] = KeyedHeap()  # pods that back off, by the end of the back-off
        self._unschedulable = UnschedulableClasses()
        self._queued = 0  # number of times that any pod was queued
        self._retried: int | None = None  # number of the class of the last attempt if it was a retry

    def __len__(self) -> int:
        """Return the number of queued pods, including those that back off."""
        return sum(len(each.pods) for each in self._classes.values()) + len(self._alone)

    @property
    def parked(self) -> int:
        """Number of classes that wait for an event."""
        return len(self._unschedulable)

    def sizes(self) -> dict[str, int]:
        """Return the number of entries of every container, to compare with the number of pending pods."""
        return {
            "classes": len(self._classes),
            "heap entries": self._order.entries + self._timers.entries + self._alone.entries,
            "unschedulable rows": self._unschedulable.rows,
            "failures": len(self._failures),
        }

    def add(self, pending: PendingPod) -> Unschedulable | None:
        """
        Queue a pod, or update a changed pod.

        If its class is unschedulable, returns the verdict: the pod waits for the same reasons and need not be tried.
        """
        former, request_class = pending.queued_in, pending.queue_class
        if pending.backoff_until is not None and former is request_class:
            return None
        if former is not request_class:
            self.remove(pending)
        chosen = self._class(request_class)
        if pending.uid not in chosen.pods:
            again = BACKOFF_COMPLETE if former is request_class else POD_UPDATE
            self.arrivals[chosen.stage.value, POD_ADD if former is None else again] += 1
            self._enter(chosen, pending)
        self._offer(chosen)
        return None if chosen.stage is Stage.ACTIVE else chosen.verdict

    def remove(self, pending: PendingPod) -> None:
        """Remove the pod if it is queued."""
        request_class, pending.queued_in = pending.queued_in, None
        if request_class is None:
            return
        if pending.backoff_until is not None:
            pending.backoff_until = None
            self._alone.discard(pending)
        chosen = self._classes.get(request_class)
        if chosen is not None and chosen.pods.pop(pending.uid, None) is not None:
            self._offer(chosen)

    def pop(self, now: float, accepts: Callable[[RequestClass], bool] | None = None) -> PendingPod | None:
        """Remove and return the next pod, ``None`` when no pod may be tried now or its class is not accepted."""
        self._advance(now)
        chosen = self._order.next()
        if chosen is None or (accepts is not None and not accepts(chosen.request_class)):
            return None
        pending = chosen.head()
        if pending is None:
            raise AssertionError(f"class {chosen.request_class.number} is offered and has no pods")
        self._retried = chosen.request_class.number if chosen.failures else None
        self._order.in_vain = False
        if chosen.stage is not Stage.ACTIVE:
            self._activate(chosen, BACKOFF_COMPLETE)
        self.remove(pending)
        return pending

    def park(self, pending: PendingPod, verdict: Unschedulable | None, now: float) -> frozenset[Reason]:
        """
        Park the class of an unschedulable pod until an event may help it. Return the reasons.

        Without a verdict the reasons are not known yet, and any event wakes the class until ``explained`` is called.
        """
        request_class = pending.queue_class
        chosen = self._class(request_class)
        self._enter(chosen, pending, first=True)
        moved = 1 if chosen.stage is Stage.UNSCHEDULABLE else len(chosen.pods)
        self.arrivals[Stage.UNSCHEDULABLE.value, FAILURE] += moved
        self._withdraw(chosen)
        chosen.stage = Stage.UNSCHEDULABLE
        chosen.rested = chosen.not_before = now
        # A long bind queue ends within milliseconds and is no failure of the class.
        if verdict is None or Reason.BIND_QUEUE not in reasons_of(verdict):
            self._order.in_vain = self._retried == request_class.number
            dice = self._random()
            chosen.failures = self._failures[request_class] = self._failures.get(request_class, 0) + 1
            chosen.rested = now + self._settings.wake_pause.pause(chosen.failures, dice)
            chosen.not_before = now + self._settings.backoff.pause(chosen.failures, dice)
        self._timers.set(chosen, (now + self._settings.parked_retry_seconds, request_class.number))
        self._set_verdict(chosen, verdict)
        return chosen.reasons

    def explained(self, request_class: RequestClass, verdict: Unschedulable) -> frozenset[Reason]:
        """Set the verdict: from now on only events that may resolve a rejection wake the class. Return the reasons."""
        chosen = self._classes.get(request_class)
        if chosen is None or chosen.stage is Stage.ACTIVE:
            return frozenset()
        self._set_verdict(chosen, verdict)
        return chosen.reasons

    def is_unexplained(self, request_class: RequestClass) -> bool:
        """Return whether the class waits without a verdict."""
        chosen = self._classes.get(request_class)
        return chosen is not None and chosen.stage is not Stage.ACTIVE and chosen.verdict is None

    def is_active(self, request_class: RequestClass) -> bool:
        """Return whether the class is active, whatever the last verdict."""
        chosen = self._classes.get(request_class)
        return chosen is not None and chosen.stage is Stage.ACTIVE

    def retry_at(self, request_class: RequestClass, when: float) -> None:
        """Retry an unschedulable class at ``when`` at the latest, whatever happens."""
        chosen = self._classes.get(request_class)
        if chosen is not None and chosen.stage is Stage.UNSCHEDULABLE:
            self._timers.set(chosen, min((when, request_class.number), self._timers.key(chosen)))

    def back_off(self, pending: PendingPod, until: float) -> None:
        """Retry this pod at ``until`` at the earliest; its class is not affected."""
        self.remove(pending)
        pending.queued_in, pending.backoff_until = pending.queue_class, until
        self._queued += 1
        self.arrivals[Stage.BACKOFF.value, FAILURE] += 1
        self._alone.set(pending, (until, self._queued))

    def placed(self, request_class: RequestClass) -> None:
        """Reset the failures of this class after a placement, so that the next pause is short."""
        self._failures.pop(request_class, None)
        if (chosen := self._classes.get(request_class)) is not None and chosen.failures:
            chosen.failures = 0
            if chosen.stage is Stage.ACTIVE:
                self._order.withdraw(chosen)
                self._offer(chosen)

    def wake(
        self, event: ClusterEvent, now: float, free: ResourceList | None = None, helps: Help | None = None
    ) -> None:
        """
        Wake the classes that an event may help.

        ``free`` are the free amounts of the changed node: classes that need more are not woken, nor are classes for which ``helps`` returns
        false.
        """
        found = self._unschedulable.helped_by(event, free)
        if helps is not None and len(found) <= TESTED:
            found = [request_class for request_class in found if helps(request_class)]
        for request_class in found:
            self._wake(self._classes[request_class], now, EVENTS[event])

    def wake_refused(self, event: ClusterEvent, now: float, helps: HelpRefused) -> None:
        """Wake classes like ``wake``, regardless of free amounts and of the number of classes."""
        for request_class in self._unschedulable.helped_by(event, None):
            chosen = self._classes[request_class]
            if chosen.verdict is not None and helps(request_class, chosen.verdict):
                self._wake(chosen, now, EVENTS[event])

    def pods_of(self, request_class: RequestClass) -> tuple[PendingPod, ...]:
        """Return the queued pods of a class that do not back off separately, first queued first."""
        chosen = self._classes.get(request_class)
        return tuple(chosen.pods.values()) if chosen else ()

    def untold(self, request_class: RequestClass) -> tuple[PendingPod, ...]:
        """Return the last queued pods of a class without a reported verdict, last queued first."""
        chosen = self._classes.get(request_class)
        # Verdicts are reported per class: later pods are at the end. Iterating over all pods would cost as much as a
        # decision.
        return (
            () if chosen is None else tuple(takewhile(lambda pending: pending.untold, reversed(chosen.pods.values())))
        )

    def verdict(self, pending: PendingPod | None) -> Unschedulable | None:
        """Return the last verdict on a pod; ``None`` when it does not wait or was not tried yet."""
        request_class = None if pending is None else pending.queued_in
        chosen = None if request_class is None else self._classes.get(request_class)
        return None if chosen is None else chosen.verdict

    def next_due(self, now: float) -> float | None:
        """Return the monotonic time at which a pod becomes ready by time only: ``now`` when a pod is ready, ``None`` when never."""
        self._advance(now)
        if self._order.any_active or self._order.any_rested:
            return now
        firsts = [found[0][0] for found in (self._timers.first(), self._alone.first()) if found is not None]
        return min(firsts, default=None)

    def numbers(self) -> QueueNumbers:
        """Return the number of pods that are active, backing off (separately or with their class), and unschedulable."""
        count = dict.fromkeys(Stage, 0)
        for each in self._classes.values():
            count[each.stage] += len(each.pods)
        backing_off = count[Stage.BACKOFF] + len(self._alone)
        return QueueNumbers(count[Stage.ACTIVE], backing_off, count[Stage.UNSCHEDULABLE])

    def refused(self) -> Counter[tuple[str, str]]:
        """Return the unschedulable pods by plugin of kube-scheduler and scheduler name; a pod counts for every plugin that rejected it."""
        found: Counter[tuple[str, str]] = Counter()
        for each in self._classes.values():
            if each.stage is Stage.UNSCHEDULABLE:
                for plugin in {PLUGINS.get(reason, reason.value) for reason in each.reasons}:
                    found[plugin, each.request_class.profile.scheduler_name] += len(each.pods)
        return found

    def _class(self, request_class: RequestClass) -> ClassQueue:
        if request_class not in self._classes:
            failures = self._failures.get(request_class, 0)
            self._classes[request_class] = ClassQueue(request_class, failures=failures)
        return self._classes[request_class]

    def _enter(self, chosen: ClassQueue, pending: PendingPod, *, first: bool = False) -> None:
        if pending.uid not in chosen.pods:
            self._queued += 1
            pending.order = self._queued
            chosen.pods[pending.uid] = pending
        pending.queued_in = chosen.request_class
        if first:
            chosen.pods.move_to_end(pending.uid, last=False)

    def _set_verdict(self, chosen: ClassQueue, verdict: Unschedulable | None) -> None:
        chosen.verdict = verdict
        chosen.reasons = frozenset() if verdict is None else reasons_of(verdict)
        if chosen.stage is Stage.UNSCHEDULABLE:
            self._unschedulable.park(chosen.request_class, ANY_EVENT if verdict is None else wakers_of(chosen.reasons))

    def _wake(self, chosen: ClassQueue, now: float, event: str) -> None:
        self._unschedulable.forget(chosen.request_class)
        if now >= chosen.not_before:
            self._activate(chosen, event)
            return
        chosen.stage = Stage.BACKOFF
        self.arrivals[Stage.BACKOFF.value, event] += len(chosen.pods)
        self._order.offer(chosen)
        self._timers.set(chosen, (min(chosen.rested, chosen.not_before), chosen.request_class.number))

    def _activate(self, chosen: ClassQueue, event: str) -> None:
        self._withdraw(chosen)
        chosen.stage = Stage.ACTIVE
        self.arrivals[Stage.ACTIVE.value, event] += len(chosen.pods)
        self._offer(chosen)

    def _advance(self, now: float) -> None:
        """End the pauses that are over at this time."""
        while (chosen := self._timers.pop_until((now, inf))) is not None:
            if chosen.stage is Stage.BACKOFF and chosen.not_before > now:
                self._order.rest_over(chosen)
                self._timers.set(chosen, (chosen.not_before, chosen.request_class.number))
                continue
            was_woken = chosen.stage is Stage.BACKOFF
            self._activate(chosen, BACKOFF_COMPLETE if was_woken else TIMEOUT)
        while (pending := self._alone.pop_until((now, inf))) is not None:
            pending.backoff_until = None
            self.add(pending)

    def _offer(self, chosen: ClassQueue) -> None:
        """Update the position of the class by its first pod; a class without pods is removed."""
        if chosen.pods:
            self._order.offer(chosen)
        else:
            self._withdraw(chosen)
            self._classes.pop(chosen.request_class, None)

    def _withdraw(self, chosen: ClassQueue) -> None:
        self._order.withdraw(chosen)
        self._timers.discard(chosen)
        self._unschedulable.forget(chosen.request_class)


# Queueing hints, as in kube-scheduler: whether a change may help the pods of a class.
#
# A positive result may be wrong and costs an attempt; a negative result is certain.

# The filters on the Node object only: cheap, and sufficient to exclude most classes.
_OF_NODE_OBJECT: Final = (fits_node_name, fits_unschedulable, fits_taints, fits_node_affinity)

_MAKES_ELIGIBLE: Final = (
    ClusterEvent.NODE_ADDED,
    ClusterEvent.NODE_CHANGED,
    ClusterEvent.NODE_UNLOCKED,
    ClusterEvent.TOPOLOGY_CHANGED,
)
"""Events that may resolve a rejection which no eviction resolves, such as a taint or a lock."""


def node_may_help(node: Node) -> Help:
    """
    Return the hint for a change on this node: it helps classes that the Node object admits by name, cordon, taints and labels.

    A class that depends on other pods may also be helped on other nodes, by a topology domain that was added, removed or enlarged.
    """

    def helps(request_class: RequestClass) -> bool:
        elsewhere = bool(request_class.pickers) or may_be_refused_for_others(request_class.request)
        return elsewhere or not any(filter_(request_class.request, node) for filter_ in _OF_NODE_OBJECT)

    return helps


def pod_may_help(pod: Pod, namespaces: Mapping[str, Labels]) -> Help:
    """Return the hint for an added, removed or changed pod: it helps classes that count the pod, and classes that its terms select."""
    labels, namespace = dict(pod.labels), pod.key.namespace

    def helps(request_class: RequestClass) -> bool:
        request = request_class.request
        demands = request.constraints
        # A shared claim: ReadWriteOncePod and attach limits depend on it.
        if demands.claims and pod.request.constraints.claims and request.namespace == namespace:
            return True
        if namespace == request.namespace and any(
            each.hard and selects(each.selector, labels) for each in demands.spread
        ):
            return True
        if any(_selects(term, namespace, labels, namespaces) for term in _required(request)):
            return True
        # The other direction: the affinity of the added or removed pod.
        own = dict(request.labels)
        return any(_selects(term, request.namespace, own, namespaces) for term in _required(pod.request))

    return helps


def evictions_may_help(info: NodeInfo, node: Node) -> HelpRefused:
    """
    Return the hint whether evictions on the node may help now.

    They may help classes that the node rejected as not resolvable and that have priority over a pod there. Free resources are not
    considered, as in the hints of kube-scheduler.
    """
    lowest = min((pod.request.priority for pod in info.pods.values()), default=inf)

    def helps(request_class: RequestClass, verdict: Unschedulable) -> bool:
        if request_class.priority <= lowest:
            return False
        known = verdict.rejections.get(info.name)
        is_news = known is None or not known.resolvable
        return is_news and not any(filter_(request_class.request, node) for filter_ in _OF_NODE_OBJECT)

    return helps


class NodeChange(ValueObject):
    """Change on a node, with the pod if a pod caused it. ``namespaces`` are labels by name."""

    event: ClusterEvent
    info: NodeInfo
    pod: Pod | None
    namespaces: Mapping[str, Labels]


def wake(queue: SchedulingQueue, now: float, change: NodeChange) -> None:
    """Wake the classes that the change may help, by the state of the node and by the pod that was added, removed or changed."""
    event, node, pod = change.event, change.info.node, change.pod
    if node is None:
        queue.wake(event, now, {})  # only changes on other nodes for classes that depend on other pods
    elif event is ClusterEvent.BINDS_DONE:
        queue.wake(event, now)  # all these classes: nothing was reported for them, and no preemption started
    elif event is not ClusterEvent.POD_BOUND:
        queue.wake(event, now, change.info.free, node_may_help(node))
        if event in _MAKES_ELIGIBLE:
            queue.wake_refused(event, now, evictions_may_help(change.info, node))
    if pod is not None:
        gone = event is ClusterEvent.CAPACITY_FREED
        about_pod = ClusterEvent.POD_GONE if gone else ClusterEvent.POD_BOUND
        queue.wake(about_pod, now, helps=pod_may_help(pod, change.namespaces))


def _required(request: PodRequest) -> tuple[PodTerm, ...]:
    """Return the required terms. Preferred terms never affect feasibility."""
    return (*request.constraints.affinity, *request.constraints.anti_affinity)


def _selects(term: PodTerm, namespace: str, labels: Labels, namespaces: Mapping[str, Labels]) -> bool:
    inside = namespace in term.namespaces or selects(term.namespace_selector, namespaces.get(namespace, {}))
    return inside and selects(term.selector, labels)
