"""KEP-119, topology-aware scheduling: the cases of its filter and score algorithms and its use case, through wire and engine."""

import pytest

from tests.proposals.cluster import Json, cluster, guaranteed, koordlet_nrt, kubelet_nrt, node, pod, zone

GPU = "nvidia.com/gpu"
HUGE = "hugepages-2Mi"
ZONES = """profiles:
  - nodeScoring: CPUOrchestration
    scoringStrategy: {{type: {}, resources: [{{name: cpu, weight: 1}}]}}
    scoreWeights: {{devices: 0}}
"""


def kubelets(name: str, *free: str, policy: str = "single-numa-node", gpus: tuple[int, ...] = ()) -> list[Json]:
    """A node of NUMA nodes with 8 CPUs each, of which so many are left, and with so many GPUs; no zone lists memory."""
    zones = []
    for numa, cpu in enumerate(free):
        there = {"cpu": cpu} | ({GPU: str(gpus[numa])} if gpus else {})
        zones.append(zone(numa, there, cpu="8"))
    return [
        node(name, 8 * len(free), gpus=sum(gpus)),
        kubelet_nrt(name, zones, policy, memoryManagerPolicy="None"),
    ]


async def test_motivation_enough_in_total_is_not_enough() -> None:
    """4 + 4 CPUs are free, and a pod of 6 fits no NUMA node: it waits, and the reason names its container and the amount."""
    there = cluster(*kubelets("n", "4", "4"))
    await there.create(pod("a", guaranteed("6")))
    assert there.node_of("a") == ""
    assert "needs 6 CPUs" in there.why("a")
    assert "c0" in there.why("a")


async def test_use_case_the_node_with_an_admitting_kubelet_is_chosen() -> None:
    """As many CPUs are free on all three; only the last has them on one NUMA node."""
    there = cluster(*kubelets("a", "4", "4"), *kubelets("b", "5", "3"), *kubelets("c", "8", "0"))
    await there.create(pod("p", guaranteed("6")))
    assert (there.node_of("p"), there.numa("p")) == ("c", [0])


async def test_filter_best_effort_pods_pass() -> None:
    there = cluster(*kubelets("n", "0", "0"))
    await there.create(pod("a", {}))
    assert there.node_of("a") == "n"


async def test_filter_every_container_is_aligned_by_itself() -> None:
    """Two containers of 5 fit two NUMA nodes of 8; a third finds 3 + 3 left, which no container may cross."""
    there = cluster(*kubelets("n", "8", "8"))
    await there.create(pod("three", *[guaranteed("5")] * 3))
    assert "c2" in there.why("three")
    await there.create(pod("two", *[guaranteed("5")] * 2))
    assert (there.node_of("three"), there.node_of("two")) == ("", "n")


async def test_filter_zones_without_a_requested_device_are_left_out() -> None:
    """The CPUs are free on NUMA node 0, the GPU is on NUMA node 1."""
    there = cluster(*kubelets("n", "8", "2", gpus=(0, 1)))
    await there.create(pod("wide", guaranteed("4", **{GPU: "1"})), pod("small", guaranteed("2", **{GPU: "1"})))
    assert (there.node_of("wide"), there.node_of("small")) == ("", "n")
    assert there.numa("small") == [1]


async def test_filter_case_1_memory_fits_if_no_zone_lists_it() -> None:
    first, nrt = kubelets("n", "8", "8")
    first["status"]["allocatable"][HUGE] = "2Gi"
    there = cluster(first, nrt)
    await there.create(pod("a", guaranteed("6", "40Gi", **{HUGE: "1Gi"})))
    assert there.node_of("a") == "n"


async def test_filter_case_1_memory_counts_where_zones_list_it() -> None:
    """The text's "until memory manager will not be merged": it is merged, and a static one refuses."""
    zones = [zone(numa, {"cpu": "8", "memory": "32Gi"}) for numa in (0, 1)]
    there = cluster(node("n", 16), kubelet_nrt("n", zones, "single-numa-node", memoryManagerPolicy="Static"))
    await there.create(pod("large", guaranteed("6", "40Gi")), pod("fits", guaranteed("6", "20Gi")))
    assert (there.node_of("large"), there.node_of("fits")) == ("", "n")


async def test_filter_case_2_cpus_of_burstable_pods_flow() -> None:
    there = cluster(*kubelets("n", "4", "4"))
    await there.create(pod("a", {"requests": {"cpu": "6"}, "limits": {"cpu": "8"}}))
    assert there.node_of("a") == "n"


