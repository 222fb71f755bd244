"""Allocation in special situations: refusals with numbers, exclusivity, every pod counts, amplification, ConstrainedBurst."""

from types import MappingProxyType
from typing import Final

import pytest

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.request import SharedPool
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    NumaAllocateStrategy,
    NumaExclusive,
)
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import (
    ALIGNED,
    BURST,
    GI,
    LSR,
    RESTRICTED,
    SINGLE,
    UNASKED,
    held,
    node,
    place,
    pod,
)
from tests.tables import each_row


def test_a_refusal_has_numbers_per_numa_node() -> None:
    busy = (held("a", "0-3", {0: {"cpu": 4000}}), held("b", "8-9", {1: {"cpu": 2000}}))
    answer = place(pod(8000, 16 * GI, qos=LSR, numa=SINGLE), node(), *busy)
    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.NUMA_AFFINITY
    assert [(n.numa, n.resource, n.total, n.free, n.needed) for n in answer.numbers] == [
        (0, "cpu", 8000, 4000, 8000),
        (1, "cpu", 8000, 6000, 8000),
    ]
    assert answer.detail == "needs 8 CPUs, 16Gi memory in one NUMA node"
    assert answer.largest == {"cpu": 6000, "memory": 16 * GI}
    assert answer.resolvable


@each_row(
    ("strategy", "numa"),
    [
        pytest.param(None, 1, id="configured-least"),
        pytest.param(NumaAllocateStrategy.MOST_ALLOCATED, 0, id="label-most"),
        pytest.param(NumaAllocateStrategy.LEAST_ALLOCATED, 1, id="label-least"),
        pytest.param(NumaAllocateStrategy.DISTRIBUTE_EVENLY, 1, id="label-evenly"),
    ],
)
def test_which_numa_node_is_filled_first(strategy: NumaAllocateStrategy | None, numa: int) -> None:
    answer = place(pod(1000, numa=SINGLE), node(strategy=strategy), held("a", "0-1", {0: {"cpu": 2000}}))
    assert isinstance(answer, Placement)
    assert answer.mask == 1 << numa


class TestExclusivity:
    """Pods on one NUMA node and pods that span several keep apart, unless the pod says otherwise."""

    SPANNING = held("wide", "0-1,8-9", {0: {"cpu": 2000}, 1: {"cpu": 2000}})

    def test_a_pod_with_a_policy_is_exclusive_by_default(self) -> None:
        answer = place(pod(1000, numa=SINGLE), node(), self.SPANNING)
        assert isinstance(answer, Rejection)
        assert answer.reason is Reason.NUMA_AFFINITY
        assert "singleNUMANodeExclusive" in answer.message
        assert answer.resolvable

    def test_where_only_the_node_names_one_no_pod_is(self) -> None:
        answer = place(pod(1000, qos=LSR), node(policy=SINGLE), self.SPANNING)
        assert isinstance(answer, Placement)
        assert answer.mask == 1

    def test_preferred_only_ranks(self) -> None:
        wide = held("wide", "0-1,8-9", {0: {"cpu": 2000}, 1: {"cpu": 2000}})
        answer = place(pod(1000, numa=SINGLE, exclusive=NumaExclusive.PREFERRED), node("3x1x4x2"), wide)
        assert isinstance(answer, Placement)
        assert answer.mask == 4


class TestEveryPodCounts:
    """Pods that hold CPUs or amounts without a NUMA policy are not forgotten (upstream overcommits here)."""

    def test_cpus_without_amounts_weigh_on_their_numa_node(self) -> None:
        answer = place(pod(4000, numa=RESTRICTED, limit=5000), node(), held("a", "0-5"))
        assert isinstance(answer, Placement)
        assert answer.numa == ((1, {"cpu": 4000}),)

    def test_amounts_without_numa_nodes_must_still_fit(self) -> None:
        ledger = (held("ls", cpu=10000), held("a", "0-3", {0: {"cpu": 4000}}))
        answer = place(pod(4000, numa=SINGLE, limit=5000), node(), *ledger)
        assert answer == Rejection(
            Reason.RESOURCES,
            "Insufficient NUMA cpu",
            "needs 4 CPUs; pods placed without NUMA nodes hold 10 CPUs",
            numbers=answer.numbers if isinstance(answer, Rejection) else (),
        )
        assert isinstance(place(pod(2000, numa=SINGLE, limit=5000), node(), *ledger), Placement)

    def test_own_cpus_leave_those_that_shared_pods_were_promised(self) -> None:
        """Six CPUs of NUMA node 0 are promised to a pod in its shared pool: only two may become another pod's own."""
        answer = place(pod(4000, qos=LSR), node(), held("ls", numa={0: {"cpu": 6000}}), options=UNASKED)
        assert isinstance(answer, Placement)
        assert answer.cpus == CpuSet.parse("8-11")
        more = place(pod(10000, qos=LSR), node(), held("ls", numa={0: {"cpu": 6000}}), options=UNASKED)
        assert isinstance(more, Placement)
        assert more.cpus == CpuSet.parse("0-1,8-15")

    def test_kubelet_managed_pods_count_once(self) -> None:
        where = node(reserved="0-3", kubelet_pods=frozenset({"static"}))
        answer = place(pod(12000, numa=RESTRICTED, limit=12001), where, held("static", cpu=4000))
        assert isinstance(answer, Placement)

    def test_a_preference_is_refused_at_once_when_cpus_are_short(self) -> None:
        answer = place(pod(4000, qos=LSR), node("1x1x4x2"), held("a", "0-5"), options=UNASKED)
        assert isinstance(answer, Rejection)
        assert answer.reason is Reason.CPUS
        assert answer.message == "not enough cpus available to satisfy request"
        assert [(n.numa, n.total, n.free, n.needed) for n in answer.numbers] == [(0, 8000, 2000, 4000)]


