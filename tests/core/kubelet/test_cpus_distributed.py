"""The kubelet's distribution of CPUs over NUMA nodes, against hand-computed answers and a literal search."""

from collections.abc import Iterator
from itertools import combinations
from math import ceil
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import NotEnoughCpus
from koord_numa.core.cpus.kubelet_assignment import assign, representatives, take_distributed, take_packed
from koord_numa.core.cpus.kubelet_options import StaticOptions
from koord_numa.core.cpuset import CpuSet
from tests.machines import machine
from tests.strategies import cpusets_of, machines
from tests.tables import each_row

PLAIN = StaticOptions()
FOUR = machine("2x2x10x2", "split")
"""Core c has the CPUs c and c + 40; ten cores on each of four NUMA nodes."""


@each_row(
    ("count", "group", "expected"),
    [
        pytest.param(48, 1, "0-7,10-17,20-27,40-47,50-57,60-67", id="three-numa-nodes-evenly"),
        pytest.param(26, 1, "0-6,10-16,40-45,50-55", id="an-odd-share"),
        pytest.param(26, 2, "0-6,10-15,40-46,50-55", id="in-whole-cores"),
        pytest.param(7, 2, "0-3,40-42", id="no-multiple-is-packed"),
    ],
)
def test_documented_answers(count: int, group: int, expected: str) -> None:
    assert str(take_distributed(FOUR, FOUR.all, count, group, PLAIN)) == expected


def test_combinations_do_not_change_under_the_search() -> None:
    """Free CPUs 16, 14, 8, 12, 14, 14, 8, 14: the kubelet scores NUMA nodes 0, 1, 4, 5 and then uses 7 instead of 5."""
    node = machine("1x8x8x2")
    free = CpuSet.of(numa * 16 + cpu for numa, size in enumerate((16, 14, 8, 12, 14, 14, 8, 14)) for cpu in range(size))
    found = take_distributed(node, free, 48, 1, PLAIN)
    assert isinstance(found, CpuSet)
    assert node.numa_of(found) == 0b110011


def test_groups_that_do_not_divide_what_is_free_end() -> None:
    """Free CPUs 12, 9, 13, 9 and thirty wanted in twos: the kubelet deals the remainder forever."""
    node = machine("1x4x8x2")
    free = CpuSet.of(numa * 16 + cpu for numa, size in enumerate((12, 9, 13, 9)) for cpu in range(size))
    found = take_distributed(node, free, 30, 2, PLAIN)
    assert isinstance(found, CpuSet)
    assert (len(found), found <= free) == (30, True)


