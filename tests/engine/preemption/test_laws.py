"""Laws after any history of pods that arrive, make room, are evicted and leave."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from koord_numa.core.objects.request import NumaSpec, Pod
from koord_numa.core.objects.vocabulary import NumaPolicy, QosClass
from koord_numa.core.preempt.dry_run import EvictionTerms
from koord_numa.core.preempt.victims import select_victims_on_node
from koord_numa.core.value_objects import replace
from koord_numa.engine.preemption.evaluator import PREEMPTED
from tests.engine.world import World, make_node, make_pod, make_topology, make_world

NODES = ("one", "two")


@dataclass
class History:
    """A cluster of two nodes with eight CPUs each, and who was evicted for whom."""

    world: World
    leaving: list[str] = field(default_factory=list)
    seen: int = 0

    async def settle(self) -> None:
        """Everything that can happen now happens; binds are seen."""
        world = self.world
        await world.settle()
        await world.engine.preemption.work()
        await world.settle()
        self.check_evictions()
        for uid, assumption in list(world.engine.cache.assumed.items()):
            pod = replace(world.server.pods[uid], assignment=assumption.placement.assignment, started=True)
            world.server.pods[uid] = pod
            world.engine.handlers.bound_pods.observe("MODIFIED", pod)
        self.check_cpus()

    def check_evictions(self) -> None:
        """Only pods of lower priority are evicted, each once, and never while their node is another one."""
        events = self.world.diary.events[self.seen :]
        self.seen += len(events)
        for name, reason, message in events:
            if reason == PREEMPTED:
                winner = message.split()[3]
                victim, taker = (self.world.server.pods[uid].request.priority for uid in (f"uid-{name}", winner))
                assert victim < taker
                assert name not in self.leaving
                self.leaving.append(name)

    def check_cpus(self) -> None:
        """No CPU has two owners."""
        for record in self.world.engine.cache.nodes.values():
            assert set(record.ledger.references.values()) <= {1}

    async def one_leaves(self) -> None:
        """The victim that was evicted first is gone."""
        uid = f"uid-{self.leaving.pop(0)}"
        self.world.engine.handlers.bound_pods.observe("DELETED", self.world.server.pods.pop(uid))
        self.world.clock.now += 3
        self.world.engine.preemption.look_again()
        await self.settle()


def wanted(number: int, cpu: int, priority: int) -> Pod:
    """A pod with CPUs of its own on one NUMA node of four."""
    pod = make_pod(f"p{number:02}", cpu=1000 * cpu, created=float(number))
    numa = NumaSpec(NumaPolicy.SINGLE_NUMA_NODE)
    return replace(pod, request=replace(pod.request, priority=priority, qos=QosClass.LSR, numa=numa))


arrivals = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.booleans()), min_size=4, max_size=18)
"""CPUs, priority, and whether an evicted pod leaves afterwards."""


async def lived(events: list[tuple[int, int, bool]]) -> History:
    """The history to its end: until no pod is leaving and nothing more happens."""
    world = make_world(*(make_node(name) for name in NODES))
    for name in NODES:
        world.engine.handlers.topologies.observe("ADDED", make_topology(name))
    world.engine.handlers.budgets.replace([])
    history = History(world)
    for number, (cpu, priority, leaves) in enumerate(events):
        world.waits(wanted(number, cpu, priority))
        await history.settle()
        if leaves and history.leaving:
            await history.one_leaves()
    for _ in range(10):  # room may have gone to a lower priority while a higher one paused, and is made again then
        for _ in range(200):
            if not history.leaving:
                break
            await history.one_leaves()
        for _ in range(5):
            world.clock.now += 400  # every pause and every patience is over
            world.engine.preemption.look_again()
            await history.settle()
        if not history.leaving:
            break
    return history


OVERTAKEN = [(1, 0, False)] * 6 + [(3, 3, False)] * 3 + [(2, 3, False)]
"""Another pod of equal priority takes what was freed."""

LEFT_OVER = [
    *((1, 0, False), (1, 1, False), (2, 0, False), (2, 1, False), (1, 0, False), (4, 1, False), (4, 1, False)),
    *((3, 1, True), (3, 2, True), (2, 2, False), (1, 2, False), (1, 0, False)),
]
"""Room that an eviction frees beyond its need goes to a pod of lower priority than one that found no room before."""


CONFIRMED_LATER = [
    *((1, 0, False), (1, 0, False), (1, 1, False), (2, 1, False), (2, 1, False), (4, 1, False), (4, 1, False)),
    *((3, 1, True), (2, 1, True), (1, 2, False), (1, 0, False)),
]
"""A pod whose bind is confirmed after a class was looked at: only from then on may it be evicted."""


@given(arrivals)
@example(OVERTAKEN)
@example(LEFT_OVER)
@example(CONFIRMED_LATER)
def test_finally_nothing_is_kept_and_preemption_helps_no_pod(
    events: list[tuple[int, int, bool]],
) -> None:
    history = asyncio.run(lived(events))
    engine = history.world.engine
    assert history.leaving == []
    assert len(engine.handle.nominator) == 0
    assert not any(record.nominees for record in engine.cache.nodes.values())
    for pod in engine.waiting():
        request_class = engine.classes.of(pod)
        assert request_class is not None
        terms = EvictionTerms(engine.handle.selector.profile_of(request_class))
        for record in engine.cache.nodes.values():
            site = record.site_for(pod, frozenset())
            assert site is not None
            assert select_victims_on_node(engine.handle.selector.request_now(request_class), site, terms) is None


@given(arrivals)
@settings(max_examples=20, deadline=None)
def test_the_same_history_ends_in_the_same_way(events: list[tuple[int, int, bool]]) -> None:
    first, second = asyncio.run(lived(events)), asyncio.run(lived(events))
    assert first.world.server.calls == second.world.server.calls
    assert first.world.ledgers() == second.world.ledgers()
