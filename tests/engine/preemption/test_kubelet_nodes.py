"""Making room where a kubelet chooses the CPUs: only for what is certain, and with patience for what it publishes."""

import pytest

from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Assignment, Pod
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.engine.preemption.world import leaves, make_room
from tests.engine.world import GIB, World, bound, make_node, make_pod, make_world

ROOM = {"cpu": 4000, "memory": 16 * GIB}


def topology(*used: int, version: str = "1", pods: tuple[str, ...] = ()) -> NodeResourceTopology:
    """Return the topology of two NUMA nodes with four CPUs each, with these numbers of used CPUs and these pods."""
    zones = tuple(
        Zone(numa, ROOM, ROOM, {"cpu": 4000 - 1000 * cpus, "memory": (16 - bool(cpus)) * GIB})
        for numa, cpus in enumerate(used)
    )
    return NodeResourceTopology(
        "node",
        CpuOwner.KUBELET,
        zones,
        kubelet=KubeletConfig(KubeletPolicy.SINGLE_NUMA_NODE, KubeletScope.POD, cpu_policy="static"),
        resource_version=version,
        fingerprint=fingerprint(("default", name) for name in pods) if pods else "",
    )


def ranked(name: str, priority: int, cpus: int = 4) -> Pod:
    """A Guaranteed pod with a priority."""
    pod = make_pod(name, cpu=1000 * cpus)
    return replace(pod, request=replace(pod.request, priority=priority))


def running(name: str, numa: int, priority: int) -> Pod:
    """A pod that was placed on this NUMA node."""
    given = Assignment(numa=((numa, {"cpu": 4000, "memory": GIB}),))
    return bound(replace(ranked(name, priority), assignment=given, started=True), "node")


def kubelet_node(published: NodeResourceTopology) -> World:
    """One full node: ``low`` is on NUMA node 0 and counts less than ``mid`` on the other."""
    world = make_world(make_node("node"))
    world.engine.handlers.topologies.observe("ADDED", published)
    for pod in (running("low", 0, 1), running("mid", 1, 2)):
        world.server.pods[pod.key.uid] = pod
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    world.engine.handlers.budgets.replace([])
    return world


EVICTED = ["nominate pod node", "evict low"]


async def test_the_pod_waits_until_the_topology_shows_the_free_room() -> None:
    world = kubelet_node(topology(4, 4))
    world.waits(ranked("pod", 10))
    assert await make_room(world) == EVICTED
    leaves(world, "low")
    world.clock.now += 60
    world.engine.preemption.look_again()
    assert await make_room(world) == EVICTED
    world.engine.handlers.topologies.observe("MODIFIED", topology(0, 4, version="2"))
    assert await make_room(world) == [*EVICTED, "bind pod node"]


async def test_a_topology_that_is_never_published_is_not_awaited() -> None:
    world = kubelet_node(topology(4, 4))
    world.waits(ranked("pod", 10))
    await make_room(world)
    leaves(world, "low")
    assert await make_room(world) == EVICTED
    world.clock.now += 181
    world.engine.preemption.look_again()
    assert await make_room(world) == [*EVICTED, "nominate pod "]
    assert "uid-pod" not in world.engine.cache.nodes["node"].nominees
    world.clock.now += 400
    assert await make_room(world) == [*EVICTED, "nominate pod "]  # what is published is no ground for evicting others
    world.engine.handlers.topologies.observe("MODIFIED", topology(0, 4, version="2"))
    world.clock.now += 10
    assert (await make_room(world))[-1] == "bind pod node"


async def test_a_topology_that_still_shows_too_little_ends_the_wait() -> None:
    world = kubelet_node(topology(4, 4))
    world.waits(ranked("pod", 10))
    await make_room(world)
    leaves(world, "low")
    world.engine.handlers.topologies.observe("MODIFIED", topology(3, 4, version="2"))
    world.clock.now += 10
    calls = await make_room(world)
    assert calls[len(EVICTED)] == "nominate pod "


async def test_a_topology_from_after_the_departure_counts() -> None:
    """No other would come, and three minutes later the node would be taken for one whose topology does not follow."""
    world = kubelet_node(topology(4, 4, pods=("low", "mid")))
    world.waits(ranked("pod", 10))
    assert await make_room(world) == EVICTED
    world.engine.handlers.topologies.observe("MODIFIED", topology(3, 4, version="2", pods=("mid",)))
    leaves(world, "low")
    assert await make_room(world) == [*EVICTED, "nominate pod ", "nominate pod node", "evict mid"]


@pytest.mark.parametrize(
    ("pods", "evicted"),
    [
        pytest.param(("low", "mid"), True, id="of-the-pods-known"),
        pytest.param(("low", "mid", "foreign"), False, id="of-one-more"),
        pytest.param(("mid",), False, id="of-one-less"),
        pytest.param(("low",), True, id="older-than-the-last-pod"),
    ],
)
async def test_a_topology_of_other_pods_evicts_no_pod(pods: tuple[str, ...], *, evicted: bool) -> None:
    world = kubelet_node(topology(4, 4, pods=pods))
    world.waits(ranked("pod", 10))
    assert (await make_room(world) == EVICTED) == evicted


async def test_room_is_made_when_a_topology_of_the_known_pods_arrives() -> None:
    """The node is as full as before, so that nothing else would have the pod looked at again."""
    world = kubelet_node(topology(4, 4, pods=("low", "mid", "foreign")))
    world.waits(ranked("pod", 10))
    assert await make_room(world) == []
    world.engine.handlers.topologies.observe("MODIFIED", topology(4, 4, version="2", pods=("low", "mid")))
    world.clock.now += 1
    world.engine.preemption.look_again()
    assert await make_room(world) == EVICTED


async def test_a_pod_missing_in_the_topology_may_be_missing_from_it() -> None:
    world = kubelet_node(topology(4, 0, pods=("low",)))
    fresh = replace(running("mid", 1, 2), started=False)
    world.engine.handlers.bound_pods.observe("DELETED", fresh)
    world.engine.handlers.bound_pods.observe("ADDED", fresh)
    world.waits(ranked("pod", 10))
    assert await make_room(world) == EVICTED


async def test_no_pod_is_evicted_while_placements_are_unknown() -> None:
    world = kubelet_node(topology(4, 4))
    for name, priority in (("low", 1), ("mid", 2)):
        lost = replace(running(name, 0, priority), assignment=None)
        world.engine.handlers.bound_pods.observe("DELETED", lost)
        world.engine.handlers.bound_pods.observe("ADDED", lost)
    world.waits(ranked("pod", 10))
    assert await make_room(world) == []
