"""Who is too near to whom, counted on nodes written by hand: CPUs 0-3, 4-7 and 8-11 are NUMA nodes 0, 1 and 2, two CPUs a core."""

from dataclasses import replace

import pytest

from koord_numa.core.rebind.exclusivity import Settled
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.pinned_pod import PinnedPod
from koord_numa.core.rebind.plan import plan_rebind
from koord_numa.core.vocabulary import CpuExclusivePolicy, NumaExclusive
from tests.core.rebind.nodes import board, tenant
from tests.machines import machine

PCPU, NUMA = CpuExclusivePolicy.PCPU_LEVEL, CpuExclusivePolicy.NUMA_NODE_LEVEL
SHAPE = "1x3x2x2"


def shy(name: str, cpus: str, wish: NumaExclusive = NumaExclusive.REQUIRED) -> PinnedPod:
    """A pod that wishes to meet none of the other kind."""
    return replace(tenant(name, cpus), apart=wish)


def beside(node: NodeLayout, **masks: int) -> NodeLayout:
    """The node with pods that stay."""
    return replace(node, settled=Settled(**masks))


COMPANY = {
    "nobody cares": (board(SHAPE, tenant("a", "0"), tenant("b", "1,4")), {}, {}, 0),
    "a shared core": (
        board(SHAPE, tenant("a", "0", exclusive=PCPU), tenant("b", "1,4", exclusive=PCPU)),
        {"a": 1, "b": 1},
        {},
        0,
    ),
    "cores of their own": (
        board(SHAPE, tenant("a", "0", exclusive=PCPU), tenant("b", "2,4", exclusive=PCPU)),
        {},
        {},
        0,
    ),
    "another policy is no conflict": (
        board(SHAPE, tenant("a", "0", exclusive=PCPU), tenant("b", "1,4", exclusive=NUMA)),
        {},
        {},
        0,
    ),
    "a shared NUMA node": (
        board(SHAPE, tenant("a", "0", exclusive=NUMA), tenant("b", "2,4", exclusive=NUMA)),
        {"a": 1, "b": 1},
        {},
        0,
    ),
    "both kinds on a NUMA node": (board(SHAPE, shy("a", "0"), shy("b", "2,4")), {}, {"a": 1, "b": 1}, 0),
    "a preferred wish counts": (
        board(SHAPE, shy("a", "0", NumaExclusive.PREFERRED), tenant("b", "2,4")),
        {},
        {"a": 1},
        0,
    ),
    "the same kind": (board(SHAPE, shy("a", "0"), shy("b", "2")), {}, {}, 0),
    "both over several": (board(SHAPE, shy("a", "0,4"), shy("b", "2,5")), {}, {}, 0),
    "beside a pod over several that stays": (beside(board(SHAPE, shy("a", "0")), spanning=0b011), {}, {"a": 1}, 0),
    "over NUMA nodes of single ones that stay": (
        beside(board(SHAPE, shy("a", "0,4,8")), single=0b011),
        {},
        {"a": 2},
        0,
    ),
    "a single pod that stays is disturbed": (
        beside(board(SHAPE, tenant("a", "0,4")), single=0b010, shy_single=0b010),
        {},
        {},
        0b010,
    ),
    "a pod over several that stays is disturbed": (
        beside(board(SHAPE, tenant("a", "0")), spanning=0b011, shy_spanning=0b011),
        {},
        {},
        0b001 << 3,
    ),
}


@pytest.mark.parametrize(("node", "conflicts", "strangers", "disturbed"), COMPANY.values(), ids=COMPANY.keys())
def test_company(node: NodeLayout, conflicts: dict[str, int], strangers: dict[str, int], disturbed: int) -> None:
    names = [one.pod.name for one in node.tenants]
    assert {names[index]: count for index, count in node.company.conflicts(node.now).items()} == conflicts
    assert {names[index]: count for index, count in node.company.strangers(node.now).items()} == strangers
    assert node.company.disturbed(node.now) == disturbed
    concerned = {names[index] for index in node.concerned}
    assert concerned >= conflicts.keys() | strangers.keys()
    assert node.figures_now.conflicts == sum([*conflicts.values(), *strangers.values(), disturbed.bit_count()])


def test_one_alone_concerns_nobody() -> None:
    assert not board(SHAPE, tenant("a", "0", exclusive=PCPU), tenant("b", "1")).concerned


ROOMY = "1x4x4x2"
"""Eight CPUs a NUMA node: 0-7, 8-15, 16-23 and 24-31."""

HELD_WIDE = tenant("wide", "2-7,8-11", fixed_on=machine(ROOMY))
"""It has memory on two NUMA nodes."""

PLANS = {
    "nobody minds": (board(ROOMY, tenant("single", "0-1"), HELD_WIDE), {"single": "0-1", "wide": "2-11"}),
    "the single one minds and leaves": (
        board(ROOMY, shy("single", "0-1"), HELD_WIDE),
        {"single": "16-17", "wide": "2-11"},
    ),
    "the wide one minds, and the other leaves": (
        board(ROOMY, tenant("single", "0-1"), replace(HELD_WIDE, apart=NumaExclusive.REQUIRED)),
        {"single": "16-17", "wide": "2-11"},
    ),
}


@pytest.mark.parametrize(("node", "end"), PLANS.values(), ids=PLANS.keys())
def test_plans(node: NodeLayout, end: dict[str, str]) -> None:
    plan = plan_rebind(node)
    seats = {one.pod.name: str(one.cpus) for one in node.tenants}
    seats.update((move.pod.name, str(move.after)) for move in plan.moves)
    assert seats == end


@pytest.mark.parametrize(
    ("settled", "allowed"),
    [
        pytest.param(Settled(), True, id="nobody-minds"),
        pytest.param(Settled(single=0b001), True, id="a-pod-without-a-wish"),
        pytest.param(Settled(single=0b001, shy_single=0b001), False, id="a-pod-that-minds"),
        pytest.param(Settled(spanning=0b101, shy_spanning=0b101), True, id="a-pod-of-the-same-kind"),
    ],
)
def test_nobody_over_several_comes_to_a_single_one_that_stays(settled: Settled, allowed: bool) -> None:
    node = replace(board(ROOMY, tenant("wide", "8-15,16-17"), fixed="0-1"), settled=settled)
    arrangement = [sum(1 << cpu for cpu in (*range(8, 16), 2, 3))]
    assert (node.allows(arrangement), node.may_pass(arrangement)) == (allowed, allowed)
