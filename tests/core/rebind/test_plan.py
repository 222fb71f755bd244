"""Rebind plans of nodes written by hand, and laws for every node."""

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuExclusivePolicy
from koord_numa.core.rebind.layout import Arrangement, NodeLayout
from koord_numa.core.rebind.plan import RebindPlan, plan_rebind
from koord_numa.core.value_objects import replace
from tests.core.rebind.nodes import SPREAD, beset, fragmented, layout, pinned, with_pods_that_stay
from tests.core.rebind.sorted_order import broken_rules, crossings, in_sorted_order, least_crossings
from tests.machines import machine
from tests.tables import each_row

PCPU = CpuExclusivePolicy.PCPU_LEVEL


def end_of(node: NodeLayout, plan: RebindPlan) -> dict[str, str]:
    """Return the assignment of every pod after the plan."""
    assigned = {t.key.name: str(t.cpus) for t in node.pods}
    assigned.update((move.pod.name, str(move.after)) for move in plan.moves)
    return assigned


@each_row(
    ("node", "end"),
    [
        pytest.param(layout("1x2x4x2", pinned("a", "6-9")), {"a": "0-3"}, id="a-crossing-pod-is-gathered"),
        pytest.param(
            layout("1x2x4x2", pinned("a", "0,3"), pinned("b", "1-2")),
            {"a": "0-1", "b": "2-3"},
            id="split-cores-are-mended-through-spare-cpus",
        ),
        pytest.param(
            layout("1x2x4x2", pinned("a", "0-3"), pinned("b", "4-7")), {"a": "0-3", "b": "4-7"}, id="nothing-to-do"
        ),
        pytest.param(
            layout("1x2x4x2", pinned("a", "0-3"), pinned("b", "8-11")),
            {"a": "0-3", "b": "4-7"},
            id="room-is-gathered-on-one-numa-node",
        ),
        pytest.param(
            layout("1x2x4x2", pinned("a", "6-9", fixed_on=machine("1x2x4x2"))),
            {"a": "6-9"},
            id="memory-on-both-numa-nodes-holds-a-pod-there",
        ),
        pytest.param(
            layout("1x1x4x2", pinned("a", "0", SPREAD, PCPU), pinned("b", "1", SPREAD, PCPU), pinned("c", "2", SPREAD)),
            {"a": "0", "b": "3", "c": "2"},
            id="pods-that-want-to-be-alone-are-parted-on-a-core-that-is-broken-anyway",
        ),
        pytest.param(layout("1x2x2x2", pinned("a", "2-5"), fixed="0-1"), {"a": "4-7"}, id="reserved-cpus-stay-free"),
        pytest.param(
            layout("1x2x2x2", pinned("a", "2-5"), cpu_limit={0: 2, 1: 2}), {"a": "2-5"}, id="no-room-beside-shared-pods"
        ),
    ],
)
def test_small_nodes(node: NodeLayout, end: dict[str, str]) -> None:
    plan = plan_rebind(node)
    assert end_of(node, plan) == end
    assert bool(plan) == (end != {t.key.name: str(t.cpus) for t in node.pods})


def test_a_full_node_still_exchanges_through_one_spare_core() -> None:
    node = layout("1x2x2x2", pinned("a", "0-1,4-5"), pinned("b", "2-3"))
    plan = plan_rebind(node)
    assert (plan.before.crossings, plan.after.crossings) == (1, 0)
    assert not plan.dropped


def test_without_any_spare_cpu_nothing_is_promised() -> None:
    plan = plan_rebind(layout("1x2x1x2", pinned("a", "0,2"), pinned("b", "1,3")))
    assert not plan
    assert sorted(pod.name for pod in plan.dropped) == ["a", "b"]


def test_room_is_kept_between_steps_too() -> None:
    node = layout("1x2x4x2", pinned("a", "0-3"), pinned("b", "6-9"), pinned("c", "12-13"), cpu_limit={0: 8, 1: 4})
    plan = plan_rebind(node)
    assert plan.after.crossings == 0
    replay(node, plan)


def test_the_plan_reports_the_node_before_and_after() -> None:
    plan = plan_rebind(layout("1x2x4x2", pinned("a", "6-9"), pinned("b", "0,2")))
    assert (plan.before.crossing_pods, plan.before.split_cores, plan.before.largest_block) == (1, 2, {0: 2, 1: 6})
    assert (plan.after.crossing_pods, plan.after.split_cores, max(plan.after.largest_block.values())) == (0, 0, 8)


