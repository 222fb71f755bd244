"""Counting only what changes must say what counting everything says."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.search import Changes, EvaluatedLayout, evaluate
from koord_numa.core.value_objects import replace
from tests.core.rebind.nodes import beset, fragmented, layout, pinned
from tests.tables import each_row


def shuffled(rng: Random, node: NodeLayout, evaluated: EvaluatedLayout) -> Changes:
    """A few pods somewhere else on what is free beside the others; tied ones keep their NUMA nodes."""
    chosen = rng.sample(range(len(node.pods)), min(len(node.pods), rng.randint(1, 3)))
    free = evaluated.free | sum(evaluated.assigned[index] for index in chosen)
    changes = {}
    for index in sorted(chosen, key=lambda index: node.pods[index].cpus_per_numa is None):
        bits = 0
        for here in node.machine.numa_bits.values() if node.pods[index].cpus_per_numa is not None else (-1,):
            count = (evaluated.assigned[index] & here).bit_count()
            bits |= sum(1 << cpu for cpu in rng.sample(list(CpuSet(free & here & node.usable)), count))
        changes[index] = bits
        free &= ~bits
    return changes


@given(st.integers(0, 10_000))
def test_a_change_is_worth_what_the_whole_is_worth(seed: int) -> None:
    rng = Random(seed)
    node = rng.choice([fragmented, beset])(seed)
    if not node.pods:
        return
    evaluated = evaluate(node, node.now)
    # Somewhere that is no better than today, so that changes for the better are met too.
    assigned = list(node.now)
    for index, bits in shuffled(rng, node, evaluated).items():
        assigned[index] = bits
    evaluated = evaluate(node, tuple(assigned))
    for _ in range(8):
        changes = shuffled(rng, node, evaluated)
        assigned = list(evaluated.assigned)
        for index, bits in changes.items():
            assigned[index] = bits
        counted = evaluate(node, tuple(assigned))
        assert (counted.regression == 0) == node.allows(assigned)
        assert evaluated.improved(changes) == (counted if counted.rank < evaluated.rank else None)


def test_today_is_no_regression() -> None:
    node = fragmented(7)
    assert (evaluate(node, node.now).regression, evaluate(node, node.now).figures) == (0, node.figures_now)


CROWDED = layout("1x2x2x2", pinned("a", "0-1"), pinned("b", "2,4"), cpu_limit={0: 3, 1: 1})

HARM = {
    "another NUMA node": ({0: "0,6"}, 1 + 2 + 2),  # one NUMA node more, two split cores, the block of 6-7, and room
    "room only": ({0: "6-7"}, 1),
    "a core more": ({0: "0,3"}, 2),
    "nothing": ({1: "3,4"}, 0),
}


@each_row(("moved", "regression"), HARM.values(), ids=HARM.keys())
def test_harm_adds_up(moved: dict[int, str], regression: int) -> None:
    node = replace(CROWDED, cpu_limit={0: 3, 1: 2})
    assigned = list(node.now)
    for index, cpus in moved.items():
        assigned[index] = CpuSet.parse(cpus).bits
    assert evaluate(node, tuple(assigned)).regression == regression
