"""Decisions about large groups in turns: other pods are decided on in between, and nothing is counted twice."""

from collections.abc import Callable

import pytest

from koord_numa.core.objects.gangs import Dialect, GangKey, GangRef, GangSpec, PodGroup
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.engine.gangs import trial
from tests.engine.world import World, bound, make_node, make_pod, make_world

KEY = GangKey(Dialect.KUBERNETES, "default", "g")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Three nodes of eight CPUs, where a turn is one step."""
    monkeypatch.setattr(trial, "TURN_STEPS", 1)
    return make_world(*(make_node(name) for name in "abc"))


def members(*cpus: int) -> list[Pod]:
    pods = (make_pod(f"m{number}", cpu=1000 * cpu) for number, cpu in enumerate(cpus))
    return [replace(pod, request=replace(pod.request, gang=GangRef(KEY))) for pod in pods]


def at_turn(world: World, number: int, act: Callable[[], None]) -> list[int]:
    """Call the function in the given interruption of a group decision. Returns a list with an entry for each interruption."""
    turns: list[int] = []

    async def give_way() -> None:
        # Nothing of the decision is seen by others.
        assert all(not info.nominees for info in world.engine.cache.nodes.values())
        turns.append(len(turns))
        if len(turns) == number:
            act()

    world.engine.loop._groups.give_way = give_way
    return turns


def group(world: World, *pods: Pod) -> None:
    world.engine.groups.observe_group("ADDED", PodGroup(KEY, GangSpec(len(pods))))
    world.waits(*pods)


def used(world: World) -> dict[str, int]:
    """CPUs of bound pods by node."""
    found = dict.fromkeys("abc", 0)
    for name, ledger in ((name, info.ledger) for name, info in world.engine.cache.nodes.items()):
        found[name] = ledger.amounts.get("cpu", 0) // 1000
    return found


def unplaced(world: World) -> list[str]:
    return sorted(name for name, node in world.nodes_of().items() if not node)


async def test_a_decision_is_interrupted_and_goes_on(world: World) -> None:
    turns = at_turn(world, 0, lambda: None)
    group(world, *members(5, 5, 5, 3, 3, 3))
    await world.settle()
    assert len(turns) >= 2
    assert unplaced(world) == []
    assert used(world) == {"a": 8, "b": 8, "c": 8}


@pytest.mark.parametrize("turn", range(1, 5))
@pytest.mark.parametrize("node", ["a", "b", "c"])
async def test_room_that_is_taken_meanwhile_is_not_given_twice(world: World, node: str, turn: int) -> None:
    other = bound(make_pod("other", cpu=4000), node, started=True)
    world.server.pods[other.key.uid] = other
    at_turn(world, turn, lambda: world.engine.handlers.bound_pods.observe("ADDED", other))
    group(world, *members(4, 4, 4, 3, 1))
    await world.settle()
    for _ in range(3):
        world.clock.now += 60
        await world.settle()
    assert unplaced(world) == []
    assert max(used(world).values()) <= 8


async def test_a_group_that_does_not_fit_any_more_waits(world: World) -> None:
    other = bound(make_pod("other", cpu=8000), "a", started=True)
    at_turn(world, 1, lambda: world.engine.handlers.bound_pods.observe("ADDED", other))
    group(world, *members(5, 5, 5))
    await world.settle()
    assert unplaced(world) == ["m0", "m1", "m2"]
    assert used(world) == {"a": 8, "b": 0, "c": 0}


async def test_members_that_change_meanwhile_are_decided_on_again(world: World) -> None:
    pods = members(5, 5, 5)
    changed = replace(make_pod("m1", cpu=1000, resource_version="2"), request=replace(pods[1].request))
    at_turn(world, 1, lambda: world.engine.handlers.pending_pods.observe("MODIFIED", changed))
    group(world, *pods)
    await world.settle()
    world.clock.now += 1
    await world.settle()
    assert unplaced(world) == []


async def test_a_member_that_goes_meanwhile_lets_the_group_wait(world: World) -> None:
    pods = members(5, 5, 5)
    at_turn(world, 1, lambda: world.engine.handlers.pending_pods.observe("DELETED", pods[2]))
    group(world, *pods)
    await world.settle()
    world.clock.now += 1
    await world.settle()
    assert used(world) == {"a": 0, "b": 0, "c": 0}
