"""Koordinator's choice of CPUs: its documented answers by hand, and the laws that every choice obeys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import Cpu, CpuTopology
from koord_numa.core.cpus.cpu_request import UNOCCUPIED, CpuRequest, NotEnoughCpus
from koord_numa.core.cpus.take import take_cpus
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy
from koord_numa.core.value_objects import replace
from tests.machines import machine
from tests.strategies import asks, cpusets_of, machines, occupancies, occupancy_of
from tests.tables import each_row

FULL, SPREAD = CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS
MOST, LEAST = NumaAllocateStrategy.MOST_ALLOCATED, NumaAllocateStrategy.LEAST_ALLOCATED
PCPU, NUMA, UNUSED = CpuExclusivePolicy.PCPU_LEVEL, CpuExclusivePolicy.NUMA_NODE_LEVEL, CpuExclusivePolicy.NONE


@each_row(
    ("shorthand", "taken", "bind", "count", "most", "least"),
    [
        pytest.param("1x1x4x2", "0-1", FULL, 2, "2-3", "2-3", id="the-next-core"),
        pytest.param("2x1x4x2", "", FULL, 12, "0-11", "0-11", id="a-socket-and-a-part"),
        pytest.param("2x1x4x2", "", FULL, 5, "0-4", "0-4", id="an-odd-count-splits-the-last-core"),
        pytest.param("2x2x4x2", "0-5,16-23", FULL, 6, "24-29", "8-13", id="one-numa-by-strategy"),
        pytest.param("2x2x4x2", "0-5,16-23", FULL, 12, "6-15,24-25", "6-15,24-25", id="more-than-one-numa"),
        pytest.param("2x2x4x2", "0-3,8-11", FULL, 4, "4-7", "16-19", id="tightest-or-emptiest"),
        pytest.param("2x2x2x2", "0,2,4,8,10,12", FULL, 6, "5-7,13-15", "1,3,6-7,14-15", id="no-whole-cores-left"),
        pytest.param("1x1x4x2", "", SPREAD, 4, "0,2,4,6", "0,2,4,6", id="one-cpu-a-core"),
        pytest.param("2x1x4x2", "0,2", SPREAD, 4, "1,3-4,6", "8,10,12,14", id="spread-by-strategy"),
        pytest.param("2x1x4x2", "0,2", SPREAD, 6, "1,3-7", "8-12,14", id="spread-shares-cores"),
        pytest.param("2x1x4x1", "", SPREAD, 5, "0-4", "0-4", id="without-smt"),
        pytest.param("2x2x4x2", "0-3", SPREAD, 10, "4-12,14", "16-20,22,24,26,28,30", id="spread-over-a-socket"),
    ],
)
def test_documented_choices(shorthand: str, taken: str, bind: CpuBindPolicy, count: int, most: str, least: str) -> None:
    node = machine(shorthand)
    free = node.all - CpuSet.parse(taken)
    answers = [str(take_cpus(CpuRequest(count, bind, UNUSED, strategy), node, free)) for strategy in (MOST, LEAST)]
    assert answers == [most, least]


@each_row(
    ("shorthand", "held", "policy", "wanted", "expected"),
    [
        pytest.param(
            "2x1x4x2", "0,2", PCPU, CpuRequest(4, SPREAD, PCPU), "8,10,12,14", id="other-numa-when-cores-repel"
        ),
        pytest.param("2x1x8x2", "0,2", PCPU, CpuRequest(4, SPREAD, PCPU), "4,6,8,10", id="other-cores"),
        pytest.param("2x1x8x2", "0,2", PCPU, CpuRequest(4, SPREAD), "1,3-4,6", id="no-policy-is-not-repelled"),
        pytest.param("2x1x4x2", "0,2", NUMA, CpuRequest(4, SPREAD, NUMA), "8,10,12,14", id="other-numa"),
        pytest.param("2x1x4x2", "0,2", NUMA, CpuRequest(4, FULL, NUMA), "8-11", id="other-numa-in-whole-cores"),
        pytest.param("2x1x4x2", "0,2", NUMA, CpuRequest(4, FULL, PCPU), "4-7", id="only-like-repels-like"),
        pytest.param("2x1x4x2", "", PCPU, CpuRequest(10, SPREAD, PCPU), "0-4,6,8,10,12,14", id="repels-itself-last"),
    ],
)
def test_exclusive_policies(
    shorthand: str, held: str, policy: CpuExclusivePolicy, wanted: CpuRequest, expected: str
) -> None:
    node = machine(shorthand)
    cpus = CpuSet.parse(held)
    assert str(take_cpus(wanted, node, node.all - cpus, occupancy_of([(cpus, policy)]))) == expected


def test_shared_cpus_are_used_evenly() -> None:
    node = machine("1x1x4x2")
    held: list[tuple[CpuSet, CpuExclusivePolicy]] = []
    answers = []
    for count in (4, 5, 4):
        found = take_cpus(CpuRequest(count, FULL), node, node.all, occupancy_of(held, limit=2))
        assert isinstance(found, CpuSet)
        held.append((found, UNUSED))
        answers.append(str(found))
    assert answers == ["0-3", "0,4-7", "2-5"]


@each_row(
    ("available", "preferred", "expected"),
    [
        pytest.param("0-31", "", "0,2", id="none"),
        pytest.param("0-31", "11,13,15,17", "11,13", id="from-the-preferred-alone"),
        pytest.param("1,3-31", "", "1,3", id="not-free-not-taken"),
        pytest.param("0-31", "7", "0,7", id="and-then-from-the-rest"),
    ],
)
def test_preferred_cpus_come_first(available: str, preferred: str, expected: str) -> None:
    wanted = CpuRequest(2, SPREAD)
    found = take_cpus(wanted, machine("2x1x16x2"), CpuSet.parse(available), UNOCCUPIED, CpuSet.parse(preferred))
    assert str(found) == expected


def test_never_a_cpu_more_than_asked_for() -> None:
    """Three sockets with two free cores each and seven CPUs wanted: Koordinator answers 4-7,12-13,20-21, which is eight."""
    node = machine("3x1x4x2")
    assert str(take_cpus(CpuRequest(7, FULL), node, node.all - CpuSet.parse("0-3,8-11,16-19"))) == "4-7,12-14"


def test_no_is_a_value_with_numbers() -> None:
    answer = take_cpus(CpuRequest(3, SPREAD), machine("1x1x4x2"), CpuSet.parse("1-2,99"))
    assert (answer, str(answer)) == (NotEnoughCpus(3, 2), "not enough free CPUs: 3 wanted, 2 found")


def test_nothing_asked_for_is_nothing_taken() -> None:
    assert take_cpus(CpuRequest(0), machine("1x1x4x2"), EMPTY) == EMPTY


@given(st.data())
def test_chosen_cpus_are_free_and_exact_in_number(data: st.DataObject) -> None:
    node = data.draw(machines())
    free, preferred = data.draw(cpusets_of(node)), data.draw(cpusets_of(node))
    wanted = data.draw(asks(len(node.cpus)))
    found = take_cpus(wanted, node, free, data.draw(occupancies(node)), preferred)
    if wanted.count > len(free):
        assert found == NotEnoughCpus(wanted.count, len(free))
    else:
        assert isinstance(found, CpuSet)
        assert (len(found), found <= free) == (wanted.count, True)
        assert len(found & preferred) == min(wanted.count, len(free & preferred))


@given(st.data())
def test_consecutive_takes_are_disjoint_until_nothing_is_left(data: st.DataObject) -> None:
    node = data.draw(machines(32))
    free, total = node.all, EMPTY
    while free:
        wanted = data.draw(asks(min(5, len(free))))
        found = take_cpus(wanted, node, free)
        assert isinstance(found, CpuSet)
        assert not found & total
        free, total = free - found, total | found
    assert total == node.all


@given(st.data())
def test_the_order_of_inputs_does_not_matter(data: st.DataObject) -> None:
    node = data.draw(machines(32))
    shuffled = CpuTopology(cpus=tuple(data.draw(st.permutations(node.cpus))), numa_ids=node.numa_ids)
    wanted, free, occupancy = data.draw(asks(8)), data.draw(cpusets_of(node)), data.draw(occupancies(node))
    references = dict(data.draw(st.permutations(sorted(occupancy.references.items()))))
    mixed = replace(occupancy, references=references)
    assert take_cpus(wanted, node, free, occupancy) == take_cpus(wanted, shuffled, free, mixed)


def test_hybrid_cores() -> None:
    """Four cores with two threads and four with one count 1.5 CPUs a core, rounded down to one: the single-threaded are whole."""
    fast = [Cpu(id=cpu, core=cpu // 2, numa=0, socket=0, uncore=0) for cpu in range(8)]
    slow = [Cpu(id=cpu, core=cpu, numa=0, socket=0, uncore=0) for cpu in range(8, 12)]
    node = CpuTopology(cpus=(*fast, *slow))
    assert [str(take_cpus(CpuRequest(n, FULL), node, node.all)) for n in (3, 5)] == ["8-10", "0,8-11"]
