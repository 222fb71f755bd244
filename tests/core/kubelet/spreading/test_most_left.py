"""What init containers leave behind at most, against the kubelet's own assignment on machines of all kinds in use in any way."""

from random import Random

import pytest

from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.cpu_assignment import assign
from koord_numa.core.kubelet.cpu_manager import Takes
from koord_numa.core.kubelet.options import StaticOptions
from koord_numa.core.kubelet.spreading.most_left import MOST_TRIED, most_left

PACKED = StaticOptions()
ON_ONE = (PACKED, StaticOptions(distribute_across_cores=True), StaticOptions(distribute_across_numa=True))
ANYWHERE = (PACKED, StaticOptions(distribute_across_cores=True))


def machine(dice: Random) -> CpuTopology:
    """Several NUMA nodes of up to 12 cores with one thread or two, on sockets of any kind, whose CPUs are numbered in any order."""
    threads, cores, numas = dice.choice((1, 2, 2)), dice.randint(2, 12), dice.choice((2, 3, 4))
    per_socket = dice.choice((1, 2, numas))
    ids = list(range(numas * cores * threads))
    dice.shuffle(ids)
    rows = []
    for at, cpu in enumerate(ids):
        numa = at // (cores * threads)
        rows.append((cpu, at // threads, numa // per_socket, numa))
    return cpu_topology_of(sorted(rows))


def drawn(dice: Random, most: int) -> Takes:
    others = [(dice.random() < 0.3, dice.randint(1, most)) for _ in range(dice.randint(0, 2))]
    return ((True, dice.randint(1, most)), *others, (False, dice.randint(1, most)))


def left(some: CpuTopology, free: int, takes: Takes, options: StaticOptions) -> int | None:
    """What stays held; ``None`` where there are too few CPUs."""
    reusable = 0
    for init, count in takes:
        cpus = assign(some, CpuSet(free | reusable), count, options)
        if not isinstance(cpus, CpuSet):
            return None
        chosen = cpus.bits
        free &= ~chosen
        reusable = reusable | chosen if init else reusable & ~chosen
    return reusable.bit_count()


@pytest.mark.parametrize("seed", range(60))
def test_no_machine_leaves_more(seed: int) -> None:
    dice = Random(seed)
    for _ in range(10):
        some, share = machine(dice), dice.choice((0.3, 0.5, 0.8, 1.0))
        smallest = min(bits.bit_count() for bits in some.numa_bits.values())
        takes = drawn(dice, min(9, smallest - 1))
        free = sum(1 << cpu.id for cpu in some.cpus if dice.random() < share)
        for in_order, pool, choices in ((True, free & some.numa_bits[0], ON_ONE), (False, free, ANYWHERE)):
            most = most_left(takes, in_order=in_order)
            for options in choices:
                found = left(some, pool, takes, options)
                assert found is None or most is None or found <= most, (takes, options)


@pytest.mark.parametrize(
    ("takes", "held"),
    [
        (((True, 3), (False, 1)), 2),  # the single CPU of both is the same
        (((True, 2), (False, 1)), 2),  # the app's may be of a core in use
        (((True, 4), (False, 2)), 2),
    ],
)
def test_an_app_takes_what_comes_first_in_the_order_on_one_numa_node(takes: Takes, held: int) -> None:
    assert most_left(takes, in_order=True) == held


@pytest.mark.parametrize(
    ("takes", "held"),
    [
        (((True, 6), (False, 2), (False, 3)), 2),
        (((True, 4), (False, 2)), 2),
        (((True, 3), (False, 1)), 3),  # the NUMA node with the fewest free CPUs is another one once a core is taken
    ],
)
def test_whole_cores_come_in_one_order_anywhere(takes: Takes, held: int) -> None:
    assert most_left(takes, in_order=False) == held


def test_nothing_is_said_of_large_pods() -> None:
    assert most_left(((True, MOST_TRIED), (False, 1)), in_order=True) is None
