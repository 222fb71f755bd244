"""Drawing of one machine as data: sockets, NUMA nodes, caches, cores and threads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from koord_numa.core.cpu_topology import Core, CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet


@dataclass(frozen=True, slots=True)
class CpuHolder:
    """
    A pod with exclusive CPUs. ``note`` is shown in the legend.

    ``observed`` are the CPUs on which the pod runs as reported by the node agent, or None without a report.
    """

    name: str
    cpus: CpuSet
    note: str = ""
    observed: CpuSet | None = None


@dataclass(frozen=True, slots=True)
class CacheBox:
    """The cores behind one last-level cache of one NUMA node."""

    id: int
    cores: tuple[Core, ...]


@dataclass(frozen=True, slots=True)
class NumaBox:
    """
    One NUMA node on one socket.

    ``cpus`` is the number of logical CPUs, ``free`` the number of CPUs that are neither held nor reserved.
    """

    id: int
    caches: tuple[CacheBox, ...]
    cpus: int
    free: int


@dataclass(frozen=True, slots=True)
class SocketBox:
    """One socket. ``id`` is None for NUMA nodes without CPUs, whose socket is unknown."""

    id: int | None
    numa: tuple[NumaBox, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """
    One machine, its pods, and the reserved CPUs. ``notes`` contains additional text per NUMA node, by id.

    Every renderer marks a CPU with two holders, because such a conflict must be visible.
    """

    machine: CpuTopology
    holders: Sequence[CpuHolder] = ()
    reserved: CpuSet = EMPTY
    notes: Mapping[int, str] = field(default_factory=dict)

    def holders_of(self, cpu: int) -> list[int]:
        """Return the positions in ``holders`` of the pods that hold the CPU."""
        return [at for at, holder in enumerate(self.holders) if holder.cpus.bits >> cpu & 1]

    def observed_on(self, cpu: int) -> list[int] | None:
        """Return the positions of the pods observed on the CPU, or None if no CPUs are reported."""
        reported = [(at, one.observed) for at, one in enumerate(self.holders) if one.observed is not None]
        return [at for at, cpus in reported if cpus.bits >> cpu & 1] if reported else None

    def sockets(self) -> Iterator[SocketBox]:
        """Yield the sockets with their NUMA nodes, ascending. NUMA nodes without CPUs come last, without a socket."""
        socket_of = {core.numa: core.socket for core in reversed(self.machine.cores)}
        placed = sorted(self.machine.numa_ids, key=lambda numa: (numa not in socket_of, socket_of.get(numa, 0), numa))
        for socket, ids in groupby(placed, key=socket_of.get):
            yield SocketBox(socket, tuple(self._numa(numa) for numa in ids))

    def _numa(self, numa: int) -> NumaBox:
        cores = sorted((core for core in self.machine.cores if core.numa == numa), key=lambda core: core.uncore)
        caches = tuple(
            CacheBox(cache, tuple(sorted(group, key=lambda core: (core.id, core.socket))))
            for cache, group in groupby(cores, key=lambda core: core.uncore)
        )
        bits = self.machine.numa_bits[numa]
        taken = self.reserved.bits
        for holder in self.holders:
            taken |= holder.cpus.bits
        return NumaBox(numa, caches, bits.bit_count(), (bits & ~taken).bit_count())
