"""Making room: who is evicted, who gets the room, and what the loop does by itself."""

import asyncio

import pytest

from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.preempt.victims import select_victims_on_node, still_right
from koord_numa.core.value_objects import replace
from koord_numa.engine.preemption import evaluator as planner
from koord_numa.ports import Unavailable
from tests.cluster.objects import PATIENCE
from tests.engine.failures import raise_once
from tests.engine.preemption.world import FULL, crowded, important, leaves, make_room, running, said, wrote
from tests.engine.world import bound, make_node, make_pod, make_world


async def test_a_pod_gets_the_numa_node_whose_pods_matter_least() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == ["nominate pod node", "evict c", "evict d"]
    assert [event for event in world.diary.events if event[1] == "Preempted"] == [
        ("c", "Preempted", "Preempted by pod uid-pod on node node"),
        ("d", "Preempted", "Preempted by pod uid-pod on node node"),
    ]
    told = "preemption: node node is being freed, 2 pod(s) are evicted: default/c, default/d."
    assert told in said(world, "pod")
    assert said(world, "pod") == world.engine.explain("uid-pod")
    leaves(world, "c")
    await make_room(world)
    assert world.nodes_of()["pod"] == ""
    leaves(world, "d")
    await make_room(world)
    assert wrote(world)[3:] == ["bind pod node"]
    assert world.server.annotations["uid-pod"] == {"cpus": "4-7"}
    meter = world.engine.metrics
    assert (meter.victims, meter.preemptions) == (2, {"nominated": 1})
    assert (meter.victims_each.count, meter.victims_each.total) == (1, 2)


async def test_on_a_node_without_topology_amounts_decide() -> None:
    world = make_world(make_node("plain", cpu=4), make_node("full", cpu=4))
    world.engine.handlers.budgets.replace([])
    for name, node, cpu, priority in (("a", "plain", 1, 1), ("b", "plain", 3, 2), ("c", "full", 4, 3)):
        pod = make_pod(name, cpu=1000 * cpu)
        world.engine.handlers.bound_pods.observe(
            "ADDED", bound(replace(pod, request=replace(pod.request, priority=priority)), node)
        )
    pod = make_pod("pod", cpu=3000)
    world.waits(replace(pod, request=replace(pod.request, priority=10)))
    await make_room(world)
    assert wrote(world) == ["nominate pod plain", "evict b"]


async def test_victims_without_a_budget_are_evicted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    world = crowded(*FULL)
    answer, evict, asked = asyncio.Event(), world.server.evict, list[str]()

    async def slow(pod: PodKey, message: str) -> None:
        asked.append(pod.name)
        await answer.wait()
        await evict(pod, message)

    monkeypatch.setattr(world.server, "evict", slow)
    world.waits(important("pod"))
    await world.settle()
    work = asyncio.create_task(world.engine.preemption.work())
    async with asyncio.timeout(PATIENCE):
        while len(asked) < 2:  # noqa: ASYNC110  (the server has no signal for it)
            await asyncio.sleep(0)
    answer.set()
    await work
    assert asked == ["c", "d"]


