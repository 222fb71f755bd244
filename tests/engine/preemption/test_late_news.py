"""
No lost wake-up while room is made where a kubelet chooses, in whatever order news comes.

What makes an eviction help is known from two streams, and either may be behind. A plan that was made too early must be made again when
more is known: once everything has arrived a pod that has priority gets its room within seconds, and not when all waiting pods are tried
again after five minutes.
"""

from collections import deque
from collections.abc import Callable
from inspect import isawaitable
from random import Random

import pytest

from koord_numa.ports import ClusterError, Conflict, NotLeader, Unavailable, UnknownOutcome
from tests.engine.preemption.kubelet_life import LOWS, KubeletLife

SECONDS = 20
"""More than any pause after a few failures, and far less than ``parkedRetrySeconds``."""

USUAL = ("decide", "plan", "hear", "obey", "scan", "topology", "second")
UNUSUAL = ("again", "relist", "lease", "finish", "fail")

ERRORS = (Unavailable, UnknownOutcome, Conflict, NotLeader)

FAILURES: tuple[tuple[str, type[ClusterError]], ...] = (
    *((call, error) for call in ("bind before", "nominate", "evict before") for error in ERRORS),
    ("bind after", UnknownOutcome),
    ("evict after", UnknownOutcome),
)


class Story:
    """What happens is drawn from a seed: how often each action comes, and in which order."""

    def __init__(self, seed: int, actions: tuple[str, ...]) -> None:
        self.dice = Random(seed)
        self.life = KubeletLife()
        self.life.server.fail = self.fail
        self.failures = deque[tuple[str, type[ClusterError]]]()
        self.actions = actions
        self.weights = [self.dice.choice((1, 1, 3) if action in USUAL else (0, 0, 0.3)) for action in actions]

    def fail(self, call: str) -> None:
        """The next failure that was drawn, at the call for which it was."""
        if self.failures and self.failures[0][0] == call:
            raise self.failures.popleft()[1]("as told")

    async def act(self) -> None:
        """One thing happens."""
        action = self.dice.choices(self.actions, self.weights)[0]
        if action == "fail":
            self.failures.append(self.dice.choice(FAILURES))
            return
        act: Callable[[], object] = getattr(self.life, action)
        if isawaitable(done := act()):
            await done

    async def until_high_is_bound(self) -> int:
        """Four pods come and are bound, then the one that needs two of their places. Returns its seconds once nothing is late any more."""
        life = self.life
        for name in LOWS:
            life.create(name, 4, 9100)
        while not all(map(life.node_of, LOWS)):
            await self.act()
        life.create("high", 8, 9900)
        for _ in range(self.dice.randrange(60)):
            await self.act()
        self.failures.clear()
        life.world.lease.held = True
        for second in range(SECONDS):
            await life.rest(1)
            if life.node_of("high"):
                return second
        return SECONDS


@pytest.mark.parametrize("actions", [USUAL, (*USUAL, *UNUSUAL)], ids=["news-is-late", "and-requests-fail"])
async def test_room_is_made_soon_after_all_news_has_come(actions: tuple[str, ...]) -> None:
    waits = []
    for seed in range(50):
        story = Story(seed, actions)
        if await story.until_high_is_bound() == SECONDS:
            waits.append(seed)
        assert not story.life.refused
    assert waits == []


async def test_a_pod_that_got_another_place_than_foreseen_is_evicted_where_it_is() -> None:
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
