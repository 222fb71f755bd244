"""On small nodes the planner's search must find what looking at everything finds."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy
from koord_numa.core.rebind.layout import Arrangement, Figures, NodeLayout
from koord_numa.core.rebind.plan import layout_of_pods, route
from koord_numa.core.rebind.search import SearchBudget, better_arrangements
from tests.core.rebind.nodes import FULL, SPREAD, layout, pinned
from tests.machines import machine
from tests.tables import each_row

LAST = Figures(1000, 1000, 0, 0, 0, 0)
"""Worse than any arrangement: no route is given up."""


@st.composite
def small_boards(draw: st.DrawFn) -> NodeLayout:
    """At most eight CPUs, at most four pods."""
    host = machine(draw(st.sampled_from(["1x2x2x2", "2x1x4x1", "1x1x4x2", "2x2x1x2"])))
    cpus = draw(st.permutations(sorted(host.all)))
    pods, start = [], 0
    for index in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 3))
        if start + count > len(cpus):
            break
        exclusive = draw(st.sampled_from([CpuExclusivePolicy.NONE, CpuExclusivePolicy.PCPU_LEVEL]))
        bind = draw(st.sampled_from([FULL, SPREAD]))
        held = str(CpuSet.of(cpus[start : start + count]))
        pods.append(pinned(f"pod-{index}", held, bind, exclusive, required=draw(st.booleans())))
        start += count
    return layout_of_pods(host, pods, CpuSet())


def every_arrangement(node: NodeLayout) -> set[Arrangement]:
    """By dealing all CPUs out in every order: nothing of the planner is used."""
    found: set[Arrangement] = set()
    sizes = [len(t.cpus) for t in node.pods]
    for dealt in permutations(sorted(node.machine.all), sum(sizes)):
        start, assigned = 0, []
        for size in sizes:
            assigned.append(sum(1 << cpu for cpu in dealt[start : start + size]))
            start += size
        found.add(tuple(assigned))
    return found


@given(small_boards())
def test_the_search_finds_the_best_of_all(node: NodeLayout) -> None:
    if sum(len(t.cpus) for t in node.pods) > 6:
        return  # eight CPUs dealt to seven places take too long to enumerate naively
    best = min(node.figures(a) for a in every_arrangement(node) if node.allows(a))
    found = next(iter(better_arrangements(node)), node.now)
    assert node.allows(found)
    assert node.figures(found)[:-1] == best[:-1]
    if best[:-1] < node.figures_now[:-1]:
        assert node.figures(found) == best


@given(small_boards())
def test_a_route_never_gives_a_cpu_to_two_pods(node: NodeLayout) -> None:
    for arrangement in better_arrangements(node)[:5]:
        way = route(node, node.now, arrangement, LAST, SearchBudget(1_000))
        assert way is not None
        assigned = list(node.now)
        for step in way.steps:
            assert assigned[step.pinned] == step.before
            assert not step.after & ~(node.free(assigned) | step.before)
            assert node.tolerates(step.pinned, step.after)
            assigned[step.pinned] = step.after
        assert tuple(assigned) == way.end
        assert all(way.end[i] == arrangement[i] for i in range(len(assigned)) if i not in way.dropped)


@each_row(
    ("bind", "cpus", "split"),
    [
        pytest.param(FULL, "0-3", 0, id="whole-cores"),
        pytest.param(FULL, "0,2", 2, id="two-halves"),
        pytest.param(SPREAD, "0,2", 0, id="spread-over-cores"),
        pytest.param(SPREAD, "0-1", 1, id="spread-on-one-core"),
    ],
)
def test_what_counts_as_split(bind: CpuBindPolicy, cpus: str, split: int) -> None:
    node = layout("1x2x2x2", pinned("a", cpus, bind))
    assert node.qualities_now[0].split_cores == split
