"""Room that is being freed: for whom it is kept, who displaces whom, and when it is given back."""

import pytest

from tests.engine.preemption.world import FULL, crowded, important, leaves, make_room, running, wrote
from tests.engine.world import make_node


async def test_a_pod_that_waits_for_its_victims_evicts_no_others() -> None:
    world = crowded(*FULL, running("e", "0-7", "other", priority=5), nodes=("node", "other"))
    world.waits(important("pod"))
    await make_room(world)
    before = wrote(world)
    world.engine.handlers.nodes.observe("MODIFIED", make_node("other", labels={"changed": "yes"}))
    world.clock.now += 60
    world.engine.preemption.look_again()
    await make_room(world)
    assert wrote(world) == before


@pytest.mark.parametrize("event", ["MODIFIED", "DELETED"])
async def test_a_pod_does_not_wait_for_a_node_that_will_not_take_it(event: str) -> None:
    """Its victims may take for ever to leave, as those on a machine that is lost."""
    world = crowded(
        *FULL, running("e", "0-3", "other", priority=7), running("f", "4-7", "other"), nodes=("node", "other")
    )
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == ["nominate pod other", "evict f"]
    world.engine.handlers.nodes.observe(event, make_node("other", unschedulable=True))
    await make_room(world)
    assert wrote(world)[2:] == ["nominate pod ", "nominate pod node", "evict c", "evict d"]


async def test_a_pod_waits_for_a_changing_node_that_would_fit() -> None:
    world = crowded(*FULL, running("e", "0-7", "other", priority=5), nodes=("node", "other"))
    world.waits(important("pod"))
    before = await make_room(world)
    world.engine.handlers.nodes.observe("MODIFIED", make_node("node", labels={"changed": "yes"}))
    assert await make_room(world) == before


@pytest.mark.parametrize("priority", [9, 10], ids=["lower", "equal"])
async def test_room_that_is_being_freed_is_kept(priority: int) -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await make_room(world)
    leaves(world, "c")
    world.waits(important("greedy", cpu=2, priority=priority, preempts=False))
    await make_room(world)
    assert world.nodes_of()["greedy"] == ""
    leaves(world, "d")
    world.clock.now += 60
    await make_room(world)
    assert (world.nodes_of()["pod"], world.nodes_of()["greedy"]) == ("node", "")


async def test_a_higher_priority_displaces_a_nomination_first() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await make_room(world)
    world.waits(important("king", priority=20))
    await make_room(world)
    assert wrote(world)[3:] == [
        *("nominate pod ", "nominate king node"),
        *("nominate pod node", "evict a", "evict b"),  # the displaced pod makes room for itself again
    ]
    leaves(world, "c", "d")
    await make_room(world)
    assert (world.nodes_of()["king"], world.nodes_of()["pod"]) == ("node", "")
    leaves(world, "a", "b")
    await make_room(world)
    assert world.server.annotations == {"uid-king": {"cpus": "4-7"}, "uid-pod": {"cpus": "0-3"}}


async def test_twins_make_room_each_for_itself() -> None:
    world = crowded(*FULL)
    world.waits(important("first"), important("second", created=1.0), important("third", created=2.0))
    await make_room(world)
    assert [call for call in wrote(world) if call.startswith("evict")] == ["evict c", "evict d", "evict a", "evict b"]
    leaves(world, "a", "b", "c", "d")
    await make_room(world)
    assert {name: world.nodes_of()[name] for name in ("first", "second", "third")} == {
        "first": "node",
        "second": "node",
        "third": "",
    }


async def test_room_is_given_back_when_its_pod_goes() -> None:
    world = crowded(*FULL)
    before = world.ledgers()
    pod = important("pod")
    world.waits(pod)
    await make_room(world)
    record = world.engine.cache.nodes["node"]
    assert (set(record.nominees), set(record.booked.holdings) - set(record.ledger.holdings)) == (
        {"uid-pod"},
        {"uid-pod"},
    )
    world.engine.handlers.pending_pods.observe("DELETED", pod)
    assert record.nominees == {}
    assert record.booked is record.ledger
    assert world.ledgers() == before


async def test_a_later_nomination_of_equal_priority_takes_no_room() -> None:
    world = crowded(*FULL)
    world.waits(important("first"))
    await make_room(world)
    world.waits(important("second", created=1.0))
    await make_room(world)
    leaves(world, "c", "d")  # who has to leave for the second is still there
    await make_room(world)
    assert (world.nodes_of()["first"], world.nodes_of()["second"]) == ("node", "")
    assert "nominate first " not in wrote(world)


async def test_no_pod_is_evicted_for_a_pod_tried_next_on_a_free_node() -> None:
    there = [
        running(f"{name}-{node}", cpus, node)
        for node in ("node", "other")
        for name, cpus in (("a", "0-3"), ("b", "4-7"))
    ]
    world = crowded(*there, nodes=("node", "other"))
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    evicted = [call for call in wrote(world) if call.startswith("evict ")]
    assert evicted
    for victim in there:
        if f"evict {victim.key.name}" in evicted:
            world.engine.handlers.bound_pods.observe("DELETED", victim)
    world.engine.preemption.look_again()
    await world.engine.preemption.work()
    assert [call for call in wrote(world) if call.startswith("evict ")] == evicted
    await world.settle()
    assert world.nodes_of()["pod"]