@pytest.mark.parametrize("shorthand", ["2x8x32x2", "2x32x32x2"], ids=["16-numa-nodes", "64-numa-nodes"])
def test_many_different_numa_nodes_end_too(shorthand: str) -> None:
    node = machine(shorthand)
    free = CpuSet.of(cpu.id for cpu in node.cpus if cpu.id % 64 >= cpu.numa // 2)
    found = take_distributed(node, free, len(free) // 2 + 2, 1, PLAIN)
    assert isinstance(found, CpuSet)
    assert (len(found), found <= free) == (len(free) // 2 + 2, True)


@each_row(
    ("options", "expected"),
    [
        pytest.param(StaticOptions(), "0-7,40-47", id="packed"),
        pytest.param(StaticOptions(distribute_across_numa=True), "0-7,40-47", id="distributed-over-one"),
        pytest.param(StaticOptions(distribute_across_cores=True), "0-15", id="spread"),
        pytest.param(
            StaticOptions.of({"distribute-cpus-across-numa": True, "full-pcpus-only": True}), "0-7,40-47", id="by-cores"
        ),
    ],
)
def test_options_choose_the_algorithm(options: StaticOptions, expected: str) -> None:
    assert str(assign(FOUR, FOUR.all, 16, options)) == expected


def test_the_group_is_a_core_under_full_pcpus_only() -> None:
    assert [StaticOptions(full_pcpus_only=full).group(FOUR) for full in (False, True)] == [1, 2]


@given(st.lists(st.integers(0, 2), max_size=7), st.integers(0, 7))
def test_representatives_are_the_first_of_their_kind(kinds: list[int], size: int) -> None:
    """Of all combinations, those in which no chosen item could be swapped for an unchosen neighbour of its kind before it."""
    expected = [
        chosen
        for chosen in combinations(range(len(kinds)), size)
        if not any(i and i - 1 not in chosen and kinds[i] == kinds[i - 1] for i in chosen)
    ]
    assert list(representatives(kinds, size)) == expected


@given(st.data())
def test_the_search_finds_what_a_literal_one_finds(data: st.DataObject) -> None:
    node = machine(data.draw(st.sampled_from(["1x3x3x2", "2x2x3x2", "4x1x2x2", "1x5x2x2", "2x1x6x1"])))
    free = data.draw(cpusets_of(node))
    group = data.draw(st.sampled_from([1, 2]))
    count = data.draw(st.integers(1, max(1, len(free)))) // group * group
    per_numa = _literally(node, free, count, group)
    found = take_distributed(node, free, count, group, PLAIN)
    if len(free) < count:
        assert isinstance(found, NotEnoughCpus)
    elif per_numa is None:
        assert found == take_packed(node, free, count, PLAIN)
    else:
        assert isinstance(found, CpuSet)
        taken = {numa: (bits & found.bits).bit_count() for numa, bits in node.numa_bits.items()}
        assert {numa: cpus for numa, cpus in taken.items() if cpus} == per_numa


@given(st.data())
def test_chosen_cpus_are_free_and_exact_in_number(data: st.DataObject) -> None:
    node = data.draw(machines())
    free, count = data.draw(cpusets_of(node)), data.draw(st.integers(1, len(node.cpus)))
    found = take_distributed(node, free, count, data.draw(st.integers(1, 4)), PLAIN)
    if count > len(free):
        assert found == NotEnoughCpus(count, len(free))
    else:
        assert isinstance(found, CpuSet)
        assert (len(found), found <= free) == (count, True)


def _literally(node: CpuTopology, available: CpuSet, count: int, group: int) -> dict[int, int] | None:
    """CPUs per NUMA node by trying every combination and every subset, as the rules are written; ``None``: packed."""
    free = {numa: n for numa, bits in node.numa_bits.items() if (n := (bits & available.bits).bit_count())}
    order = sorted(free, key=lambda numa: (_free_around(node, available, numa), free[numa], numa))
    per_numa = ceil(ceil(len(node.cpus) / group) / len(node.numa_bits))
    for size in range(ceil(count // group / per_numa), min(count // group, len(free)) + 1) if count else ():
        options = [
            (round(pstdev((free | after).values()), 3), after)
            for members in combinations(order, size)
            for after in _afterwards({numa: free[numa] for numa in members}, count, group)
        ]
        if options:
            _, after = min(options, key=lambda option: option[0])
            return {numa: free[numa] - left for numa, left in after.items() if left != free[numa]}
    return None


def _free_around(node: CpuTopology, available: CpuSet, numa: int) -> tuple[int, int]:
    """Return the free CPUs, in the order of sockets if sockets are the outer level."""
    if len(node.socket_bits) >= len(node.numa_bits):
        return (0, 0)
    socket = next(socket for socket, bits in node.socket_bits.items() if bits & node.numa_bits[numa])
    return ((node.socket_bits[socket] & available.bits).bit_count(), socket)


def _afterwards(free: dict[int, int], count: int, group: int) -> Iterator[dict[int, int]]:
    """Return the possible rests on these NUMA nodes: after the even share, and after each distribution of the remainder."""
    share = count // len(free) // group * group
    remainder = count - share * len(free)
    if sum(n // group * group for n in free.values()) < count or min(free.values()) < share:
        return
    left = {numa: n - share for numa, n in free.items()}
    if not remainder:
        yield left
    able = [numa for numa, n in left.items() if n >= group]
    for size in range(len(able), 0, -1) if remainder else ():
        for subset in combinations(able, size):
            after, missing = dict(left), remainder
            while missing and any(after[numa] >= group for numa in subset):
                for numa in subset:
                    if missing and after[numa] >= group:
                        after[numa] -= group
                        missing -= group
            if not missing:
                yield after
