"""A bind that failed leaves nothing behind: neither in what is believed of a kubelet, nor a record of a node that is gone."""

import pytest

from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, KubeletScope
from koord_numa.ports import ClusterError, Conflict, Invalid, Unavailable
from tests.engine.world import GIB, make_node, make_pod, make_world


def followed_topology() -> NodeResourceTopology:
    """Two empty NUMA nodes of four CPUs whose kubelet gives containers CPUs of one of them."""
    room = {"cpu": 4000, "memory": 16 * GIB}
    kubelet = KubeletConfig(KubeletPolicy.SINGLE_NUMA_NODE, KubeletScope.POD, cpu_policy="static")
    zones = tuple(Zone(numa, room, room, room) for numa in range(2))
    return NodeResourceTopology("node", CpuOwner.KUBELET, zones, kubelet=kubelet, resource_version="1")


@pytest.mark.parametrize(
    "error", [Unavailable("busy"), Invalid("no"), Conflict("changed")], ids=lambda it: type(it).__name__
)
async def test_a_pod_with_a_failed_bind_is_followed_by_the_next_bind(error: ClusterError) -> None:
    """Three CPUs on each NUMA node leave one on each: a pod that needs two of one NUMA node does not fit."""
    world = make_world(make_node("node"))
    world.engine.handlers.topologies.observe("ADDED", followed_topology())
    failures = [error]

    def fail(call: str) -> None:
        if call == "bind before" and failures:
            raise failures.pop()

    world.server.fail = fail
    for number, (name, cpu) in enumerate((("first", 3000), ("second", 3000), ("third", 2000))):
        world.waits(make_pod(name, cpu=cpu, created=float(number)))
        await world.settle()
        world.clock.now += 30
        await world.settle()
    assert world.nodes_of() == {"first": "node", "second": "node", "third": ""}


def test_a_vanished_node_is_not_kept_for_a_second_revert() -> None:
    cache = make_world().engine.cache
    for _ in range(2):
        cache.set_cpus_by_claim("gone", False)
        cache.set_broken("gone", "uid", "")
        cache.lock("gone", "")
    assert cache.nodes == {}