@pytest.mark.parametrize("changes", [False, True])
async def test_victims_are_selected_again_only_on_a_changed_node(
    changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, asked = crowded(*FULL), list[str]()

    def counting(*arguments: object) -> bool:
        asked.append("again")
        return still_right(*arguments)  # type: ignore[arg-type]  # handed on as they come

    nominate = world.server.nominate

    async def while_another_leaves(pod: PodKey, node: str, why: str = "") -> Pod:
        if changes:
            leaves(world, "c")
        return await nominate(pod, node, why)

    monkeypatch.setattr(planner, "still_right", counting)
    monkeypatch.setattr(world.server, "nominate", while_another_leaves)
    world.waits(important("pod"))
    await make_room(world)
    assert bool(asked) is changes
    assert "evict d" in wrote(world)


async def test_a_pod_that_may_not_preempt_says_so() -> None:
    world = crowded(*FULL)
    world.waits(important("pod", preempts=False))
    await make_room(world)
    assert wrote(world) == []
    assert "preemption: not eligible due to preemptionPolicy=Never." in said(world, "pod")


async def test_preemption_can_be_switched_off() -> None:
    world = crowded(*FULL, settings="preemption: {enabled: false}")
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == []


async def test_a_new_scheduler_goes_on_where_the_old_one_stopped() -> None:
    leaving = [replace(pod, deleting=pod.key.name in "cd") for pod in FULL]
    world = crowded(*leaving)
    world.waits(replace(important("pod"), nominated="node"))
    await make_room(world)
    assert [call for call in wrote(world) if call.startswith("evict")] == []
    assert "2 pod(s) are leaving anyway" in said(world, "pod")
    leaves(world, "c", "d")
    await make_room(world)
    assert world.nodes_of()["pod"] == "node"


async def test_a_failed_bind_on_the_freed_node_is_waited_out() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await make_room(world)
    world.server.fail = raise_once(Unavailable("overload", retry_after=7.0), at="bind before")
    leaves(world, "c", "d")
    await make_room(world)
    assert wrote(world)[3:] == ["bind pod node"]
    world.clock.now += 8
    await make_room(world)
    assert world.nodes_of()["pod"] == "node"


async def test_the_next_pod_of_a_class_does_not_wait_for_a_gone_pod() -> None:
    """A reason against preemption for one pod lets the other pods of its class wait for its next attempt."""
    world = crowded(*FULL)
    world.server.fail = raise_once(Unavailable("a disruption budget forbids it now"), at="evict c")
    world.waits(important("first"), important("second"), important("third"))
    await make_room(world)
    assert "nominate third node" not in wrote(world)
    world.engine.handlers.pending_pods.observe("DELETED", world.server.pods.pop("uid-first"))
    world.clock.now += 1
    world.engine.preemption.look_again()
    await make_room(world)
    assert "nominate third node" in wrote(world)


async def test_a_pod_confirmed_during_evaluation_can_be_evicted_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was no victim when the node was tried out, and its bind is no open question any more when nothing is found to help."""
    world = crowded(running("a", "0-1"), running("b", "4-5"), running("vip", "6-7", priority=20))
    world.waits(important("fresh", cpu=2, priority=1))
    await world.settle()
    fresh = world.engine.cache.pod("uid-fresh")
    assert fresh is not None

    def confirmed_after(*arguments: object) -> object:
        found = select_victims_on_node(*arguments)  # type: ignore[arg-type]  # handed on as they come
        world.engine.handlers.bound_pods.observe("MODIFIED", fresh)
        return found

    monkeypatch.setattr(planner, "select_victims_on_node", confirmed_after)
    world.waits(important("pod"))
    assert await make_room(world) == ["bind fresh node"]
    world.clock.now += 1
    world.engine.preemption.look_again()
    assert (await make_room(world))[1:] == ["nominate pod node", "evict fresh", "evict a"]


async def test_the_loop_makes_room_by_itself() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    running_engine = asyncio.create_task(world.engine.run())
    for _ in range(200):
        await asyncio.sleep(0)
        if "evict d" in world.server.calls:
            break
    leaves(world, "c", "d")
    for _ in range(200):
        await asyncio.sleep(0)
    await world.engine.stop()
    await asyncio.wait_for(running_engine, PATIENCE)
    assert world.nodes_of()["pod"] == "node"


async def test_a_pod_that_joins_others_in_vain_is_looked_at_too() -> None:
    world = crowded(*FULL)
    world.waits(important("first", preempts=False))
    await make_room(world)
    assert wrote(world) == []
    world.waits(important("second", created=1.0))
    await make_room(world)
    assert wrote(world) == ["nominate second node", "evict c", "evict d"]


async def test_a_bug_beside_the_loop_stops_the_engine_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    world = crowded(*FULL)

    def broken(*_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(planner.Evaluator, "forget_the_gone", broken)  # about no pod in particular
    world.waits(important("pod"))
    with pytest.raises(AssertionError, match="a bug"):
        await asyncio.wait_for(world.engine.run(), PATIENCE)


async def test_an_exception_in_preemption_affects_only_its_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = crowded(running("a", "0-3"), running("b", "4-7"))
    plan = planner.Evaluator.plan

    async def explode(self, pod, *rest):  # type: ignore[no-untyped-def]  # as Evaluator.plan
        if pod.key.name == "bad":
            raise OverflowError("too large")
        return await plan(self, pod, *rest)

    monkeypatch.setattr(planner.Evaluator, "plan", explode)
    world.waits(important("bad", priority=20), important("good"))
    await make_room(world)
    assert world.engine.handle.quarantine.counts == {"pod": 1}
    assert any(call.startswith("evict") for call in world.server.calls)


@pytest.mark.parametrize("at", ["nominate pod", "evict c"])
async def test_a_bug_on_the_way_to_an_eviction_keeps_no_room(at: str) -> None:
    """Others of lower priority may have what the pod would have been given; it is tried again after a pause."""
    world, bugs = crowded(*FULL), ["bug"]

    def fail(call: str) -> None:
        if call == at and bugs:
            raise ZeroDivisionError(bugs.pop())

    world.server.fail = fail
    world.waits(important("pod"))
    await make_room(world)
    assert not bugs
    assert len(world.engine.handle.nominator) == 0
    assert not world.engine.cache.nodes["node"].nominees
    assert "is being freed" not in said(world, "pod")
    assert world.engine.handle.quarantine.counts["pod"] == 1
    world.clock.now += 60
    world.engine.preemption.look_again()
    await make_room(world)
    assert len(world.engine.handle.nominator) == 1
    assert "evict d" in wrote(world)
