"""User stories, use cases and printed objects of the CPU orchestration and pod-level policy proposals, through wire and engine."""

import json
from typing import Any

import pytest

from tests.proposals.cluster import Json, cluster, guaranteed, koordlet_nrt, kubelet_nrt, node, pod, zone

GPU = "nvidia.com/gpu"
TWO_GPUS: dict[str, Any] = {GPU: "2"}
SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}
LABEL = "node.koordinator.sh/"


def cpu_manager(policy: str = "static", **options: str) -> dict[str, Any]:
    """The annotation with the kubelet's CPU manager policy; options with underscores for dashes."""
    chosen = {name.replace("_", "-"): value for name, value in options.items()}
    return {"kubelet.koordinator.sh/cpu-manager-policy": {"policy": policy, "options": chosen}}


class TestStory1:
    """Compatible with the kubelet's CPU management policies and their options."""

    async def test_full_pcpus_only_gives_full_physical_cores(self) -> None:
        there = cluster(node("n", 16), koordlet_nrt("n", annotations=cpu_manager(full_pcpus_only="true")))
        await there.create(pod("pair", guaranteed("2")), pod("half", guaranteed("3")))
        assert there.cpus("pair") == "0-1"
        assert not there.node_of("half")

    async def test_distribute_cpus_across_numa_spreads_evenly_if_needed(self) -> None:
        there = cluster(node("n", 16), koordlet_nrt("n", annotations=cpu_manager(distribute_cpus_across_numa="true")))
        await there.create(pod("wide", guaranteed("12"), qos="LSR"))
        assert there.cpus("wide") == "0-5,8-13"

    async def test_and_takes_one_numa_node_where_it_is(self) -> None:
        there = cluster(node("n", 16), koordlet_nrt("n", annotations=cpu_manager(distribute_cpus_across_numa="true")))
        await there.create(pod("small", guaranteed("6"), qos="LSR"))
        assert len(there.numa("small")) == 1


class TestStory2:
    """Guaranteed pods beside a static kubelet have CPUs of their own, as LSE has; CPUs of LSR pods are shared with best effort pods."""

    async def test_a_guaranteed_pod_gets_cpus_that_no_other_pod_gets(self) -> None:
        there = cluster(node("n", 16), koordlet_nrt("n", annotations=cpu_manager()))
        await there.create(pod("plain", guaranteed("4")), pod("lse", guaranteed("4"), qos="LSE"))
        assert {there.cpus("plain"), there.cpus("lse")} == {"0-3", "4-7"}

    async def test_without_a_static_kubelet_it_runs_in_the_shared_pool(self) -> None:
        there = cluster(node("n", 16), koordlet_nrt("n", annotations=cpu_manager("none")))
        await there.create(pod("plain", guaranteed("4")))
        assert (there.node_of("plain"), there.cpus("plain")) == ("n", "")

    async def test_best_effort_pods_fit_beside_lsr_pods_on_every_cpu(self) -> None:
        there = cluster(node("n", 16), koordlet_nrt("n"))
        await there.create(*(pod(f"lsr{i}", guaranteed("8"), qos="LSR") for i in range(2)), pod("be", {}, qos="BE"))
        assert there.node_of("be") == "n"


class TestStory3:
    """Enough in total, but not as the topology policy demands: the pod goes where it fits, not where it would fail."""

    @pytest.mark.parametrize("policy", ["Restricted", "SingleNUMANode"])
    async def test_the_node_that_satisfies_the_policy_is_chosen(self, policy: str) -> None:
        labels = {f"{LABEL}numa-topology-alignment-policy": policy}
        there = cluster(*(obj for name in "ab" for obj in (node(name, 16, labels=labels), koordlet_nrt(name))))
        await there.create(*(pod(f"a{i}", guaranteed("4"), qos="LSR", nodeSelector={"name": "a"}) for i in range(2)))
        await there.create(*(pod(f"more{i}", guaranteed("3"), qos="LSR", nodeSelector={"name": "a"}) for i in range(2)))
        await there.create(pod("b", guaranteed("8"), qos="LSR", nodeSelector={"name": "b"}))
        await there.create(pod("wanted", guaranteed("8"), qos="LSR"))
        assert there.node_of("wanted") == "b"


