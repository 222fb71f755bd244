"""Nodes whose NodeResourceTopology describes no NUMA nodes: pools of NRI plugins, and CPUs of an agent without zones."""

import pytest

from koord_numa.view.advice import advise, plan_here
from koord_numa.view.documents import node_entry
from tests.proposals.cluster import Cluster, Json, cluster, guaranteed, koordlet_nrt, node, pod

POOLS: Json = {
    "apiVersion": "topology.node.k8s.io/v1alpha2",
    "kind": "NodeResourceTopology",
    "metadata": {"name": "n"},
    "attributes": [{"name": "TopologyPolicy", "value": "balloons"}],
    "zones": [
        {"name": "fast[0]", "type": "balloon", "resources": [{"name": "cpu", "capacity": "16", "available": "0"}]}
    ],
}


def koordlet_without_zones() -> Json:
    return koordlet_nrt("n") | {"zones": []}


def entry(there: Cluster) -> Json:
    found = node_entry(there.world.engine.cache.nodes["n"])
    assert found is not None
    return found


async def test_a_guaranteed_pod_goes_where_only_pools_are_published() -> None:
    there = cluster(node("n", 16), POOLS)
    await there.create(pod("plain", guaranteed("8")))
    assert there.node_of("plain") == "n"
    assert entry(there)["state"] == "no-topology"
    assert "balloons" in entry(there)["why"]


async def test_a_topology_with_numa_nodes_replaces_pools() -> None:
    there = cluster(node("n", 16), POOLS)
    aligned = pod("aligned", guaranteed("4"), qos="LSR", numa={"numaTopologyPolicy": "SingleNUMANode"})
    await there.create(aligned)
    assert not there.node_of("aligned")
    there.nrt(koordlet_nrt("n"))
    there.world.clock.now += 5  # past the back-off of the first attempt
    await there.world.settle()
    assert there.world.server.pods["uid-aligned"].node == "n"
    assert entry(there)["state"] == "ok"


@pytest.mark.parametrize(
    "nrt", [pytest.param(POOLS, id="pools"), pytest.param(koordlet_without_zones(), id="no-zones")]
)
async def test_an_aligned_pod_is_told_what_is_missing(nrt: Json) -> None:
    there = cluster(node("n", 16), nrt)
    await there.create(pod("aligned", guaranteed("4"), qos="LSR", numa={"numaTopologyPolicy": "SingleNUMANode"}))
    why = there.why("aligned")
    assert "zones" in why
    assert "no NodeResourceTopology" not in why
    waiting = there.world.server.pods["uid-aligned"]
    run = there.world.engine.dry_run(waiting)
    assert run is not None
    remedies = await advise(there.world.engine, waiting, dict(run), plan_here)  # type: ignore[arg-type]  # the plan is drawn
    assert [remedy.text for remedy in remedies if "publish a NodeResourceTopology" in remedy.text] == []
    assert any("publish the NUMA nodes of n as zones" in remedy.text for remedy in remedies)


@pytest.mark.parametrize("policy", ["SingleNUMANodePodLevel", "Restricted"])
async def test_strict_kubelets_without_zones_take_unaligned_pods_only(policy: str) -> None:
    there = cluster(node("n", 16), POOLS | {"topologyPolicies": [policy]})
    burstable = pod("burstable", {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}})
    await there.create(burstable, pod("guaranteed", guaranteed("2")))
    assert (there.node_of("burstable"), there.node_of("guaranteed")) == ("n", "")
    assert "balloons" in there.why("guaranteed")
    assert "aligns pods" in entry(there)["why"]


async def test_cpus_without_zones_are_not_called_ok() -> None:
    there = cluster(node("n", 16), koordlet_without_zones())
    assert (entry(there)["cpusOf"], entry(there)["state"]) == ("scheduler", "uncertain")
    assert "Koordinator" in entry(there)["why"]


async def test_an_unpublished_policy_is_not_called_none() -> None:
    nrt = koordlet_nrt("n")
    del nrt["metadata"]["annotations"]["node.koordinator.sh/cpu-topology"]
    there = cluster(node("n", 16), nrt)
    await there.create(pod("aligned", guaranteed("4"), qos="LSR", numa={"numaTopologyPolicy": "SingleNUMANode"}))
    assert "the policy of the node's kubelet is not published" in there.why("aligned")
