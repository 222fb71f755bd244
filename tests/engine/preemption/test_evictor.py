"""What is checked right before an eviction, and what each answer of the API server means."""

from koord_numa.ports import Forbidden, Gone
from tests.engine.failures import raise_once
from tests.engine.preemption.world import FULL, crowded, important, leaves, make_room, once, running, wrote
from tests.engine.world import bound


async def test_a_node_that_changes_before_the_eviction_is_looked_at_again() -> None:
    world = crowded(*FULL)
    newcomer = running("rival", "6-7", priority=15)

    def meanwhile() -> None:
        leaves(world, "d")
        world.engine.handlers.bound_pods.observe("ADDED", newcomer)

    world.server.fail = once("nominate pod", meanwhile)
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod", "nominate pod node", "nominate pod "]
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
    assert wrote(world) == ["read pod", "nominate pod node"]
    assert not world.engine.cache.nodes["node"].nominees


async def test_for_a_pod_that_others_have_bound_no_pod_is_evicted() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await world.settle()
    world.server.pods["uid-pod"] = bound(important("pod"), "elsewhere")
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod"]  # a status of a pod with a node that names another one would be refused (422)
    assert not world.engine.cache.nodes["node"].nominees


async def test_a_pod_that_is_bound_while_it_is_read_is_not_nominated() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await world.settle()
    elsewhere = bound(important("pod"), "elsewhere")

    def arrives() -> None:
        world.engine.handlers.pending_pods.observe("DELETED", elsewhere)
        world.engine.handlers.bound_pods.observe("ADDED", elsewhere)

    world.server.fail = once("read", arrives)
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod"]
    assert not world.engine.cache.nodes["node"].nominees


async def test_without_the_lease_no_pod_is_evicted() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await world.settle()
    world.server.fail = once("nominate pod", lambda: setattr(world.lease, "held", False))
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod", "nominate pod node"]
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
    assert ("pod", "FailedScheduling", "koord-numa lacks the right to create pods/eviction") in world.diary.events


async def test_a_node_that_is_locked_while_the_plan_is_made_is_left_alone() -> None:
    world = crowded(*FULL)
    world.server.fail = once("nominate pod", lambda: world.engine.lock_node("node", "RebindResource repack"))
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod", "nominate pod node", "nominate pod "]
