"""Remaining amounts per NUMA node, on nodes of both owners."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.view import kubelet_view
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, NodeBindPolicy
from koord_numa.core.state.inventory import NodeSnapshot, candidate, inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.state.numa_free import NumaUsage, largest_aligned, largest_with_devices, node_free, rooms
from tests.machines import machine
from tests.tables import each_row

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


def test_half_used_cores_are_not_free_whole_cores() -> None:
    assert [room.free["cpu"] for room in rooms(ours(SPREAD, bind=NodeBindPolicy.FULL_PCPUS_ONLY))] == [2000, 8000]


def test_rooms_of_a_kubelets_node() -> None:
    assert [(room.total["cpu"], room.free["cpu"]) for room in rooms(kubelets())] == [(8000, 5000), (8000, 2000)]


@each_row(
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


SHARED = Holding(PodKey("ns", "shared", "s"), {"cpu": 6000, "memory": 20 * GI})
"""A pod somewhere on the node."""


def test_pods_without_numa_nodes_make_an_interval() -> None:
    seen = ours(SPREAD, SHARED)
    assert [(room.least["cpu"], room.free["cpu"]) for room in rooms(seen)] == [(0, 5000), (2000, 7000)]
    assert [(room.least["memory"] // GI, room.free["memory"] // GI) for room in rooms(seen)] == [(0, 8), (0, 8)]
    assert (node_free(seen, "cpu", rooms(seen)), node_free(seen, "memory", rooms(seen))) == (7000, 8 * GI)


GPU = "example.com/gpu"
DEVICES = {GPU: 4}


def with_gpus(numa0: int, numa1: int, *holdings: Holding) -> NodeSnapshot:
    """Two NUMA nodes with GPUs; the whole node has as many as both."""
    node = Node("n", allocatable={"cpu": 16_000, "memory": 32 * GI, "pods": 110, GPU: numa0 + numa1})
    zones = tuple(
        Zone(numa, amounts, amounts, amounts)
        for numa, count in enumerate((numa0, numa1))
        for amounts in ({"cpu": 8000, "memory": 16 * GI, GPU: count},)
    )
    topology = NodeResourceTopology("n", CpuOwner.SCHEDULER, zones, machine("2x1x4x2"))
    return candidate(node, inventory(node, topology), Ledger.of(holdings))


def test_free_devices_do_not_exceed_those_of_the_node() -> None:
    unaligned = Holding(PodKey("ns", "p", "p"), {"cpu": 1000, GPU: 3})
    found = rooms(with_gpus(2, 2, unaligned))
    assert [(room.least[GPU], room.free[GPU]) for room in found] == [(0, 1), (0, 1)]


def test_the_largest_request_with_devices() -> None:
    near_the_gpus = Holding(PodKey("ns", "p", "p"), {"cpu": 4000}, CpuSet.parse("0-1,8-9"), numa=((0, {"cpu": 4000}),))
    seen = with_gpus(4, 0, near_the_gpus)
    assert largest_aligned(seen) == {"cpu": 8000, "memory": 16 * GI, GPU: 0}
    assert largest_with_devices(seen) == {"cpu": 4000, "memory": 16 * GI, GPU: 4}
    assert largest_with_devices(with_gpus(2, 2)) == {}


HOLDINGS = st.lists(
    st.tuples(st.sampled_from([None, 0, 1]), st.integers(0, 3), st.integers(0, 2)), max_size=4
)  # NUMA node or none, CPUs, GPUs


@given(HOLDINGS)
def test_every_pod_counts(pods: list[tuple[int | None, int, int]]) -> None:
    held = []
    for number, (numa, cpus, gpus) in enumerate(pods):
        amounts = {"cpu": cpus * 1000, GPU: gpus}
        held.append(
            Holding(PodKey("ns", f"p{number}", f"p{number}"), amounts, numa=() if numa is None else ((numa, amounts),))
        )
    seen = with_gpus(2, 2, *held)
    found = rooms(seen)
    for name in ("cpu", GPU):
        left = max(0, seen.allocatable[name] - sum(one.amounts[name] for one in held))
        assert node_free(seen, name, found) <= left
        for room in found:
            assert 0 <= room.least[name] <= room.free[name] <= left
            there = sum(amounts[name] for one in held for numa, amounts in one.numa if numa == room.numa)
            anywhere = sum(one.amounts[name] for one in held if not one.numa)
            assert room.least[name] <= max(0, room.total[name] - there)
            assert room.least[name] == min(room.free[name], max(0, room.total[name] - there - anywhere))
