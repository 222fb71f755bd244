"""Nodes that become eligible while they are full: pods with priority over what is there are tried again, since evictions may help."""

import pytest

from koord_numa.core.objects.constraints import TaintEffect
from koord_numa.core.objects.node import Node, Taint
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.ports import Unavailable
from tests.engine.world import World, bound, make_node, make_pod, make_world

NODE = make_node("node", cpu=4)


def important(name: str, cpu: int) -> Pod:
    pod = make_pod(name, cpu=cpu)
    return replace(pod, request=replace(pod.request, priority=10))


def full_world(node: Node = NODE) -> World:
    """A node without room whose one pod has no priority."""
    world = make_world(node)
    low = bound(make_pod("low", cpu=4000, started=True), "node")
    world.server.pods[low.key.uid] = low
    world.engine.handlers.bound_pods.observe("ADDED", low)
    world.engine.handlers.budgets.replace([])
    return world


async def serve(world: World) -> None:
    """Let a few seconds pass."""
    for _ in range(5):
        await world.settle()
        await world.engine.preemption.work()
        world.clock.now += 1
        world.engine.preemption.look_again()


@pytest.mark.parametrize(
    "closed",
    [replace(NODE, taints=(Taint("dedicated", TaintEffect.NO_SCHEDULE, "others"),)), replace(NODE, unschedulable=True)],
    ids=("taint", "cordon"),
)
async def test_a_full_node_is_freed_as_soon_as_it_admits_the_pod(closed: Node) -> None:
    world = full_world(closed)
    world.waits(important("pod", cpu=4000))
    await serve(world)
    assert "evict low" not in world.server.calls
    world.engine.handlers.nodes.observe("MODIFIED", NODE)
    await serve(world)
    assert "evict low" in world.server.calls


@pytest.mark.parametrize("is_decided", [False, True], ids=["before the decision", "between the decision and the plan"])
async def test_room_is_made_on_a_full_node_after_its_rebind(*, is_decided: bool) -> None:
    """By a decision from before the rebind evictions help there, so that its end is no reason to decide again."""
    world = full_world()
    if is_decided:
        world.waits(important("pod", cpu=4000))
        await world.settle()
    world.engine.lock_node("node", "a rebind")
    if not is_decided:
        world.waits(important("pod", cpu=4000))
    await serve(world)
    assert "evict low" not in world.server.calls
    world.engine.unlock_node("node")
    await serve(world)
    assert "evict low" in world.server.calls


async def test_room_is_made_after_a_kubelet_rejection_during_planning() -> None:
    world = full_world()
    refused = replace(important("refused", cpu=4000), node="node", phase="Failed", reason="OutOfcpu")
    world.waits(important("pod", cpu=4000))
    await world.settle()
    world.engine.handlers.bound_pods.observe("MODIFIED", refused)
    await serve(world)
    assert "evict low" not in world.server.calls
    world.clock.now += 60
    await world.engine._keep_house()
    await serve(world)
    assert "evict low" in world.server.calls


async def test_a_pod_that_met_many_binds_is_served_on_a_full_node() -> None:
    world = full_world()
    world.engine.cache.set_bind_line("node", True)
    world.waits(important("pod", cpu=4000))
    await serve(world)
    assert world.diary.reasons("pod") == []
    world.engine.cache.set_bind_line("node", False)
    await serve(world)
    assert "FailedScheduling" in world.diary.reasons("pod")
    assert "evict low" in world.server.calls


async def test_a_plan_in_between_does_not_take_the_news_of_a_node_away() -> None:
    """The class is to be tried again; before that, another node is looked at by the verdict in which this one is still tainted."""
    world = full_world(replace(NODE, unschedulable=True))
    world.engine.handlers.nodes.observe("ADDED", make_node("other", cpu=2))
    tiny = bound(make_pod("tiny", cpu=100, started=True), "other")
    world.engine.handlers.bound_pods.observe("ADDED", tiny)
    world.waits(important("pod", cpu=4000))
    await serve(world)
    world.engine.handlers.nodes.observe("MODIFIED", NODE)
    world.engine.handlers.bound_pods.observe("DELETED", tiny)
    world.engine.preemption.look_again()
    await world.engine.preemption.work()
    assert "evict low" not in world.server.calls
    await serve(world)
    assert "evict low" in world.server.calls


async def test_no_pod_is_evicted_for_one_that_is_about_to_be_tried() -> None:
    """Room has come free elsewhere, and the next decision finds it; until a worker is free for that no room is made."""
    world = full_world()
    world.engine.handlers.nodes.observe("ADDED", make_node("other", cpu=4))
    done = bound(replace(important("done", cpu=4000), started=True), "other")
    world.engine.handlers.bound_pods.observe("ADDED", done)
    refused = [Unavailable("a disruption budget forbids it now")]

    def fail(call: str) -> None:
        if call == "evict low" and refused:
            raise refused.pop()

    world.server.fail = fail
    world.waits(important("pod", cpu=4000))
    await world.settle()
    await world.engine.preemption.work()
    assert world.server.calls.count("evict low") == 1
    world.clock.now += 60
    world.engine.handlers.bound_pods.observe("DELETED", done)
    world.engine.preemption.look_again()
    await world.engine.preemption.work()
    assert world.server.calls.count("evict low") == 1
    await serve(world)
    assert world.nodes_of()["pod"] == "other"
