"""Restricted, by the texts: as many NUMA nodes as the pod would need if the node were empty (KEP-693), else the node is skipped (004)."""

import pytest

from tests.proposals.cluster import Cluster, cluster, guaranteed, koordlet_nrt, node, pod

KOORDINATOR = "profiles: [{restrictedPolicy: Koordinator}]\n"


async def fragmented(settings: str = "") -> Cluster:
    """Two NUMA nodes of 8 CPUs, 2 free on each, under the node's label Restricted."""
    labels = {"node.koordinator.sh/numa-topology-alignment-policy": "Restricted"}
    there = cluster(node("n", 16, labels=labels), koordlet_nrt("n"), settings=settings)
    await there.create(*(pod(f"p{i}", guaranteed("6"), qos="LSR") for i in range(2)))
    return there


async def test_a_pod_that_fits_one_empty_numa_node_is_not_split() -> None:
    there = await fragmented()
    await there.create(pod("a", guaranteed("4"), qos="LSR"))
    assert not there.node_of("a")
    assert "on 1 NUMA node, as many as it would need if the node were empty" in there.why("a")


async def test_by_koordinators_rule_it_is() -> None:
    there = await fragmented(KOORDINATOR)
    await there.create(pod("a", guaranteed("4"), qos="LSR"))
    assert there.numa("a") == [0, 1]


async def test_a_pod_that_needs_two_numa_nodes_gets_two() -> None:
    labels = {"node.koordinator.sh/numa-topology-alignment-policy": "Restricted"}
    there = cluster(node("n", 16, labels=labels), koordlet_nrt("n"))
    await there.create(pod("a", guaranteed("12", "8Gi"), qos="LSR"))
    assert there.numa("a") == [0, 1]


async def test_a_rejection_shows_memory_where_memory_decides() -> None:
    """CPUs would be there on both NUMA nodes, and memory only with a third one."""
    labels = {"node.koordinator.sh/numa-topology-alignment-policy": "Restricted"}
    nrt = koordlet_nrt("n")
    nrt["zones"].append({"name": "node-2", "type": "Node", "resources": [{"name": "memory", "capacity": "64Gi"}]})
    there = cluster(node("n", 16, memory=128, labels=labels), nrt)
    await there.create(pod("large", guaranteed("2", "56Gi"), qos="LSR"))
    await there.create(pod("a", guaranteed("10", "20Gi"), qos="LSR"))
    why = {number.resource for number in there.rejection("a", "n").numbers}
    assert why == {"cpu", "memory"}


@pytest.mark.parametrize("qos", ["", "LS"])
async def test_pods_in_the_shared_pool_are_judged_alike(qos: str) -> None:
    there = await fragmented()
    await there.create(pod("a", {"requests": {"cpu": "4"}, "limits": {"cpu": "5"}}, qos=qos))
    assert not there.node_of("a")


async def test_best_effort_says_that_it_is_not_aligned() -> None:
    there = cluster(node("n", 16), koordlet_nrt("n"))
    await there.create(*(pod(f"p{i}", guaranteed("6"), qos="LSR") for i in range(2)))
    await there.create(pod("a", guaranteed("4"), qos="LSR"))
    assert there.numa("a") == [0, 1]
    assert there.world.engine.handle.metrics.placements["unaligned"] == 1
