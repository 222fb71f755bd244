"""Machines: what is counted and grouped, and that odd ones are data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import (
    UNKNOWN_DISTANCE,
    Core,
    Cpu,
    CpuTopology,
    TopologyCounts,
    cpu_topology_of,
    regular_topology,
)
from koord_numa.core.cpuset import EMPTY, CpuSet
from tests.machines import machine
from tests.strategies import machines


def test_a_regular_machine() -> None:
    node = regular_topology(2, 1, 2, 2)
    assert node.cores == (
        Core(id=0, numa=0, socket=0, uncore=0, bits=0b11),
        Core(id=1, numa=0, socket=0, uncore=0, bits=0b1100),
        Core(id=2, numa=1, socket=1, uncore=1, bits=0b110000),
        Core(id=3, numa=1, socket=1, uncore=1, bits=0b11000000),
    )
    assert node.counts == TopologyCounts(cpus=8, cores=4, sockets=2, numa=2, uncores=2)
    assert (node.numa_bits, node.socket_bits) == ({0: 0xF, 1: 0xF0}, {0: 0xF, 1: 0xF0})
    assert (node.threads_per_core, node.cpus_per_numa, node.cpus_per_socket, node.cpus_per_uncore) == (2, 4, 4, 4)
    assert (node.distance(0, 0), node.distance(0, 1), node.all) == (10, 32, CpuSet.parse("0-7"))


def test_core_ids_may_repeat_on_another_numa_node_or_socket() -> None:
    node = cpu_topology_of([(0, 0, 0, 0), (1, 0, 0, 1), (2, 0, 1, 2), (3, 0, 0, 0)])
    assert [core.bits for core in node.cores] == [0b1001, 0b10, 0b100]


def test_numa_nodes_without_cpus_do_not_count_in_averages() -> None:
    node = cpu_topology_of([(0, 0, 0, 0), (1, 0, 0, 0), (2, 1, 0, 2), (3, 1, 0, 2)], numa_ids=[5])
    assert (node.numa_ids, node.numa_bits, node.cpus_per_numa) == ((0, 2, 5), {0: 0b11, 2: 0b1100, 5: 0}, 2)
    assert node.numa_mask == 0b100101
    assert [node.numa_of(CpuSet.parse(text)) for text in ("", "0", "1-2", "99")] == [0, 0b1, 0b101, 0]


def test_no_cpus_at_all() -> None:
    node = CpuTopology(cpus=(), numa_ids=(0,))
    averages = (node.threads_per_core, node.cpus_per_numa, node.cpus_per_socket, node.cpus_per_uncore)
    assert (node.all, averages, node.numa_mask) == (EMPTY, (0, 0, 0, 0), 1)


def test_averages_are_rounded_down_over_offline_cpus() -> None:
    node = cpu_topology_of([(0, 0, 0, 0), (1, 1, 0, 0), (9, 1, 0, 0)])
    assert (node.threads_per_core, node.cpus_per_numa) == (1, 3)


def test_declared_totals_replace_counted_ones() -> None:
    declared = TopologyCounts(cpus=8, cores=4, sockets=1, numa=0, uncores=2)
    node = CpuTopology(cpus=machine("1x1x2x2").cpus, declared=declared)
    assert (node.counts, node.threads_per_core, node.cpus_per_numa, node.cpus_per_uncore) == (declared, 2, 0, 4)


def test_unknown_distances_and_uncores() -> None:
    node = cpu_topology_of([(0, 0, 3, 0), (1, 1, 3, 1, 7)], distances=[[10, 20], [21]])
    assert [node.distance(a, b) for a, b in ((0, 1), (1, 0), (1, 1))] == [20, 21, UNKNOWN_DISTANCE]
    assert [cpu.uncore for cpu in node.cpus] == [3, 7]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param([(0, 0, 0, 0), (0, 1, 0, 0)], "a CPU id is listed twice", id="twice"),
        pytest.param([(0, 0, 0, 1024)], "NUMA ids must be 0 to 1023, found 1024 to 1024", id="numa-too-large"),
        pytest.param([(0, 0, 0, -1)], "NUMA ids must be 0 to 1023, found -1 to -1", id="numa-negative"),
    ],
)
def test_what_is_no_machine(rows: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cpu_topology_of(rows)


@given(st.data())
def test_the_order_of_cpus_does_not_matter(data: st.DataObject) -> None:
    node = data.draw(machines(32))
    other = CpuTopology(cpus=tuple(data.draw(st.permutations(node.cpus))), numa_ids=node.numa_ids)
    assert (other, hash(other), other.cores, other.counts) == (node, hash(node), node.cores, node.counts)


@given(machines(32))
def test_every_grouping_covers_every_cpu_once(node: CpuTopology) -> None:
    for groups in (node.numa_bits.values(), node.socket_bits.values(), [core.bits for core in node.cores]):
        assert sum(groups) == node.bits
        assert sum(bits.bit_count() for bits in groups) == len(node.cpus)
    assert all(node.core_bits[cpu.id] >> cpu.id & 1 for cpu in node.cpus)


def test_machines_differ_by_what_they_are() -> None:
    cpu = Cpu(id=0, core=0, numa=0, socket=0, uncore=0)
    kinds = [
        CpuTopology(cpus=(cpu,)),
        CpuTopology(cpus=(cpu,), numa_ids=(0, 1)),
        CpuTopology(cpus=(cpu,), distances={(0, 0): 10}),
        CpuTopology(cpus=(cpu,), declared=TopologyCounts(1, 1, 1, 1, 1)),
    ]
    assert [[a == b for b in kinds] for a in kinds] == [[i == j for j in range(4)] for i in range(4)]


def test_ids_of_gpu_memory_are_far_above_those_of_cpus() -> None:
    cpus = [(cpu, cpu, cpu // 2, cpu // 2) for cpu in range(4)]
    machine = cpu_topology_of(cpus, numa_ids=[0, 1, 72, 73])
    assert machine.numa_ids == (0, 1, 72, 73)
    assert machine.numa_bits[73] == 0
    assert machine.numa_mask == 0b11 | 0b11 << 72
