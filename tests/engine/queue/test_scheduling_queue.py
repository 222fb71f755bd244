"""The queue: whose turn it is, who waits for what, and that nobody is forgotten."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.request import Container, Pod, PodKey, PodRequest
from koord_numa.core.verdicts import Reason, Rejection, Unschedulable
from koord_numa.core.vocabulary import ContainerKind
from koord_numa.engine.cache.pod_index import PodIndex
from koord_numa.engine.cluster_events import WAKERS, ClusterEvent
from koord_numa.engine.queue.request_class import RequestClass, RequestClasses
from koord_numa.engine.queue.scheduling_queue import QueueNumbers, SchedulingQueue, pause
from koord_numa.settings import BackoffSettings, Settings

CLASSES = RequestClasses(Settings(), PodIndex())
PAUSE = BackoffSettings(initial=1, max=8, jitter=0)


def pod(name: str, cpu: int = 1000, priority: int = 0, created: float = 0.0) -> Pod:
    container = Container("app", ContainerKind.APP, {"cpu": cpu})
    request = PodRequest(containers=(container,), priority=priority)
    return Pod(PodKey("default", name, f"uid-{name}"), request, scheduler="koord-numa", created=created)


def class_of(waiting: Pod) -> RequestClass:
    klass = CLASSES.of(waiting)
    assert klass is not None
    return klass


def new_queue(retry: float = 1000.0) -> SchedulingQueue:
    return SchedulingQueue(PAUSE, retry, lambda: 0.0)


def add(queue: SchedulingQueue, *pods: Pod) -> None:
    for waiting in pods:
        queue.add(waiting, class_of(waiting))


def drain(queue: SchedulingQueue, now: float = 0.0) -> list[str]:
    names = []
    while (waiting := queue.pop(now)) is not None:
        names.append(waiting.key.name)
    return names


def refusal(*reasons: Reason) -> Unschedulable:
    return Unschedulable({f"node-{i}": Rejection(reason, reason.value) for i, reason in enumerate(reasons)})


def park(queue: SchedulingQueue, waiting: Pod, *reasons: Reason, now: float = 0.0) -> None:
    queue.park(waiting, class_of(waiting), refusal(*reasons), now)


def test_higher_priority_first_then_older_then_by_name_across_classes() -> None:
    queue = new_queue()
    add(
        queue,
        pod("young", created=9),
        pod("b", created=5),
        pod("a", cpu=2000, created=5),
        pod("old", cpu=3000, created=1),
        pod("urgent", priority=10, created=99),
    )
    assert drain(queue) == ["urgent", "old", "a", "b", "young"]


def test_a_class_that_fits_nowhere_parks_as_a_whole_and_newcomers_learn_why() -> None:
    queue = new_queue()
    first, second, late = pod("first"), pod("second", created=1), pod("late", created=2)
    add(queue, first, second)
    assert queue.pop(0) == first
    park(queue, first, Reason.RESOURCES)
    assert queue.pop(0) is None
    assert queue.add(late, class_of(late)) == refusal(Reason.RESOURCES)
    assert queue.verdict("uid-second") == refusal(Reason.RESOURCES)
    assert queue.numbers() == QueueNumbers(active=0, backoff=0, unschedulable=3)
    queue.wake(ClusterEvent.CAPACITY_FREED, now=1, room=1000)
    assert drain(queue, now=1) == ["first", "second", "late"]


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value)
@pytest.mark.parametrize("cause", ClusterEvent, ids=lambda cause: cause.value)
def test_only_what_matters_to_the_refusal_wakes(reason: Reason, cause: ClusterEvent) -> None:
    queue = new_queue()
    waiting = pod("waiting")
    park(queue, waiting, reason)
    queue.wake(cause, now=1)
    expected = ["waiting"] if cause in WAKERS[reason] | {ClusterEvent.NODE_ADDED} else []
    assert drain(queue, now=1) == expected


def test_freed_capacity_wakes_only_those_small_enough_for_it() -> None:
    queue = new_queue()
    for cpu in (1000, 2000, 4000, 8000):
        park(queue, pod(f"cpu-{cpu}", cpu=cpu), Reason.RESOURCES)
    queue.wake(ClusterEvent.CAPACITY_FREED, now=1, room=3999)
    assert drain(queue, now=1) == ["cpu-1000", "cpu-2000"]
    queue.wake(ClusterEvent.CAPACITY_FREED, now=1, room=4000)
    assert drain(queue, now=1) == ["cpu-4000"]


def test_ten_thousand_parked_pods_of_one_class_cost_one_try_an_event() -> None:
    queue = new_queue()
    pods = [pod(f"pod-{i:05}", created=i) for i in range(10_000)]
    add(queue, *pods)
    for event in range(3):
        queue.wake(ClusterEvent.CAPACITY_FREED, now=event * 10.0)
        tried = queue.pop(event * 10.0)
        assert tried == pods[0]
        park(queue, tried, Reason.RESOURCES, now=event * 10.0)
        assert queue.pop(event * 10.0) is None
    assert queue.numbers() == QueueNumbers(active=0, backoff=0, unschedulable=10_000)


def test_a_class_that_keeps_failing_pauses_longer_and_starts_anew_once_placed() -> None:
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
    queue.placed(class_of(waiting))
    park(queue, waiting, Reason.RESOURCES, now=3.0)
    queue.wake(ClusterEvent.CAPACITY_FREED, now=3.0)
    assert queue.next_due(3.0) == 4.0


def test_parked_pods_are_tried_again_after_a_while_whatever_happened() -> None:
    queue = new_queue(retry=300)
    waiting = pod("waiting")
    park(queue, waiting, Reason.TAINT, now=0)
    assert (queue.pop(299), queue.next_due(299), queue.pop(300)) == (None, 300, waiting)


def test_one_pod_backs_off_without_its_class() -> None:
    queue = new_queue()
    failed, other = pod("failed"), pod("other", created=1)
    add(queue, failed, other)
    assert queue.pop(0) == failed
    queue.back_off(failed, class_of(failed), until=5)
    assert drain(queue, now=1) == ["other"]
    assert (queue.next_due(1), drain(queue, now=5)) == (5, ["failed"])


def test_a_removed_pod_is_never_tried() -> None:
    queue = new_queue()
    add(queue, pod("active"))
    park(queue, pod("parked", cpu=2000), Reason.RESOURCES)
    paused = pod("paused", cpu=3000)
    queue.back_off(paused, class_of(paused), until=1)
    for name in ("active", "parked", "paused", "unknown"):
        queue.remove(f"uid-{name}")
    queue.wake(ClusterEvent.NODE_ADDED, now=9)
    assert (drain(queue, now=9), len(queue)) == ([], 0)


def test_a_pod_whose_request_changes_leaves_its_parked_class() -> None:
    queue = new_queue()
    big, small = pod("same", cpu=8000), pod("same", cpu=1000)
    park(queue, big, Reason.RESOURCES)
    add(queue, small)
    assert drain(queue) == ["same"]
    assert len(queue) == 0


def test_a_removed_pod_does_not_hide_its_class() -> None:
    queue = new_queue()
    add(queue, pod("first", created=1), pod("second", created=2))
    queue.remove("uid-first")
    assert drain(queue) == ["second"]


@pytest.mark.parametrize(
    ("attempts", "dice", "expected"), [(1, 0.0, 1.0), (2, 0.0, 2.0), (9, 0.0, 8.0), (10_000, 0.0, 8.0), (2, 0.5, 1.5)]
)
def test_pauses_double_are_capped_and_spread(attempts: int, dice: float, expected: float) -> None:
    assert pause(BackoffSettings(initial=1, max=8, jitter=0.5), attempts, dice) == expected


@dataclass
class Cluster:
    """A toy cluster of one node: pods up to ``room`` fit, larger ones wait for the next growth."""

    room: int
    placed: set[str]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    asks=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3)), min_size=1, max_size=60),
)
def test_nobody_starves(seed: int, asks: list[tuple[int, int]]) -> None:
    """Whatever else happens, once there is room for every pod, every pod is popped after as many tries as there are pods."""
    dice = random.Random(seed)
    queue, cluster, now = new_queue(), Cluster(0, set()), 0.0
    pods = [pod(f"p{i}", cpu * 1000, priority, created=i) for i, (cpu, priority) in enumerate(asks)]
    add(queue, *pods)
    for _ in range(40):
        now += dice.random() * 3
        cluster.room = dice.randint(0, 20_000)
        queue.wake(dice.choice(list(ClusterEvent)), now, room=cluster.room)
        for _ in range(3):
            _try_one(queue, cluster, now)
    cluster.room = 20_000
    queue.wake(ClusterEvent.CAPACITY_FREED, now, room=cluster.room)
    now += PAUSE.max
    for _ in pods:
        _try_one(queue, cluster, now)
    assert cluster.placed == {waiting.key.name for waiting in pods}


def _try_one(queue: SchedulingQueue, cluster: Cluster, now: float) -> None:
    waiting = queue.pop(now)
    if waiting is None:
        return
    klass = class_of(waiting)
    if klass.cpu <= cluster.room:
        queue.placed(klass)
        cluster.placed.add(waiting.key.name)
    else:
        queue.park(waiting, klass, refusal(Reason.RESOURCES), now)
