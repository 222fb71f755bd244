"""Making room for a pod that only kubelet options speak against which are not known, and that may not find out about them."""

from collections.abc import Sequence

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Assignment, Container, Pod
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner, KubeletPolicy
from koord_numa.core.resources import MILLI
from koord_numa.core.value_objects import replace
from tests.engine.preemption.world import leaves, make_room, said
from tests.engine.world import GIB, World, bound, make_node, make_pod, make_world

SIZE = 10
"""CPUs of each of two NUMA nodes."""


def topology(version: int, used: tuple[int, int], *pods: str) -> NodeResourceTopology:
    """Return the topology while only these pods run. The options of the CPU manager are not published."""
    room = {"cpu": SIZE * MILLI}
    zones = tuple(Zone(numa, room, room, {"cpu": (SIZE - count) * MILLI}) for numa, count in enumerate(used))
    return NodeResourceTopology(
        "node",
        CpuOwner.KUBELET,
        zones,
        kubelet=KubeletConfig(KubeletPolicy.SINGLE_NUMA_NODE, memory_policy="None"),
        resource_version=str(version),
        fingerprint=fingerprint(("default", name) for name in pods),
        fingerprint_method="all",
    )


def ranked(name: str, priority: int, cpus: int, init: int = 0) -> Pod:
    """A bare Guaranteed pod; with an init container of so many CPUs before its app."""
    one = make_pod(name, cpu=cpus * MILLI)
    amounts = {"cpu": init * MILLI, "memory": GIB}
    first = (Container("init", ContainerKind.INIT, amounts, amounts),) if init else ()
    containers = (*first, *one.request.containers)
    return replace(one, request=replace(one.request, containers=containers, priority=priority, replaceable=False))


ODD = (ranked("odd", 90, 1), 0, 1)
"""A pod, its NUMA node, and how many CPUs of that its running containers have; this one shows that cores may be split."""

TIED = (ranked("tied", 90, 2, init=4), 0, 2)
"""It holds 4 CPUs if they are packed into cores, and 6 with an option."""

FULL = (ODD, TIED, (ranked("low", 1, 3), 0, 3), (ranked("full", 90, SIZE), 1, SIZE))
"""2 CPUs of NUMA node 0 are free, or none."""

HOPELESS = (ODD, TIED, (ranked("filler", 90, 3), 0, 3), (ranked("low", 1, 1), 1, 1), (ranked("rest", 90, 9), 1, 9))
"""The same, and no pod there can be evicted; one on the other NUMA node would free a single CPU."""


def crowded(there: Sequence[tuple[Pod, int, int]] = FULL) -> World:
    """A node of two NUMA nodes that is followed from its first pod."""
    world = make_world(make_node("node", cpu=2 * SIZE, labels={"kubernetes.io/arch": "amd64"}))
    engine = world.engine.handlers
    engine.budgets.replace([])
    engine.topologies.observe("ADDED", topology(1, (0, 0)))
    assert world.engine.cache.nodes["node"].candidate() is not None  # it is followed from here on
    for pod, numa, cpus in there:
        given = Assignment(CpuSet(), ((numa, {"cpu": cpus * MILLI}),))
        on_its_way = bound(replace(pod, assignment=given), "node")
        running = world.server.pods[pod.key.uid] = replace(on_its_way, started=True, phase="Running")
        engine.bound_pods.observe("ADDED", on_its_way)
        engine.bound_pods.observe("MODIFIED", running)
        world.clock.now += 1
    engine.topologies.observe("MODIFIED", topology(2, (6, SIZE), *(pod.key.name for pod, _, _ in there)))
    return world


async def test_evictions_make_room_for_a_bare_pod_on_known_options() -> None:
    world = crowded()
    world.waits(ranked("pod", 10, 2))
    assert await make_room(world) == ["nominate pod node", "evict low"]
    leaves(world, "low")
    world.engine.handlers.topologies.observe("MODIFIED", topology(3, (3, SIZE), "odd", "tied", "full"))
    world.clock.now += 10
    assert (await make_room(world))[-1] == "bind pod node"


@pytest.mark.parametrize(
    ("there", "pod"),
    [
        pytest.param(FULL, ranked("pod", 10, 6), id="lacks-cpus-all-the-same"),
        pytest.param(FULL, ranked("pod", 1, 2), id="of-no-higher-priority"),
        pytest.param(HOPELESS, ranked("pod", 10, 2), id="depends-on-the-options-all-the-same"),
    ],
)
async def test_a_bare_pod_that_no_eviction_helps_evicts_no_pod(there: Sequence[tuple[Pod, int, int]], pod: Pod) -> None:
    world = crowded(there)
    world.waits(pod)
    assert await make_room(world) == []


async def test_why_it_waits_names_what_it_lacks() -> None:
    world = crowded(HOPELESS)
    world.waits(ranked("pod", 10, 2))
    await make_room(world)
    why = said(world, "pod")
    assert "cannot align the pod" in why
