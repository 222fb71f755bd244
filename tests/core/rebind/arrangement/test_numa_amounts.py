"""Amounts per NUMA node follow the CPUs of a pod that is moved, and a NUMA node is never given more memory than it has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.core.rebind.layout import NodeLayout, NumaAmounts, PinnedPod, amounts_after
from koord_numa.core.rebind.plan import plan_rebind
from koord_numa.core.resources import total
from koord_numa.core.value_objects import replace

GI = 1 << 30
TOPOLOGY = regular_topology(1, 2, 4, 2)
"""CPUs 0-7 on NUMA node 0, 8-15 on NUMA node 1."""

HALF_AND_HALF: NumaAmounts = ((0, {"cpu": 2000, "memory": 4 * GI}), (1, {"cpu": 2000, "memory": 4 * GI}))


@pytest.mark.parametrize(
    ("cpus", "after"),
    [
        pytest.param("8-11", ((1, {"cpu": 4000, "memory": 8 * GI}),), id="gathered"),
        pytest.param("0-1,8-9", HALF_AND_HALF, id="as-many-as-before-on-each"),
        pytest.param(
            "0,8-10", ((0, {"cpu": 1000, "memory": 2 * GI}), (1, {"cpu": 3000, "memory": 6 * GI})), id="by-share"
        ),
    ],
)
def test_amounts_follow_the_cpus(cpus: str, after: NumaAmounts) -> None:
    assert amounts_after(HALF_AND_HALF, TOPOLOGY, CpuSet.parse(cpus)) == after


def test_a_pod_without_numa_amounts_gets_none() -> None:
    assert amounts_after((), TOPOLOGY, CpuSet.parse("0-3")) == ()


@given(st.sets(st.integers(0, 15), min_size=4, max_size=4), st.sets(st.integers(0, 15), min_size=4, max_size=4))
def test_nothing_is_lost_and_steps_do_not_matter(between: set[int], end: set[int]) -> None:
    direct = amounts_after(HALF_AND_HALF, TOPOLOGY, CpuSet.of(end))
    assert total(held for _, held in direct) == total(held for _, held in HALF_AND_HALF)
    first = amounts_after(HALF_AND_HALF, TOPOLOGY, CpuSet.of(between))
    assert amounts_after(first, TOPOLOGY, CpuSet.of(end)) in (direct, first)


def crossing(limit: int) -> NodeLayout:
    """One pod over both NUMA nodes; on each there is memory for ``limit`` GiB of pods that may move."""
    pod = PinnedPod(PodKey("default", "a", "a"), CpuSet.parse("0-1,8-9"), numa=HALF_AND_HALF)
    return NodeLayout(TOPOLOGY, (pod,), amount_limits={"memory": {0: limit * GI, 1: limit * GI}})


def test_a_pod_is_gathered_where_its_memory_has_room() -> None:
    plan = plan_rebind(crossing(8))
    assert (plan.before.crossings, plan.after.crossings) == (1, 0)


def test_a_pod_stays_where_its_memory_would_have_no_room() -> None:
    plan = plan_rebind(crossing(7))
    assert plan.after.crossings == 1


def test_what_is_overdrawn_today_is_no_obstacle() -> None:
    layout = replace(crossing(3))
    assert not layout.overloaded(layout.now)
    assert layout.overloaded([CpuSet.parse("8-11").bits]) == 1
