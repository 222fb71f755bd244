"""
Pods that wait for a node: who is tried next, who waits for what. It knows neither nodes nor the API server.

Theory: pods wait in buckets, one a request class. Every node treats the pods of a class alike, so when one does not fit, none does,
and the whole bucket parks at once; when something relevant changes, the bucket wakes, and only its first pod is tried. So an event costs
what it wakes, and ten thousand parked pods of a few classes cost nothing. A bucket is in one stage:

    ACTIVE ──park──▶ PARKED ──wake──▶ ACTIVE, or WOKEN until its pause (exponential, capped) is over ──▶ ACTIVE

A single pod whose bind failed leaves its bucket and waits out its own pause (``back_off``).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from weakref import WeakKeyDictionary

from koord_numa.core.request import Pod
from koord_numa.core.verdicts import Reason, Unschedulable
from koord_numa.engine import cluster_events
from koord_numa.engine.cluster_events import ClusterEvent, reasons_of, wakers
from koord_numa.engine.queue.request_class import RequestClass
from koord_numa.engine.queue.unschedulable import UnschedulablePods
from koord_numa.settings import BackoffSettings


class Stage(Enum):
    """Where a bucket stands, in the words of kube-scheduler's metrics."""

    ACTIVE = "active"
    WOKEN = "backoff"
    PARKED = "unschedulable"


Turn = tuple[int, float, str, str]
"""Sort key of a pod: higher priority first, then older, then by namespace/name and uid."""


@dataclass(slots=True, eq=False)
class ClassQueue:
    klass: RequestClass
    pods: dict[str, Pod] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)  # heap; a turn without its pod is stale
    stage: Stage = Stage.ACTIVE
    verdict: Unschedulable | None = None
    reasons: frozenset[Reason] = frozenset()  # of the verdict
    not_before: float = 0.0
    offered: Turn | None = None  # its one valid entry among the active buckets

    def add(self, pod: Pod) -> None:
        turn, known = turn_of(pod), self.pods.get(pod.key.uid)
        self.pods[pod.key.uid] = pod
        if known is None or turn_of(known) != turn:
            heappush(self.turns, turn)

    def head(self) -> Turn | None:
        """The next pod's turn, after dropping stale ones."""
        while self.turns and self.turns[0][3] not in self.pods:
            heappop(self.turns)
        return self.turns[0] if self.turns else None

    def discard(self, uid: str) -> None:
        """Forget a pod; the heap is swept when most of it is stale."""
        self.pods.pop(uid, None)
        if len(self.turns) > 2 * len(self.pods) + 16:
            self.turns = [turn for turn in self.turns if turn[3] in self.pods]
            heapify(self.turns)


def turn_of(pod: Pod) -> Turn:
    """When a pod's turn is: priority, then age, then name, so that equal input gives equal order."""
    return (-pod.request.priority, pod.created, str(pod.key), pod.key.uid)


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """How many pods stand where, as kube-scheduler's ``scheduler_pending_pods`` counts them."""

    active: int
    backoff: int
    unschedulable: int


