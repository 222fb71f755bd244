"""
The CPUs of one node: which logical CPUs share a core, an uncore cache, a NUMA node and a socket, and how far NUMA nodes are apart.

Odd machines are data, not exceptions: sparse ids, offline CPUs, unequal or CPU-less NUMA nodes, mixed core sizes, one to 64 NUMA nodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koord_numa.core.cpuset import CpuSet

MAX_NUMA: Final = 64
"""So many NUMA nodes a machine may have: masks of the kubelet and of Koordinator are 64 bits wide."""

MAX_NUMA_ID: Final = 1023
"""The highest NUMA id of a Linux machine (MAX_NUMNODES). Ids may have gaps: GPU memory is often numbered from 64 or so on."""

UNKNOWN_DISTANCE: Final = 255
"""The distance of NUMA nodes whose cost is not published, as in the LeastNUMANodes scoring proposal."""


@dataclass(frozen=True, slots=True, order=True)
class Cpu:
    """One logical CPU and where it sits. ``core`` is unique together with ``socket`` and ``numa``."""

    id: int
    core: int
    numa: int
    socket: int
    uncore: int


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core and its logical CPUs."""

    id: int
    numa: int
    socket: int
    uncore: int
    bits: int  # its logical CPUs


@dataclass(frozen=True, slots=True)
class TopologyCounts:
    """The totals of a machine, from which Koordinator and the kubelet take their averages (CPUs per core and the like)."""

    cpus: int
    cores: int
    sockets: int
    numa: int  # NUMA nodes that have CPUs
    uncores: int


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """
    An immutable machine. Two machines are equal when their CPUs, NUMA nodes and distances are.

    ``numa_ids`` may name NUMA nodes without CPUs. ``distances`` maps ``(from, to)`` to the ACPI SLIT cost; a pair that is
    absent is ``UNKNOWN_DISTANCE``. The mappings by core, NUMA node and socket hold CPU bits (``CpuSet.bits``).
    ``declared`` replaces the counted totals where a source states its own, as a kubelet with offline CPUs may.
    """

    cpus: tuple[Cpu, ...]  # ascending by id, ids unique
    numa_ids: tuple[int, ...] = ()  # ascending; always includes those of the CPUs
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    declared: TopologyCounts | None = None
    counts: TopologyCounts = field(init=False, repr=False, compare=False)
    by_id: Mapping[int, Cpu] = field(init=False, repr=False, compare=False)
    cores: tuple[Core, ...] = field(init=False, repr=False, compare=False)  # ascending by (core id, numa, socket)
    core_bits: Mapping[int, int] = field(init=False, repr=False, compare=False)  # CPU id -> CPUs of its core
    numa_bits: Mapping[int, int] = field(init=False, repr=False, compare=False)  # CPU-less NUMA nodes have 0
    socket_bits: Mapping[int, int] = field(init=False, repr=False, compare=False)
    bits: int = field(init=False, repr=False, compare=False)
    numa_mask: int = field(init=False, repr=False, compare=False)  # all NUMA nodes
    derived: dict[type, Any] = field(
        init=False, repr=False, compare=False
    )  # tables that others made of it, by their type
    _hash: int = field(init=False, repr=False, compare=False)  # machines are keys of caches; walking the CPUs is slow

    def __post_init__(self) -> None:
        cpus = tuple(sorted(self.cpus))
        by_id = {cpu.id: cpu for cpu in cpus}
        if len(by_id) != len(cpus):
            raise ValueError("a CPU id is listed twice")
        numa_ids = _checked_numa_ids({*self.numa_ids, *(cpu.numa for cpu in cpus)})
        cores = _cores_of(cpus)
        for name, value in {
            "cpus": cpus,
            "numa_ids": numa_ids,
            "by_id": by_id,
            "cores": cores,
            "core_bits": {cpu: core.bits for core in cores for cpu in CpuSet(core.bits)},
            "numa_bits": _united(numa_ids, ((core.numa, core.bits) for core in cores)),
            "socket_bits": _united(sorted({cpu.socket for cpu in cpus}), ((core.socket, core.bits) for core in cores)),
            "bits": sum(1 << cpu.id for cpu in cpus),
            "numa_mask": sum(1 << numa for numa in numa_ids),
            "counts": self.declared or _count(cpus, cores),
            "derived": {},
            "_hash": hash((cpus, numa_ids)),
        }.items():
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return self._hash

    @property
    def all(self) -> CpuSet:
        """Every CPU of the machine."""
        return CpuSet(self.bits)

    @property
    def threads_per_core(self) -> int:
        """Integer average over the whole machine, as Koordinator and the kubelet count; 0 without CPUs."""
        return self.counts.cpus // self.counts.cores if self.counts.cores else 0

    @property
    def cpus_per_numa(self) -> int:
        """Integer average over the NUMA nodes that have CPUs; 0 without CPUs."""
        return self.counts.cpus // self.counts.numa if self.counts.numa else 0

    @property
    def cpus_per_socket(self) -> int:
        """Integer average over the sockets; 0 without CPUs."""
        return self.counts.cpus // self.counts.sockets if self.counts.sockets else 0

    @property
    def cpus_per_uncore(self) -> int:
        """Integer average over the uncore caches; 0 without CPUs."""
        return self.counts.cpus // self.counts.uncores if self.counts.uncores else 0

    def distance(self, start: int, end: int) -> int:
        """The cost of reaching NUMA node ``end`` from ``start``."""
        return self.distances.get((start, end), UNKNOWN_DISTANCE)

    def numa_of(self, cpus: CpuSet) -> int:
        """The mask of NUMA nodes that these CPUs sit on."""
        mask = 0
        for numa, bits in self.numa_bits.items():
            if bits & cpus.bits:
                mask |= 1 << numa
        return mask


