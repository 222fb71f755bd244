"""The queue: whose turn it is, who waits for what, and that no pod is forgotten."""

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.request import Container, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection, Unschedulable
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.scheduling.filters import ON_CAPACITY, ClusterEvent
from koord_numa.engine.cache.listers import PodIndex
from koord_numa.engine.queue.pending_pod import PendingPod, RequestClasses
from koord_numa.engine.queue.scheduling_queue import RESOLVED_BY, QueueNumbers, SchedulingQueue
from koord_numa.settings import BackoffSettings, Settings
from tests.tables import each_row

CLASSES = RequestClasses(Settings(), PodIndex())
PAUSE = BackoffSettings(initial=1, max=8, jitter=0)


def pod(name: str, cpu: int = 1000, priority: int = 0) -> PendingPod:
    container = Container("app", ContainerKind.APP, {"cpu": cpu})
    request = PodRequest(containers=(container,), priority=priority)
    waiting = Pod(PodKey("default", name, f"uid-{name}"), request, scheduler="koord-numa")
    request_class = CLASSES.of(waiting)
    assert request_class is not None
    return PendingPod(waiting, request_class, since=0.0)


def new_queue(retry: float = 1000.0) -> SchedulingQueue:
    settings = Settings(backoff=PAUSE, wake_pause=PAUSE, parked_retry_seconds=retry)
    return SchedulingQueue(settings, lambda: 0.0)


def add(queue: SchedulingQueue, *pods: PendingPod) -> None:
    for waiting in pods:
        queue.add(waiting)


def drain(queue: SchedulingQueue, now: float = 0.0) -> list[str]:
    names = []
    while (waiting := queue.pop(now)) is not None:
        names.append(waiting.pod.key.name)
    return names


def refusal(*reasons: Reason) -> Unschedulable:
    return Unschedulable({f"node-{i}": Rejection(reason, reason.value) for i, reason in enumerate(reasons)})


def park(queue: SchedulingQueue, waiting: PendingPod, *reasons: Reason, now: float = 0.0) -> None:
    queue.park(waiting, refusal(*reasons), now)


def test_queue_order_is_priority_then_time_across_classes() -> None:
    queue = new_queue()
    add(queue, pod("a"), pod("b", cpu=2000), pod("c"), pod("d", cpu=3000), pod("urgent", priority=10))
    assert drain(queue) == ["urgent", "a", "b", "c", "d"]


def test_a_class_parks_as_a_whole_and_new_pods_get_the_reason() -> None:
    queue = new_queue()
    first, second, late = pod("first"), pod("second"), pod("late")
    add(queue, first, second)
    assert queue.pop(0) == first
    park(queue, first, Reason.RESOURCES)
    assert queue.pop(0) is None
    assert queue.add(late) == refusal(Reason.RESOURCES)
    assert queue.verdict(second) == refusal(Reason.RESOURCES)
    assert queue.numbers() == QueueNumbers(active=0, backoff=0, unschedulable=3)
    queue.wake(ClusterEvent.CAPACITY_FREED, now=1, free={"cpu": 1000, "pods": 9})
    assert drain(queue, now=1) == ["first", "second", "late"]


@each_row("reason", Reason, ids=lambda reason: reason.value)
@each_row("cause", ClusterEvent, ids=lambda cause: cause.value)
def test_only_what_matters_to_the_refusal_wakes(reason: Reason, cause: ClusterEvent) -> None:
    queue = new_queue()
    waiting = pod("waiting")
    park(queue, waiting, reason)
    queue.wake(cause, now=1)
    expected = ["waiting"] if cause in RESOLVED_BY[reason] | ON_CAPACITY else []
    assert drain(queue, now=1) == expected


def test_freed_capacity_wakes_only_those_small_enough_for_it() -> None:
    queue = new_queue()
    for cpu in (1000, 2000, 4000, 8000):
        park(queue, pod(f"cpu-{cpu}", cpu=cpu), Reason.RESOURCES)
    queue.wake(ClusterEvent.CAPACITY_FREED, now=1, free={"cpu": 3999, "pods": 9})
    assert drain(queue, now=1) == ["cpu-1000", "cpu-2000"]
    queue.wake(ClusterEvent.CAPACITY_FREED, now=1, free={"cpu": 4000, "pods": 9})
    assert drain(queue, now=1) == ["cpu-4000"]


def test_ten_thousand_pods_of_a_class_cost_one_try_per_event() -> None:
    queue = new_queue()
    pods = [pod(f"pod-{i:05}") for i in range(10_000)]
    add(queue, *pods)
    for event in range(3):
        queue.wake(ClusterEvent.CAPACITY_FREED, now=event * 10.0)
        tried = queue.pop(event * 10.0)
        assert tried == pods[0]
        park(queue, tried, Reason.RESOURCES, now=event * 10.0)
        assert queue.pop(event * 10.0) is None
    assert queue.numbers() == QueueNumbers(active=0, backoff=0, unschedulable=10_000)


