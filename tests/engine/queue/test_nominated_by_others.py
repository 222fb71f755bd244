"""Room that is being freed for pods of other schedulers, and for ours by the scheduler before us, is not given away."""

from collections.abc import Callable

import pytest

from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from tests.engine.preemption.world import FULL, crowded, important, leaves, make_room, running
from tests.engine.world import World, bound


def foreign(priority: int = 5, node: str = "node") -> Pod:
    """A pod of another scheduler, for which it is freeing four CPUs of the node."""
    return replace(important("foreign", priority=priority), scheduler="default-scheduler", nominated=node)


def half_free() -> World:
    """One NUMA node is free, and who is on the other one stays."""
    return crowded(running("c", "4-5", priority=20), running("d", "6-7", priority=20))


@pytest.mark.parametrize(
    ("priority", "placed"),
    [pytest.param(4, "", id="less"), pytest.param(5, "", id="equal"), pytest.param(6, "node", id="more")],
)
async def test_only_what_matters_more_takes_the_room(priority: int, placed: str) -> None:
    world = half_free()
    world.engine.handlers.nominated_pods.observe("ADDED", foreign())
    world.waits(important("pod", priority=priority))
    await make_room(world)
    assert world.nodes_of()["pod"] == placed


async def test_who_may_not_preempt_waits_for_the_room() -> None:
    world = half_free()
    world.engine.handlers.nominated_pods.observe("ADDED", foreign())
    world.waits(important("pod", priority=6, preempts=False))
    await make_room(world)
    assert world.nodes_of()["pod"] == ""


def gone(world: World) -> None:
    world.engine.handlers.nominated_pods.observe("DELETED", foreign())


def no_longer_nominated(world: World) -> None:
    world.engine.handlers.nominated_pods.observe("MODIFIED", foreign(node=""))


def elsewhere(world: World) -> None:
    world.engine.handlers.nominated_pods.observe("MODIFIED", foreign(node="other"))


def not_listed(world: World) -> None:
    world.engine.handlers.nominated_pods.replace([])


def being_deleted(world: World) -> None:
    world.engine.handlers.nominated_pods.observe("MODIFIED", replace(foreign(), deleting=True))


@pytest.mark.parametrize("change", [gone, no_longer_nominated, elsewhere, not_listed, being_deleted])
async def test_the_room_is_free_again(change: Callable[[World], None]) -> None:
    world = half_free()
    world.engine.handlers.nominated_pods.replace([foreign()])
    world.waits(important("pod", priority=5))
    await make_room(world)
    assert world.nodes_of()["pod"] == ""
    change(world)
    world.clock.now += 60
    await make_room(world)
    assert world.nodes_of()["pod"] == "node"


async def test_a_pod_that_is_there_is_counted_once() -> None:
    world = half_free()
    world.engine.handlers.nominated_pods.observe("ADDED", foreign())
    world.engine.handlers.bound_pods.observe("ADDED", bound(foreign(), "node"))
    record = world.engine.cache.nodes["node"]
    assert record.booked is record.ledger
    world.engine.handlers.nominated_pods.observe("DELETED", foreign())
    assert (record.nominees, set(record.pods)) == ({}, {"uid-c", "uid-d", "uid-foreign"})


async def test_after_a_restart_room_is_kept_for_our_own_pods_at_once() -> None:
    world = crowded(*(replace(pod, deleting=pod.key.name in "cd") for pod in FULL))
    world.waits(replace(important("pod"), nominated="node"))
    record = world.engine.cache.nodes["node"]
    assert set(record.nominees) == {"uid-pod"}
    leaves(world, "c", "d")
    world.waits(important("small", cpu=1, created=-1.0, preempts=False))
    await make_room(world)
    assert world.nodes_of() == {"a": "node", "b": "node", "pod": "node", "small": ""}
    assert record.nominees == {}


async def test_a_claim_of_ours_that_leads_nowhere_is_dropped() -> None:
    world = half_free()
    world.waits(replace(important("pod", cpu=8), nominated="node"), important("small", cpu=1, priority=1))
    assert set(world.engine.cache.nodes["node"].nominees) == {"uid-pod"}
    await make_room(world)
    world.clock.now += 60
    await make_room(world)
    assert world.engine.cache.nodes["node"].nominees == {}
    assert world.nodes_of()["small"] == "node"
