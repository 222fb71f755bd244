"""
The kubelet's packed assignment of CPUs: whole NUMA nodes and sockets first, then whole uncore caches and cores, then single CPUs.

Theory. Places are visited in the order of their free CPUs, the fullest first, level inside level: by NUMA node and then by
socket when a machine has at least as many sockets as NUMA nodes, else the other way round. Every step takes as many whole
units as the need allows and leaves the rest to the next, finer one. As the kubelet's cpu_assignment.go
(``takeByTopologyNUMAPacked``), except that a CPU which is not free is never taken, whatever the averages say.
"""

from collections.abc import Iterable, Iterator, Sequence

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import NotEnoughCpus
from koord_numa.core.cpus.layout import TopologyDomain, layout_of
from koord_numa.core.cpus.static_options import StaticOptions
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.ordering import fullest_first


def take_packed(machine: CpuTopology, available: CpuSet, count: int, options: StaticOptions) -> CpuSet | NotEnoughCpus:
    """Take exactly ``count`` of the available CPUs; of the options, spreading over cores and uncore alignment matter."""
    free = available.bits & machine.bits
    if count > free.bit_count():
        return NotEnoughCpus(count, free.bit_count())
    return CpuSet(pack(machine, free, count, options))


def pack(machine: CpuTopology, free: int, count: int, options: StaticOptions) -> int:
    """The same on CPU bits, where at least ``count`` are known to be free."""
    if count < 1:
        return 0
    # A new accumulator a call: the kubelet's newCPUAccumulator carries nothing over between containers.
    packing = _Packing(machine, free, count)
    for step in _steps(packing, options):
        for cpus in step:
            packing.take(cpus)
            if packing.need < 1:
                return packing.taken
    # Unreachable while ``count`` CPUs are free, as single CPUs are the last step.
    return packing.taken


def _by_free(places: Sequence[TopologyDomain], free: int) -> list[TopologyDomain]:
    """Those of the places that have free CPUs, the fullest (fewest free) first, then by id."""
    counts = {place.id: (place.bits & free).bit_count() for place in places if place.bits & free}
    known = {place.id: place for place in places}
    return [known[place] for place in fullest_first(counts)]


class _Packing:
    """The state of one assignment; all sets are CPU bits."""

    __slots__ = ("free", "layout", "machine", "need", "numa_first", "taken")

    def __init__(self, machine: CpuTopology, free: int, need: int) -> None:
        self.machine = machine
        self.layout = layout_of(machine)
        # On machines with several NUMA nodes a socket the NUMA node is the smaller unit, and levels swap.
        self.numa_first = machine.counts.sockets >= machine.counts.numa
        self.free = free
        self.need = need
        self.taken = 0

    def take(self, bits: int) -> None:
        """Move CPUs from free to taken."""
        self.free &= ~bits
        self.taken |= bits
        self.need -= bits.bit_count()

    def outer(self) -> list[TopologyDomain]:
        """The places of the outer level."""
        return _by_free(self.layout.numas if self.numa_first else self.layout.sockets, self.free)

    def inner(self) -> list[TopologyDomain]:
        """The places of the inner level, outer place by outer place."""
        places = self.layout.sockets if self.numa_first else self.layout.numas
        return [
            place
            for outer in self.outer()
            for place in _by_free([p for p in places if p.bits & outer.bits & self.free], self.free)
        ]

    def numas(self) -> list[TopologyDomain]:
        """NUMA nodes in the order of their level."""
        return self.outer() if self.numa_first else self.inner()

    def sockets(self) -> list[TopologyDomain]:
        """Sockets in the order of their level."""
        return self.inner() if self.numa_first else self.outer()


def _steps(packing: _Packing, options: StaticOptions) -> Iterator[Iterable[int]]:
    """What to take, coarsest first; each step sees what the ones before it left."""
    levels = (packing.outer, packing.inner)
    # ``None``: NUMA nodes count by their own size, sockets by the machine's average, as in the kubelet.
    sizes = (None, packing.machine.cpus_per_socket)
    for places, size in zip(levels, sizes if packing.numa_first else reversed(sizes), strict=True):
        yield _whole_places(packing, places(), size)
    if options.prefer_align_uncore:
        yield _uncore_aligned(packing)
    # distribute-cpus-across-cores skips whole cores, and takes CPUs by id, so that siblings come last.
    if not options.distribute_across_cores:
        yield _whole_cores(packing)
        yield _single_cpus_by_core(packing)
    else:
        yield _single_cpus_by_socket(packing)


def _whole_places(packing: _Packing, places: Sequence[TopologyDomain], size: int | None) -> Iterator[int]:
    """Completely free places no larger than the need. A socket counts as free by the machine's average size."""
    for place in places:
        mine = place.bits & packing.free
        # A chained comparison: the place is completely free, and not larger than the need.
        if mine.bit_count() == (size or place.bits.bit_count()) <= packing.need:
            yield mine


def _uncore_aligned(packing: _Packing) -> Iterator[int]:
    """Free uncore caches, and then all of the rest out of a single one if that is possible without a leftover."""
    size = packing.machine.cpus_per_uncore
    # Uncores are listed once for the loop and again inside it, because taking whole ones changes what is free.
    for uncore in _uncores(packing):
        if packing.need >= size:
            yield from _whole_places(packing, _uncores(packing), None)
        part = _part_of(packing, uncore)
        if part.bit_count() == packing.need:
            yield part


def _uncores(packing: _Packing) -> list[TopologyDomain]:
    """Uncore caches, NUMA node by NUMA node."""
    return [
        uncore
        for numa in packing.numas()
        for uncore in _by_free([u for u in packing.layout.uncores if u.bits & numa.bits & packing.free], packing.free)
    ]


def _part_of(packing: _Packing, uncore: TopologyDomain) -> int:
    """The free CPUs of the lowest cores that could hold the need; an odd need leaves out one sibling."""
    threads = max(1, packing.machine.threads_per_core)
    cores = [mine for core in uncore.cores if (mine := core & packing.free)]
    bits = sum(cores[: -(-packing.need // threads)])
    # The kubelet drops one sibling for an odd need only (takePartialUncore); an even need ends on a core boundary.
    if threads > 1 and packing.need % 2 and bits.bit_count() > packing.need:
        bits ^= 1 << bits.bit_length() - 1
    return bits


def _whole_cores(packing: _Packing) -> Iterator[int]:
    """Free cores, place by place in ascending order; a core counts as free by the machine's average size."""
    threads = packing.machine.threads_per_core
    for place in packing.inner():
        for core in place.cores:
            mine = core & packing.free
            if mine.bit_count() == threads <= packing.need:
                yield mine
        # Once less than a core is needed, no later place can give one.
        if packing.need < threads:
            return


def _single_cpus_by_core(packing: _Packing) -> Iterator[int]:
    """CPU by CPU, the cores with the fewest free CPUs first."""
    for place in packing.inner():
        cores = {position: mine for position, core in enumerate(place.cores) if (mine := core & packing.free)}
        for position in fullest_first({position: mine.bit_count() for position, mine in cores.items()}):
            for cpu in CpuSet(cores[position]):
                yield 1 << cpu


def _single_cpus_by_socket(packing: _Packing) -> Iterator[int]:
    """CPU by CPU by id inside each socket, which spreads over cores where siblings have distant ids."""
    for place in packing.sockets():
        for cpu in CpuSet(place.bits & packing.free):
            yield 1 << cpu
