"""Counters of attempts and waits, with a clock that tests move."""

import pytest

from koord_numa.engine.metrics import ATTEMPT_BUCKETS, WAIT_BUCKETS, Histogram, Result, SchedulerMetrics
from koord_numa.ports import Unavailable
from tests.engine.world import make_node, make_pod, make_world
from tests.tables import each_row


def histogram(bounds: tuple[float, ...], *values: float) -> Histogram:
    """With these values in it."""
    made = Histogram(bounds)
    for value in values:
        made.add(value)
    return made


@each_row(
    ("attempts", "label"),
    [pytest.param(1, "1"), pytest.param(14, "14"), pytest.param(15, "15+"), pytest.param(99, "15+")],
)
def test_waits_are_told_apart_by_attempts_up_to_a_limit(attempts: int, label: str) -> None:
    meter = SchedulerMetrics()
    meter.bound(attempts, 2.0)
    assert meter.waited == {label: histogram(WAIT_BUCKETS, 2.0)}
    assert meter.tries == histogram(ATTEMPT_BUCKETS, attempts)


def test_a_value_on_a_bound_is_within_it() -> None:
    assert histogram((1.0, 2.0), 1.0, 1.5, 2.5).buckets == [1, 1, 1]


async def test_a_wait_lasts_to_the_bind_and_counts_attempts() -> None:
    world = make_world(make_node("n", cpu=1))
    world.waits(make_pod("big", 4000))
    await world.settle()
    assert dict(world.engine.queue.refused()) == {("NodeResourcesFit", "koord-numa"): 1}
    assert world.engine.metrics.rejections == {"resources": 1}
    world.clock.now += 100
    world.engine.handlers.nodes.observe("MODIFIED", make_node("n", cpu=8))
    await world.settle()
    meter = world.engine.metrics
    assert world.nodes_of() == {"big": "n"}
    assert meter.waited == {"2": histogram(WAIT_BUCKETS, 100.0)}
    assert meter.tries == histogram(ATTEMPT_BUCKETS, 2)
    counts = {result: durations.count for (result, _), durations in meter.attempts.items()}
    assert counts == {Result.UNSCHEDULABLE: 1, Result.SCHEDULED: 1}
    assert (len(world.engine.handle.pending), dict(world.engine.queue.refused())) == (0, {})


async def test_a_bind_that_fails_is_an_error_and_the_wait_goes_on() -> None:
    world = make_world(make_node("n"))
    failures = [Unavailable("try later")]

    def fail(call: str) -> None:
        if call == "bind before" and failures:
            raise failures.pop()

    world.server.fail = fail
    world.waits(make_pod("a"))
    await world.settle()
    assert world.engine.metrics.attempts[Result.ERROR, "koord-numa"].count == 1
    world.clock.now += 60
    await world.settle()
    assert world.engine.metrics.waited == {"2": histogram(WAIT_BUCKETS, 60.0)}


async def test_nothing_is_remembered_of_pods_that_are_gone() -> None:
    world = make_world()
    world.waits(make_pod("a"), make_pod("b"))
    await world.settle()
    assert {pending.uid for pending in world.engine.handle.pending} == {"uid-a", "uid-b"}
    world.engine.handlers.pending_pods.observe("DELETED", make_pod("a"))
    world.engine.handlers.pending_pods.replace([])
    assert len(world.engine.handle.pending) == 0
