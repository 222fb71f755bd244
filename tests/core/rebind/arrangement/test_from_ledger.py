"""Movable and fixed pods in a rebind, and the available room."""

from collections.abc import Mapping

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import CpuBind, NumaSpec, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    CpuExclusivePolicy,
    NodeBindPolicy,
    NumaExclusive,
    NumaPolicy,
    QosClass,
)
from koord_numa.core.ordering import reallocation_order
from koord_numa.core.rebind.from_ledger import Defaults, layout_of_ledger
from koord_numa.core.rebind.layout import FixedPods, PinnedPod
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import replace
from tests.machines import machine
from tests.tables import each_row

HOST = machine("1x2x4x2")
INVENTORY = Inventory("node", machine=HOST, reserved=CpuSet.parse("0"))
ZONES = tuple((numa, {"cpu": 8000}) for numa in (0, 1))
FULL, SPREAD = CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS


def holding(
    name: str, cpus: str = "", bind: CpuBind = CpuBind(), numa_spec: NumaSpec = NumaSpec(), **changes: object
) -> Holding:
    """A pod with these CPUs of its own, or one without when there are none."""
    held = CpuSet.parse(cpus)
    request = PodRequest(qos=QosClass.LSR, bind=bind, numa=numa_spec)
    made = Holding(PodKey("default", name, name), {"cpu": 1000 * len(held)}, held, request=request)
    return replace(made, **changes)  # type: ignore[arg-type]  # changes are named fields


def pinned(name: str, cpus: str, bind: CpuBindPolicy = FULL, *, required: bool = False, **changes: object) -> PinnedPod:
    """A pod that may move."""
    held = CpuSet.parse(cpus)
    order = reallocation_order(QosClass.LSR, required=required, count=len(held), created=0.0, uid=name)
    made = PinnedPod(PodKey("default", name, name), held, bind, required, order=order)
    return replace(made, **changes)  # type: ignore[arg-type]  # changes are named fields


ON_NUMA_0 = ((0, {"cpu": 2000}),)
WITH_MEMORY = ((0, {"cpu": 2000, "memory": 1 << 30}),)

TENANTS = {
    "no policy": (holding("a", "2-3"), pinned("a", "2-3")),
    "preferred": (holding("a", "2-3", CpuBind(preferred=SPREAD)), pinned("a", "2-3", SPREAD)),
    "required": (holding("a", "2-3", CpuBind(required=FULL)), pinned("a", "2-3", required=True)),
    "required default": (
        holding("a", "2-3", CpuBind(required=CpuBindPolicy.DEFAULT)),
        pinned("a", "2-3", SPREAD, required=True),
    ),
    "CPU amounts follow the CPUs": (holding("a", "2-3", numa=ON_NUMA_0), pinned("a", "2-3")),
    "memory that is not bound": (holding("a", "2-3", numa=WITH_MEMORY), pinned("a", "2-3")),
    "memory that the pod's policy binds": (
        holding("a", "2-3", numa=WITH_MEMORY, numa_spec=NumaSpec(NumaPolicy.RESTRICTED)),
        pinned("a", "2-3", cpus_per_numa={0: 2}, numa_exclusive=NumaExclusive.REQUIRED),
    ),
    "exclusive towards pods over several NUMA nodes": (
        holding("a", "2-3", numa_spec=NumaSpec(exclusive=NumaExclusive.PREFERRED)),
        pinned("a", "2-3", numa_exclusive=NumaExclusive.PREFERRED),
    ),
    "exclusive by default, as it names a NUMA policy": (
        holding("a", "2-3", numa_spec=NumaSpec(NumaPolicy.RESTRICTED)),
        pinned("a", "2-3", numa_exclusive=NumaExclusive.REQUIRED),
    ),
    "a device": (
        holding("a", "6-9", amounts={"cpu": 4000, "nvidia.com/gpu": 1}),
        pinned("a", "6-9", cpus_per_numa={0: 2, 1: 2}),
    ),
    "huge pages": (
        holding("a", "6-7", amounts={"cpu": 2000, "hugepages-1Gi": 1}),
        pinned("a", "6-7", cpus_per_numa={0: 2}),
    ),
    "batch memory is no device": (
        holding("a", "6-7", amounts={"cpu": 2000, "kubernetes.io/batch-memory": 1}),
        pinned("a", "6-7"),
    ),
}


@each_row(("known", "expected"), TENANTS.values(), ids=TENANTS.keys())
def test_pinned_pods(known: Holding, expected: PinnedPod) -> None:
    default = SPREAD if known.request and known.request.bind.required is CpuBindPolicy.DEFAULT else FULL
    layout = layout_of_ledger(INVENTORY, Ledger.of([known, holding("shared")]), (), Defaults(default))
    assert layout.pods == (expected,)
    assert layout.fixed == INVENTORY.reserved


def test_a_node_that_binds_everyone_makes_its_policy_required() -> None:
    node = replace(INVENTORY, bind=NodeBindPolicy.SPREAD_BY_PCPUS)
    assert layout_of_ledger(node, Ledger.of([holding("a", "2-3")]), ()).pods == (
        pinned("a", "2-3", SPREAD, required=True),
    )


