"""Exclusivity conflicts on nodes written by hand: CPUs 0-3, 4-7 and 8-11 are NUMA nodes 0, 1 and 2, with two CPUs per core."""

import pytest

from koord_numa.core.objects.vocabulary import CpuExclusivePolicy, NumaExclusive
from koord_numa.core.rebind.layout import FixedPods, NodeLayout, PinnedPod
from koord_numa.core.rebind.plan import plan_rebind
from koord_numa.core.value_objects import replace
from tests.core.rebind.nodes import layout, pinned
from tests.machines import machine
from tests.tables import each_row

PCPU, NUMA = CpuExclusivePolicy.PCPU_LEVEL, CpuExclusivePolicy.NUMA_NODE_LEVEL
SHAPE = "1x3x2x2"


def protected(name: str, cpus: str, wish: NumaExclusive = NumaExclusive.REQUIRED) -> PinnedPod:
    """A pod that wishes to meet none of the other kind."""
    return replace(pinned(name, cpus), numa_exclusive=wish)


def beside(node: NodeLayout, **masks: int) -> NodeLayout:
    """The node with pods that stay."""
    return replace(node, fixed_pods=FixedPods(**masks))


COMPANY = {
    "no preference": (layout(SHAPE, pinned("a", "0"), pinned("b", "1,4")), {}, {}, 0),
    "a shared core": (
        layout(SHAPE, pinned("a", "0", exclusive=PCPU), pinned("b", "1,4", exclusive=PCPU)),
        {"a": 1, "b": 1},
        {},
        0,
    ),
    "cores of their own": (
        layout(SHAPE, pinned("a", "0", exclusive=PCPU), pinned("b", "2,4", exclusive=PCPU)),
        {},
        {},
        0,
    ),
    "another policy is no conflict": (
        layout(SHAPE, pinned("a", "0", exclusive=PCPU), pinned("b", "1,4", exclusive=NUMA)),
        {},
        {},
        0,
    ),
    "a shared NUMA node": (
        layout(SHAPE, pinned("a", "0", exclusive=NUMA), pinned("b", "2,4", exclusive=NUMA)),
        {"a": 1, "b": 1},
        {},
        0,
    ),
    "both kinds on a NUMA node": (layout(SHAPE, protected("a", "0"), protected("b", "2,4")), {}, {"a": 1, "b": 1}, 0),
    "a preferred wish counts": (
        layout(SHAPE, protected("a", "0", NumaExclusive.PREFERRED), pinned("b", "2,4")),
        {},
        {"a": 1},
        0,
    ),
    "the same kind": (layout(SHAPE, protected("a", "0"), protected("b", "2")), {}, {}, 0),
    "both over several": (layout(SHAPE, protected("a", "0,4"), protected("b", "2,5")), {}, {}, 0),
    "beside a pod over several that stays": (
        beside(layout(SHAPE, protected("a", "0")), spanning=0b011),
        {},
        {"a": 1},
        0,
    ),
    "over NUMA nodes of single ones that stay": (
        beside(layout(SHAPE, protected("a", "0,4,8")), single=0b011),
        {},
        {"a": 2},
        0,
    ),
    "a single pod that stays is disturbed": (
        beside(layout(SHAPE, pinned("a", "0,4")), single=0b010, protected_single=0b010),
        {},
        {},
        0b010,
    ),
    "a pod over several that stays is disturbed": (
        beside(layout(SHAPE, pinned("a", "0")), spanning=0b011, protected_spanning=0b011),
        {},
        {},
        0b001 << 3,
    ),
}


@each_row(("node", "conflicts", "numa_conflicts", "violated"), COMPANY.values(), ids=COMPANY.keys())
def test_company(node: NodeLayout, conflicts: dict[str, int], numa_conflicts: dict[str, int], violated: int) -> None:
    names = [one.key.name for one in node.pods]
    assert {names[index]: count for index, count in node.exclusivity.conflicts(node.now).items()} == conflicts
    assert {names[index]: count for index, count in node.exclusivity.numa_conflicts(node.now).items()} == numa_conflicts
    assert node.exclusivity.violated(node.now) == violated
    constrained = {names[index] for index in node.constrained}
    assert constrained >= conflicts.keys() | numa_conflicts.keys()
    assert node.figures_now.conflicts == sum([*conflicts.values(), *numa_conflicts.values(), violated.bit_count()])


def test_one_alone_conflicts_with_none() -> None:
    assert not layout(SHAPE, pinned("a", "0", exclusive=PCPU), pinned("b", "1")).constrained


ROOMY = "1x4x4x2"
"""Eight CPUs a NUMA node: 0-7, 8-15, 16-23 and 24-31."""

HELD_WIDE = pinned("wide", "2-7,8-11", fixed_on=machine(ROOMY))
"""It has memory on two NUMA nodes."""

PLANS = {
    "no conflict": (layout(ROOMY, pinned("single", "0-1"), HELD_WIDE), {"single": "0-1", "wide": "2-11"}),
    "the single one minds and leaves": (
        layout(ROOMY, protected("single", "0-1"), HELD_WIDE),
        {"single": "16-17", "wide": "2-11"},
    ),
    "the wide one minds, and the other leaves": (
        layout(ROOMY, pinned("single", "0-1"), replace(HELD_WIDE, numa_exclusive=NumaExclusive.REQUIRED)),
        {"single": "16-17", "wide": "2-11"},
    ),
}


@pytest.mark.parametrize(("node", "end"), PLANS.values(), ids=PLANS.keys())
def test_plans(node: NodeLayout, end: dict[str, str]) -> None:
    plan = plan_rebind(node)
    assigned = {one.key.name: str(one.cpus) for one in node.pods}
    assigned.update((move.pod.name, str(move.after)) for move in plan.moves)
    assert assigned == end


@each_row(
    ("fixed_pods", "allowed"),
    [
        pytest.param(FixedPods(), True, id="no-conflict"),
        pytest.param(FixedPods(single=0b001), True, id="a-pod-without-a-wish"),
        pytest.param(FixedPods(single=0b001, protected_single=0b001), False, id="a-pod-that-minds"),
        pytest.param(FixedPods(spanning=0b101, protected_spanning=0b101), True, id="a-pod-of-the-same-kind"),
    ],
)
def test_no_pod_over_several_joins_a_single_one_that_stays(fixed_pods: FixedPods, allowed: bool) -> None:
    node = replace(layout(ROOMY, pinned("wide", "8-15,16-17"), fixed="0-1"), fixed_pods=fixed_pods)
    arrangement = [sum(1 << cpu for cpu in (*range(8, 16), 2, 3))]
    assert (node.allows(arrangement), node.may_pass(arrangement)) == (allowed, allowed)
