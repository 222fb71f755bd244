"""Numbers in rejections: of the shape that counts, in readable units, and a largest size in the shape of the request."""

import pytest

from koord_numa.core.explain import describe
from koord_numa.core.objects.verdicts import Rejection
from tests.proposals.cluster import Json, cluster, guaranteed, koordlet_nrt, kubelet_nrt, node, pod, zone

NIC = "vendor/nic"

SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}
FULL = {"requiredCPUBindPolicy": "FullPCPUs"}


@pytest.mark.parametrize("numa", [None, SINGLE], ids=["whole-node", "one-numa-node"])
async def test_a_shortage_of_whole_cores_is_a_number_of_whole_cores(numa: Json | None) -> None:
    """Every core of the node has one CPU in use, so that half of the CPUs are free and no core is."""
    there = cluster(node("n", 8), koordlet_nrt("n", numa=1))
    there.create_bound(pod("odd", guaranteed("4"), qos="LSR"), "n", "0,2,4,6")
    await there.create(pod("cores", guaranteed("2"), qos="LSR", spec=FULL, numa=numa))
    assert there.node_of("cores") == ""
    assert "NUMA 0 has 0 of 8 CPUs free in whole cores" in there.explain("cores")


async def test_the_largest_size_keeps_the_device() -> None:
    nrt = koordlet_nrt("n")
    nrt["zones"] = [zone(0, {"cpu": "8", "example.com/nic": "2"}), zone(1, {"cpu": "8"})]
    there = cluster(
        node("n", 16)
        | {"status": {"allocatable": {"cpu": "16", "memory": "64Gi", "example.com/nic": "2", "pods": "9"}}},
        nrt,
    )
    there.create_bound(pod("first", guaranteed("6"), qos="LSR"), "n", "0-5")
    await there.create(pod("second", guaranteed("6", **{"example.com/nic": "1"}), qos="LSR", numa=SINGLE))
    assert "the largest that fits is 2 CPUs, 1 example.com/nic" in there.explain("second")


async def test_numbers_of_the_node_are_readable() -> None:
    there = cluster(node("n", 4, memory=7))
    await there.create(pod("cpu", guaranteed("4500m")), pod("memory", guaranteed("1", "7500Mi")))
    assert "n: needs 4.5 CPUs, 4 of 4 free" in there.explain("cpu")
    assert "n: needs 7.4Gi memory, 7Gi of 7Gi free" in there.explain("memory")


@pytest.mark.parametrize("scope", ["container", "pod"])
@pytest.mark.parametrize(
    ("zones", "wanted", "said"),
    [
        pytest.param(
            [zone(0, {"cpu": "2", NIC: "4"}, cpu="16"), zone(1, {"cpu": "14"}, cpu="16")],
            {"cpu": "8", NIC: "1"},
            "the largest that fits is 2 CPUs, 1 vendor/nic",
            id="devices-on-one-numa-node",
        ),
        pytest.param(
            [zone(0, {"cpu": "1", NIC: "4"}, cpu="16"), zone(1, {"cpu": "14", NIC: "0"}, None, cpu="16", **{NIC: "4"})],
            {"cpu": "8", NIC: "2"},
            "the largest that fits is 1 CPU, 2 vendor/nic",
            id="one-cpu",
        ),
        pytest.param(
            [zone(0, {"cpu": "0", NIC: "4"}, cpu="16"), zone(1, {"cpu": "14"}, cpu="16")],
            {"cpu": "8", NIC: "1"},
            "",
            id="no-size-fits",
        ),
    ],
)
async def test_the_largest_size_for_a_kubelet_keeps_the_shape(
    zones: list[Json], wanted: dict[str, str], said: str, scope: str
) -> None:
    made = node("n", 32)
    made["status"]["allocatable"][NIC] = "8"
    there = cluster(made, kubelet_nrt("n", zones, "single-numa-node", scope))
    await there.create(pod("p", guaranteed(**wanted)))
    run = there.world.engine.dry_run(there.world.server.pods["uid-p"])
    assert run is not None
    answer = run["n"]
    assert isinstance(answer, Rejection)
    text = describe(answer)
    assert said in text
    assert ("the largest that fits" in text) == bool(said)
