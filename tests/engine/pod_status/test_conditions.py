"""Conditions about one pod, however slow the server is to take them, delay no other pod's."""

import asyncio
from dataclasses import dataclass, field

import pytest

from koord_numa.core.objects.request import PodKey
from koord_numa.engine.object_events import HELD_SECONDS, WRITERS
from koord_numa.ports import Unavailable
from tests.engine.world import make_node, make_pod, make_world

TURNS = 200  # of the loop, in which everything that can go on does


@dataclass
class FakeSlowWriter:
    """Writes of the condition of one pod are not answered before it is opened."""

    name: str
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)
    written: list[tuple[str, str]] = field(default_factory=list)

    async def set_unschedulable(self, pod: PodKey, message: str) -> None:
        self.asked.append(pod.name)
        if pod.name == self.name:
            await self.opened.wait()
        self.written.append((pod.name, message))


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def test_hanging_conditions_of_one_pod_delay_no_other_pods() -> None:
    world, slow = make_world(make_node("node")), FakeSlowWriter("slow")
    world.server.set_unschedulable = slow.set_unschedulable  # type: ignore[method-assign]  # a slower one
    pods = [make_pod("slow", cpu=99_000), make_pod("other", cpu=99_000)]
    world.waits(*pods)
    conditions = world.engine.handle.conditions
    running = asyncio.create_task(conditions.run())
    for number in range(2 * WRITERS):
        conditions.waits(world.pending(pods[0]), f"news {number}")
        await turns()
    conditions.waits(world.pending(pods[1]), "something else")
    await turns()
    assert slow.written == [("other", "something else")]
    assert slow.asked.count("slow") == 1
    slow.opened.set()
    await turns()
    assert slow.written[1:] == [("slow", "news 0"), ("slow", f"news {2 * WRITERS - 1}")]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_condition_that_cannot_be_written_delays_no_other_pods() -> None:
    world, slow = make_world(make_node("node")), FakeSlowWriter("")
    pods = [make_pod(f"pod-{number}", cpu=99_000) for number in range(50)]
    world.waits(*pods)
    conditions = world.engine.handle.conditions

    async def refuse(pod: PodKey, message: str) -> None:
        if pod.name != "pod-49":
            raise Unavailable("a webhook")
        await slow.set_unschedulable(pod, message)

    world.server.set_unschedulable = refuse  # type: ignore[method-assign]  # one that fails
    running = asyncio.create_task(conditions.run())
    for pod in pods:
        conditions.waits(world.pending(pod), "it fits nowhere")
    await turns()
    assert slow.written == [("pod-49", "it fits nowhere")]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_due_condition_can_be_written_with_another_write() -> None:
    world, written = make_world(make_node("node")), FakeSlowWriter("")
    world.server.set_unschedulable = written.set_unschedulable  # type: ignore[method-assign]  # one that remembers
    pods = [make_pod(name, cpu=99_000) for name in ("pod", "failing", "leaving", "other")]
    world.waits(*pods)
    conditions = world.engine.handle.conditions
    for pod in pods:
        conditions.waits(world.pending(pod), "before")
    with conditions.lent("uid-pod") as why:
        assert why == "before"
    with conditions.lent("uid-pod") as why:
        assert why == ""

    def fail(forgotten: str) -> None:
        conditions.forget(forgotten)
        raise Unavailable("overload")

    for name, forgotten in (("failing", "nothing"), ("leaving", "uid-leaving")):
        with pytest.raises(Unavailable), conditions.lent(f"uid-{name}"):
            fail(forgotten)
    running = asyncio.create_task(conditions.run())
    with conditions.lent("uid-other"):
        await turns()
        assert written.written == [("failing", "before")]
        conditions.waits(world.pending(pods[3]), "after")
        await turns()
        assert written.written == [("failing", "before")]
    await turns()
    assert written.written == [("failing", "before"), ("other", "after")]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_held_condition_is_written_with_a_request_or_later() -> None:
    world, written = make_world(make_node("node")), FakeSlowWriter("")
    world.server.set_unschedulable = written.set_unschedulable  # type: ignore[method-assign]  # one that remembers
    pods = [make_pod(name, cpu=99_000) for name in ("lent", "released", "late", "leaving")]
    world.waits(*pods)
    conditions = world.engine.handle.conditions
    conditions.will_be_lent = lambda _: True
    for message in ("before", "after"):
        for pod in pods:
            conditions.waits(world.pending(pod), message)
    assert (len(conditions), conditions.held) == (4, 4)
    with conditions.lent("uid-lent") as why:
        assert why == "after"
    conditions.release("uid-released")
    conditions.forget("uid-leaving")
    running, began = asyncio.create_task(conditions.run()), world.clock()
    await turns()
    assert written.written == [("released", "after"), ("late", "after")]
    assert world.clock() - began == HELD_SECONDS
    assert len(conditions) == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_released_condition_is_written_after_an_update() -> None:
    world, written = make_world(make_node("node")), FakeSlowWriter("")
    world.server.set_unschedulable = written.set_unschedulable  # type: ignore[method-assign]  # one that remembers
    pod = make_pod("pod", cpu=99_000)
    world.waits(pod)
    conditions = world.engine.handle.conditions
    conditions.will_be_lent = lambda _: True
    conditions.waits(world.pending(pod), "before")
    conditions.will_be_lent = lambda _: False
    conditions.waits(world.pending(pod), "after")
    assert (len(conditions), conditions.held) == (1, 0)
    running = asyncio.create_task(conditions.run())
    await turns()
    assert written.written == [("pod", "after")]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
