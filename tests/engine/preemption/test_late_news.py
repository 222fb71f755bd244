"""
No lost wake-up while room is made where a kubelet chooses, in whatever order news comes.

What makes an eviction help is known from two streams, and either may be behind. A plan that was made too early must be made again when
more is known: once everything has arrived a pod that has priority gets its room within seconds, and not when all waiting pods are tried
again after five minutes.
"""

import pytest

from tests.engine.preemption.kubelet_life import LOWS, KubeletLife
from tests.engine.preemption.stories import UNUSUAL, USUAL, Story

SECONDS = 20
"""More than any pause after a few failures, and far less than ``parkedRetrySeconds``."""


async def until_high_is_bound(story: Story) -> int:
    """Four pods are bound, then a pod comes that needs two of their places. Returns its seconds once nothing is late any more."""
    life = story.life
    for name in LOWS:
        life.create(name, 4, 9100)
    while not all(map(life.node_of, LOWS)):
        await story.act()
    life.create("high", 8, 9900)
    for _ in range(story.dice.randrange(60)):
        await story.act()
    story.calm()
    for second in range(SECONDS):
        await life.rest(1)
        if life.node_of("high"):
            return second
    return SECONDS


@pytest.mark.parametrize("actions", [USUAL, (*USUAL, *UNUSUAL)], ids=["news-is-late", "and-requests-fail"])
async def test_room_is_made_soon_after_all_news_has_come(actions: tuple[str, ...]) -> None:
    waits = []
    for seed in range(20):
        story = Story(seed, actions)
        if await until_high_is_bound(story) == SECONDS:
            waits.append(seed)
        assert not story.life.refused
    assert waits == []


async def test_a_pod_placed_elsewhere_than_predicted_is_evicted_there() -> None:
    """Another one had ended before it reached its kubelet, which then had room for it on NUMA node 0."""
    life = KubeletLife()
    for name in LOWS:
        life.create(name, 4, 9100)
    await life.hear_all()
    await life.decide()
    await life.obey()
    life.end("low-0")
    await life.rest(2)
    life.create("high", 8, 9900)
    await life.rest(3)
    assert life.node_of("high")
    assert life.server.calls.count("evict low-3") == 1
    assert len([call for call in life.server.calls if call.startswith("evict")]) == 1