class SchedulingQueue:
    """Waiting pods. Times are monotonic seconds, given by the caller."""

    def __init__(self, wake_pause: BackoffSettings, parked_retry: float, random: Callable[[], float]) -> None:
        self.arrivals = cluster_events.Arrivals()
        self._wake_pause = wake_pause
        self._parked_retry = parked_retry
        self._random = random
        self._buckets: dict[RequestClass, ClassQueue] = {}
        self._class_of: dict[str, RequestClass] = {}  # queued pods, backing off or not
        self._ready: list[tuple[Turn, int, RequestClass]] = []  # heap of active buckets by their head; may be stale
        self._paused: list[tuple[float, int, RequestClass]] = []  # heap of woken or parked buckets by time
        self._failures: WeakKeyDictionary[RequestClass, int] = WeakKeyDictionary()  # parked so often in a row
        self._backing_off: dict[str, Pod] = {}
        self._due: list[tuple[float, str]] = []  # heap of pods that back off
        self._parking = UnschedulablePods()

    def __contains__(self, uid: object) -> bool:
        return uid in self._class_of

    def __len__(self) -> int:
        return len(self._class_of)

    @property
    def ready(self) -> bool:
        """May somebody be tried at once, as far as is known without looking closely?"""
        return bool(self._ready)

    @property
    def parked(self) -> int:
        """How many classes wait for a change."""
        return len(self._parking)

    def add(self, pod: Pod, klass: RequestClass) -> Unschedulable | None:
        """
        Queue a pod, or take note that it changed. When its class waits already, the verdict it waits with: the pod
        waits for the same reasons and need not be tried.
        """
        uid = pod.key.uid
        known = self._class_of.get(uid)
        if uid in self._backing_off and known is klass:
            self._backing_off[uid] = pod
            return None
        if known is not klass:
            self.remove(uid)
        bucket = self._buckets.get(klass)
        if bucket is None:
            bucket = self._buckets[klass] = ClassQueue(klass)
        if uid not in bucket.pods:
            again = cluster_events.BACKOFF_COMPLETE if known is klass else cluster_events.POD_UPDATE
            self.arrivals[bucket.stage.value, cluster_events.POD_ADD if known is None else again] += 1
        self._class_of[uid] = klass
        bucket.add(pod)
        if bucket.stage is Stage.ACTIVE:
            self._offer(bucket)
            return None
        return bucket.verdict

    def remove(self, uid: str) -> None:
        """The pod waits no longer; one that is not queued is no error."""
        klass = self._class_of.pop(uid, None)
        if klass is None:
            return
        self._backing_off.pop(uid, None)
        bucket = self._buckets.get(klass)
        if bucket is None:
            return
        bucket.discard(uid)
        self._drop_if_empty(bucket)

    def pop(self, now: float) -> Pod | None:
        """Take out the pod whose turn it is; ``None`` when nobody may be tried now."""
        self._advance(now)
        while self._ready:
            turn, _, klass = heappop(self._ready)
            bucket = self._buckets.get(klass)
            if bucket is None or bucket.offered != turn:
                continue
            bucket.offered = None
            if bucket.stage is not Stage.ACTIVE:
                continue
            if bucket.head() == turn:
                pod = bucket.pods[turn[3]]
                self.remove(turn[3])
                self._offer(bucket)
                return pod
            self._offer(bucket)
        return None

    def park(self, pod: Pod, klass: RequestClass, verdict: Unschedulable, now: float) -> frozenset[Reason]:
        """
        No node takes this pod, so none takes its class: all of them wait until something changes that matters to ``verdict``. Returns
        the reasons in it.
        """
        bucket = self._buckets.get(klass)
        if bucket is None:
            bucket = self._buckets[klass] = ClassQueue(klass)
        self._class_of[pod.key.uid] = klass
        bucket.add(pod)
        moved = 1 if bucket.stage is Stage.PARKED else len(bucket.pods)
        self.arrivals[Stage.PARKED.value, cluster_events.FAILURE] += moved
        bucket.stage, bucket.verdict, bucket.reasons = Stage.PARKED, verdict, reasons_of(verdict)
        attempts = self._failures[klass] = self._failures.get(klass, 0) + 1
        bucket.not_before = now + pause(self._wake_pause, attempts, self._random())
        self._parking.park(klass, wakers(bucket.reasons))
        heappush(self._paused, (now + self._parked_retry, klass.number, klass))
        return bucket.reasons

    def back_off(self, pod: Pod, klass: RequestClass, until: float) -> None:
        """Try this pod again at ``until`` at the earliest; its class is not concerned."""
        self.remove(pod.key.uid)
        self._class_of[pod.key.uid] = klass
        self._backing_off[pod.key.uid] = pod
        self.arrivals[Stage.WOKEN.value, cluster_events.FAILURE] += 1
        heappush(self._due, (until, pod.key.uid))

    def placed(self, klass: RequestClass) -> None:
        """A pod of this class found a node: the next pause starts small again."""
        self._failures.pop(klass, None)

    def wake(self, cause: ClusterEvent, now: float, room: int | None = None) -> None:
        """
        Something changed. ``room`` is the milli-CPU now free on the one node concerned: classes that ask for more stay parked.
        """
        for klass in self._parking.wake(cause, room):
            self._wake(klass, now, cluster_events.EVENTS[cause])

    def pods_of(self, klass: RequestClass) -> tuple[Pod, ...]:
        """The queued pods of a class that do not back off."""
        bucket = self._buckets.get(klass)
        return tuple(bucket.pods.values()) if bucket else ()

    def verdict(self, uid: str) -> Unschedulable | None:
        """Why a pod waits, as last decided."""
        klass = self._class_of.get(uid)
        bucket = None if klass is None else self._buckets.get(klass)
        return None if bucket is None else bucket.verdict

    def next_due(self, now: float) -> float | None:
        """When time alone makes somebody ready: a monotonic time, ``now`` when somebody is ready, ``None`` when never."""
        self._advance(now)
        if self._ready:
            return now
        times = [heap[0][0] for heap in (self._due, self._paused) if heap]
        return min(times, default=None)

    def numbers(self) -> QueueNumbers:
        """How many pods are active, backing off (alone or with their class), and parked."""
        count = dict.fromkeys(Stage, 0)
        for bucket in self._buckets.values():
            count[bucket.stage] += len(bucket.pods)
        return QueueNumbers(count[Stage.ACTIVE], count[Stage.WOKEN] + len(self._backing_off), count[Stage.PARKED])

    def refused(self) -> Counter[tuple[Reason, str]]:
        """Parked pods by reason and scheduler name; a pod counts for every reason that some node gave."""
        found: Counter[tuple[Reason, str]] = Counter()
        for bucket in self._buckets.values():
            if bucket.stage is Stage.PARKED:
                for reason in bucket.reasons:
                    found[reason, bucket.klass.profile.scheduler_name] += len(bucket.pods)
        return found

    def _wake(self, klass: RequestClass, now: float, event: str) -> None:
        bucket = self._buckets.get(klass)
        if bucket is None or bucket.stage is not Stage.PARKED:
            return
        if now >= bucket.not_before:
            self._activate(bucket, event)
        else:
            bucket.stage = Stage.WOKEN
            self.arrivals[Stage.WOKEN.value, event] += len(bucket.pods)
            heappush(self._paused, (bucket.not_before, klass.number, klass))

    def _activate(self, bucket: ClassQueue, event: str) -> None:
        bucket.stage = Stage.ACTIVE
        self.arrivals[Stage.ACTIVE.value, event] += len(bucket.pods)
        self._offer(bucket)

    def _advance(self, now: float) -> None:
        """Let time pass: pauses that are over end."""
        while self._paused and self._paused[0][0] <= now:
            _, _, klass = heappop(self._paused)
            bucket = self._buckets.get(klass)
            if bucket is None or bucket.stage is Stage.ACTIVE or bucket.not_before > now:
                continue
            self._parking.forget(klass)
            self._activate(
                bucket, cluster_events.TIMEOUT if bucket.stage is Stage.PARKED else cluster_events.BACKOFF_COMPLETE
            )
        while self._due and self._due[0][0] <= now:
            _, uid = heappop(self._due)
            pod = self._backing_off.pop(uid, None)
            if pod is not None:
                self.add(pod, self._class_of[uid])

    def _offer(self, bucket: ClassQueue) -> None:
        head = bucket.head()
        if head is not None and (bucket.offered is None or head < bucket.offered):
            bucket.offered = head
            heappush(self._ready, (head, bucket.klass.number, bucket.klass))

    def _drop_if_empty(self, bucket: ClassQueue) -> None:
        if not bucket.pods:
            self._parking.forget(bucket.klass)
            del self._buckets[bucket.klass]


def pause(backoff: BackoffSettings, attempts: int, dice: float) -> float:
    """Seconds to wait after so many attempts in a row: doubling, capped, and spread by ``dice`` in [0, 1)."""
    return backoff.pause(attempts, dice)
