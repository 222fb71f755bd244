"""Resources that a node offers: reservations, amplification, and the source of policies."""

import pytest

from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import (
    KubeletAllocation,
    KubeletConfig,
    Node,
    NodeReservation,
    NodeResourceTopology,
    Zone,
)
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import CpuOwner, NodeBindPolicy, NumaAllocateStrategy, NumaPolicy
from koord_numa.core.resources import ResourceList
from koord_numa.core.state.inventory import Inventory, inventory, reserve
from koord_numa.core.value_objects import replace
from tests.tables import each_row

MACHINE = regular_topology(2, 1, 4, 2)  # CPUs 0-7 on NUMA node 0, 8-15 on 1


def zone(numa: int, amounts: ResourceList) -> Zone:
    return Zone(numa, amounts, amounts, amounts)


ZONES = (zone(0, {"cpu": 8000, "memory": 100}), zone(1, {"cpu": 8000, "memory": 100, "nic": 2}))
NODE = Node("n", allocatable={"cpu": 16000, "memory": 200, "kubernetes.io/batch-cpu": 5000})
TOPOLOGY = NodeResourceTopology("n", CpuOwner.SCHEDULER, ZONES, machine=MACHINE)
STATIC = KubeletConfig(cpu_policy="static", cpu_options={"full-pcpus-only": True, "distribute-cpus-across-numa": True})


def made(node: Node, topology: NodeResourceTopology | None) -> Inventory:
    answer = inventory(node, topology)
    assert isinstance(answer, Inventory)
    return answer


def test_a_plain_node() -> None:
    assert made(NODE, TOPOLOGY) == Inventory(
        node="n",
        machine=MACHINE,
        zones=((0, {"cpu": 8000, "memory": 100}), (1, {"cpu": 8000, "memory": 100, "nic": 2})),
        allocatable=NODE.allocatable,
    )


def test_reserved_cpus_leave_their_numa_node() -> None:
    reserved = replace(TOPOLOGY, reserved=CpuSet.parse("0-1,8"))
    node = replace(NODE, reservation=NodeReservation(cpus=CpuSet.parse("9"), reserved_cpus_only=True))
    got = made(node, reserved)
    assert [amounts["cpu"] for _, amounts in got.zones] == [6000, 6000]
    assert got.cpus == CpuSet.parse("2-7,10-15")
    assert got.allocatable == NODE.allocatable


def test_cpus_that_no_zone_counts_are_counted_by_their_ids() -> None:
    zones = (zone(0, {"memory": 100}), zone(1, {"memory": 100}))
    got = made(NODE, replace(TOPOLOGY, zones=zones, reserved=CpuSet.parse("0-1")))
    assert got.zones == ((0, {"memory": 100, "cpu": 6000}), (1, {"memory": 100, "cpu": 8000}))


@pytest.mark.parametrize(
    ("of_node", "of_topology", "cpu", "ratios"),
    [
        pytest.param({"cpu": 1.5}, None, 12000, {"cpu": 1.5}, id="node-ratio"),
        pytest.param({"cpu": 1.5}, {"cpu": 2.0}, 8000, {"cpu": 2.0}, id="nrt-ratio-means-amplified-already"),
        pytest.param({"cpu": 0.5}, None, 8000, {"cpu": 0.5}, id="below-one"),
    ],
)
def test_amplification(
    of_node: dict[str, float], of_topology: dict[str, float] | None, cpu: int, ratios: object
) -> None:
    got = made(replace(NODE, amplification=of_node), replace(TOPOLOGY, amplification=of_topology))
    assert (got.zones[0][1]["cpu"], got.ratios, got.node_ratios) == (cpu, ratios, of_node)


def test_reserved_cpus_leave_before_amplification() -> None:
    got = made(replace(NODE, amplification={"cpu": 1.25}), replace(TOPOLOGY, reserved=CpuSet.parse("0")))
    assert got.zones[0][1]["cpu"] == 8750


@each_row(
    ("label", "kubelet", "bind"),
    [
        pytest.param(NodeBindPolicy.NONE, KubeletConfig(), NodeBindPolicy.NONE, id="neither"),
        pytest.param(NodeBindPolicy.SPREAD_BY_PCPUS, KubeletConfig(), NodeBindPolicy.SPREAD_BY_PCPUS, id="label"),
        pytest.param(None, STATIC, NodeBindPolicy.FULL_PCPUS_ONLY, id="kubelet"),
        pytest.param(NodeBindPolicy.SPREAD_BY_PCPUS, STATIC, NodeBindPolicy.SPREAD_BY_PCPUS, id="label-first"),
        pytest.param(NodeBindPolicy.NONE, STATIC, NodeBindPolicy.NONE, id="label-none-first"),
        pytest.param(None, replace(STATIC, cpu_policy="none"), NodeBindPolicy.NONE, id="options-without-static"),
    ],
)
def test_bind_policy(label: NodeBindPolicy | None, kubelet: KubeletConfig, bind: NodeBindPolicy) -> None:
    assert made(replace(NODE, bind_policy=label), replace(TOPOLOGY, kubelet=kubelet)).bind is bind


