"""A request for CPUs of a node, the CPUs that are already held there, and tables of the machine."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from koord_numa.core.cpu_topology import Core, CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet, members
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy
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
        core_of={cpu: position for position, core in enumerate(cores) for cpu in members(core.bits)},
        uniform=len(sizes) <= 1,
        smt=any(size > 1 for size in sizes),
    )


def _places(machine: CpuTopology, cores: Sequence[Core], place_of: Callable[[Core], int]) -> tuple[TopologyDomain, ...]:
    domains: dict[int, list[Core]] = {}
    for core in cores:
        domains.setdefault(place_of(core), []).append(core)
    return tuple(
        TopologyDomain(
            id=place,
            bits=sum(core.bits for core in inside),
            cores=tuple(core.bits for core in inside),
            socket=inside[0].socket,  # domains across sockets count for the lowest socket
            socket_bits=machine.socket_bits[inside[0].socket],
        )
        for place, inside in sorted(domains.items())
    )
