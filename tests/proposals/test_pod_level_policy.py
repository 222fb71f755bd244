"""The worked examples and the matrix of the pod-level NUMA policy proposal, through wire and engine."""

import pytest

from tests.proposals.cluster import Cluster, Json, cluster, guaranteed, koordlet_nrt, kubelet_nrt, node, pod, zone
from tests.tables import each_row

SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}
GPU = "nvidia.com/gpu"


def one_node() -> Cluster:
    return cluster(node("n", 16), koordlet_nrt("n"))


async def test_example_1_equal_request_and_limit_get_an_exclusive_cpu() -> None:
    there = one_node()
    await there.create(pod("a", guaranteed("1"), spec=SINGLE))
    assert there.cpus("a") == "0"


async def test_example_2_a_limit_above_the_request_uses_the_pool() -> None:
    there = one_node()
    await there.create(pod("a", {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}, spec=SINGLE))
    assert there.cpus("a") == ""
    assert there.status("a")["cpuSharedPools"] == [{"socket": 0, "node": 0}]


async def test_example_3_gpu_and_cpu_come_from_one_numa_node() -> None:
    nrt = koordlet_nrt("n")
    nrt["zones"][1]["resources"].append({"name": GPU, "capacity": "1", "allocatable": "1", "available": "1"})
    there = cluster(node("n", 16, gpus=1), nrt)
    await there.create(pod("a", guaranteed("1", **{GPU: "1"}), spec=SINGLE))
    assert there.numa("a") == [1]
    assert there.cpus("a") == "8"


async def test_example_4_without_a_policy_gpu_and_cpu_are_not_aligned() -> None:
    nrt = koordlet_nrt("n")
    nrt["zones"][1]["resources"].append({"name": GPU, "capacity": "1", "allocatable": "1", "available": "1"})
    there = cluster(node("n", 16, gpus=1), nrt)
    await there.create(pod("a", guaranteed("1", **{GPU: "1"})))
    assert there.node_of("a") == "n"
    assert there.status("a") == {}


POLICIES = ("SingleNUMANode", "Restricted", "BestEffort", "")


@each_row("of_node", POLICIES)
@each_row("of_pod", POLICIES)
async def test_the_matrix_of_pod_and_node_policies(of_pod: str, of_node: str) -> None:
    labels = {"node.koordinator.sh/numa-topology-policy": of_node} if of_node else {}
    there = cluster(node("n", 16, labels=labels), koordlet_nrt("n"))
    await there.create(pod("a", guaranteed("2"), numa={"numaTopologyPolicy": of_pod}))
    assert bool(there.node_of("a")) == (not of_pod or not of_node or of_pod == of_node)


CROSSING = {"numaTopologyPolicy": "Restricted"}


