"""The loop as it runs: it binds everyone, hears of what comes late, and ends when told."""

import asyncio
from collections.abc import Callable

from tests.cluster.objects import PATIENCE
from tests.engine.world import World, make_node, make_pod, make_world


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
    assert len(world.diary.events) == 200


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
