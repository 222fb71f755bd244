"""Nodes are freed beside each other, and each plan sees what it would see if they were freed one after the other."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from koord_numa.core.objects.constraints import DisruptionBudget, LabelSelector
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.value_objects import replace
from koord_numa.engine.preemption.evaluator import NODES, NodesBeingFreed
from koord_numa.ports import Forbidden
from tests.cluster.objects import PATIENCE
from tests.engine.preemption.world import FULL, crowded, important, running, wrote
from tests.engine.world import World, make_pod


@dataclass
class FakeEvictions:
    """Evictions are asked for, and answered when it is opened."""

    world: World
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._evict = self.world.server.evict
        self.world.server.evict = self  # type: ignore[method-assign]  # a slower one

    async def __call__(self, pod: PodKey, message: str) -> None:
        self.asked.append(pod.name)
        await self.opened.wait()
        await self._evict(pod, message)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  (the server has no signal for it)
            await asyncio.sleep(0)


def large(name: str, created: float = 0.0) -> Pod:
    """A pod that needs a node for itself."""
    pod = make_pod(name, cpu=8000, created=created)
    return replace(pod, request=replace(pod.request, priority=10))


def full(count: int, *pods: Pod) -> tuple[World, tuple[str, ...]]:
    """So many nodes with one pod each that may be evicted."""
    names = tuple(f"node-{number:02}" for number in range(count))
    there = [running(f"there-{name}", "0-7", name) for name in names]
    world = crowded(*there, nodes=names)
    world.waits(*pods)
    return world, names


async def test_several_nodes_are_freed_at_a_time() -> None:
    world, names = full(3, *(large(f"pod-{number}", created=number) for number in range(3)))
    slow = FakeEvictions(world)
    await world.settle()
    work = asyncio.create_task(world.engine.preemption.work())
    await until(lambda: len(slow.asked) == 3)
    assert slow.asked == [f"there-{name}" for name in names]
    slow.opened.set()
    await work
    assert world.engine.metrics.preemptions == {"nominated": 3}


async def test_a_plan_waits_for_a_node_that_is_being_freed() -> None:
    world = crowded(*FULL)
    slow = FakeEvictions(world)
    world.waits(important("first"), important("second", created=1.0))
    await world.settle()
    work = asyncio.create_task(world.engine.preemption.work())
    await until(lambda: len(slow.asked) == 2)
    for _ in range(100):
        await asyncio.sleep(0)
    assert slow.asked == ["c", "d"]
    slow.opened.set()
    await work
    assert wrote(world) == [
        *("nominate first node", "evict c", "evict d"),
        *("nominate second node", "evict a", "evict b"),
    ]


async def test_plans_with_budgets_are_executed_one_after_the_other() -> None:
    world, _ = full(2, large("first"), large("second", created=1.0))
    world.engine.handlers.budgets.observe("ADDED", DisruptionBudget("default", "all", LabelSelector(), allowed=2))
    slow = FakeEvictions(world)
    await world.settle()
    work = asyncio.create_task(world.engine.preemption.work())
    await until(lambda: bool(slow.asked))
    for _ in range(100):
        await asyncio.sleep(0)
    assert slow.asked == ["there-node-00"]
    slow.opened.set()
    await work
    assert slow.asked == ["there-node-00", "there-node-01"]


async def test_a_missing_right_is_met_by_few_pods() -> None:
    pods = [large(f"pod-{number:02}", created=number) for number in range(2 * NODES)]
    world, _ = full(2 * NODES, *pods)

    def refuse(call: str) -> None:
        if call.startswith("evict"):
            raise Forbidden("no", "create pods/eviction")

    world.server.fail = refuse
    await world.settle()
    await world.engine.preemption.work()
    assert 1 <= len([call for call in wrote(world) if call.startswith("evict")]) <= NODES + 1  # one waits for its turn
    assert not any(record.nominees for record in world.engine.cache.nodes.values())


async def test_what_is_under_way_ends_with_the_engine() -> None:
    world, _ = full(1, large("pod"))
    slow = FakeEvictions(world)
    running_engine = asyncio.create_task(world.engine.run())
    await until(lambda: bool(slow.asked))
    await world.engine.stop()
    await asyncio.wait_for(running_engine, PATIENCE)
    assert not len(world.engine.preemption.evaluator.freeing)
    assert world.engine.metrics.preemptions == {}


async def test_an_exception_about_a_pod_during_preemption_is_isolated() -> None:
    world, _ = full(2, large("bad"), large("good", created=1.0))

    def explode(call: str) -> None:
        if call == "nominate bad":
            raise OverflowError("too large")

    world.server.fail = explode
    await world.settle()
    await world.engine.preemption.work()
    assert world.engine.handle.quarantine.counts == {"pod": 1}
    assert "evict there-node-01" in wrote(world)


@pytest.mark.parametrize("count", [NODES, NODES + 3])
async def test_so_many_nodes_are_freed_at_a_time(count: int) -> None:
    freeing, opened, most = NodesBeingFreed(), asyncio.Event(), 0

    async def free() -> None:
        nonlocal most
        most = max(most, len(freeing))
        await opened.wait()

    async def start() -> None:
        for number in range(count):
            await freeing.start(f"node-{number}", free)

    starting = asyncio.create_task(start())
    await until(lambda: len(freeing) == NODES)
    opened.set()
    await starting
    await freeing.wait_for("node-0")
    await freeing.settled()
    assert (len(freeing), most) == (0, NODES)