STAYING = {
    "settled": ([holding("settled", "2-3")], "0,2-3"),
    "on a reserved CPU": ([holding("a", "0-1")], "0-1"),
    "outside the machine": ([holding("a", "15-16")], "0,15-16"),
    "held by two": ([holding("a", "2-3"), holding("b", "3-4")], "0,2-4"),
    "alone on its core": ([holding("settled", "2", exclusive=CpuExclusivePolicy.PCPU_LEVEL)], "0,2-3"),
    "alone on its NUMA node": ([holding("settled", "8", exclusive=CpuExclusivePolicy.NUMA_NODE_LEVEL)], "0,8-15"),
}


@each_row(("known", "fixed"), STAYING.values(), ids=STAYING.keys())
def test_who_stays(known: list[Holding], fixed: str) -> None:
    layout = layout_of_ledger(INVENTORY, Ledger.of(known), {"settled"})
    assert (layout.pods, str(layout.fixed)) == ((), fixed)


SHY = NumaSpec(exclusive=NumaExclusive.REQUIRED)

SETTLED = {
    "on one NUMA node": ([holding("settled", "2-3")], FixedPods(single=0b01)),
    "on one, and it minds": (
        [holding("settled", "2-3", numa_spec=SHY)],
        FixedPods(single=0b01, protected_single=0b01),
    ),
    "over two": ([holding("settled", "6-9")], FixedPods(spanning=0b11)),
    "over two, and it minds": (
        [holding("settled", "6-9", numa_spec=SHY)],
        FixedPods(spanning=0b11, protected_spanning=0b11),
    ),
    "without CPUs of its own": ([holding("settled", numa_spec=SHY)], FixedPods()),
    "several": (
        [holding("a", "0-1"), holding("settled", "10-13", numa_spec=SHY), holding("t", "2-3")],
        FixedPods(single=0b11, protected_single=0b10),
    ),
}


@each_row(("known", "fixed_pods"), SETTLED.values(), ids=SETTLED.keys())
def test_what_pods_that_stay_keep_clear(known: list[Holding], fixed_pods: FixedPods) -> None:
    assert layout_of_ledger(INVENTORY, Ledger.of(known), {"settled"}).fixed_pods == fixed_pods


ROOM = {
    "no other pod": ([], {}, {0: 7, 1: 8}),
    "shared pods": ([holding("s", numa=((1, {"cpu": 2500}),))], {}, {0: 7, 1: 5}),
    "pods that may change NUMA nodes": ([holding("t", "2-3", numa=ON_NUMA_0)], {}, {0: 7, 1: 8}),
    "pods with devices": (
        [holding("t", "2-3", numa=ON_NUMA_0, amounts={"cpu": 2000, "nvidia.com/gpu": 1})],
        {},
        {0: 5, 1: 8},
    ),
    "amplified": ([holding("s", numa=((1, {"cpu": 3000}),))], {"cpu": 2.0}, {0: 7, 1: 6}),
}


@each_row(("others", "ratios", "cpu_limit"), ROOM.values(), ids=ROOM.keys())
def test_room(others: list[Holding], ratios: Mapping[str, float], cpu_limit: Mapping[int, int]) -> None:
    zones = tuple(
        (numa, {"cpu": int((offer["cpu"] - (numa == 0) * 1000) * ratios.get("cpu", 1))}) for numa, offer in ZONES
    )
    node = replace(INVENTORY, zones=zones, ratios=ratios)
    assert layout_of_ledger(node, Ledger.of([holding("a", "6-9"), *others]), ()).cpu_limit == cpu_limit


def test_a_node_without_published_amounts_sets_no_limit() -> None:
    assert layout_of_ledger(INVENTORY, Ledger.of([holding("a", "6-9")]), ()).cpu_limit == {}


def test_unknown_cpus_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="unknown"):
        layout_of_ledger(Inventory("node"), Ledger(), ())


BOUND = {
    "by the pod's policy": (
        holding("a", "2-3", numa=WITH_MEMORY, numa_spec=NumaSpec(NumaPolicy.SINGLE_NUMA_NODE)),
        INVENTORY,
    ),
    "by the node's policy": (holding("a", "2-3", numa=WITH_MEMORY), replace(INVENTORY, policy=NumaPolicy.RESTRICTED)),
    "huge pages": (holding("a", "2-3", amounts={"cpu": 2000, "hugepages-1Gi": 1 << 30}), INVENTORY),
}


@pytest.mark.parametrize(("known", "where"), BOUND.values(), ids=BOUND.keys())
def test_bound_memory_moves_only_when_asked(known: Holding, where: Inventory) -> None:
    (stays,) = layout_of_ledger(where, Ledger.of([known]), ()).pods
    (moves,) = layout_of_ledger(where, Ledger.of([known]), (), move_memory=True).pods
    assert (stays.cpus_per_numa, moves.cpus_per_numa) == ({0: 2}, None)


def test_devices_never_move() -> None:
    known = holding("a", "2-3", amounts={"cpu": 2000, "nvidia.com/gpu": 1})
    assert layout_of_ledger(INVENTORY, Ledger.of([known]), (), move_memory=True).pods[0].cpus_per_numa == {0: 2}
