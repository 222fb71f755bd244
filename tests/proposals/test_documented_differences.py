"""Differences from the proposals: each row of the third section of docs/deviations.md that no other file here shows."""

import json
from typing import Any

import pytest

from koord_numa.settings import SettingsError, load_settings
from koord_numa.wire import parse_pod
from tests.proposals.cluster import Cluster, Json, cluster, guaranteed, koordlet_nrt, kubelet_nrt, node, pod, zone

GPU = "nvidia.com/gpu"
ONE_GPU: dict[str, Any] = {GPU: "1"}
SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}


def kubelet(policy: str, *, numa: int = 2, memory: str = "32Gi", **attributes: str) -> list[Json]:
    """A node whose kubelet gives out CPUs, with so many NUMA nodes of 8 CPUs."""
    zones = [zone(number, {"cpu": "8", "memory": memory}) for number in range(numa)]
    return [node("n", 8 * numa, memory=64 * numa), kubelet_nrt("n", zones, policy, **attributes)]


@pytest.mark.parametrize("wanted", ["SingleNUMANode", "Restricted"])
async def test_promises_of_kubelets(wanted: str) -> None:
    """The matrix lets a pod with a policy go to any node without one; not where a kubelet chooses, as it would not keep the promise."""
    there = cluster(*kubelet("none"))
    await there.create(pod("a", guaranteed("2"), numa={"numaTopologyPolicy": wanted}))
    assert not there.node_of("a")
    assert "kubelet" in there.why("a")


async def test_joint_allocation_needs_a_device_object() -> None:
    machine = node("n", 16, gpus=2)
    machine["status"]["allocatable"]["koordinator.sh/rdma"] = "100"
    there = cluster(machine, koordlet_nrt("n", **ONE_GPU))
    joint = pod("a", guaranteed("2", **{GPU: "1", "koordinator.sh/rdma": "1"}), numa=SINGLE)
    joint["metadata"]["annotations"]["scheduling.koordinator.sh/device-joint-allocate"] = (
        '{"deviceTypes": ["gpu", "rdma"]}'
    )
    await there.create(joint)
    assert not there.node_of("a")
    assert "node(s) had no Device object" in there.why("a")


async def test_a_resource_that_no_zone_lists_is_one_of_the_whole_node() -> None:
    """KEP-119 skips every zone without the resource, so a pod that requests one that no zone has would fit nowhere."""
    first, nrt = kubelet("single-numa-node")
    first["status"]["allocatable"][GPU] = "1"
    there = cluster(first, nrt)
    await there.create(pod("a", guaranteed("2", **{GPU: "1"})), pod("b", guaranteed("2", **{GPU: "1"})))
    assert (there.node_of("a"), there.node_of("b")) == ("n", "")


async def test_policy_none_asks_no_kubelet_manager() -> None:
    """Policy none and no static managers: whatever the node has in total may be requested, also where a zone alone has too little."""
    there = cluster(*kubelet("none", memoryManagerPolicy="None", cpuManagerPolicy="none"))
    await there.create(*(pod(f"g{number}", guaranteed("5", "20Gi")) for number in range(3)))
    assert [there.node_of(f"g{number}") for number in range(3)] == ["n", "n", "n"]


async def test_policy_none_with_static_cpus() -> None:
    there = cluster(*kubelet("none", memoryManagerPolicy="None"))
    await there.create(*(pod(f"g{number}", guaranteed("4", "20Gi")) for number in range(3)))
    assert [there.node_of(f"g{number}") for number in range(3)] == ["n", "n", "n"]


@pytest.mark.parametrize(("numa", "fits"), [(16, True), (17, False)])
async def test_kubelets_with_more_than_sixteen_numa_nodes(numa: int, fits: bool) -> None:
    """KEP-693 stops at 8 NUMA nodes; the model goes on to 16. On more only pods go that no kubelet aligns."""
    there = cluster(*kubelet("restricted", numa=numa, maxNUMANodes="64"))
    await there.create(pod("a", guaranteed("4")), pod("burst", {"requests": {"cpu": "1"}}))
    assert (bool(there.node_of("a")), bool(there.node_of("burst"))) == (fits, True)
    assert fits or "17 NUMA nodes are published, more than a kubelet can align" in there.why("a")


async def test_policy_none_needs_no_sets_of_numa_nodes() -> None:
    """Any number of them: CPUs come from all, and only a static memory manager would look at every set of NUMA nodes."""
    there = cluster(*kubelet("none", numa=24, memoryManagerPolicy="None"))
    await there.create(pod("a", guaranteed("4")), pod("b", guaranteed("4")))
    assert (there.node_of("a"), there.node_of("b")) == ("n", "n")
    there = cluster(*kubelet("none", numa=24, memoryManagerPolicy="Static"))
    await there.create(pod("a", guaranteed("4")))
    assert "24 NUMA nodes are published" in there.why("a")


