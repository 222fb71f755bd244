"""No pod waits for longer than a few seconds that a scheduler that starts now would place, in whatever order events come."""

import pytest

from tests.engine.preemption.kubelet_life import LOWS, KubeletLife
from tests.engine.preemption.stories import outcome

BATCHES = 6


@pytest.mark.parametrize("batch", range(BATCHES))
async def test_no_pod_waits_that_a_new_scheduler_places(batch: int, pytestconfig: pytest.Config) -> None:
    stories = int(pytestconfig.getoption("--stories"))
    found = [await outcome(seed) for seed in range(batch, stories, BATCHES)]
    assert [it for it in found if it is not None] == []


async def test_room_is_tried_again_before_it_is_given_to_lower_priority() -> None:
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