async def test_filter_case_3_none_of_a_resource_that_no_zone_has() -> None:
    there = cluster(*kubelets("n", "8", "8"))
    await there.create(pod("a", guaranteed("6", **{GPU: "0"})))
    assert there.node_of("a") == "n"


@pytest.mark.parametrize(("cpus", "chosen"), [("6", "n"), ("7", "")])
async def test_filter_case_4_otherwise_amounts_are_compared(cpus: str, chosen: str) -> None:
    there = cluster(*kubelets("n", "6", "2"))
    await there.create(pod("a", guaranteed(cpus)))
    assert there.node_of("a") == chosen


@pytest.mark.parametrize("word", ["None", "BestEffort", "Restricted", "SingleNumaNode"])
async def test_single_numa_placements_fit_under_every_policy(word: str) -> None:
    """
    An NRT as the text lists its fields: ``topologyPolicies``, no attributes, amounts as numbers, nothing available apart.

    The options of such a kubelet are not known, so that only a pod that its controller replaces goes there.
    """
    first, nrt = kubelets("n", "8", "8")
    del nrt["attributes"]
    nrt |= {"apiVersion": "topology.node.k8s.io/v1alpha1", "topologyPolicies": [word]}
    for each in nrt["zones"]:
        each["resources"] = [{"name": "cpu", "allocatable": 8, "capacity": 8}]
    there = cluster(first, nrt)
    replica = pod("a", guaranteed("6"))
    replica["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "uid-r", "controller": True}
    ]
    await there.create(replica)
    assert there.node_of("a") == "n"
    assert there.numa("a") == ([0, 1] if word == "None" else [0])  # without alignment it may run on either


@pytest.mark.parametrize(
    ("strategy", "score"),
    [
        pytest.param("LeastAllocated", 50, id="least: 2 of 4 and 2 of 8 taken, 50 and 75"),
        pytest.param("MostAllocated", 25, id="most: 50 and 25"),
    ],
)
async def test_score_is_the_smallest_of_all_numa_nodes(strategy: str, score: int) -> None:
    there = cluster(*kubelets("n", "4", "8"), settings=ZONES.format(strategy))
    assert there.score(pod("a", guaranteed("2")), "n") == score


@pytest.mark.parametrize(("strategy", "chosen"), [("LeastAllocated", "b-empty"), ("MostAllocated", "a-full")])
async def test_score_ranks_the_most_suitable_filtered_node_first(strategy: str, chosen: str) -> None:
    there = cluster(*kubelets("a-full", "4", "4"), *kubelets("b-empty", "8", "8"), settings=ZONES.format(strategy))
    await there.create(pod("a", guaranteed("2")))
    assert there.node_of("a") == chosen


async def test_known_limitation_usage_is_assumed_until_reported() -> None:
    """Both NUMA nodes are taken before the NRT says so: the third pod waits although the NRT still shows 8 + 8 free."""
    there = cluster(*kubelets("n", "8", "8"))
    await there.create(*(pod(f"p{i}", guaranteed("6")) for i in range(3)))
    assert [there.node_of(f"p{i}") for i in range(3)] == ["n", "n", ""]


async def test_integration_with_and_without_the_nrt() -> None:
    """A pod that nothing aligns goes to a node without an NRT; a pod that must be aligned waits for the NRT to appear."""
    first, nrt = kubelets("n", "8", "8")
    there = cluster(first)
    single = {"numaTopologyPolicy": "SingleNUMANode"}
    await there.create(pod("plain", {"requests": {"cpu": "1"}}), pod("aligned", guaranteed("2"), numa=single))
    assert (there.node_of("plain"), there.node_of("aligned")) == ("n", "")
    there.nrt(nrt)
    there.world.clock.now += 60  # past the pod's backoff
    await there.world.settle()
    assert there.world.server.pods["uid-aligned"].node == "n"


async def test_a_request_of_zero_restricts_nothing() -> None:
    """NUMA 0 does not list the device, and NUMA 1 has too few CPUs left."""
    nrt = koordlet_nrt("n")
    nrt["zones"] = [zone(0, {"cpu": "8"}), zone(1, {"cpu": "8", "vendor/x": "1"})]
    made = node("n", 16)
    made["status"]["allocatable"]["vendor/x"] = "1"
    there = cluster(made, nrt)
    there.create_bound(pod("first", guaranteed("6"), qos="LSR"), "n", "8-13")
    wanted = guaranteed("4", **{"vendor/x": "0"})
    await there.create(pod("second", wanted, qos="LSR", numa={"numaTopologyPolicy": "SingleNUMANode"}))
    assert there.numa("second") == [0]