@pytest.mark.parametrize(
    ("label", "kubelet", "evenly"),
    [
        pytest.param(None, KubeletConfig(), False, id="neither"),
        pytest.param(None, STATIC, True, id="kubelet-distributes"),
        pytest.param(NumaAllocateStrategy.MOST_ALLOCATED, STATIC, False, id="label-first"),
    ],
)
def test_strategy(label: NumaAllocateStrategy | None, kubelet: KubeletConfig, evenly: bool) -> None:
    got = made(replace(NODE, strategy=label), replace(TOPOLOGY, kubelet=kubelet))
    assert (got.strategy, got.spans_evenly) == (label, evenly)


def test_numa_policy_of_the_label_comes_first() -> None:
    topology = replace(TOPOLOGY, numa_policy=NumaPolicy.RESTRICTED)
    assert made(NODE, topology).policy is NumaPolicy.RESTRICTED
    assert made(replace(NODE, numa_policy=NumaPolicy.BEST_EFFORT), topology).policy is NumaPolicy.BEST_EFFORT


def test_which_cpus_no_pool_has() -> None:
    """Kubelet-reserved CPUs stay in the shared pool; those of kubelet-managed pods and of the reservation do not."""
    topology = replace(
        TOPOLOGY,
        reserved=CpuSet.parse("0-5"),
        kubelet=KubeletConfig(reserved_cpus=CpuSet.parse("0-1")),
        kubelet_pods=(
            KubeletAllocation("ns", "a", "uid-a", CpuSet.parse("2-3"), managed_by_kubelet=True),
            KubeletAllocation("ns", "b", "uid-b", CpuSet.parse("8"), managed_by_kubelet=False),
        ),
    )
    got = made(NODE, topology)
    assert (got.kept_from_pools, got.kubelet_pods) == (CpuSet.parse("2-5"), frozenset({"uid-a"}))


@pytest.mark.parametrize(
    ("topology", "problem"),
    [
        pytest.param(None, "", id="no-topology"),
        pytest.param(replace(TOPOLOGY, problem="cpu-topology: not JSON"), "cpu-topology: not JSON", id="malformed"),
    ],
)
def test_without_a_topology_the_node_still_has_amounts(topology: NodeResourceTopology | None, problem: str) -> None:
    node = replace(NODE, numa_policy=NumaPolicy.RESTRICTED)
    assert made(node, topology) == Inventory(
        "n", allocatable=NODE.allocatable, policy=NumaPolicy.RESTRICTED, problem=problem
    )


def test_a_malformed_node_takes_no_pods() -> None:
    assert inventory(replace(NODE, problem="label x: y"), TOPOLOGY) == Rejection(
        Reason.BAD_NODE, "node(s) had malformed labels or annotations", "label x: y", resolvable=False
    )


def test_a_kubelet_owned_node_is_not_ours_to_allocate() -> None:
    with pytest.raises(ValueError, match="not the scheduler's"):
        inventory(NODE, replace(TOPOLOGY, owner=CpuOwner.KUBELET))


@each_row(
    ("reservation", "left"),
    [
        pytest.param(NodeReservation(), {"cpu": 16000, "memory": 200, "kubernetes.io/batch-cpu": 5000}, id="none"),
        pytest.param(
            NodeReservation(amounts={"cpu": 2000, "memory": 300, "kubernetes.io/batch-cpu": 1}),
            {"cpu": 14000, "memory": 0, "kubernetes.io/batch-cpu": 5000},
            id="amounts-but-never-batch",
        ),
        pytest.param(
            NodeReservation(cpus=CpuSet.parse("0-2"), amounts={"cpu": 9000}),
            {"cpu": 13000, "memory": 200, "kubernetes.io/batch-cpu": 5000},
            id="ids-replace-the-amount",
        ),
        pytest.param(
            NodeReservation(cpus=CpuSet.parse("0-2"), reserved_cpus_only=True),
            {"cpu": 16000, "memory": 200, "kubernetes.io/batch-cpu": 5000},
            id="only-ids",
        ),
    ],
)
def test_reservation(reservation: NodeReservation, left: ResourceList) -> None:
    assert reserve(NODE.allocatable, reservation) == left
