"""Exporters as they are: a zone that does not list a resource says nothing about it."""

from typing import Any

import pytest

from tests.proposals.cluster import Cluster, Json, cluster, guaranteed, koordlet_nrt, kubelet_nrt, node, pod, zone
from tests.tables import each_row

NIC = "vendor/nic"


def complete_example(resources: Json, **attributes: str) -> Cluster:
    """As the complete NodeResourceTopology of fine-grained CPU orchestration: CPUs and devices in zones, a strict policy, no memory."""
    nrt = koordlet_nrt("n", policies=["SingleNUMANodePodLevel"])
    nrt["metadata"]["annotations"]["kubelet.koordinator.sh/cpu-manager-policy"] = '{"policy": "static"}'
    nrt["attributes"] = [{"name": name, "value": value} for name, value in attributes.items()]
    nrt["zones"] = [zone(0, {"cpu": "8", **resources}), zone(1, {"cpu": "8"})]
    made = node("n", 16)
    made["status"]["allocatable"] |= {NIC: "4", "hugepages-2Mi": "1Gi"}
    return cluster(made, nrt)


@each_row("qos", ["LSR", "LS", ""])
@each_row(
    ("listed", "wanted"),
    [
        pytest.param({NIC: "4"}, {}, id="no-zone-lists-memory"),
        pytest.param({NIC: "4"}, {NIC: "1"}, id="a-device-of-one-zone"),
        pytest.param({}, {NIC: "1"}, id="no-zone-lists-the-device"),
        pytest.param({"memory": "32Gi"}, {"hugepages-2Mi": "4Mi"}, id="memory-without-huge-pages"),
        pytest.param({}, {"hugepages-2Mi": "4Mi"}, id="neither-memory-nor-huge-pages"),
    ],
)
async def test_a_strict_kubelet_does_not_refuse_what_nothing_shows(listed: Json, wanted: Any, qos: str) -> None:
    there = complete_example(listed)
    await there.create(pod("a", guaranteed("2", **wanted), qos=qos))
    assert there.node_of("a") == "n", there.why("a")


async def test_a_static_memory_manager_needs_numa_nodes_of_memory() -> None:
    there = complete_example({}, memoryManagerPolicy="Static")
    await there.create(pod("a", guaranteed("2"), qos="LSR"))
    assert there.node_of("a") == ""
    assert "the NUMA nodes of memory are not published" in there.why("a")


@each_row("policy", ["SingleNUMANodePodLevel", "SingleNUMANodeContainerLevel", "RestrictedPodLevel"])
@each_row(
    ("zones", "wanted"),
    [
        pytest.param([{}] * 4, {"amd.com/gpu": "2"}, id="a-device-that-no-zone-lists"),
        pytest.param([{}, {}, {"amd.com/gpu": "4"}, {}], {"amd.com/gpu": "3"}, id="a-device-of-one-of-four-zones"),
        pytest.param([{"memory": "64Gi"}, {}], {"memory": "16Gi"}, id="memory-of-one-zone"),
        pytest.param([{"memory": "32Gi"}] * 2, {"hugepages-1Gi": "2Gi"}, id="pages-that-no-zone-lists"),
        pytest.param(
            [{"memory": "32Gi"}, {"memory": "32Gi", "hugepages-1Gi": "8Gi"}],
            {"hugepages-1Gi": "2Gi"},
            id="pages-of-one-zone",
        ),
    ],
)
async def test_zones_may_list_different_resources(zones: list[Json], wanted: Any, policy: str) -> None:
    nrt = koordlet_nrt("n", numa=len(zones), policies=[policy])
    nrt["metadata"]["annotations"]["kubelet.koordinator.sh/cpu-manager-policy"] = '{"policy": "static"}'
    nrt["zones"] = [zone(number, {"cpu": "8", **each}) for number, each in enumerate(zones)]
    made = node("n", 8 * len(zones))
    made["status"]["allocatable"] |= {"amd.com/gpu": "4", "hugepages-1Gi": "8Gi"}
    there = cluster(made, nrt)
    await there.create(pod("a", guaranteed("4", **wanted)))
    assert there.node_of("a") == "n", there.why("a")


@pytest.mark.parametrize("taken", ["0", "4"])
async def test_a_request_of_no_devices_needs_no_free_ones(taken: str) -> None:
    """A strict kubelet keeps 0 devices to NUMA nodes with such devices, in use or not (devicemanager/topology_hints.go)."""
    there = complete_example({NIC: "4"})
    if taken != "0":
        await there.create(pod("nics", guaranteed("1", **{NIC: taken})))
        assert there.node_of("nics") == "n"
    await there.create(pod("none", guaranteed("2", **{NIC: "0"}), qos="LSR"))
    assert there.node_of("none") == "n", there.why("none")


PAGES = ("hugepages-2Mi", "hugepages-1Gi")


@each_row("policy", ["single-numa-node", "none"])
@each_row("memory", ["", "Static", "None"])
@each_row(
    ("listed", "wanted"),
    [
        pytest.param("memory", {PAGES[0]: "1Gi"}, id="pages-that-no-zone-lists"),
        pytest.param("memory", {PAGES[0]: "0"}, id="no-pages"),
        pytest.param(PAGES[1], {PAGES[1]: "1Gi"}, id="memory-that-no-zone-lists"),
        pytest.param(PAGES[1], {PAGES[0]: "1Gi", PAGES[1]: "1Gi"}, id="one-page-size-of-two"),
        pytest.param("cpu", {PAGES[0]: "1Gi"}, id="neither"),
    ],
)
async def test_kubelets_bind_the_memory_types_that_zones_list(
    listed: str, wanted: dict[str, str], memory: str, policy: str
) -> None:
    zones = [zone(numa, {"cpu": "8", listed: "8Gi" if listed != "cpu" else "8"}) for numa in range(2)]
    made = node("n", 16)
    made["status"]["allocatable"] |= {PAGES[0]: "2Gi", PAGES[1]: "16Gi"}
    attributes = {"memoryManagerPolicy": memory} if memory else {}
    there = cluster(made, kubelet_nrt("n", zones, policy, cpuManagerPolicyOptions="", **attributes))
    await there.create(pod("a", guaranteed("2", **wanted)), pod("many", guaranteed("2", **{PAGES[0]: "3Gi"})))
    assert there.node_of("a") == "n", there.why("a")
    assert "Insufficient hugepages-2Mi" in there.why("many")


async def test_a_kubelet_aligns_a_request_of_no_devices() -> None:
    nrt = kubelet_nrt("n", [zone(0, {"cpu": "8"}), zone(1, {"cpu": "8", NIC: "4"})], "single-numa-node")
    there = cluster(node("n", 16), nrt)
    await there.create(pod("a", guaranteed("8", **{NIC: "0"})), pod("b", guaranteed("8", **{NIC: "0"})))
    why = there.why("b")
    assert "must have vendor/nic (a request of 0 is aligned too)" in why
    assert "the largest that fits" not in there.explain("b")
