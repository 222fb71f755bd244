"""Free amounts per NUMA node, and the pools of pods without own CPUs."""

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodRequest, SharedPool
from koord_numa.core.objects.vocabulary import CpuBindPolicy, QosClass
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.state.numa_free import Accounting, NumaAccounting, NumaFree, accounts, shared_pools, socket_of
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import held, node
from tests.tables import each_row

FULL, SPREAD = CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS
EVERY_POD = NumaAccounting()
RECORDED = NumaAccounting(Accounting.RECORDED_AMOUNTS)


def free_cpu(where: Inventory, *holdings: Holding, accounting: NumaAccounting = EVERY_POD) -> tuple[int, ...]:
    return accounts(where, Ledger.of(holdings), accounting).free["cpu"]


def test_an_empty_node() -> None:
    where = node(memory=7, gpus=1)
    assert accounts(where, Ledger()) == NumaFree(
        numa_ids=(0, 1),
        total={"cpu": (8000, 8000), "memory": (7, 7), "nvidia.com/gpu": (1, 1)},
        free={"cpu": (8000, 8000), "memory": (7, 7), "nvidia.com/gpu": (1, 1)},
        free_cpus=CpuSet.parse("0-15"),
        unplaced={},
        machine=where.machine,
    )


@each_row(
    ("holding", "every_pod", "recorded"),
    [
        pytest.param(held("a", "0-1", {0: {"cpu": 2000}}), (6000, 8000), (6000, 8000), id="cpus-and-amounts"),
        pytest.param(held("a", numa={1: {"cpu": 1500}}), (8000, 6500), (8000, 6500), id="amounts"),
        pytest.param(held("a", "0-1,8"), (6000, 7000), (8000, 8000), id="cpus-only"),
        pytest.param(held("a", numa={0: {"cpu": 9000}}), (0, 8000), (0, 8000), id="never-below-zero"),
        pytest.param(held("a", cpu=3000), (8000, 8000), (8000, 8000), id="place-unknown"),
    ],
)
def test_who_counts(holding: Holding, every_pod: tuple[int, ...], recorded: tuple[int, ...]) -> None:
    assert (free_cpu(node(), holding), free_cpu(node(), holding, accounting=RECORDED)) == (every_pod, recorded)


@each_row(
    ("where", "holdings", "unplaced"),
    [
        pytest.param(node(), (held("a", cpu=3000, disk=5),), {"cpu": 3000}, id="only-what-zones-publish"),
        pytest.param(node(), (held("a", "0-1", cpu=2000, memory=9),), {"memory": 9}, id="cpus-are-known"),
        pytest.param(node(), (held("a", "0-1,40", cpu=3000),), {"cpu": 1000}, id="a-cpu-that-the-machine-lacks"),
        pytest.param(replace(node(), machine=None), (held("a", "0-1", cpu=2000),), {"cpu": 2000}, id="no-machine"),
        pytest.param(node(), (held("a", numa={7: {"cpu": 500}}),), {"cpu": 500}, id="a-numa-node-that-is-gone"),
        pytest.param(
            node(reserved="0-1", kubelet_pods=frozenset({"a"})),
            (held("a", cpu=2000), held("b", cpu=500)),
            {"cpu": 500},
            id="kubelet-managed-pods-left-the-zones",
        ),
    ],
)
def test_amounts_of_unknown_numa_nodes(where: Inventory, holdings: tuple[Holding, ...], unplaced: object) -> None:
    ledger = Ledger.of(holdings)
    assert accounts(where, ledger).unplaced == unplaced
    assert accounts(where, ledger, RECORDED).unplaced == {}


def test_own_cpus_weigh_amplified() -> None:
    where = replace(node(), ratios={"cpu": 1.5}, zones=((0, {"cpu": 12000}), (1, {"cpu": 12000})))
    assert free_cpu(where, held("a", "0-3", {0: {"cpu": 4000}})) == (6000, 12000)
    assert free_cpu(where, held("a", "0-3")) == (6000, 12000)
    assert free_cpu(where, held("a", numa={0: {"cpu": 4000}})) == (8000, 12000)


@pytest.mark.parametrize(
    ("policy", "counts"),
    [
        pytest.param(CpuBindPolicy.NONE, (5, 8), id="any"),
        pytest.param(FULL, (4, 8), id="whole-cores"),
        pytest.param(SPREAD, (3, 4), id="cores-with-a-cpu"),
    ],
)
def test_cpus_that_a_required_policy_can_use(policy: CpuBindPolicy, counts: tuple[int, ...]) -> None:
    assert accounts(node(), Ledger.of([held("a", "0-2")])).takeable(policy) == counts


def test_cpus_may_be_shared_by_embedding_code() -> None:
    ledger = Ledger.of([held("a", "0-1"), held("b", "1-2")])
    assert accounts(node(), ledger, NumaAccounting(references=2)).free_cpus == CpuSet.parse("0,2-15")
    assert accounts(node(), ledger).free_cpus == CpuSet.parse("3-15")


def test_remembered_until_the_ledger_changes() -> None:
    where, ledger = node(), Ledger()
    first = accounts(where, ledger)
    assert accounts(where, ledger) is first
    assert accounts(where, ledger, RECORDED) is not first
    ledger.hold(held("a", "0"))
    assert accounts(where, ledger).free_cpus == CpuSet.parse("1-15")
    ledger.release("a")
    assert accounts(where, ledger) == first


class TestSharedPools:
    """Every CPU that no pod has for itself, by socket and NUMA node."""

    def test_an_empty_node_has_all_cpus_in_its_pools(self) -> None:
        where = node("2x2x1x2", reserved="0")
        pools = (
            SharedPool(0, 0, CpuSet.parse("0-1")),
            SharedPool(0, 1, CpuSet.parse("2-3")),
            SharedPool(1, 2, CpuSet.parse("4-5")),
            SharedPool(1, 3, CpuSet.parse("6-7")),
        )
        assert shared_pools(where, Ledger()) == pools

    def test_own_cpus_leave_the_pool(self) -> None:
        where = node("1x1x4x2", kept_from_pools=CpuSet.parse("7"))
        lse = replace(held("lse", "0-1"), request=PodRequest(qos=QosClass.LSE))
        lsr = replace(held("lsr", "2-3"), request=PodRequest(qos=QosClass.LSR))
        ledger = Ledger.of([lse, lsr])
        assert shared_pools(where, ledger) == (SharedPool(0, 0, CpuSet.parse("4-6")),)

    def test_without_a_machine_there_are_none(self) -> None:
        where = Inventory("n")
        assert shared_pools(where, Ledger()) == ()
        assert socket_of(where, 3) == 0