def _checked_numa_ids(ids: Iterable[int]) -> tuple[int, ...]:
    """The ids ascending. Raises ``ValueError`` where Linux could not have them or a mask of 64 bits could not hold so many."""
    numa_ids = tuple(sorted(ids))
    if numa_ids and not 0 <= numa_ids[0] <= numa_ids[-1] <= MAX_NUMA_ID:
        raise ValueError(f"NUMA ids must be 0 to {MAX_NUMA_ID}, found {numa_ids[0]} to {numa_ids[-1]}")
    if len(numa_ids) > MAX_NUMA:
        raise ValueError(f"{len(numa_ids)} NUMA nodes are more than {MAX_NUMA}")
    return numa_ids


def _cores_of(cpus: Sequence[Cpu]) -> tuple[Core, ...]:
    """The cores by (core id, NUMA node, socket). Its lowest CPU says in which uncore cache a core is; ``cpus`` ascend by id."""
    bits: dict[tuple[int, int, int], int] = {}
    uncores: dict[tuple[int, int, int], int] = {}
    for cpu in cpus:
        key = (cpu.core, cpu.numa, cpu.socket)
        bits[key] = bits.get(key, 0) | 1 << cpu.id
        uncores.setdefault(key, cpu.uncore)
    return tuple(
        Core(id=core, numa=numa, socket=socket, uncore=uncores[core, numa, socket], bits=bits[core, numa, socket])
        for core, numa, socket in sorted(bits)
    )


def _united(ids: Iterable[int], parts: Iterable[tuple[int, int]]) -> dict[int, int]:
    """By each id, in the order given, the union of the CPU bits that belong to it; 0 without any."""
    united = dict.fromkeys(ids, 0)
    for owner, bits in parts:
        united[owner] |= bits
    return united


def _count(cpus: Sequence[Cpu], cores: Sequence[Core]) -> TopologyCounts:
    return TopologyCounts(
        cpus=len(cpus),
        cores=len(cores),
        sockets=len({cpu.socket for cpu in cpus}),
        numa=len({cpu.numa for cpu in cpus}),
        uncores=len({cpu.uncore for cpu in cpus}),
    )


def cpu_topology_of(
    cpus: Iterable[Sequence[int]],
    *,
    numa_ids: Iterable[int] = (),
    distances: Sequence[Sequence[int]] = (),
) -> CpuTopology:
    """
    Build a machine from rows ``(cpu, core, socket, numa[, uncore])``; without an uncore id the socket stands for it.

    ``distances[i][j]`` is the cost from the i-th to the j-th NUMA node in ascending order of their ids.
    """
    rows = [tuple(row) for row in cpus]
    built = tuple(
        Cpu(id=row[0], core=row[1], socket=row[2], numa=row[3], uncore=row[4] if len(row) > 4 else row[2])
        for row in rows
    )
    ids = sorted({*numa_ids, *(cpu.numa for cpu in built)})
    costs = {
        (ids[i], ids[j]): cost for i, row in enumerate(distances) for j, cost in enumerate(row) if i < len(ids) > j
    }
    return CpuTopology(cpus=built, numa_ids=tuple(ids), distances=costs)


def regular_topology(sockets: int, numa_per_socket: int, cores_per_numa: int, threads_per_core: int) -> CpuTopology:
    """
    The machine ``sockets x NUMA nodes x cores x threads`` with consecutive ids: siblings are neighbours, ``(0, 1)``, ``(2, 3)``, …

    Distances are 10 to itself, 16 inside a socket and 32 across sockets, the usual two-level costs.
    """
    numa_count = sockets * numa_per_socket
    rows = [
        (core * threads_per_core + thread, core, core // cores_per_numa // numa_per_socket, core // cores_per_numa)
        for core in range(numa_count * cores_per_numa)
        for thread in range(threads_per_core)
    ]
    costs = [
        [10 if a == b else 16 if a // numa_per_socket == b // numa_per_socket else 32 for b in range(numa_count)]
        for a in range(numa_count)
    ]
    return cpu_topology_of(rows, distances=costs)
