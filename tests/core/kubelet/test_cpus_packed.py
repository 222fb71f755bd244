"""The kubelet's packed assignment, its spread order and its uncore alignment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import Cpu, CpuTopology
from koord_numa.core.cpus.cpu_request import NotEnoughCpus
from koord_numa.core.cpus.kubelet_assignment import assign, take_packed
from koord_numa.core.cpus.kubelet_options import StaticOptions
from koord_numa.core.cpuset import EMPTY, CpuSet
from tests.machines import machine, machine_from_topo
from tests.strategies import cpusets_of, machines
from tests.tables import each_row

PLAIN = StaticOptions()
SPREAD = StaticOptions(distribute_across_cores=True)
UNCORE = StaticOptions(prefer_align_uncore=True)

INTERLEAVED = CpuTopology(
    cpus=tuple(Cpu(id=cpu, core=cpu % 6, numa=cpu % 2, socket=cpu % 2, uncore=cpu % 2) for cpu in range(12))
)
"""Core i has the CPUs i and i + 6; even cores are on NUMA node 0, odd ones on NUMA node 1."""

CACHES = machine_from_topo({"s": 1, "n": 1, "c": 12, "t": 2, "layout": "seq", "coreid": "global", "uncore_cores": 4})
"""Three uncore caches of eight CPUs on one NUMA node."""


@each_row(
    ("free", "count", "options", "expected"),
    [
        pytest.param("0-11", 8, PLAIN, "0-2,4,6-8,10", id="a-numa-node-and-a-core"),
        pytest.param("1-5,7-11", 1, PLAIN, "2", id="the-fuller-numa-node"),
        pytest.param("0-11", 8, SPREAD, "0-4,6,8,10", id="spread-by-cpu-id"),
        pytest.param("0-11", 3, PLAIN, "0,2,6", id="a-core-and-a-cpu"),
        pytest.param("0-3,6-8", 1, PLAIN, "3", id="the-core-already-split"),
        pytest.param("0-11", 12, SPREAD, "0-11", id="everything"),
    ],
)
def test_interleaved(free: str, count: int, options: StaticOptions, expected: str) -> None:
    assert str(take_packed(INTERLEAVED, CpuSet.parse(free), count, options)) == expected


@each_row(
    ("free", "count", "expected"),
    [
        pytest.param("0-23", 8, "0-7", id="one-cache"),
        pytest.param("0-23", 12, "0-11", id="a-cache-and-a-part"),
        pytest.param("2-23", 6, "2-7", id="the-fullest-cache-that-holds-it"),
        pytest.param("2-23", 8, "8-15", id="a-whole-cache-before-a-started-one"),
        pytest.param("0-23", 3, "0-2", id="an-odd-count-leaves-a-sibling"),
        pytest.param("4-7,10-15,18-23", 8, "4-7,10-13", id="no-cache-holds-it"),
    ],
)
def test_uncore_caches(free: str, count: int, expected: str) -> None:
    assert str(take_packed(CACHES, CpuSet.parse(free), count, UNCORE)) == expected


def test_more_numa_nodes_than_sockets_nest_in_sockets() -> None:
    """Socket 1 has fewer free CPUs, so its NUMA nodes come first although NUMA node 0 is the fullest of all."""
    node = machine("2x2x4x2")
    free = node.all - CpuSet.parse("0-5,16-18,24-29")
    assert str(take_packed(node, free, 4, PLAIN)) == "20-21,30-31"


def test_no_is_a_value_with_numbers() -> None:
    assert take_packed(INTERLEAVED, CpuSet.parse("0,40"), 2, PLAIN) == NotEnoughCpus(2, 1)


def test_nothing_asked_for_is_nothing_taken() -> None:
    assert take_packed(INTERLEAVED, INTERLEAVED.all, 0, PLAIN) == EMPTY


def test_a_busy_sibling_of_a_big_core_is_never_taken() -> None:
    """One CPU free of a two-threaded core equals the average of one here; the kubelet would take the busy one with it."""
    fast = [Cpu(id=cpu, core=0, numa=0, socket=0, uncore=0) for cpu in (0, 1)]
    slow = [Cpu(id=cpu, core=cpu, numa=0, socket=0, uncore=0) for cpu in (2, 3)]
    node = CpuTopology(cpus=(*fast, *slow))
    assert take_packed(node, CpuSet.parse("1-3"), 2, PLAIN) == CpuSet.parse("1-2")


@given(st.data())
def test_chosen_cpus_are_free_and_exact_in_number(data: st.DataObject) -> None:
    node = data.draw(machines())
    free, count = data.draw(cpusets_of(node)), data.draw(st.integers(1, len(node.cpus)))
    options = StaticOptions(*data.draw(st.tuples(*[st.booleans()] * 4)))
    found = assign(node, free, count, options)
    if count > len(free):
        assert found == NotEnoughCpus(count, len(free))
    else:
        assert isinstance(found, CpuSet)
        assert (len(found), found <= free) == (count, True)


@given(st.data())
def test_whole_cores_as_long_as_there_are_any(data: st.DataObject) -> None:
    """On machines of equal cores, packing an even share of whole cores splits none."""
    node = machine(
        data.draw(st.sampled_from(["2x1x5x2", "2x2x3x2", "1x2x3x4"])), data.draw(st.sampled_from(["seq", "split"]))
    )
    cores = data.draw(st.sets(st.sampled_from(node.cores), min_size=1))
    free = CpuSet(sum(core.bits for core in cores))
    taken = take_packed(node, free, node.threads_per_core * data.draw(st.integers(1, len(cores))), PLAIN)
    assert isinstance(taken, CpuSet)
    assert all(core.bits & taken.bits in (0, core.bits) for core in node.cores)