async def test_story_4_latency_sensitive_pods_avoid_each_other() -> None:
    """Two pods with PCPULevel have no core in common; a general one takes what is left beside them."""
    there = cluster(node("n", 8), koordlet_nrt("n", numa=1))
    apart = {"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}
    await there.create(*(pod(f"ls{i}", guaranteed("2"), qos="LSR", spec=apart) for i in range(2)))
    await there.create(pod("general", guaranteed("4"), qos="LSR"))
    assert [there.cpus(f"ls{i}") for i in range(2)] == ["0,2", "4,6"]
    assert there.cpus("general") == "1,3,5,7"


@pytest.mark.parametrize(
    ("strategy", "cpus"),
    [
        pytest.param("MostAllocated", "2-5", id="bin-packing"),
        pytest.param("LeastAllocated", "8-11", id="the-most-idle-numa-node"),
        pytest.param("DistributeEvenly", "2-3,8-9", id="evenly"),
    ],
)
async def test_story_5_numa_allocate_strategies(strategy: str, cpus: str) -> None:
    there = cluster(node("n", 16, labels={f"{LABEL}numa-allocate-strategy": strategy}), koordlet_nrt("n"))
    there.create_bound(pod("used", guaranteed("2"), qos="LSR"), "n", "0-1")
    await there.create(pod("a", guaranteed("4"), qos="LSR"))
    assert there.cpus("a") == cpus


async def test_the_printed_node() -> None:
    """FullPCPUsOnly, BestEffort, MostAllocated: whole cores, on the fullest NUMA node, aligned where possible."""
    labels = {
        f"{LABEL}cpu-bind-policy": "FullPCPUsOnly",
        f"{LABEL}numa-topology-alignment-policy": "BestEffort",
        f"{LABEL}numa-allocate-strategy": "MostAllocated",
    }
    there = cluster(node("node-0", 16, labels=labels), koordlet_nrt("node-0"))
    await there.create(*(pod(f"p{i}", guaranteed("4"), qos="LSR") for i in range(2)))
    await there.create(pod("wide", guaranteed("6"), qos="LSR"), pod("split", guaranteed("1"), qos="LSR"))
    assert [there.cpus(f"p{i}") for i in range(2)] == ["0-3", "4-7"]
    assert there.cpus("wide") == "8-13"
    assert not there.node_of("split")


def printed_nrt() -> Json:
    """The complete example, letter by letter: ``cpu`` for the CPUs of a pod, booleans as text, amounts as numbers."""
    detail = [{"id": 0, "core": 0, "socket": 0, "node": 0}, {"id": 1, "core": 1, "socket": 1, "node": 1}]
    made = koordlet_nrt("node1", annotations=cpu_manager(full_pcpus_only="true", distribute_cpus_across_numa="true"))
    written = {
        "cpu-topology": {"detail": detail},
        "cpu-shared-pools": [{"socket": 0, "node": 0, "cpuset": "0-3"}],
        "pod-cpu-allocs": [
            {
                "namespace": "default",
                "name": "static-guaranteed-pod",
                "uid": "32b14702-2efe-4be9-a9da-f3b779175846",
                "cpu": "4-8",
                "managedByKubelet": "true",
            }
        ],
    }
    made["metadata"]["annotations"] |= {f"{LABEL}{key}": json.dumps(value) for key, value in written.items()}
    made["topologyPolicies"] = ["SingleNUMANodePodLevel"]
    nics = ("vendor/nic1", 3), ("vendor/nic2", 6), ("vendor/nic1", 3), ("vendor/nic1", 3)
    made["zones"] = [
        {
            "name": f"node-{numa}",
            "type": "Node",
            "resources": [
                {"name": "cpu", "capacity": 20 if not numa else 30, "allocatable": cpus, "available": free},
                {"name": nic, "capacity": count, "allocatable": count, "available": count},
            ],
        }
        for numa, ((nic, count), cpus, free) in enumerate(zip(nics, (15, 25, 25, 25), (10, 15, 15, 15), strict=True))
    ]
    return made


async def test_the_printed_topology_is_read() -> None:
    """
    It lists two CPUs, gives out full cores and aligns on single NUMA nodes; NICs of the second kind are on NUMA node 1. CPUs 4 to 8, which
    a kubelet gave to its pod, are not given again.
    """
    first = node("node1", 90)
    first["status"]["allocatable"]["vendor/nic2"] = "6"
    there = cluster(first, printed_nrt())
    nic = {"vendor/nic2": "1"}
    await there.create(pod("nic", {"requests": nic, "limits": nic}), pod("own", guaranteed("1", "0"), qos="LSR"))
    await there.create(pod("two", guaranteed("2", "0"), qos="LSR"))
    assert (there.numa("nic"), there.cpus("own"), there.node_of("two")) == ([1], "0", "")
    topology = there.world.engine.cache.nodes["node1"].topology
    assert topology is not None
    assert (topology.problem, str(topology.reserved)) == ("", "4-8")


class TestUseCases:
    """Pod-level NUMA policy, "Use Cases"."""

    async def test_a_user_without_node_rights_packs_single_numa_pods(self) -> None:
        there = cluster(node("n", 16), koordlet_nrt("n"))
        await there.create(*(pod(f"p{i}", guaranteed("4"), spec=SINGLE) for i in range(4)))
        assert [len(there.numa(f"p{i}")) for i in range(4)] == [1, 1, 1, 1]
        assert there.numa("p0") == there.numa("p1")

    async def test_one_cluster_serves_both_kinds_and_no_gpu_is_left_over(self) -> None:
        """Two GPUs a NUMA node: single-NUMA pods on one node, a pod over NUMA nodes on the other, no labels on either."""
        nodes = (obj for name in "ab" for obj in (node(name, 16, gpus=4), koordlet_nrt(name, **TWO_GPUS)))
        there = cluster(*nodes)
        await there.create(*(pod(f"one{i}", guaranteed("4", **{GPU: "2"}), spec=SINGLE) for i in range(2)))
        await there.create(pod("wide", guaranteed("12", **{GPU: "4"}), spec={"numaTopologyPolicy": "Restricted"}))
        assert [there.node_of(name) for name in ("one0", "one1", "wide")] == ["a", "a", "b"]

    async def test_a_pod_is_not_placed_with_one_that_crosses_numa_nodes(self) -> None:
        there = cluster(node("n", 16), koordlet_nrt("n"))
        await there.create(pod("wide", guaranteed("10"), spec={"numaTopologyPolicy": "Restricted"}))
        await there.create(pod("one", guaranteed("2"), spec={**SINGLE, "singleNUMANodeExclusive": "Required"}))
        assert not there.node_of("one")


@pytest.mark.parametrize(
    ("limit", "cpus"), [pytest.param("1", "0", id="example-1"), pytest.param("2", "", id="example-2")]
)
async def test_the_printed_pods_request_cpu_only(limit: str, cpus: str) -> None:
    """As printed, without memory: Burstable to Kubernetes, and an exclusive CPU or the shared pool by the policy's own rule."""
    there = cluster(node("n", 16), koordlet_nrt("n"))
    await there.create(pod("a", {"requests": {"cpu": "1"}, "limits": {"cpu": limit}}, spec=SINGLE))
    assert (there.node_of("a"), there.cpus("a")) == ("n", cpus)


def kubelets(name: str, *free: str) -> list[Json]:
    """A node whose kubelet lets pods cross NUMA nodes."""
    zones = [zone(numa, {"cpu": cpu}, cpu="8") for numa, cpu in enumerate(free)]
    return [node(name, 16), kubelet_nrt(name, zones, "best-effort", memoryManagerPolicy="None")]


async def test_use_case_of_least_numa_nodes() -> None:
    """KEP-454: on hardware of different kinds the pod lands where it needs the fewest NUMA nodes."""
    settings = "profiles: [{scoringStrategy: {type: LeastNUMANodes}, scoreWeights: {devices: 0}}]\n"
    there = cluster(*kubelets("a", "4", "4"), *kubelets("b", "2", "6"), *kubelets("c", "3", "3"), settings=settings)
    await there.create(pod("p", guaranteed("5")))
    assert there.node_of("p") == "b"
