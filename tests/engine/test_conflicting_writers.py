"""Changes by other writers are noticed, reported, and not mistaken for the scheduler's own writes."""

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Assignment, Pod
from koord_numa.core.value_objects import replace
from koord_numa.engine.binding.assumed_pods import FOREIGN_BIND, FOREIGN_STATUS, HELD_TWICE, OVERCOMMITTED
from tests.engine.world import World, bound, make_node, make_pod, make_topology, make_world


def pinned(name: str, cpus: str, created: float = 0.0, **changes: object) -> Pod:
    assignment = Assignment(cpus=CpuSet.parse(cpus))
    return bound(make_pod(name, 2000, created=created), "node", assignment=assignment, **changes)


@pytest.fixture
def world() -> World:
    made = make_world(make_node("node"))
    made.engine.handlers.topologies.observe("ADDED", make_topology("node"))
    return made


def lead(world: World, seconds: float = 100.0) -> None:
    """Be the leader for so long."""
    world.engine.writers.tick()
    world.clock.now += seconds


def test_cpus_held_twice_are_reported_on_node_and_pods(world: World) -> None:
    writers = world.engine.writers
    world.engine.handlers.bound_pods.observe("ADDED", pinned("first", "0-1", 1))
    assert (writers.double_holds, writers.warnings()) == ({}, [])
    second = pinned("second", "1-2", 2)
    world.engine.handlers.bound_pods.observe("ADDED", second)
    world.engine.handlers.bound_pods.observe("MODIFIED", replace(second, labels=(("a", "b"),)))
    assert [world.diary.reasons(name) for name in ("node", "first", "second")] == [[HELD_TWICE]] * 3
    assert writers.warnings() == [
        "node node: CPUs 1 belong to default/first and to default/second by their resource-status"
    ]
    world.engine.handlers.bound_pods.observe("DELETED", second)
    assert (writers.double_holds, writers.warnings()) == ({}, [])


async def test_cpus_that_two_pods_hold_are_never_given_to_a_third(world: World) -> None:
    first, second = pinned("first", "0-3", 1), pinned("second", "0-3", 2)
    for pod in (first, second):
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    world.engine.handlers.bound_pods.observe("DELETED", first)
    assert str(world.engine.cache.nodes["node"].ledger.cpus) == "0-3"


def test_a_standby_logs_double_holds_and_posts_nothing(world: World) -> None:
    world.lease.held = False
    for pod in (pinned("first", "0-1"), pinned("second", "0-1")):
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    assert (len(world.engine.writers.double_holds), world.diary.events) == (1, [])


def test_a_pod_of_ours_that_another_writer_bound_is_noticed(world: World) -> None:
    lead(world)
    world.engine.handlers.bound_pods.observe("ADDED", bound(make_pod("ours"), "node"))
    world.engine.handlers.bound_pods.observe("ADDED", bound(make_pod("theirs", scheduler="other"), "node"))
    assert (world.diary.reasons("ours"), world.diary.reasons("theirs")) == ([FOREIGN_BIND], [])
    assert world.engine.writers.foreign[FOREIGN_BIND] == 1
    assert "bound to node by another writer" in world.engine.writers.warnings()[0]
    world.clock.now += 301
    assert world.engine.writers.warnings() == []


async def test_our_own_binds_are_not_taken_for_anothers(world: World) -> None:
    lead(world)
    world.waits(make_pod("pod"))
    await world.settle()
    world.engine.handlers.bound_pods.observe("MODIFIED", world.server.pods["uid-pod"])
    assert not world.engine.writers.foreign[FOREIGN_BIND]


def test_binds_of_the_leader_before_are_not_taken_for_anothers(world: World) -> None:
    lead(world, world.engine.settings.lease.duration)
    world.engine.handlers.bound_pods.observe("ADDED", bound(make_pod("before"), "node"))
    world.lease.held = False
    world.engine.writers.tick()
    world.clock.now += 100
    world.engine.handlers.bound_pods.observe("ADDED", bound(make_pod("of the leader"), "node"))
    assert not world.engine.writers.foreign[FOREIGN_BIND]


def test_a_resource_status_changed_by_others_is_noticed(world: World) -> None:
    lead(world)
    world.engine.handlers.bound_pods.observe("ADDED", pinned("pod", "0-1"))
    world.diary.events.clear()
    world.engine.handlers.bound_pods.observe("MODIFIED", pinned("pod", "0-7"))
    assert world.diary.events == [
        ("pod", FOREIGN_STATUS, "resource-status was changed by another writer: CPUs 0-1 → 0-7")
    ]


def test_a_rebind_is_not_taken_for_anothers_change(world: World) -> None:
    lead(world)
    world.engine.handlers.bound_pods.observe("ADDED", pinned("pod", "0-1"))
    world.engine.lock_node("node", "a rebind")
    world.engine.handlers.bound_pods.observe("MODIFIED", pinned("pod", "2-3"))
    assert not world.engine.writers.foreign[FOREIGN_STATUS]


def test_a_node_overcommitted_by_two_schedulers_is_reported_once(world: World) -> None:
    observe = world.engine.handlers.bound_pods.observe
    observe("ADDED", bound(make_pod("ours", 6000), "node"))
    theirs = bound(make_pod("theirs", 3000, scheduler="other"), "node")
    observe("ADDED", theirs)
    observe("MODIFIED", replace(theirs, labels=(("a", "b"),)))
    assert world.diary.reasons("node") == [OVERCOMMITTED]
    assert "cpu 9 of 8; 1 of 2 pods belong to other schedulers" in world.engine.writers.warnings()[0]
    observe("DELETED", theirs)
    assert world.engine.writers.warnings() == []


def test_a_node_that_one_scheduler_has_overcommitted_is_no_race(world: World) -> None:
    for number in range(3):
        world.engine.handlers.bound_pods.observe("ADDED", bound(make_pod(f"{number}", 3000, scheduler="other"), "node"))
    assert world.diary.reasons("node") == []


async def test_headroom_is_kept_free_on_shared_nodes_only() -> None:
    made = make_world(make_node("shared"), settings="headroom: {cpu: 2, memory: 1Gi}")
    made.waits(make_pod("large", 7000))
    await made.settle()
    assert made.nodes_of() == {"large": ""}
    assert "1 Insufficient cpu" in made.engine.explain("uid-large") or "cpu" in made.engine.explain("uid-large")
    made.engine.handlers.nodes.observe("ADDED", make_node("own", labels={"koord-numa.io/dedicated": "true"}))
    made.clock.now += 5
    await made.settle()
    made.waits(make_pod("small", 6000))
    await made.settle()
    assert made.nodes_of() == {"large": "own", "small": "shared"}
