"""The loop as it runs: it binds everyone, hears of what comes late, and ends when told."""

import asyncio
from collections.abc import Callable

import pytest

from koord_numa.core.objects.constraints import Constraints, LabelSelector, SpreadConstraint
from koord_numa.core.value_objects import replace
from koord_numa.engine.schedule_one import goes_on
from tests.cluster.objects import PATIENCE
from tests.engine.world import World, make_node, make_pod, make_world

SPREAD = SpreadConstraint("zone", max_skew=1, hard=True, selector=LabelSelector())


async def run_until(world: World, done: Callable[[], bool]) -> None:
    """Run the real loop until something holds, then stop it and see it end."""
    running = asyncio.create_task(world.engine.run())
    for _ in range(10_000):
        if done():
            break
        await asyncio.sleep(0)
    await world.engine.stop()
    await asyncio.wait_for(running, PATIENCE)
    assert done()


async def test_the_loop_binds_everyone_and_ends_when_told() -> None:
    world = make_world(*(make_node(f"node-{i}", cpu=64, memory=128) for i in range(5)))
    world.waits(*(make_pod(f"pod-{i:03}", created=float(i)) for i in range(200)))
    await run_until(world, lambda: all(world.nodes_of().values()))
    assert [reason for _, reason, _ in world.diary.events].count("Scheduled") == 200


async def test_the_loop_hears_of_pods_that_come_while_it_is_idle() -> None:
    world = make_world(make_node("node"))
    running = asyncio.create_task(world.engine.run())
    for _ in range(20):
        await asyncio.sleep(0)
    world.waits(make_pod("late"))
    for _ in range(50):
        await asyncio.sleep(0)
    await world.engine.stop()
    await asyncio.wait_for(running, PATIENCE)
    assert world.nodes_of() == {"late": "node"}


@pytest.mark.parametrize("constraints", [Constraints(), Constraints(spread=(SPREAD,))], ids=["alone", "spread"])
async def test_a_pod_waits_for_the_first_node(constraints: Constraints) -> None:
    world = make_world()
    pod = make_pod("early", images=("registry.example/app:1",))
    world.waits(replace(pod, request=replace(pod.request, constraints=constraints)))
    await world.settle()
    assert world.diary.events[-1][2] == "0/0 nodes are available: no node is known."
    world.engine.handlers.nodes.observe("ADDED", make_node("node", labels={"zone": "a"}))
    world.clock.now += 10  # beyond the back-off
    await world.settle()
    assert world.nodes_of() == {"early": "node"}


async def test_conditions_are_written_beside_the_loop() -> None:
    world = make_world(make_node("node", cpu=1))
    world.waits(make_pod("big", cpu=4000))
    await run_until(world, lambda: any(call.startswith("condition big: 0/1 nodes") for call in world.server.calls))
    assert sum(call.startswith("condition") for call in world.server.calls) == 1


async def test_nothing_is_decided_before_everything_is_known() -> None:
    world = make_world(make_node("node"), synced=False)
    world.waits(make_pod("pod"))
    running = asyncio.create_task(world.engine.run())
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.server.calls == []
    await world.engine.stop()
    await asyncio.wait_for(running, PATIENCE)


async def test_pods_that_arrive_together_are_decided_before_requests() -> None:
    """In the order of the queue, each on what the one before has left, as many as there are workers for."""
    world = make_world(make_node("small", cpu=2), make_node("large", cpu=64, memory=64), settings="bindConcurrency: 3")
    counted: list[int] = []

    def note(call: str) -> None:
        if call == "bind before":
            counted.append(sum(map(len, world.ledgers().values())))

    world.server.fail = note
    world.waits(*(make_pod(f"pod-{number}", created=float(number)) for number in range(5)))
    await run_until(world, lambda: all(world.nodes_of().values()))
    assert counted == [3, 3, 3, 5, 5]
    assert world.server.calls[0].startswith("bind pod-0 ")


async def test_a_class_that_fits_nowhere_is_tried_once_in_a_burst() -> None:
    world = make_world(make_node("node", cpu=4))
    world.waits(*(make_pod(f"big-{number}", cpu=8000) for number in range(10)), make_pod("small"))
    await run_until(world, lambda: world.nodes_of()["small"] == "node")
    assert [world.pending(pod).attempts for pod in world.server.pods.values() if not pod.node] == [1, *[0] * 9]


async def test_a_burst_ends_when_it_has_taken_long() -> None:
    """The duration of each decision advances the clock, so that events are handled in between."""
    world = make_world(make_node("node", cpu=64, memory=64))
    bursts: list[int] = []
    choose_some, schedule_some = world.engine.handle.selector.choose_some, world.engine.loop._schedule_some

    def slow(*arguments: object) -> object:
        world.clock.now += 0.0015
        bursts[-1] += 1
        return choose_some(*arguments)  # type: ignore[arg-type]  # handed on as they came

    def noted(cycles: asyncio.TaskGroup) -> bool:
        bursts.append(0)
        return schedule_some(cycles)

    world.engine.handle.selector.choose_some = slow  # type: ignore[method-assign,assignment]  # the same one, slower
    world.engine.loop._schedule_some = noted  # type: ignore[method-assign]  # the same one, noted
    world.waits(*(make_pod(f"pod-{number}") for number in range(6)))
    await run_until(world, lambda: all(world.nodes_of().values()))
    assert [count for count in bursts if count] == [2, 2, 2]


async def test_what_begins_without_a_task_may_wait_for_its_turn_alone() -> None:
    async def ends() -> None:
        pass

    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    turn = asyncio.sleep(0)
    assert (goes_on(ends()), goes_on(turn)) == (False, True)
    turn.close()
    waiting = waits()
    with pytest.raises(RuntimeError, match="waits for"):
        goes_on(waiting)
    waiting.close()