def test_a_failing_class_backs_off_until_it_is_placed() -> None:
    queue = new_queue()
    waiting = pod("waiting")
    park(queue, waiting, Reason.RESOURCES, now=0)
    queue.wake(ClusterEvent.CAPACITY_FREED, now=0.5)
    assert queue.numbers() == QueueNumbers(active=0, backoff=1, unschedulable=0)
    assert (queue.pop(0.9), queue.next_due(0.9), queue.pop(1.0)) == (None, 1.0, waiting)
    park(queue, waiting, Reason.RESOURCES, now=1.0)
    queue.wake(ClusterEvent.CAPACITY_FREED, now=1.1)
    assert queue.next_due(1.1) == 3.0
    assert queue.pop(3.0) == waiting
    queue.placed(waiting.request_class)
    park(queue, waiting, Reason.RESOURCES, now=3.0)
    queue.wake(ClusterEvent.CAPACITY_FREED, now=3.0)
    assert queue.next_due(3.0) == 4.0


def test_parked_pods_are_retried_after_a_while() -> None:
    queue = new_queue(retry=300)
    waiting = pod("waiting")
    park(queue, waiting, Reason.TAINT, now=0)
    assert (queue.pop(299), queue.next_due(299), queue.pop(300)) == (None, 300, waiting)


def test_one_pod_backs_off_without_its_class() -> None:
    queue = new_queue()
    failed, other = pod("failed"), pod("other")
    add(queue, failed, other)
    assert queue.pop(0) == failed
    queue.back_off(failed, until=5)
    assert drain(queue, now=1) == ["other"]
    assert (queue.next_due(1), drain(queue, now=5)) == (5, ["failed"])


def test_a_removed_pod_is_never_tried() -> None:
    queue = new_queue()
    active, parked = pod("active"), pod("parked", cpu=2000)
    add(queue, active)
    park(queue, parked, Reason.RESOURCES)
    paused = pod("paused", cpu=3000)
    queue.back_off(paused, until=1)
    for waiting in (active, parked, paused, pod("unknown")):
        queue.remove(waiting)
    queue.wake(ClusterEvent.NODE_ADDED, now=9)
    assert (drain(queue, now=9), len(queue)) == ([], 0)


def test_a_pod_whose_request_changes_leaves_its_parked_class() -> None:
    queue = new_queue()
    same = pod("same", cpu=8000)
    park(queue, same, Reason.RESOURCES)
    same.request_class = pod("same", cpu=1000).request_class
    add(queue, same)
    assert drain(queue) == ["same"]
    assert len(queue) == 0


def test_a_removed_pod_does_not_hide_its_class() -> None:
    queue = new_queue()
    first = pod("first")
    add(queue, first, pod("second"))
    queue.remove(first)
    assert drain(queue) == ["second"]


@each_row(
    ("attempts", "dice", "expected"), [(1, 0.0, 1.0), (2, 0.0, 2.0), (9, 0.0, 8.0), (10_000, 0.0, 8.0), (2, 0.5, 1.5)]
)
def test_pauses_double_are_capped_and_spread(attempts: int, dice: float, expected: float) -> None:
    assert BackoffSettings(initial=1, max=8, jitter=0.5).pause(attempts, dice) == expected


@dataclass
class Cluster:
    """A toy cluster of one node: pods up to ``room`` fit, larger ones wait for the next growth."""

    room: int
    placed: set[str]


@given(
    seed=st.integers(0, 2**32),
    asks=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3)), min_size=1, max_size=60),
)
def test_no_pod_starves(seed: int, asks: list[tuple[int, int]]) -> None:
    """If there is room for every pod, every pod is popped after at most as many attempts as there are pods."""
    dice = random.Random(seed)
    queue, cluster, now = new_queue(), Cluster(0, set()), 0.0
    pods = [pod(f"p{i}", cpu * 1000, priority) for i, (cpu, priority) in enumerate(asks)]
    add(queue, *pods)
    for _ in range(40):
        now += dice.random() * 3
        cluster.room = dice.randint(0, 20_000)
        queue.wake(dice.choice(list(ClusterEvent)), now, free={"cpu": cluster.room, "pods": 99})
        for _ in range(3):
            _try_one(queue, cluster, now)
    cluster.room = 20_000
    queue.wake(ClusterEvent.CAPACITY_FREED, now, free={"cpu": cluster.room, "pods": 99})
    now += PAUSE.max
    for _ in pods:
        _try_one(queue, cluster, now)
    assert cluster.placed == {waiting.pod.key.name for waiting in pods}


def _try_one(queue: SchedulingQueue, cluster: Cluster, now: float) -> None:
    waiting = queue.pop(now)
    if waiting is None:
        return
    if waiting.request_class.cpu <= cluster.room:
        queue.placed(waiting.request_class)
        cluster.placed.add(waiting.pod.key.name)
    else:
        queue.park(waiting, refusal(Reason.RESOURCES), now)