class TestSingleNumaNodeExclusive:
    """``singleNUMANodeExclusive`` protects pods that name SingleNUMANode, and no others."""

    @pytest.mark.parametrize("qos", ["LSR", "LS"])
    async def test_required_keeps_pods_over_several_numa_nodes_away(self, qos: str) -> None:
        there = one_node()
        limits = guaranteed("2") if qos == "LSR" else {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}
        await there.create(pod("single", limits, qos=qos, spec=SINGLE), pod("wide", guaranteed("10"), numa=CROSSING))
        assert there.node_of("single") == "n"
        assert "singleNUMANodeExclusive" in there.why("wide")

    async def test_unset_is_required_for_best_effort_pods_too(self) -> None:
        there = one_node()
        wide = pod("wide", guaranteed("10"), qos="LSR", numa={"numaTopologyPolicy": "BestEffort"})
        await there.create(pod("single", guaranteed("2"), spec=SINGLE), wide)
        assert not there.node_of("wide")
        assert "singleNUMANodeExclusive" in there.why("wide")

    async def test_a_pod_without_a_policy_is_no_such_occupant(self) -> None:
        there = one_node()
        await there.create(pod("plain", guaranteed("2"), qos="LSR"), pod("wide", guaranteed("10"), numa=CROSSING))
        assert there.numa("wide") == [0, 1]

    async def test_required_works_the_other_way_round(self) -> None:
        there = one_node()
        wide = pod("wide", guaranteed("10"), qos="LSR", numa=CROSSING)
        await there.create(wide, pod("single", guaranteed("1"), spec=SINGLE))
        assert there.node_of("wide")
        assert not there.node_of("single")

    async def test_preferred_avoids_such_numa_nodes_of_the_node(self) -> None:
        there = cluster(node("n", 32), koordlet_nrt("n", numa=4))
        wide = pod("wide", guaranteed("10"), qos="LSR", numa=CROSSING | {"singleNUMANodeExclusive": "Preferred"})
        await there.create(pod("single", guaranteed("2"), spec=SINGLE), wide)
        assert there.numa("single") == [0]
        assert 0 not in there.numa("wide")

    async def test_preferred_avoids_nodes_where_all_numa_nodes_are_taken(self) -> None:
        there = cluster(node("a", 16), koordlet_nrt("a"))
        await there.create(*(pod(f"single-{i}", guaranteed("5"), spec=SINGLE) for i in range(2)))
        there.join(node("b", 16))
        there.nrt(koordlet_nrt("b"))
        wide = pod("wide", guaranteed("6", "2Gi"), qos="LSR", numa=CROSSING | {"singleNUMANodeExclusive": "Preferred"})
        await there.create(wide)
        assert there.node_of("wide") == "b"

    async def test_critical_workloads_may_break_it(self) -> None:
        there = one_node()
        wide = pod("wide", guaranteed("10"), qos="LSR", numa=CROSSING | {"singleNUMANodeExclusive": "Preferred"})
        await there.create(pod("single", guaranteed("2"), spec=SINGLE), wide)
        assert there.numa("wide") == [0, 1]


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted"])
async def test_kubelets_with_crossing_pods_get_no_single_numa_pods(policy: str) -> None:
    """So that Required holds on nodes whose kubelet chooses, too: the two kinds never meet there."""
    zones = [zone(numa, {"cpu": "8", "memory": "32Gi"}) for numa in (0, 1)]
    there = cluster(node("n", 16), kubelet_nrt("n", zones, policy))
    await there.create(pod("single", guaranteed("2"), spec=SINGLE))
    assert not there.node_of("single")


async def test_the_score_gathers_single_numa_node_pods() -> None:
    """``score = (100 - 10 n) + 10 * requested / allocated``: four pods of two CPUs fill one NUMA node of one of two nodes."""
    there = cluster(*(obj for name in "ab" for obj in (node(name, 16), koordlet_nrt(name))))
    await there.create(*(pod(f"p{i}", guaranteed("2"), spec=SINGLE) for i in range(4)))
    assert {there.node_of(f"p{i}") for i in range(4)} == {"a"}
    assert {tuple(there.numa(f"p{i}")) for i in range(4)} == {(0,)}


async def test_a_full_numa_node_scores_100_whatever_else_it_has() -> None:
    """8 of 8 CPUs requested and no memory: 90 + 10; what was not requested does not dilute it."""
    there = cluster(
        *(
            obj
            for name, cores in (("large", 8), ("small", 4))
            for obj in (node(name, 4 * cores), koordlet_nrt(name, cores=cores))
        ),
        settings="profiles: [{nodeScoring: PodLevelPolicy, scoreWeights: {resources: 0, devices: 0}}]\n",
    )
    await there.create(pod("a", {"requests": {"cpu": "8"}, "limits": {"cpu": "8"}}, spec=SINGLE))
    assert there.node_of("a") == "small"


@pytest.mark.parametrize(
    "scoring", ["FewestNUMANodes", "CPUOrchestration", "Koordinator", "PodLevelPolicy", "LeastNUMANodes"]
)
async def test_a_node_without_nrt_scores_0_by_every_method(scoring: str) -> None:
    profile = f"profiles: [{{nodeScoring: {scoring}, nodesWithoutTopology: Permissive, scoreWeights: {{resources: 0, devices: 0}}}}]\n"
    there = cluster(node("a-bare", 16), node("b", 16), koordlet_nrt("b"), settings=profile)
    objs: list[Json] = [pod("a", guaranteed("2", "8Gi"), numa={"numaTopologyPolicy": "BestEffort"})]
    await there.create(*objs)
    assert there.node_of("a") == "b"
