"""Pods are counted as they come to the parts of the queue: each once, with why, and by the class where the class moves."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.verdicts import Reason
from koord_numa.core.scheduling.filters import ClusterEvent
from koord_numa.engine.queue.scheduling_queue import EVENTS, SchedulingQueue, Stage
from tests.engine.queue.test_scheduling_queue import add, drain, new_queue, park, pod


def came(queue: SchedulingQueue) -> dict[str, int]:
    """Arrivals as ``queue/event``."""
    return {f"{part}/{event}": count for (part, event), count in sorted(queue.arrivals.items())}


def test_every_cause_has_a_name() -> None:
    assert set(EVENTS) == set(ClusterEvent)


def test_newcomers_join_their_class_wherever_it_stands() -> None:
    queue = new_queue()
    add(queue, pod("a"), pod("b"))
    first = queue.pop(0)
    assert first is not None
    park(queue, first, Reason.RESOURCES)
    add(queue, pod("c"))
    queue.wake(ClusterEvent.NODE_ADDED, 0.5)
    add(queue, pod("d"))
    assert came(queue) == {
        "active/PodAdd": 2,
        "backoff/NodeAdd": 3,
        "backoff/PodAdd": 1,
        "unschedulable/PodAdd": 1,
        "unschedulable/ScheduleAttemptFailure": 2,
    }


def test_a_pod_that_is_only_told_again_does_not_come_again() -> None:
    queue = new_queue()
    waiting = pod("a")
    add(queue, waiting, waiting)
    assert came(queue) == {"active/PodAdd": 1}


def test_a_pod_that_has_become_another_comes_by_an_update() -> None:
    queue = new_queue()
    waiting = pod("a")
    add(queue, waiting)
    waiting.request_class = pod("a", cpu=2000).request_class
    add(queue, waiting)
    assert came(queue) == {"active/PodAdd": 1, "active/PodUpdate": 1}


def test_the_way_of_a_class_that_waits_twice() -> None:
    queue = new_queue(retry=100)
    add(queue, pod("a"))
    [first] = filter(None, [queue.pop(0)])
    park(queue, first, Reason.RESOURCES, now=0)
    queue.wake(ClusterEvent.CAPACITY_FREED, 0.5)
    assert drain(queue, 1) == ["a"]
    park(queue, first, Reason.RESOURCES, now=1)
    assert drain(queue, 101) == ["a"]
    assert came(queue) == {
        "active/BackoffComplete": 1,
        "active/PodAdd": 1,
        "active/UnschedulableTimeout": 1,
        "backoff/AssignedPodDelete": 1,
        "unschedulable/ScheduleAttemptFailure": 2,
    }


def test_a_pod_whose_bind_failed_comes_back_alone() -> None:
    queue = new_queue()
    add(queue, pod("a"), pod("b"))
    first = queue.pop(0)
    assert first is not None
    queue.back_off(first, until=5)
    assert drain(queue, 5) == ["b", "a"]
    assert came(queue) == {"active/BackoffComplete": 1, "active/PodAdd": 2, "backoff/ScheduleAttemptFailure": 1}


@given(st.lists(st.sampled_from(["add", "pop and park", "pop and fail", "pop", "wake", "pass"]), max_size=40))
def test_who_has_come_to_a_part_has_left_it_or_is_there(steps: list[str]) -> None:
    queue, now, popped = new_queue(retry=7), 0.0, 0

    for number, step in enumerate(steps):
        if step == "add":
            add(queue, pod(f"p{number}", cpu=1000 * (1 + number % 3)))
        elif step == "wake":
            queue.wake(ClusterEvent.NODE_ADDED, now)
        elif step == "pass":
            now += 1.0
        elif (found := queue.pop(now)) is not None:
            if step == "pop and park":
                park(queue, found, Reason.RESOURCES, now=now)
            elif step == "pop and fail":
                queue.back_off(found, now + 2)
            else:
                popped += 1
        there = queue.numbers()
        assert total(queue.arrivals, "PodAdd") == len(queue) + popped
        for stage, count in zip(Stage, (there.active, there.backoff, there.unschedulable), strict=True):
            assert sum(n for (part, _), n in queue.arrivals.items() if part == stage.value) >= count


def total(arrivals: Mapping[tuple[str, str], int], event: str) -> int:
    """All arrivals by this event."""
    return sum(count for (_, why), count in arrivals.items() if why == event)
