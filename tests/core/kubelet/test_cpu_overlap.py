"""Number of init container CPUs that a container gets again, compared with the packed assignment on machines of all kinds."""

from random import Random

import pytest

from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.cpus.kubelet_assignment import pack
from koord_numa.core.cpus.kubelet_options import StaticOptions
from koord_numa.core.kubelet.cpu_manager import MAX_CPUS, reuse_by_counts
from tests.tables import each_row


def machine(dice: Random) -> CpuTopology:
    """Two NUMA nodes of up to 14 cores with one thread or two, whose CPUs are numbered in any order."""
    threads, cores = dice.choice((1, 2)), dice.randint(2, 14)
    ids = list(range(2 * cores * threads))
    dice.shuffle(ids)
    rows = [(cpu, at // threads, at // (cores * threads), at // (cores * threads)) for at, cpu in enumerate(ids)]
    return cpu_topology_of(sorted(rows))


@each_row("seed", range(300), every=5)
def test_bounds_hold_for_every_machine_and_core_usage(seed: int) -> None:
    dice = Random(seed)
    some, share = machine(dice), dice.choice((0.3, 0.5, 0.9, 1.0))
    free = sum(1 << cpu.id for cpu in some.cpus if cpu.numa == 0 and dice.random() < share)
    first, reusable = free.bit_count(), 0
    takes: list[tuple[bool, int]] = []
    for number in range(dice.randint(2, 5)):
        init, count = number == 0 or dice.random() < 0.3, dice.randint(1, 9)
        if count > (free | reusable).bit_count():
            return
        takes.append((init, count))
        chosen = pack(some, free | reusable, count, StaticOptions())
        bounds = reuse_by_counts(first, tuple(takes))
        assert bounds is not None
        assert bounds[0] <= (chosen & reusable).bit_count() <= bounds[1], takes
        free &= ~chosen
        reusable = reusable | chosen if init else reusable & ~chosen


@pytest.mark.parametrize(
    ("free", "takes", "again"),
    [
        (40, [1, 3], (1, 1)),  # an odd number ends in the same single CPU
        (40, [1, 2], (0, 1)),  # a partly used core may serve the init container, a free one the app
        (40, [2, 4], (2, 2)),
    ],
)
def test_odd_init_containers_may_leave_one_cpu_behind(free: int, takes: list[int], again: tuple[int, int]) -> None:
    assert reuse_by_counts(free, tuple((not place, count) for place, count in enumerate(takes))) == again


def test_nothing_is_said_of_very_large_pods() -> None:
    assert reuse_by_counts(4 * MAX_CPUS, ((True, MAX_CPUS), (False, 1))) is None
