"""KEP-693, node topology manager: its pod, its user stories and the decisions of its policies, through wire and engine."""

from typing import Any

import pytest

from koord_numa.wire.pods import parse_pod
from tests.proposals.cluster import Cluster, Json, cluster, guaranteed, koordlet_nrt, kubelet_nrt, node, pod, zone

GPU = "nvidia.com/gpu"
HUGE = "hugepages-1Gi"
CNN = guaranteed("4", "5Gi", **{GPU: "4"})


def kubelet(policy: str, *free: tuple[str, str], scope: str = "container") -> Cluster:
    """A node of two NUMA nodes with 8 CPUs and 4 GPUs each, of which so many are left."""
    total: dict[str, Any] = {"cpu": "8", GPU: "4"}
    zones = [zone(numa, {"cpu": cpu, GPU: gpu}, **total) for numa, (cpu, gpu) in enumerate(free)]
    return cluster(node("n", 16, gpus=8), kubelet_nrt("n", zones, policy, scope, memoryManagerPolicy="None"))


POLICIES = ["none", "best-effort", "restricted", "single-numa-node"]


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_printed_pod_fits_one_numa_node_under_every_policy(policy: str) -> None:
    """Container cnn: 4 CPUs, 5Gi ("Gbi" in print) and 4 GPUs, all of one NUMA node."""
    there = kubelet(policy, ("2", "4"), ("8", "4"))
    await there.create(pod("cnn", CNN))
    assert there.node_of("cnn") == "n"
    assert there.numa("cnn") == ([0, 1] if policy == "none" else [1])


@pytest.mark.parametrize(("policy", "admitted"), list(zip(POLICIES, [True, True, False, False], strict=True)))
async def test_an_undesirable_allocation_depends_on_the_policy(policy: str, admitted: bool) -> None:
    """The CPUs are free on NUMA node 0 only, the GPUs on NUMA node 1 only; either alone would fit one NUMA node."""
    there = kubelet(policy, ("8", "0"), ("0", "4"))
    await there.create(pod("cnn", CNN))
    assert bool(there.node_of("cnn")) is admitted
    assert admitted or "c0" in there.why("cnn")


@pytest.mark.parametrize(("policy", "admitted"), list(zip(POLICIES, [True, True, True, False], strict=True)))
async def test_preferred_is_counted_as_if_the_node_were_empty(policy: str, admitted: bool) -> None:
    """12 CPUs and 8 GPUs need two NUMA nodes even of an empty node: preferred, and refused by single-numa-node alone."""
    there = kubelet(policy, ("8", "4"), ("8", "4"))
    await there.create(pod("wide", guaranteed("12", **{GPU: "8"})))
    assert bool(there.node_of("wide")) is admitted


@pytest.mark.parametrize(("policy", "admitted"), list(zip(POLICIES, [True, True, False, False], strict=True)))
async def test_fragmentation_makes_a_hint_not_preferred(policy: str, admitted: bool) -> None:
    """2 + 2 CPUs are left; 4 would fit one NUMA node of the empty node."""
    there = kubelet(policy, ("2", "4"), ("2", "4"))
    await there.create(pod("a", guaranteed("4")))
    assert bool(there.node_of("a")) is admitted


@pytest.mark.parametrize(("scope", "admitted"), [("container", True), ("pod", False)])
async def test_pod_level_single_numa_aligns_all_containers_together(scope: str, admitted: bool) -> None:
    """Two containers of 5 CPUs: each on a NUMA node of its own, or, at pod level, nowhere. Kubelets call it scope pod."""
    there = kubelet("single-numa-node", ("8", "4"), ("8", "4"), scope=scope)
    await there.create(pod("a", guaranteed("5"), guaranteed("5")))
    assert bool(there.node_of("a")) is admitted


@pytest.mark.parametrize("scope", ["container", "pod"])
async def test_pod_level_single_numa_node_admits_what_fits_one(scope: str) -> None:
    there = kubelet("single-numa-node", ("8", "4"), ("8", "4"), scope=scope)
    await there.create(pod("a", guaranteed("5"), guaranteed("3", **{GPU: "4"})))
    assert there.node_of("a") == "n"


def owned(**free: Any) -> list[Json]:
    """A node whose CPUs the scheduler gives out, with devices or huge pages on both NUMA nodes."""
    first = node("n", 16, gpus=8)
    first["status"]["allocatable"][HUGE] = "8Gi"
    return [first, koordlet_nrt("n", **free)]


async def test_story_1_network_functions_get_one_numa_node() -> None:
    """Huge pages, CPUs of their own and memory, on the narrowest set; the second function gets the other NUMA node."""
    there = cluster(*owned(**{HUGE: "4Gi"}))
    wants = guaranteed("6", "8Gi", **{HUGE: "3Gi"})
    restricted = {"numaTopologyPolicy": "Restricted"}
    await there.create(*(pod(f"vnf{i}", wants, qos="LSR", spec=restricted) for i in range(3)))
    assert [there.numa(f"vnf{i}") for i in range(2)] == [[0], [1]]
    assert [there.cpus(f"vnf{i}") for i in range(2)] == ["0-5", "8-13"]
    assert there.node_of("vnf2") == ""
    assert [(entry["node"], entry["resources"][HUGE]) for entry in there.status("vnf0")["numaNodeResources"]] == [
        (0, "3Gi")
    ]


async def test_story_2_training_gets_gpus_and_cpus_of_one_numa_node() -> None:
    """The printed pod with the field's meaning in its NUMA policy: NUMA node 0 has CPUs for it, but too few GPUs."""
    first, nrt = owned(**{GPU: "4"})
    there = cluster(first, nrt)
    one_gpu = pod("one", guaranteed("2", **{GPU: "1"}), qos="LSR", numa={"numaTopologyPolicy": "SingleNUMANode"})
    cnn = pod("cnn", CNN, qos="LSR", numa={"numaTopologyPolicy": "restricted"})
    await there.create(one_gpu, cnn)
    assert (there.numa("one"), there.numa("cnn")) == ([0], [1])
    assert there.cpus("cnn") == "8-11"


@pytest.mark.parametrize("policy", ["single-numa-node", "restricted"])
@pytest.mark.parametrize("sizes", [(1, 4, 2, 1, 1, 1, 4, 2), (1, 4, 4, 2, 4, 1), (2, 1, 1, 2, 1, 1, 1, 1, 2, 4)])
async def test_pods_that_come_at_once_leave_whole_numa_nodes(sizes: tuple[int, ...], policy: str) -> None:
    """
    A burst of pods with 1, 2 and 4 GPUs fills 4 NUMA nodes of 4 GPUs to the last GPU.

    Until a topology shows the pods, the NUMA nodes of a pod are not certain, although the kubelet takes one of them.
    """
    objs = []
    for name in "ab":
        amounts = {"cpu": "190", "memory": "2000Gi", "pods": "110", GPU: "8"}
        zones = [zone(numa, {"cpu": "95", GPU: "4"}) for numa in range(2)]
        objs += [node(name, 190) | {"status": {"allocatable": amounts}}, kubelet_nrt(name, zones, policy, "pod")]
    there = cluster(*objs)
    for index, gpus in enumerate(sizes):
        there.world.waits(parse_pod(pod(f"p{index}", guaranteed(str(22 * gpus), **{GPU: str(gpus)}))))
    await there.world.settle()
    assert [name for name, placed in there.world.server.pods.items() if not placed.node] == []
