"""The shapes of CPUs: whole cores, and one CPU of each core."""

from random import Random

from koord_numa.core.cpu_topology import cpu_topology_of, regular_topology
from koord_numa.core.cpus.bind_policies import shaped
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from tests.tables import each_row

CORES = 8

MACHINES = {
    "neighbors": regular_topology(1, 2, 4, 2),
    "halves": cpu_topology_of([(cpu, cpu % CORES, 0, cpu % CORES // 4) for cpu in range(2 * CORES)]),
    "no-smt": regular_topology(1, 2, 4, 1),
    "four-threads": regular_topology(1, 2, 4, 4),
    "offline-sibling": cpu_topology_of([(cpu, cpu // 2, 0, 0) for cpu in range(16) if cpu != 5]),
    "mixed-distances": cpu_topology_of(
        [(0, 0, 0, 0), (1, 0, 0, 0), (2, 1, 0, 0), (4, 1, 0, 0), (3, 2, 0, 0), (9, 2, 0, 0)]
    ),
}


@each_row("name", MACHINES)
def test_shapes_are_those_of_a_walk_over_the_cores(name: str) -> None:
    machine, dice = MACHINES[name], Random(1)
    for _ in range(100):
        free = CpuSet.of(cpu for cpu in range(40) if dice.random() < 0.7)
        whole = sum(core.bits for core in machine.cores if not core.bits & ~free.bits)
        single = sum(mine & -mine for core in machine.cores if (mine := core.bits & free.bits))
        assert shaped(CpuBindPolicy.FULL_PCPUS, machine, free).bits == whole
        assert shaped(CpuBindPolicy.SPREAD_BY_PCPUS, machine, free).bits == single
