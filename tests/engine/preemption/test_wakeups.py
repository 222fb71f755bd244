"""A pod that a newly started scheduler would place waits for a few seconds at most, in any order of events."""

import pytest

from koord_numa.ports import Unavailable
from tests.engine.preemption.kubelet_life import LOWS, KubeletLife
from tests.engine.preemption.stories import outcome

BATCHES = 6


@pytest.mark.parametrize("batch", range(BATCHES))
async def test_no_pod_waits_that_a_new_scheduler_places(batch: int, pytestconfig: pytest.Config) -> None:
    stories = int(pytestconfig.getoption("--stories"))
    found = [it for seed in range(batch, stories, BATCHES) if (it := await outcome(seed)) is not None]
    assert found == []


async def test_evictions_are_found_in_a_rebuilt_state_of_a_kubelet() -> None:
    """The state that was followed has two pods elsewhere than they are, so that no eviction seems to help."""
    assert await outcome(9107) is None


async def test_room_that_an_eviction_has_just_made_is_used() -> None:
    """Two pods of higher priority first evict others, and leave room for a third one."""
    assert await outcome(4987) is None


async def test_room_is_retried_before_it_goes_to_lower_priority() -> None:
    """No topology follows the evictions, and another scheduler's pod takes a part of the room."""
    life = KubeletLife()
    for name in LOWS:
        life.create(name, 4, 9100)
    await life.rest(2)
    life.create("high", 8, 9900)
    await life.hear_all()
    await life.decide()
    await life.plan()
    nomination = life.engine.handle.nominator.of("uid-high")
    assert nomination is not None
    life.create("thief", 2, 9900)
    life.bind_elsewhere("thief")
    while life.server.orders:
        await life.obey()
    await life.hear_all()
    while life.engine.handle.nominator.of("uid-high") is nomination:
        await life.second()
        await life.decide()
        await life.plan()
    assert nomination.rebuilt
    await life.rest(5)
    assert life.node_of("high") == "n"


async def test_a_nominated_pod_whose_bind_failed_is_tried_again() -> None:
    """Another pod of its class fits nowhere meanwhile, as the room is kept for the nominated pod."""
    life = KubeletLife()
    failed: list[str] = []

    def fail(call: str) -> None:
        if call == "bind before" and life.server.calls[-1] == "bind high-0 n" and not failed:
            failed.append(call)
            raise Unavailable("503")

    for name, priority in zip(LOWS, (9900, 9900, 9100, 9100), strict=True):
        life.create(name, 4, priority)
    await life.rest(2)
    life.server.fail = fail
    life.create("high-0", 8, 9900)
    await life.arrive()
    await life.arrive()
    assert failed
    life.create("high-1", 8, 9900)
    await life.rest(5)
    assert life.node_of("high-0") == "n"
