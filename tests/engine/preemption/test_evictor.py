"""Checks before an eviction, and the meaning of each response of the API server."""

import pytest

from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.ports import Forbidden, Gone
from tests.engine.failures import raise_once
from tests.engine.preemption.world import FULL, crowded, important, leaves, make_room, once, running, wrote
from tests.engine.world import bound


async def test_a_node_changed_before_the_eviction_is_reevaluated() -> None:
    world = crowded(*FULL)
    newcomer = running("rival", "6-7", priority=15)

    def meanwhile() -> None:
        leaves(world, "d")
        world.engine.handlers.bound_pods.observe("ADDED", newcomer)

    world.server.fail = once("nominate pod", meanwhile)
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    assert wrote(world) == ["nominate pod node", "nominate pod "]
    assert "uid-pod" not in world.engine.cache.nodes["node"].nominees


async def test_a_victim_that_left_by_itself_saves_the_others() -> None:
    world = crowded(*FULL)
    world.server.fail = once("nominate pod", lambda: leaves(world, "a", "b"))
    world.waits(important("pod"))
    await make_room(world)
    assert [call for call in wrote(world) if call.startswith("evict")] == []
    world.clock.now += 1
    await make_room(world)
    assert world.nodes_of()["pod"] == "node"


async def test_for_a_pod_that_is_gone_no_pod_is_evicted() -> None:
    world = crowded(*FULL)
    pod = important("pod")
    world.waits(pod)
    await world.settle()
    world.server.fail = once("nominate pod", lambda: world.engine.handlers.pending_pods.observe("DELETED", pod))
    await world.engine.preemption.work()
    assert wrote(world) == ["nominate pod node"]
    assert not world.engine.cache.nodes["node"].nominees


@pytest.mark.parametrize(
    "seen",
    [
        bound(important("pod"), "elsewhere"),
        replace(important("pod"), deleting=True),
        replace(important("pod"), gated=True),
        replace(important("pod"), phase="Failed"),
    ],
    ids=["bound", "deleting", "gated", "finished"],
)
async def test_a_pod_that_no_longer_waits_evicts_no_pod(seen: Pod) -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await world.settle()
    world.server.pods["uid-pod"] = seen
    await world.engine.preemption.work()
    assert wrote(world) == ["nominate pod node", "nominate pod "]
    assert not world.engine.cache.nodes["node"].nominees


async def test_a_rejected_nomination_of_a_bound_pod_evicts_no_pod() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await world.settle()
    world.server.fail = raise_once(Gone("pod is bound"), at="nominate pod")
    await world.engine.preemption.work()
    assert wrote(world) == ["nominate pod node"]
    assert not world.engine.cache.nodes["node"].nominees


async def test_a_pod_bound_during_its_nomination_evicts_no_pod() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await world.settle()
    elsewhere = bound(important("pod"), "elsewhere")

    def arrives() -> None:
        world.engine.handlers.pending_pods.observe("DELETED", elsewhere)
        world.engine.handlers.bound_pods.observe("ADDED", elsewhere)

    world.server.fail = once("nominate pod", arrives)
    await world.engine.preemption.work()
    assert wrote(world) == ["nominate pod node"]
    assert not world.engine.cache.nodes["node"].nominees


async def test_without_the_lease_no_pod_is_evicted() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await world.settle()
    world.server.fail = once("nominate pod", lambda: setattr(world.lease, "held", False))
    await world.engine.preemption.work()
    assert wrote(world) == ["nominate pod node"]
    assert not world.engine.cache.nodes["node"].nominees


async def test_a_victim_that_is_gone_already_is_no_obstacle() -> None:
    world = crowded(*FULL)
    world.server.fail = raise_once(Gone("no such pod"), at="evict c")
    world.waits(important("pod"))
    await make_room(world)
    assert [who for who, reason, _ in world.diary.events if reason == "Preempted"] == ["d"]


async def test_a_missing_right_is_said_by_its_rule() -> None:
    world = crowded(*FULL)
    world.server.fail = raise_once(Forbidden("no", "create pods/eviction"), at="evict c")
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    assert ("pod", "FailedScheduling", "koord-numa lacks the permission to create pods/eviction") in world.diary.events


async def test_a_node_locked_during_planning_is_left_alone() -> None:
    world = crowded(*FULL)
    world.server.fail = once("nominate pod", lambda: world.engine.lock_node("node", "RebindResource repack"))
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    assert wrote(world) == ["nominate pod node", "nominate pod "]
