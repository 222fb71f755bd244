"""A request for CPUs of a node: the CPUs held there already, tables of the machine, and the shapes that bind policies require."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from koord_numa.core.cpu_topology import Core, CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import (
    FULL_PCPUS,
    SPREAD_BY_PCPUS,
    CpuBindPolicy,
    CpuExclusivePolicy,
    NumaAllocateStrategy,
)
from koord_numa.core.ordering import socket_key
from koord_numa.core.value_objects import ValueObject, value_field


class CpuRequest(ValueObject, gc=False):
    """The number and shape of CPUs for a pod. Every bind policy except ``FULL_PCPUS`` means spreading."""

    count: int
    bind: CpuBindPolicy = CpuBindPolicy.NONE
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE
    strategy: NumaAllocateStrategy = NumaAllocateStrategy.MOST_ALLOCATED


class CpuOccupancy(ValueObject):
    """
    The held CPUs of a node: those of pods with an exclusive policy, and the number of pods per CPU.

    ``limit`` is the maximum number of pods per CPU. Use counts matter only if it is above 1.
    """

    pcpu_level: CpuSet = EMPTY
    numa_level: CpuSet = EMPTY
    references: Mapping[int, int] = value_field(default_factory=dict)
    limit: int = 1


UNOCCUPIED: Final = CpuOccupancy()


class NotEnoughCpus(ValueObject):
    """The result for too few CPUs: ``found`` CPUs of the right shape instead of ``wanted``."""

    wanted: int
    found: int
    why: str = "not enough free CPUs"

    def __str__(self) -> str:
        return f"{self.why}: {self.wanted} wanted, {self.found} found"


_REMEMBERED: Final = 1024
"""Maximum cached machines. A cluster has few distinct machines."""


class TopologyDomain(ValueObject):
    """A NUMA node, a socket or an uncore cache: its CPUs, its cores ascending by id, and its socket."""

    id: int
    bits: int
    cores: tuple[int, ...]  # CPU bits per core
    socket: int
    socket_bits: int


class Layout(ValueObject):
    """The positions of cores. ``uniform``: every core has the same number of CPUs."""

    numas: tuple[TopologyDomain, ...]  # only those with CPUs, ascending by id
    sockets: tuple[TopologyDomain, ...]
    uncores: tuple[TopologyDomain, ...]
    cores: tuple[tuple[int, int, int], ...]  # (CPU bits, NUMA id, socket id), ascending by (socket, core id, NUMA id)
    core_of: dict[int, int]  # CPU -> position in cores
    uniform: bool
    smt: bool  # a core has more than one CPU


def layout_of(machine: CpuTopology) -> Layout:
    """Return the tables of this machine."""
    # First by attribute of the machine, then by equality: hashing a machine of 256 CPUs would dominate each pick.
    known: Layout | None = machine.derived.get(Layout)
    if known is None:
        known = machine.derived[Layout] = _shared_layout(machine)
    return known


@lru_cache(maxsize=_REMEMBERED)
def _shared_layout(machine: CpuTopology) -> Layout:
    """Return the same object for equal machines. The comparison of all CPUs is too slow for every pick."""
    cores = sorted(machine.cores, key=lambda core: (core.socket, core.id, core.numa))
    sizes = {core.bits.bit_count() for core in cores}
    return Layout(
        numas=_places(machine, cores, lambda core: core.numa),
        sockets=_places(machine, cores, lambda core: core.socket),
        uncores=_places(machine, machine.cores, lambda core: core.uncore),  # by core id even across sockets
        cores=tuple((core.bits, core.numa, core.socket) for core in cores),
        core_of={
            cpu.id: position for position, core in enumerate(cores) for cpu in machine.cpus if core.bits >> cpu.id & 1
        },
        uniform=len(sizes) <= 1,
        smt=any(size > 1 for size in sizes),
    )


def _places(machine: CpuTopology, cores: Sequence[Core], place_of: Callable[[Core], int]) -> tuple[TopologyDomain, ...]:
    members: dict[int, list[Core]] = {}
    for core in cores:
        members.setdefault(place_of(core), []).append(core)
    return tuple(
        TopologyDomain(
            id=place,
            bits=sum(core.bits for core in inside),
            cores=tuple(core.bits for core in inside),
            socket=inside[0].socket,  # domains across sockets count for the lowest socket
            socket_bits=machine.socket_bits[inside[0].socket],
        )
        for place, inside in sorted(members.items())
    )


# Shapes of CPU sets for required bind policies: whole cores only, or one CPU per core.
#
# A core is whole if *all* its CPUs are in the set. Cores of a machine may have different numbers of CPUs.


def shaped(bind: CpuBindPolicy, machine: CpuTopology, available: CpuSet, preferred: CpuSet = EMPTY) -> CpuSet:
    """
    Return the available CPUs that a pod with this required policy may use.

    FullPCPUs: CPUs of completely available cores. SpreadByPCPUs: the lowest available CPU of every core, or a preferred
    one if available. As Koordinator's ``filterAvailableCPUsByRequiredCPUBindPolicy``, which has no preference.
    """
    if bind not in (FULL_PCPUS, SPREAD_BY_PCPUS):
        return CpuSet(available.bits & machine.bits)
    known: Pairs | tuple[()] | None = machine.derived.get(Pairs)
    if known is None:
        known = machine.derived[Pairs] = _found_pairs(machine) or ()
    pairs = known or None
    if pairs is not None and not preferred:
        return CpuSet(_shaped_pairs(bind, pairs, available.bits & machine.bits))
    if bind is FULL_PCPUS:
        return CpuSet(sum(core.bits for core in machine.cores if not core.bits & ~available.bits))
    bits = 0
    for core in machine.cores:
        mine = core.bits & available.bits
        # A preferred CPU first, else the lowest free one of the core. ``mine & -mine`` keeps a single bit.
        mine = mine & preferred.bits or mine
        bits |= mine & -mine
    return CpuSet(bits)


class Pairs(NamedTuple):
    """A machine whose cores have two CPUs with a constant difference of ids. ``low`` has the lower CPU of each core."""

    distance: int
    low: int


# A loop over 64 cores takes 10 us, which every decision on a changed node would need: 8 % of the engine's rate.
def _shaped_pairs(bind: CpuBindPolicy, pairs: Pairs, free: int) -> int:
    low = free & pairs.low
    if bind is FULL_PCPUS:
        whole = low & free >> pairs.distance
        return whole | whole << pairs.distance
    return low | free & ~pairs.low & ~(low << pairs.distance)


def _found_pairs(machine: CpuTopology) -> Pairs | None:
    ends = [(core.bits & -core.bits, core.bits.bit_length() - 1) for core in machine.cores]
    distances = {high - low.bit_length() + 1 for low, high in ends}
    if len(distances) != 1 or any(core.bits.bit_count() != 2 for core in machine.cores):
        return None
    return Pairs(distances.pop(), sum(low for low, _ in ends))


def has_shape(bind: CpuBindPolicy, machine: CpuTopology, cpus: CpuSet) -> bool:
    """Return whether the CPUs satisfy the policy if it is required."""
    parts = ((core.bits, core.bits & cpus.bits) for core in machine.cores)
    if bind is FULL_PCPUS:
        # Every core is in the set completely or not at all.
        return all(mine in (0, core) for core, mine in parts)
    if bind is SPREAD_BY_PCPUS:
        return all(mine.bit_count() <= 1 for _, mine in parts)
    return True


def exactly_whole_cores(machine: CpuTopology, pool: CpuSet, count: int, sign: int) -> CpuSet | None:
    """
    Return whole cores of the pool with exactly ``count`` CPUs, or ``None`` if no combination of cores adds up.

    For machines with cores of different sizes, where taking cores one by one may miss the sum. A single NUMA node is
    preferred over a socket, and a socket over the whole machine. Within a domain, cores with low ids are preferred.
    """
    layout = layout_of(machine)
    everywhere = [core.bits for core in machine.cores if not core.bits & ~pool.bits]
    # Domains ascend in size, so the first match is the tightest. Cores across domains come last.
    for places in (layout.numas, layout.sockets):
        for place in sorted(places, key=lambda place: socket_key(sign, (place.bits & pool.bits).bit_count(), place.id)):
            found = _adding_up([core for core in everywhere if core & place.bits == core], count)
            if found is not None:
                return CpuSet(found)
    found = _adding_up(everywhere, count)
    return None if found is None else CpuSet(found)


# Subset sums as bits of an integer: adding a core is a shift. The choice is read backwards from the table.
def _adding_up(cores: list[int], count: int) -> int | None:
    """Return a subset of the cores with exactly ``count`` CPUs. Bit s of ``reachable[i]``: the first i cores can have s CPUs."""
    reachable = [1]
    for core in cores:
        reachable.append(reachable[-1] | reachable[-1] << core.bit_count())
    if not reachable[-1] >> count & 1:
        return None
    bits, missing = 0, count
    for position in range(len(cores) - 1, -1, -1):
        # Cores with high ids are used only if the sum is impossible without them.
        if not reachable[position] >> missing & 1:
            bits |= cores[position]
            missing -= cores[position].bit_count()
    return bits
