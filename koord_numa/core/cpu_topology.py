"""
The CPUs of a node: their cores, uncore caches, NUMA nodes and sockets, and the distances between NUMA nodes.

Supports sparse ids, offline CPUs, unequal or CPU-less NUMA nodes, mixed core sizes, and 1 to 64 NUMA nodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.value_objects import ValueObject

MAX_NUMA: Final = 64
"""Maximum NUMA nodes of a machine: masks of the kubelet and of Koordinator have 64 bits."""

MAX_NUMA_ID: Final = 1023
"""Highest NUMA id of a Linux machine (MAX_NUMNODES). Ids may have gaps: ids of GPU memory often start at 64."""

UNKNOWN_DISTANCE: Final = 255
"""Distance of NUMA nodes without a published distance, as in the LeastNUMANodes scoring proposal."""


class Cpu(ValueObject, order=True):
    """A logical CPU and its place. ``core`` is unique together with ``socket`` and ``numa``."""

    id: int
    core: int
    numa: int
    socket: int
    uncore: int


class Core(ValueObject):
    """A physical core and its logical CPUs."""

    id: int
    numa: int
    socket: int
    uncore: int
    bits: int  # its logical CPUs


class TopologyCounts(ValueObject):
    """The totals of a machine, from which Koordinator and the kubelet compute averages (such as CPUs per core)."""

    cpus: int
    cores: int
    sockets: int
    numa: int  # NUMA nodes that have CPUs
    uncores: int


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """
    An immutable machine. Machines are equal if their CPUs, NUMA nodes and distances are equal.

    ``numa_ids`` may include NUMA nodes without CPUs. ``distances`` maps ``(from, to)`` to the ACPI SLIT distance, by
    default ``UNKNOWN_DISTANCE``. The mappings by core, NUMA node and socket hold CPU bits (``CpuSet.bits``).
    ``declared`` replaces the counted totals if a source has its own, such as a kubelet with offline CPUs.
    """

    cpus: tuple[Cpu, ...]  # ascending by id, ids unique
    numa_ids: tuple[int, ...] = ()  # ascending; includes those of the CPUs
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
    derived: dict[type, Any] = field(init=False, repr=False, compare=False)  # tables of other modules, by type
    _hash: int = field(init=False, repr=False, compare=False)  # machines are cache keys, and hashing all CPUs is slow

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
        """Return every CPU of the machine."""
        return CpuSet(self.bits)

    @property
    def threads_per_core(self) -> int:
        """Return the integer average over the whole machine, as Koordinator and the kubelet. 0 without CPUs."""
        return self.counts.cpus // self.counts.cores if self.counts.cores else 0

    @property
    def cpus_per_numa(self) -> int:
        """Return the integer average over the NUMA nodes that have CPUs. 0 without CPUs."""
        return self.counts.cpus // self.counts.numa if self.counts.numa else 0

    @property
    def cpus_per_socket(self) -> int:
        """Return the integer average over the sockets. 0 without CPUs."""
        return self.counts.cpus // self.counts.sockets if self.counts.sockets else 0

    @property
    def cpus_per_uncore(self) -> int:
        """Return the integer average over the uncore caches. 0 without CPUs."""
        return self.counts.cpus // self.counts.uncores if self.counts.uncores else 0

    def distance(self, start: int, end: int) -> int:
        """Return the distance from NUMA node ``start`` to ``end``."""
        return self.distances.get((start, end), UNKNOWN_DISTANCE)

    def numa_of(self, cpus: CpuSet) -> int:
        """Return the mask of the NUMA nodes of these CPUs."""
        mask = 0
        for numa, bits in self.numa_bits.items():
            if bits & cpus.bits:
                mask |= 1 << numa
        return mask


def _checked_numa_ids(ids: Iterable[int]) -> tuple[int, ...]:
    """Return the ids ascending. Raises ``ValueError`` for ids outside of Linux's range or more than 64 NUMA nodes."""
    numa_ids = tuple(sorted(ids))
    if numa_ids and not 0 <= numa_ids[0] <= numa_ids[-1] <= MAX_NUMA_ID:
        raise ValueError(f"NUMA ids must be 0 to {MAX_NUMA_ID}, found {numa_ids[0]} to {numa_ids[-1]}")
    if len(numa_ids) > MAX_NUMA:
        raise ValueError(f"{len(numa_ids)} NUMA nodes are more than {MAX_NUMA}")
    return numa_ids


def _cores_of(cpus: Sequence[Cpu]) -> tuple[Core, ...]:
    """Return the cores by (core id, NUMA node, socket). The lowest CPU defines the uncore cache. ``cpus`` ascend by id."""
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
    """Return the union of CPU bits by id, in the order given. 0 for an id without CPUs."""
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
    Return a machine of rows ``(cpu, core, socket, numa[, uncore])``. The socket is the default of the uncore id.

    ``distances[i][j]`` is the distance from the i-th to the j-th NUMA node in ascending order of their ids.
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
    Return a machine of ``sockets x NUMA nodes x cores x threads``. Ids of siblings are adjacent: ``(0, 1)``, ``(2, 3)``, ….

    Distances are 10 locally, 16 in a socket and 32 across sockets, the usual values for two levels.
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