def replay(node: NodeLayout, plan: RebindPlan) -> Arrangement:
    """Carry the plan out step by step and hold every step to the invariants."""
    index_of = {t.key: index for index, t in enumerate(node.pods)}
    assigned = list(node.now)
    for move in plan.moves:
        index = index_of[move.pod]
        assert assigned[index] == move.before.bits, "a step starts where the pod is"
        assigned[index] = move.after.bits
        held = 0
        for bits in assigned:
            assert not held & bits, "no CPU is ever held twice"
            held |= bits
        assert not move.after.bits & ~move.before.bits & node.fixed.bits
        assert node.keeps_policy(index, assigned[index])
        assert node.tolerates(index, assigned[index]), "not even in between is a pod worse off"
        assert node.may_pass(assigned), "a stop after any step leaves no pod in conflict"
    return tuple(assigned)


BLOCKS = 40
"""The five hundred nodes are tried in so many parts."""

SEEDS = 500


@each_row("block", range(BLOCKS), every=20)
def test_five_hundred_fragmented_nodes(block: int) -> None:
    """
    No pod is worse off at any step, the largest block shrinks only for fewer crossings, and these become as few as in sorted order.

    Sorted order pays no heed to who suffers. Where it breaks no rule, the plan has no more crossings. Where it does, the plan has
    at most one more than sorted order has, or than each pod by itself needs, whichever is more.
    """
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        node = fragmented(seed)
        plan = plan_rebind(node)
        end = replay(node, plan)
        assert node.allows(end), f"seed {seed}"
        figures = node.figures(end)
        assert figures[:-1] <= node.figures_now[:-1]
        assert bool(plan.moves) == (figures[:-1] < node.figures_now[:-1]), f"seed {seed}: moves without an improvement"
        reference = in_sorted_order(node)
        assert reference is not None
        reached, broken = sum(crossings(node, reference)), broken_rules(node, reference)
        assert node.allows(reference) == (not broken), f"seed {seed}: {broken}"
        assert figures.crossings <= (max(reached, least_crossings(node)) + 1 if broken else reached), f"seed {seed}"


@pytest.mark.sampled(16)
@pytest.mark.parametrize("block", range(16))
def test_more_crossings_than_sorted_order_only_with_stuck_pods(block: int) -> None:
    """On nodes that the planner was not tuned on: what sorted order reaches without breaking a rule, or it is said who is stuck."""
    for seed in range(SEEDS + 25 * block, SEEDS + 25 * (block + 1)):
        node = fragmented(seed)
        reference = in_sorted_order(node)
        if reference is not None and not broken_rules(node, reference):
            plan = plan_rebind(node)
            assert plan.after.crossings <= sum(crossings(node, reference)) or plan.dropped, f"seed {seed}"


def test_no_plan_that_spares_every_pod_can_match_sorted_order() -> None:
    """Over all nodes, the NUMA nodes that each pod needs alone are more than the NUMA nodes after sorted order."""
    reached = least = 0
    for seed in range(SEEDS):
        node = fragmented(seed)
        reference = in_sorted_order(node)
        assert reference is not None
        reached += sum(crossings(node, reference))
        least += least_crossings(node)
    assert least > reached


@pytest.mark.sampled(10)
@pytest.mark.parametrize("block", range(10))
def test_nodes_with_little_room_and_policies(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        node = beset(seed)
        plan = plan_rebind(node)
        end = replay(node, plan)
        assert node.allows(end), f"seed {seed}"
        assert bool(plan.moves) == (node.figures(end)[:-1] < node.figures_now[:-1])


@pytest.mark.sampled(10)
@pytest.mark.parametrize("block", range(10))
def test_nodes_with_pods_beside_one_that_stays_and_is_exclusive(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        node = with_pods_that_stay(seed)
        plan = plan_rebind(node)
        assert node.allows(replay(node, plan)) or not plan.moves, f"seed {seed}"


def test_two_pods_beside_an_exclusive_one_are_planned() -> None:
    """Of the CPUs that may be given away there are fewer than these pods hold."""
    node = layout("1x2x2x2", pinned("a", "1-2"), pinned("b", "4,6"), pinned("c", "5"))
    alone = replace(node, fixed=CpuSet.parse("0-3,7"))
    plan = plan_rebind(alone)
    assert not plan.moves
    replay(alone, plan)


def test_the_same_node_gets_the_same_plan() -> None:
    assert all(plan_rebind(fragmented(seed)) == plan_rebind(fragmented(seed)) for seed in range(5))
