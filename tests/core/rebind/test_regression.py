"""Counting only what changes must say what counting everything says."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.regression import Changes, Standing, standing_of
from tests.core.rebind.nodes import beset, board, fragmented, tenant


def shuffled(rng: Random, node: NodeLayout, standing: Standing) -> Changes:
    """A few tenants somewhere else on what is free beside the others; tied ones keep their NUMA nodes."""
    chosen = rng.sample(range(len(node.tenants)), min(len(node.tenants), rng.randint(1, 3)))
    free = standing.free | sum(standing.seats[index] for index in chosen)
    changes = {}
    for index in sorted(chosen, key=lambda index: node.tenants[index].per_numa is None):
        bits = 0
        for here in node.machine.numa_bits.values() if node.tenants[index].per_numa is not None else (-1,):
            count = (standing.seats[index] & here).bit_count()
            bits |= sum(1 << cpu for cpu in rng.sample(list(CpuSet(free & here & node.usable)), count))
        changes[index] = bits
        free &= ~bits
    return changes


@given(st.integers(0, 10_000))
def test_a_change_is_worth_what_the_whole_is_worth(seed: int) -> None:
    rng = Random(seed)
    node = rng.choice([fragmented, beset])(seed)
    if not node.tenants:
        return
    standing = standing_of(node, node.now)
    # Somewhere that is no better than today, so that changes for the better are met too.
    seats = list(node.now)
    for index, bits in shuffled(rng, node, standing).items():
        seats[index] = bits
    standing = standing_of(node, tuple(seats))
    for _ in range(8):
        changes = shuffled(rng, node, standing)
        seats = list(standing.seats)
        for index, bits in changes.items():
            seats[index] = bits
        counted = standing_of(node, tuple(seats))
        assert (counted.harm == 0) == node.allows(seats)
        assert standing.improved(changes) == (counted if counted.worth < standing.worth else None)


def test_today_harms_nobody() -> None:
    node = fragmented(7)
    assert (standing_of(node, node.now).harm, standing_of(node, node.now).figures) == (0, node.figures_now)


CROWDED = board("1x2x2x2", tenant("a", "0-1"), tenant("b", "2,4"), room={0: 3, 1: 1})

HARM = {
    "another NUMA node": ({0: "0,6"}, 1 + 2 + 2),  # one NUMA node more, two split cores, the block of 6-7, and room
    "room only": ({0: "6-7"}, 1),
    "a core more": ({0: "0,3"}, 2),
    "nothing": ({1: "3,4"}, 0),
}


@pytest.mark.parametrize(("moved", "harm"), HARM.values(), ids=HARM.keys())
def test_harm_adds_up(moved: dict[int, str], harm: int) -> None:
    node = replace(CROWDED, room={0: 3, 1: 2})
    seats = list(node.now)
    for index, cpus in moved.items():
        seats[index] = CpuSet.parse(cpus).bits
    assert standing_of(node, tuple(seats)).harm == harm
