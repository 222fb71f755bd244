"""Bind policies around the CPU take: required policies, downgrades, even distribution, machines without SMT."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import Cpu, CpuTopology
from koord_numa.core.cpus.bind_policies import (
    NO_PCPU_LEVEL_WITHOUT_SMT,
    NO_SPREAD_WITHOUT_SMT,
    NUMA_LEVEL_DOWNGRADED,
    CpuPick,
    CpuPolicies,
    Downgrade,
    has_shape,
    pick_cpus,
    shaped,
)
from koord_numa.core.cpus.cpu_request import UNOCCUPIED, CpuRequest, NotEnoughCpus
from koord_numa.core.cpus.take import take_cpus
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy
from tests.machines import machine
from tests.strategies import asks, cpusets_of, machines, occupancies, occupancy_of, odd_machines
from tests.tables import each_row

FULL, SPREAD = CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS
PCPU, NUMA, UNUSED = CpuExclusivePolicy.PCPU_LEVEL, CpuExclusivePolicy.NUMA_NODE_LEVEL, CpuExclusivePolicy.NONE
EVENLY = NumaAllocateStrategy.DISTRIBUTE_EVENLY


@each_row(
    ("free", "wanted", "expected"),
    [
        pytest.param("0-15", CpuRequest(4, FULL), CpuPick(CpuSet.parse("0-3")), id="whole-cores"),
        pytest.param("1-3,5,8-15", CpuRequest(4, FULL), CpuPick(CpuSet.parse("8-11")), id="split-cores-do-not-count"),
        pytest.param(
            "1,3-5",
            CpuRequest(4, FULL),
            NotEnoughCpus(4, 2, "not enough CPUs in whole free cores"),
            id="too-few-whole-cores",
        ),
        pytest.param(
            "0-15",
            CpuRequest(3, FULL),
            NotEnoughCpus(3, 16, "the free whole cores do not add up to the requested CPUs"),
            id="an-odd-count",
        ),
        pytest.param("1-3,5", CpuRequest(3, SPREAD), CpuPick(CpuSet.parse("1-2,5")), id="one-cpu-a-core"),
        pytest.param(
            "0-5", CpuRequest(4, SPREAD), NotEnoughCpus(4, 3, "not enough cores with a free CPU"), id="too-few-cores"
        ),
    ],
)
def test_required_policies(free: str, wanted: CpuRequest, expected: CpuPick | NotEnoughCpus) -> None:
    assert pick_cpus(CpuPolicies(wanted, required=True), machine("2x1x4x2"), CpuSet.parse(free)) == expected


@pytest.mark.parametrize(
    ("bind", "preferred", "expected"),
    [
        pytest.param(FULL, "3,6-7", "0-1,6-7", id="half-a-core-is-no-whole-one"),
        pytest.param(SPREAD, "3,7", "0,3-4,7", id="the-preferred-of-two-siblings"),
    ],
)
def test_preferred_cpus_keep_a_required_shape(bind: CpuBindPolicy, preferred: str, expected: str) -> None:
    node = machine("1x1x4x2")
    wish = CpuPolicies(CpuRequest(4, bind), required=True)
    assert pick_cpus(wish, node, node.all, UNOCCUPIED, CpuSet.parse(preferred)) == CpuPick(CpuSet.parse(expected))


def test_required_cores_of_hybrid_sizes_add_up() -> None:
    fast = [Cpu(id=cpu, core=cpu // 2, numa=0, socket=0, uncore=0) for cpu in range(8)]
    slow = [Cpu(id=cpu, core=cpu, numa=0, socket=0, uncore=0) for cpu in range(8, 10)]
    node = CpuTopology(cpus=(*fast, *slow))
    picks = [pick_cpus(CpuPolicies(CpuRequest(n, FULL), required=True), node, node.all) for n in (3, 4, 9)]
    assert picks == [CpuPick(CpuSet.parse(text)) for text in ("0-1,8", "0-3", "0-8")]


@each_row(
    ("held", "count", "downgrade", "expected"),
    [
        pytest.param("0", 4, Downgrade.TO_PCPU_LEVEL, CpuPick(CpuSet.parse("8-11"), NUMA), id="honoured"),
        pytest.param(
            "0",
            10,
            Downgrade.TO_PCPU_LEVEL,
            CpuPick(CpuSet.parse("2-3,8-15"), PCPU, (NUMA_LEVEL_DOWNGRADED,)),
            id="too-big-for-what-is-left",
        ),
        pytest.param("0", 10, Downgrade.NONE, CpuPick(CpuSet.parse("2-3,8-15"), NUMA), id="ignored-as-koordinator"),
        pytest.param(
            "0,8",
            4,
            Downgrade.TO_PCPU_LEVEL,
            CpuPick(CpuSet.parse("2-5"), PCPU, (NUMA_LEVEL_DOWNGRADED,)),
            id="all-numa-nodes-held",
        ),
    ],
)
def test_numa_level_downgrades_to_pcpu_level(held: str, count: int, downgrade: Downgrade, expected: CpuPick) -> None:
    node, cpus = machine("2x1x4x2"), CpuSet.parse(held)
    wish = CpuPolicies(CpuRequest(count, FULL, NUMA), downgrade=downgrade)
    assert pick_cpus(wish, node, node.all - cpus, occupancy_of([(cpus, NUMA)])) == expected


def test_numa_level_reaches_over_several_unused_numa_nodes() -> None:
    """The take alone would use the first socket, where NUMA node 0 is held."""
    node, held = machine("2x2x2x2"), CpuSet.parse("0")
    found = pick_cpus(CpuPolicies(CpuRequest(6, FULL, NUMA)), node, node.all - held, occupancy_of([(held, NUMA)]))
    assert isinstance(found, CpuPick)
    assert (len(found.cpus), node.numa_of(found.cpus) & 1, found.exclusive) == (6, 0, NUMA)


@each_row(
    ("wanted", "notes"),
    [
        pytest.param(CpuRequest(3, FULL, NUMA), (), id="what-has-a-meaning"),
        pytest.param(CpuRequest(3, SPREAD), (NO_SPREAD_WITHOUT_SMT,), id="spread"),
        pytest.param(CpuRequest(3, FULL, PCPU), (NO_PCPU_LEVEL_WITHOUT_SMT,), id="pcpu-level"),
        pytest.param(CpuRequest(3, SPREAD, PCPU), (NO_SPREAD_WITHOUT_SMT, NO_PCPU_LEVEL_WITHOUT_SMT), id="both"),
    ],
)
def test_without_smt_sibling_policies_are_dropped_with_a_note(wanted: CpuRequest, notes: tuple[str, ...]) -> None:
    node = machine("2x1x4x1")
    exclusive = NUMA if wanted.exclusive is NUMA else UNUSED
    assert pick_cpus(CpuPolicies(wanted), node, node.all) == CpuPick(CpuSet.parse("0-2"), exclusive, notes)


def test_without_smt_numa_level_downgrades_to_nothing() -> None:
    node, held = machine("2x1x4x1"), CpuSet.parse("0,4")
    found = pick_cpus(CpuPolicies(CpuRequest(2, FULL, NUMA)), node, node.all - held, occupancy_of([(held, NUMA)]))
    assert found == CpuPick(CpuSet.parse("1-2"), UNUSED, (NUMA_LEVEL_DOWNGRADED,))


@given(st.data())
def test_without_smt_the_dropped_policies_change_no_choice(data: st.DataObject) -> None:
    node = machine(data.draw(st.sampled_from(["1x1x5x1", "2x2x3x1", "3x1x4x1"])))
    free, occupancy, wanted = data.draw(cpusets_of(node)), data.draw(occupancies(node)), data.draw(asks(8))
    picked = pick_cpus(CpuPolicies(wanted, downgrade=Downgrade.NONE), node, free, occupancy)
    if wanted.strategy is not EVENLY:
        taken = take_cpus(wanted, node, free, occupancy)
        assert (picked.cpus if isinstance(picked, CpuPick) else picked) == taken


@given(st.data())
def test_picks_are_free_exact_and_shaped(data: st.DataObject) -> None:
    node = data.draw(machines(32))
    free, preferred, wanted = data.draw(cpusets_of(node)), data.draw(cpusets_of(node)), data.draw(asks(12))
    wish = CpuPolicies(wanted, required=data.draw(st.booleans()), downgrade=data.draw(st.sampled_from(Downgrade)))
    found = pick_cpus(wish, node, free, data.draw(occupancies(node)), preferred)
    if isinstance(found, CpuPick):
        assert (len(found.cpus), found.cpus <= free) == (wanted.count, True)
        assert not wish.required or has_shape(wanted.bind, node, found.cpus)
    else:
        assert wish.required or len(free) < wanted.count


def _can_be_served(node: CpuTopology, free: CpuSet, wish: CpuPolicies) -> bool:
    """Return true if brute force finds a set of free CPUs that the pod accepts."""
    return any(
        not wish.required or has_shape(wish.request.bind, node, CpuSet.of(cpus))
        for cpus in combinations(free, wish.request.count)
    )


@given(st.data())
def test_a_request_is_served_exactly_if_any_choice_serves_it(data: st.DataObject) -> None:
    node = data.draw(odd_machines(max_cores=4) | st.sampled_from([machine("2x1x2x2"), machine("1x2x2x2", "split")]))
    free = CpuSet.of(list(data.draw(cpusets_of(node)))[:8])
    wish = CpuPolicies(data.draw(asks(6)), required=data.draw(st.booleans()))
    found = pick_cpus(wish, node, free, data.draw(occupancies(node)), data.draw(cpusets_of(node)))
    assert isinstance(found, CpuPick) == _can_be_served(node, free, wish)


@given(st.data())
def test_shaping_keeps_the_shape_of_shaped_cpus(data: st.DataObject) -> None:
    node = data.draw(machines(32))
    bind, free = data.draw(st.sampled_from([FULL, SPREAD])), data.draw(cpusets_of(node))
    pool = shaped(bind, node, free, data.draw(cpusets_of(node)))
    assert (pool <= free, has_shape(bind, node, pool), shaped(bind, node, pool)) == (True, True, pool)


def test_a_policy_without_a_shape_accepts_all_known_cpus() -> None:
    node = machine("1x1x2x2")
    assert shaped(CpuBindPolicy.DEFAULT, node, CpuSet.parse("0,3,77")) == CpuSet.parse("0,3")
    assert has_shape(CpuBindPolicy.DEFAULT, node, EMPTY)
