"""
The state of a pick of CPUs, and shapes of free CPUs: whole cores, one CPU per core, spread.

``take.py`` defines the order in which shapes are tried.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import CpuOccupancy, CpuRequest
from koord_numa.core.cpus.layout import Layout, TopologyDomain, layout_of
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import NUMA_NODE_LEVEL, PCPU_LEVEL
from koord_numa.core.ordering import by_use, tightness


class CpuAccumulator:
    """The state of a pick. All sets are CPU bits."""

    __slots__ = (
        "free",
        "layout",
        "machine",
        "need",
        "references",
        "repelled_cores",
        "repelled_numas",
        "request",
        "sign",
        "taken",
        "threads",
    )

    def __init__(
        self, request: CpuRequest, count: int, machine: CpuTopology, free: int, occupancy: CpuOccupancy
    ) -> None:
        self.request = request
        self.machine = machine
        self.layout: Layout = layout_of(machine)
        self.threads = machine.threads_per_core
        # +1 or -1: the factor on free counts reverses the order "fullest first" without a second set of keys.
        self.sign = tightness(request.strategy)
        self.free = free
        self.taken = 0
        self.need = count
        # With a limit of 1 no free CPU is held by any pod, so all use counts are equal.
        self.references: Mapping[int, int] = occupancy.references if occupancy.limit > 1 else {}
        self.repelled_cores = 0
        self.repelled_numas = 0
        # Only pods with the same exclusive policy repel each other.
        if request.exclusive is PCPU_LEVEL:
            self._repel(occupancy.pcpu_level.bits & machine.bits)
        elif request.exclusive is NUMA_NODE_LEVEL:
            self._repel(occupancy.numa_level.bits & machine.bits)

    def take(self, bits: int) -> None:
        """Move CPUs from free to taken. They also repel later picks of the same pod."""
        self.free &= ~bits
        self.taken |= bits
        self.need -= bits.bit_count()
        # No later pick exists after the last CPU.
        if self.need > 0:
            self._repel(bits)

    def take_first(self, cpus: Sequence[int]) -> None:
        """Take as many of these CPUs as needed, in the given order."""
        self.take(sum(1 << cpu for cpu in cpus[: self.need]))

    def _repel(self, bits: int) -> None:
        if self.request.exclusive is PCPU_LEVEL:
            for core, _, _ in self.layout.cores:
                if core & bits:
                    self.repelled_cores |= core
        elif self.request.exclusive is NUMA_NODE_LEVEL:
            for place in self.layout.numas:
                if place.bits & bits:
                    self.repelled_numas |= place.bits

    def in_order(self, bits: int) -> list[int]:
        """Return CPUs ascending by id. If CPUs are shared, the least used come first."""
        return by_use(CpuSet(bits), self.references) if self.references else list(CpuSet(bits))

    def whole_cores(self, place: TopologyDomain, usable: int) -> list[int]:
        """Return the cores of the domain with all threads usable, as CPU bits, by use and id."""
        if self.layout.uniform:
            whole = [core for core in place.cores if core & usable == core]
        else:
            whole = [mine for core in place.cores if (mine := core & usable).bit_count() == self.threads]
        if self.references:
            # ``sort`` is stable: cores with equal use keep the order of their ids.
            whole.sort(key=self.uses)
        return whole

    def of_whole(self, cores: Sequence[int]) -> int:
        """Return the needed CPUs of these whole cores in the given order. The last core may be split."""
        whole, rest = divmod(self.need, self.threads)
        bits = union(cores[:whole])
        # The rest takes the lowest CPUs of another core.
        return bits | sum(1 << cpu for cpu in islice(CpuSet(cores[whole]), rest)) if rest else bits

    def uses(self, bits: int) -> int:
        """Return the number of pods that hold these CPUs, summed over the CPUs."""
        return sum(self.references.get(cpu, 0) for cpu in CpuSet(bits)) if self.references else 0

    def layers(self, cpus: Iterable[int]) -> list[list[int]]:
        """Distribute CPUs by core: the first CPU of every core, then the second of every core, and so on. Layers keep the given order."""
        core_of = self.layout.core_of
        layers: list[list[int]] = []
        depth: dict[int, int] = {}
        for cpu in cpus:
            core = core_of[cpu]
            level = depth.get(core, 0)
            depth[core] = level + 1
            if level == len(layers):
                layers.append([])
            layers[level].append(cpu)
        return layers

    def spread(self, cpus: Sequence[int]) -> Sequence[int]:
        """Return the CPUs with siblings as far apart as possible. At most one core's number of CPUs keeps its order."""
        # CPUs that one core could hold are not distributed, as in upstream's spreadCPUs.
        return cpus if len(cpus) <= self.threads else list(chain.from_iterable(self.layers(cpus)))


def union(sets: Iterable[int]) -> int:
    """Return the union of the CPU bits."""
    bits = 0
    for each in sets:
        bits |= each
    return bits
