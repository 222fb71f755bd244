"""
The drawing of one machine: socket, NUMA node, last-level cache, core and hardware thread, and the pods that hold the CPUs.

Terminal, SVG and page render this one model, so they cannot disagree. It is derived from decided facts and decides nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from koord_numa.core.cpu_topology import Core, CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet


@dataclass(frozen=True, slots=True)
class CpuHolder:
    """
    A pod that holds CPUs of its own. ``note`` goes into the legend.

    ``observed`` are the CPUs that the pod runs on by the node agent's report; ``None`` where nothing reports them.
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
    """One NUMA node on one socket. ``cpus`` counts logical CPUs, ``free`` those that are neither held nor reserved."""

    id: int
    caches: tuple[CacheBox, ...]
    cpus: int
    free: int


@dataclass(frozen=True, slots=True)
class SocketBox:
    """One socket; ``id`` is ``None`` for NUMA nodes without CPUs, which are on no known socket."""

    id: int | None
    numa: tuple[NumaBox, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """
    One machine, the pods on it, and the CPUs that no pod is given. ``notes`` has further words for a NUMA node, by id.

    A CPU of two holders is drawn as such by every renderer: it must never happen, so it must be visible.
    """

    machine: CpuTopology
    holders: Sequence[CpuHolder] = ()
    reserved: CpuSet = EMPTY
    notes: Mapping[int, str] = field(default_factory=dict)

    def holders_of(self, cpu: int) -> list[int]:
        """Positions in ``holders`` of the pods that hold this CPU."""
        return [at for at, holder in enumerate(self.holders) if holder.cpus.bits >> cpu & 1]

    def observed_on(self, cpu: int) -> list[int] | None:
        """Positions of the pods observed on this CPU; ``None`` where no pod's CPUs are reported."""
        reported = [(at, one.observed) for at, one in enumerate(self.holders) if one.observed is not None]
        return [at for at, cpus in reported if cpus.bits >> cpu & 1] if reported else None

    def sockets(self) -> Iterator[SocketBox]:
        """Sockets with their NUMA nodes, ascending; NUMA nodes without CPUs come last, without a socket."""
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
