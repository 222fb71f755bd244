"""CPUs of one pod on machines written by hand: siblings are neighbors, NUMA node 0 comes first."""

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.place_pod import choose_cpus, exclusive_neighbours, over, place, useful
from tests.core.rebind.nodes import FULL, SPREAD, layout, pinned
from tests.machines import machine
from tests.tables import each_row

SMT, WIDE = "1x2x4x2", "1x1x3x4"
"""CPUs 0-7 and 8-15 in cores of two; CPUs 0-11 in cores of four."""


def one(shape: str, cpus: str, bind: CpuBindPolicy = FULL) -> NodeLayout:
    """A machine with a single pod, which sits here today."""
    return layout(shape, pinned("a", cpus, bind))


SEATS = [
    pytest.param(one(SMT, "8-9"), "0-7", 2, "", "0-1", id="a-whole-core"),
    pytest.param(one(SMT, "4,8"), "0-7", 2, "", "4-5", id="its-own-core-first"),
    pytest.param(one(SMT, "8-10"), "1-7", 3, "", "1-3", id="the-rest-from-a-broken-core"),
    pytest.param(one(SMT, "8-10"), "0-7", 3, "", "0-2", id="or-from-a-whole-one"),
    pytest.param(one(SMT, "8-10"), "1,3-4,6", 3, "", "1,3-4", id="broken-cores-only"),
    pytest.param(one(SMT, "8-10"), "1,3", 3, "", None, id="not-enough"),
    pytest.param(one(SMT, "8-9"), "0-7", 2, "0-3", "4-5", id="away-from-others"),
    pytest.param(one(SMT, "8-9"), "0-3", 2, "1-3", "0-1", id="near-others-if-it-must-be"),
    pytest.param(one(SMT, "8,10", SPREAD), "0-7", 2, "", "0,2", id="one-of-each-core"),
    pytest.param(one(SMT, "8,10", SPREAD), "0-5,7", 2, "", "0,7", id="a-broken-core-first"),
    pytest.param(one(SMT, "5,8", SPREAD), "0-5", 1, "", "5", id="its-own-cpu-of-a-core"),
    pytest.param(one(SMT, "8-10", SPREAD), "0-3", 3, "", "0-2", id="twice-on-a-core-if-it-must-be"),
    pytest.param(one(WIDE, "0-2"), "1,4-11", 3, "", "4-6", id="a-piece-that-holds-all"),
    pytest.param(one(WIDE, "0-2"), "1-3,4-11", 3, "", "1-3", id="the-broken-core-that-holds-all"),
    pytest.param(one(WIDE, "0-2"), "1-2,4-5,11", 3, "", "1-2,11", id="pieces-of-several"),
]


@each_row(("node", "free", "count", "away", "found"), SEATS)
def test_seat(node: NodeLayout, free: str, count: int, away: str, found: str | None) -> None:
    bits = choose_cpus(node, 0, CpuSet.parse(free).bits, {0: count}, CpuSet.parse(away).bits)
    assert (None if bits is None else str(CpuSet(bits))) == found


USEFUL = [
    pytest.param(one(SMT, "8-11"), "0-2,4", 2, id="whole-cores"),
    pytest.param(one(SMT, "7-10"), "0-2,4", 4, id="and-halves-as-many-as-it-has-today"),
    pytest.param(one(SMT, "8,10", SPREAD), "0-2,4", 3, id="one-of-each-core"),
    pytest.param(one(SMT, "8-9", SPREAD), "0-2,4", 4, id="and-second-ones-as-many-as-it-has-today"),
]


@each_row(("node", "free", "count"), USEFUL)
def test_useful(node: NodeLayout, free: str, count: int) -> None:
    assert useful(node, 0, CpuSet.parse(free).bits, (0,)) == count


OVER = [
    pytest.param(one(SMT, "4-9"), "0-3,8-11", {0: 4, 1: 2}, id="first-come-first-served"),
    pytest.param(one(SMT, "4-9"), "0-2,8-9,11", None, id="not-without-splitting-cores"),
    pytest.param(one(SMT, "4-8,10"), "0-2,8-9,11", {0: 3, 1: 3}, id="as-many-as-today-may-be-split"),
    pytest.param(one(SMT, "1,3,5,7,9,11", SPREAD), "0-7,8-11", {0: 4, 1: 2}, id="a-core-for-each"),
]


@each_row(("node", "free", "counts"), OVER)
def test_over(node: NodeLayout, free: str, counts: dict[int, int] | None) -> None:
    assert over(node, 0, CpuSet.parse(free).bits, (0, 1)) == counts


PLACES = [
    pytest.param(one(SMT, "7-8"), "0-7,10-15", "10-11", id="where-least-room-is-left"),
    pytest.param(one(SMT, "4-11"), "0-3,10-15", "0-1,10-15", id="over-two-if-no-single-one-holds-it"),
    pytest.param(one(SMT, "8-9"), "0,3,8,11", "0,3", id="with-regression-if-it-must-be"),
    pytest.param(one(SMT, "8-9"), "0,11", "0,11", id="anywhere-if-it-must-be"),
    pytest.param(one(SMT, "8-9"), "0", None, id="nowhere"),
    pytest.param(layout(SMT, pinned("a", "7-8", fixed_on=machine(SMT))), "0-1,8-9", "0,8", id="tied-to-its-numa-nodes"),
]


@each_row(("node", "free", "found"), PLACES)
def test_place(node: NodeLayout, free: str, found: str | None) -> None:
    bits = place(node, node.now, 0, CpuSet.parse(free).bits)
    assert (None if bits is None else str(CpuSet(bits))) == found


AVOIDED = {
    CpuExclusivePolicy.NONE: "",
    CpuExclusivePolicy.PCPU_LEVEL: "2-3",
    CpuExclusivePolicy.NUMA_NODE_LEVEL: "8-15",
}


@pytest.mark.parametrize(("policy", "avoided"), AVOIDED.items())
def test_neighbours_to_avoid(policy: CpuExclusivePolicy, avoided: str) -> None:
    others = [
        pinned("b", "2", exclusive=CpuExclusivePolicy.PCPU_LEVEL),
        pinned("c", "8", exclusive=CpuExclusivePolicy.NUMA_NODE_LEVEL),
    ]
    node = layout(SMT, pinned("a", "4-7", exclusive=policy), *others)
    index = next(index for index, one in enumerate(node.pods) if one.key.name == "a")
    assert str(CpuSet(exclusive_neighbours(node, index, node.now))) == avoided
