"""How many CPUs the init containers of several pods hold together, against the packed assignment on machines of all kinds."""

from random import Random

import pytest

from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.kubelet.core_use import CoreUse
from koord_numa.core.kubelet.cpu_assignment import pack
from koord_numa.core.kubelet.cpu_manager import MAX_CPUS, Takes
from koord_numa.core.kubelet.options import StaticOptions

LIVES = 60
"""So many for one seed."""


def machine(dice: Random, numas: int, threads: int) -> CpuTopology:
    """NUMA nodes of up to 12 cores on any number of sockets, whose CPUs are numbered thread by thread, core by core, or in any order."""
    cores, sockets = dice.choice((4, 6, 8, 12)), dice.randint(1, numas)
    every = numas * cores
    ids = [(core, thread) for core in range(every) for thread in range(threads)]
    order = dice.choice(("adjacent", "apart", "anyhow"))
    if order == "apart":
        ids.sort(key=lambda cpu: cpu[1])
    if order == "anyhow":
        dice.shuffle(ids)
    rows = [(cpu, core, core // cores * sockets // numas, core // cores) for cpu, (core, _) in enumerate(ids)]
    return cpu_topology_of(rows)


def pod(dice: Random, most: int) -> Takes:
    """Mostly init containers before one that stays, or one container of any size."""
    if dice.random() < 0.4:
        return ((False, dice.randint(1, dice.choice((4, most)))),)
    kinds = dice.choice(((True, False), (True, False), (True, True, False), (True, False, False), (False, True, False)))
    return tuple((init, dice.randint(1, 6)) for init in kinds)


def with_pod(machine: CpuTopology, free: int, takes: Takes) -> int | None:
    """The CPUs that are free after the kubelet has admitted the pod; ``None`` where they are too few."""
    reusable = 0
    for init, count in takes:
        if count > (free | reusable).bit_count():
            return None
        chosen = pack(machine, free | reusable, count, StaticOptions())
        free &= ~chosen
        reusable = reusable | chosen if init else reusable & ~chosen
    return free


@pytest.mark.parametrize("seed", range(30))
def test_as_many_cpus_are_free_as_is_known_also_where_pods_have_left_unseen(seed: int) -> None:
    dice = Random(seed)
    told = 0
    for _ in range(LIVES):
        numas, threads = dice.choice((1, 1, 2, 3, 4)), dice.choice((1, 2, 2))
        some = machine(dice, numas, threads)
        size = len(some.cpus)
        reserved = dice.sample([cpu.id for cpu in some.cpus], dice.randint(0, 3))
        free = some.bits & ~sum(1 << cpu for cpu in reserved)
        smallest = min(bits.bit_count() for bits in some.numa_bits.values())
        use: CoreUse | None = CoreUse.of_empty(size, len(reserved), even=smallest % 2 == 0)
        held: list[int] = []
        for _ in range(dice.randint(2, 9)):
            takes = pod(dice, smallest)
            if len(takes) > 1 and numas > 1 and max(count for _, count in takes) >= smallest:
                continue
            if held and dice.random() < 0.2:
                free |= held.pop(dice.randrange(len(held)))
            after = with_pod(some, free, takes)
            if use is None or after is None:
                break
            held.append(free & ~after)
            free, use = after, use.after(takes, in_order=numas == 1)
            if use is not None:
                told += 1
                assert free.bit_count() >= use.least_free, (takes, reserved, threads, numas)
    assert told


@pytest.mark.parametrize("seed", range(20))
def test_as_many_cpus_are_held_as_in_one_of_the_ways_where_none_has_left(seed: int) -> None:
    """On NUMA nodes to which containers are aligned, and on a machine as a whole."""
    dice = Random(seed)
    told = 0
    for _ in range(LIVES):
        numas, threads = dice.choice((1, 2, 3, 4)), dice.choice((1, 2, 2))
        some = machine(dice, numas, threads)
        smallest = min(bits.bit_count() for bits in some.numa_bits.values())
        place, in_order, most = some.bits, False, (smallest if numas > 1 else smallest // 8) - 1
        if numas > 1 and dice.random() < 0.7:
            place, in_order, most = dice.choice([*some.numa_bits.values()]), True, smallest
        reserved = sum(1 << cpu for cpu in dice.sample([cpu.id for cpu in some.cpus], dice.randint(0, 3)))
        free = place & ~reserved
        use: CoreUse | None = CoreUse.of_empty(
            place.bit_count(), (place & reserved).bit_count(), even=smallest % 2 == 0
        )
        for _ in range(dice.randint(2, 9)):
            takes = pod(dice, smallest)
            if len(takes) > 1 and max(count for _, count in takes) > most:
                continue
            after = with_pod(some, free, takes)
            if use is None or after is None:
                break
            free, use = after, use.after(takes, in_order=in_order)
            if use is not None:
                told += 1
                known = use.with_cores_of(threads)
                assert known.held is not None
                least, most_held = known.held
                held = use.size - use.lasting - free.bit_count()
                assert least <= held <= most_held, (takes, threads, numas)
                assert threads == 1 or (held, _half_used(some, free)) in use.pairs
    assert told


def _half_used(machine: CpuTopology, free: int) -> int:
    """Cores of two threads with one of them free."""
    cores: dict[int, int] = {}
    for cpu in machine.cpus:
        cores[cpu.core] = cores.get(cpu.core, 0) + (free >> cpu.id & 1)
    return sum(count == 1 for count in cores.values())


@pytest.mark.parametrize(
    ("reserved", "pods", "free"),
    [
        # Both init containers' CPUs stay behind only where each finds a core that is partly used.
        (0, [((True, 1), (False, 2)), ((True, 1), (False, 2))], 28),
        (1, [((True, 1), (False, 2)), ((True, 1), (False, 2))], 26),
        (2, [((True, 1), (False, 2)), ((True, 1), (False, 2))], 24),
        (2, [((True, 1), (False, 2)), ((False, 1),), ((True, 1), (False, 2))], 24),
    ],
)
def test_an_odd_cpu_stays_behind_only_beside_a_used_one(reserved: int, pods: list[Takes], free: int) -> None:
    use: CoreUse | None = CoreUse.of_empty(32, reserved, even=True)
    for takes in pods:
        assert use is not None
        use = use.after(takes, in_order=True)
    assert use is not None
    assert use.least_free == free


def test_cores_of_one_thread_leave_nothing_behind_that_a_larger_container_takes() -> None:
    use = CoreUse.of_empty(9, 0, even=False).after(((True, 1), (False, 2)), in_order=True)
    assert use is not None
    assert use.least_free == 7


def test_nothing_is_said_of_very_large_pods() -> None:
    assert CoreUse.of_empty(4 * MAX_CPUS, 0, even=True).after(((True, MAX_CPUS), (False, 1)), in_order=True) is None
