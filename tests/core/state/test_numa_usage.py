"""What each NUMA node has left, on nodes of either owner."""

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.view import kubelet_view
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, NodeBindPolicy
from koord_numa.core.state.inventory import inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.state.node_snapshot import NodeSnapshot, candidate
from koord_numa.core.state.numa_free import NumaUsage, largest_aligned, rooms
from tests.machines import machine

GI = 2**30
NODE = Node("n", allocatable={"cpu": 16_000, "memory": 32 * GI, "pods": 110})


def zone(numa: int, cpu: int, memory: int, free_cpu: int, free_memory: int) -> Zone:
    there = {"cpu": cpu, "memory": memory}
    return Zone(numa, there, there, {"cpu": free_cpu, "memory": free_memory})


def ours(*holdings: Holding, bind: NodeBindPolicy = NodeBindPolicy.NONE) -> NodeSnapshot:
    """Two NUMA nodes of four cores with two threads, whose CPUs are ours."""
    zones = tuple(zone(numa, 8000, 16 * GI, 8000, 16 * GI) for numa in (0, 1))
    topology = NodeResourceTopology("n", CpuOwner.SCHEDULER, zones, machine("2x1x4x2"))
    offer = inventory(
        NODE if bind is NodeBindPolicy.NONE else Node("n", allocatable=NODE.allocatable, bind_policy=bind), topology
    )
    return candidate(NODE, offer, Ledger.of(holdings))


def kubelets(*holdings: Holding) -> NodeSnapshot:
    """Two NUMA nodes whose CPUs the kubelet gives; it has said that 5 and 2 of 8 are free."""
    config = KubeletConfig(topology_policy=KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static", cpu_options={})
    zones = (zone(0, 8000, 16 * GI, 5000, 8 * GI), zone(1, 8000, 16 * GI, 2000, 16 * GI))
    ledger = Ledger.of(holdings)
    return candidate(
        NODE, kubelet_view(NODE, NodeResourceTopology("n", CpuOwner.KUBELET, zones, kubelet=config), ledger), ledger
    )


def holding(cpus: str, numa: int, memory: int) -> Holding:
    given = CpuSet.parse(cpus)
    amounts = {"cpu": 1000 * len(given), "memory": memory}
    return Holding(PodKey("ns", "p", "p"), amounts, given, numa=((numa, amounts),))


SPREAD = holding("0,2,4", 0, 4 * GI)
"""One CPU of each of three cores."""


def test_rooms_of_our_own_node() -> None:
    assert rooms(ours(SPREAD)) == (
        NumaUsage(0, {"cpu": 8000, "memory": 16 * GI}, {"cpu": 5000, "memory": 12 * GI}),
        NumaUsage(1, {"cpu": 8000, "memory": 16 * GI}, {"cpu": 8000, "memory": 16 * GI}),
    )


def test_cores_that_are_half_taken_are_not_free_where_cores_are_given_whole() -> None:
    assert [room.free["cpu"] for room in rooms(ours(SPREAD, bind=NodeBindPolicy.FULL_PCPUS_ONLY))] == [2000, 8000]


def test_rooms_of_a_kubelets_node() -> None:
    assert [(room.total["cpu"], room.free["cpu"]) for room in rooms(kubelets())] == [(8000, 5000), (8000, 2000)]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(ours(SPREAD), {"cpu": 8000, "memory": 16 * GI}, id="the-emptier-one"),
        pytest.param(
            ours(Holding(PodKey("ns", "shared", "s"), {"cpu": 9500, "memory": 20 * GI})),
            {"cpu": 6000, "memory": 12 * GI},
            id="no-more-than-the-node-has-left",
        ),
        pytest.param(kubelets(), {"cpu": 5000, "memory": 8 * GI}, id="kubelet"),
        pytest.param(candidate(NODE, Rejection(Reason.BAD_NODE, "m"), Ledger()), {}, id="takes-no-pods"),
        pytest.param(candidate(NODE, inventory(NODE, None), Ledger()), {}, id="no-topology"),
    ],
)
def test_largest_aligned_request(seen: NodeSnapshot, expected: dict[str, int]) -> None:
    assert largest_aligned(seen) == expected
