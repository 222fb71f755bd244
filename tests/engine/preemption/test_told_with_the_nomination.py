"""The reason why a pod waits is written with its nominated node, or at once if there is none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.ports import Unavailable
from tests.cluster.objects import PATIENCE
from tests.engine.failures import raise_once
from tests.engine.preemption.world import FULL, crowded, important, make_room, running
from tests.engine.world import World, make_pod

TURNS = 100  # of the loop, in which everything that can go on does


@asynccontextmanager
async def conditions_written(world: World) -> AsyncIterator[None]:
    """Conditions are written beside what happens inside, and afterwards all that can be while no time passes."""
    conditions = world.engine.handle.conditions
    conditions.dependencies = replace(world.engine.dependencies, sleep=lambda _: asyncio.sleep(PATIENCE))
    writing = asyncio.create_task(conditions.run())
    try:
        yield
        for _ in range(TURNS):
            await asyncio.sleep(0)
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def requests_about(world: World, name: str) -> list[str]:
    """Conditions and nominations of a pod; the server's nominations note the condition that they take along first."""
    said = [call for call in world.server.calls if f" {name}" in call and not call.startswith("bind")]
    return ["freed" if "is being freed" in call else call.partition(":")[0] for call in said]


async def test_a_pod_gets_one_event_with_the_node_being_freed() -> None:
    names = ("node-0", "node-1", "node-2")
    world = crowded(*(running(f"on-{name}", "0-7", name) for name in names), nodes=names)
    async with conditions_written(world):
        world.waits(*(large(f"pod-{number}") for number in range(3)))
        await world.settle()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert world.server.calls == []
        assert len(world.engine.handle.conditions) == 3
        await world.engine.preemption.work()
    for number in range(3):
        assert requests_about(world, f"pod-{number}") == ["freed", f"nominate pod-{number} node-{number}"]


async def test_pods_for_which_no_node_can_be_freed_are_told_at_once() -> None:
    world = crowded(running("there", "0-7"))
    async with conditions_written(world):
        world.waits(*(large(f"pod-{number}") for number in range(3)))
        await make_room(world)
    assert requests_about(world, "pod-0") == ["freed", "nominate pod-0 node"]
    assert requests_about(world, "pod-1") == ["condition pod-1"]
    assert requests_about(world, "pod-2") == ["condition pod-2"]
    assert len(world.engine.handle.conditions) == 0


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"settings": "preemption: {enabled: false}"}, id="switched off"),
        pytest.param({"budgets": False}, id="budgets not known yet"),
    ],
)
async def test_where_no_room_is_made_pods_are_told_at_once(changes: dict[str, object]) -> None:
    world = crowded(*FULL, **changes)  # type: ignore[arg-type]  # named arguments of that function
    async with conditions_written(world):
        world.waits(important("pod"))
        await world.settle()
    assert requests_about(world, "pod") == ["condition pod"]


async def test_a_pod_that_may_not_preempt_is_told_at_once() -> None:
    world = crowded(*FULL)
    async with conditions_written(world):
        world.waits(important("pod", preempts=False))
        await world.settle()
    assert requests_about(world, "pod") == ["condition pod"]


async def test_a_failed_nomination_leaves_the_condition_to_write() -> None:
    world = crowded(*FULL)
    world.server.fail = raise_once(Unavailable("overload"), at="nominate pod")
    async with conditions_written(world):
        world.waits(important("pod"))
        await make_room(world)
    assert requests_about(world, "pod")[:2] == ["freed", "nominate pod node"]
    assert "condition pod" in requests_about(world, "pod")[2:]
    assert len(world.engine.handle.conditions) == 0


def large(name: str) -> Pod:
    """A pod that needs a node for itself."""
    pod = make_pod(name, cpu=8000)
    return replace(pod, request=replace(pod.request, priority=10))