async def test_the_field_of_the_pod_spec_was_never_made() -> None:
    """KEP-693's ``spec.topology.policy``: API servers drop it. In a file it is refused, with the annotation that says the same."""
    there = cluster(node("n", 16), koordlet_nrt("n"))
    field = pod("field", guaranteed("10"), topology={"policy": "single-numa-node"})
    await there.create(field, pod("annotation", guaranteed("10"), numa={"numaTopologyPolicy": "single-numa-node"}))
    assert (there.node_of("field"), there.node_of("annotation")) == ("", "")
    problem = parse_pod(field).problem
    assert (
        "spec.topology: is not a field of a Pod; use the annotation scheduling.koordinator.sh/numa-topology-spec"
        in problem
    )
    await there.create(pod("without", guaranteed("10")))
    assert there.node_of("without") == "n"


async def test_container_level_single_numa_aligns_the_whole_pod() -> None:
    """The scheduler owns the CPUs: 5 + 5 CPUs of two containers do not fit a NUMA node of 8."""
    there = cluster(node("n", 16), koordlet_nrt("n", policies=["SingleNUMANodeContainerLevel"]))
    await there.create(
        pod("a", guaranteed("5"), guaranteed("5"), qos="LSR"), pod("b", guaranteed("4"), guaranteed("4"), qos="LSR")
    )
    assert (there.node_of("a"), there.node_of("b")) == ("", "n")


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        pytest.param({"cpu": "2", "memory": "1Gi"}, True, id="equal"),
        pytest.param({"memory": "1Gi"}, True, id="no-cpu-limit"),
        pytest.param({"cpu": "2"}, True, id="no-memory-limit"),
        pytest.param({"cpu": "4", "memory": "1Gi"}, False, id="cpu-above"),
        pytest.param({"cpu": "2", "memory": "2Gi"}, False, id="memory-above"),
    ],
)
async def test_equal_limits(limits: dict[str, str], fits: bool) -> None:
    there = cluster(node("n", 16), koordlet_nrt("n"))
    await there.create(pod("a", {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": limits}, qos="LSR"))
    assert bool(there.node_of("a")) is fits


async def test_most_allocated_splits_evenly() -> None:
    """The text fills the fullest NUMA node first; a pod over two of them gets as even parts as they allow."""
    there = cluster(
        node("n", 16, labels={"node.koordinator.sh/numa-allocate-strategy": "MostAllocated"}), koordlet_nrt("n")
    )
    await there.create(pod("a", guaranteed("12"), qos="LSR"))
    assert there.cpus("a") == "0-5,8-13"


async def test_the_configured_alignment_is_for_pods_with_cpusets() -> None:
    there = cluster(node("n", 16), koordlet_nrt("n"))
    await there.create(pod("own", guaranteed("4"), qos="LSR"), pod("shared", guaranteed("4")))
    assert (there.numa("own"), there.node_of("shared"), there.numa("shared")) == ([0], "n", [])


@pytest.mark.parametrize("qos", ["LS", "BE", "LSR", ""])
async def test_a_bind_label_binds_guaranteed_pods_of_any_class(qos: str) -> None:
    labels = {"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"}
    there = cluster(node("n", 16, labels=labels), koordlet_nrt("n"))
    await there.create(pod("whole", guaranteed("4"), qos=qos), pod("odd", guaranteed("3"), qos=qos))
    await there.create(pod("shared", {"requests": {"cpu": "2"}}, qos="" if qos == "LSR" else qos))
    assert there.cpus("whole") == "0-3"
    assert (there.node_of("odd"), there.node_of("shared")) == ("", "")


def without_smt() -> Cluster:
    nrt = koordlet_nrt("n")
    topology = {"detail": [{"id": cpu, "core": cpu, "socket": 0, "node": cpu // 8} for cpu in range(16)]}
    nrt["metadata"]["annotations"]["node.koordinator.sh/cpu-topology"] = json.dumps(topology)
    return cluster(node("n", 16), nrt)


async def test_policies_about_siblings_are_dropped_without_siblings() -> None:
    """The text says "ARM"; what matters is that a core has one thread."""
    there = without_smt()
    policies = {"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}
    spread = pod("a", guaranteed("4"), qos="LSR", spec=policies)
    assert there.note(spread, "n")
    await there.create(spread)
    assert there.cpus("a") == "0-3"


def test_a_wrong_configuration_is_one_complaint() -> None:
    text = "profiles: [{scoringStrategy: {type: Tallest}}]\n"
    with pytest.raises(SettingsError) as caught:
        load_settings(f"apiVersion: koord-numa.io/v1alpha1\nkind: KoordNumaConfiguration\n{text}")
    assert str(caught.value).count("profiles") == 1
    assert "profiles[0].scoringStrategy.type" in str(caught.value)