class TestAmplification:
    """On a node with ratio 1.5 one CPU of one's own weighs one and a half."""

    RATIOS: Final = MappingProxyType({"cpu": 1.5})

    def amplified(self) -> Inventory:
        plain = node()
        return replace(
            plain,
            zones=tuple((numa, {**offer, "cpu": 12000}) for numa, offer in plain.zones),
            allocatable={"cpu": 24000},
            ratios=self.RATIOS,
            node_ratios=self.RATIOS,
        )

    def test_own_cpus_are_recorded_as_they_are(self) -> None:
        answer = place(pod(4000, qos=LSR, numa=SINGLE), self.amplified())
        assert isinstance(answer, Placement)
        assert (answer.cpus, answer.numa) == (CpuSet.parse("0-3"), ((0, {"cpu": 4000}),))

    def test_shared_pods_get_what_own_cpus_leave(self) -> None:
        own = held("own", "0-3,8-11", {0: {"cpu": 4000}, 1: {"cpu": 4000}})
        fits = place(pod(6000, numa=SINGLE, limit=7000, exclusive=NumaExclusive.PREFERRED), self.amplified(), own)
        too_much = place(pod(6001, numa=SINGLE, limit=7000, exclusive=NumaExclusive.PREFERRED), self.amplified(), own)
        assert isinstance(fits, Placement)
        assert isinstance(too_much, Rejection)

    def test_the_whole_node_counts_amplified(self) -> None:
        """16 of 24 amplified CPUs are promised to shared pods; four CPUs of one's own weigh six, six of them nine."""
        shared = held("ls", cpu=16000)
        assert isinstance(place(pod(4000, qos=LSR), self.amplified(), shared, options=UNASKED), Placement)
        answer = place(pod(6000, qos=LSR), self.amplified(), shared, options=UNASKED)
        assert answer == Rejection(
            Reason.RESOURCES, "Insufficient amplified cpu", "9 CPUs amplified by 1.5 needed, 8 CPUs free"
        )

    def test_own_cpus_never_weigh_more_than_the_numa_node_has(self) -> None:
        shared = held("ls", numa={0: {"cpu": 8000}, 1: {"cpu": 8000}})
        answer = place(pod(4000, qos=LSR, numa=SINGLE), self.amplified(), shared)
        assert isinstance(answer, Rejection)
        assert [n.free for n in answer.numbers] == [2666, 2666]


class TestConstrainedBurst:
    """The shared pool of one NUMA node must be as large as the pod's limit."""

    REQUEST = pod(1000, limit=6000, preferred=BURST)

    def test_takes_the_numa_node_whose_pool_fits(self) -> None:
        answer = place(self.REQUEST, node(), held("a", "0-3", {0: {"cpu": 4000}}))
        assert answer == Placement(
            "n", numa=((1, {"cpu": 1000}),), shared_pools=(SharedPool(1, 1, EMPTY),), mask=2, alignment=ALIGNED
        )

    def test_refused_where_no_pool_is_large_enough(self) -> None:
        own = (held("a", "0-3", {0: {"cpu": 4000}}), held("b", "8-10", {1: {"cpu": 3000}}))
        answer = place(self.REQUEST, node(), *own)
        assert isinstance(answer, Rejection)
        assert answer.message == "node(s) had no shared CPU pool that fits the pod's limit"
        assert answer.detail == "needs a shared pool of 6 CPUs in one NUMA node"
        assert [(n.numa, n.total, n.free, n.needed) for n in answer.numbers] == [
            (0, 8000, 4000, 6000),
            (1, 8000, 5000, 6000),
        ]

    def test_kubelet_reserved_cpus_belong_to_the_pool(self) -> None:
        answer = place(pod(1000, limit=8000, preferred=BURST), node("1x1x4x2", reserved="0-1"))
        assert isinstance(answer, Placement)
        assert answer.mask == 1


@pytest.mark.parametrize(
    ("of_node", "of_pod", "numa"),
    [
        pytest.param(None, None, 1, id="configured-least"),
        pytest.param(None, NumaAllocateStrategy.MOST_ALLOCATED, 0, id="the-pods-where-the-node-names-none"),
        pytest.param(NumaAllocateStrategy.LEAST_ALLOCATED, NumaAllocateStrategy.MOST_ALLOCATED, 1, id="the-nodes-wins"),
    ],
)
def test_a_pod_names_its_strategy(
    of_node: NumaAllocateStrategy | None, of_pod: NumaAllocateStrategy | None, numa: int
) -> None:
    request = pod(2000, GI, qos=LSR, numa=SINGLE)
    request = replace(request, numa=replace(request.numa, strategy=of_pod))
    answer = place(request, node(strategy=of_node), held("a", "0-1", {0: {"cpu": 2000}}))
    assert isinstance(answer, Placement)
    assert answer.mask == 1 << numa
