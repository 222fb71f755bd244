"""A request for CPUs of a node, the CPUs held there already, and the result for too few CPUs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy
from koord_numa.core.value_objects import ValueObject


class CpuRequest(ValueObject, gc=False):
    """The number and shape of CPUs for a pod. Every bind policy except ``FULL_PCPUS`` means spreading."""

    count: int
    bind: CpuBindPolicy = CpuBindPolicy.NONE
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE
    strategy: NumaAllocateStrategy = NumaAllocateStrategy.MOST_ALLOCATED


@dataclass(frozen=True, slots=True)
class CpuOccupancy:
    """
    The held CPUs of a node: those of pods with an exclusive policy, and the number of pods per CPU.

    ``limit`` is the maximum number of pods per CPU. Use counts matter only if it is above 1.
    """

    pcpu_level: CpuSet = EMPTY
    numa_level: CpuSet = EMPTY
    references: Mapping[int, int] = field(default_factory=dict)
    limit: int = 1

    @classmethod
    def of(cls, holdings: Iterable[tuple[CpuSet, CpuExclusivePolicy]], limit: int = 1) -> "CpuOccupancy":
        """Return the occupancy by the CPUs and policies of these pods."""
        pcpu = numa = 0
        references: dict[int, int] = {}
        for cpus, exclusive in holdings:
            if exclusive is CpuExclusivePolicy.PCPU_LEVEL:
                pcpu |= cpus.bits
            elif exclusive is CpuExclusivePolicy.NUMA_NODE_LEVEL:
                numa |= cpus.bits
            # One entry per held CPU and pod: most of the cost on large nodes, and unused if CPUs are not shared.
            if limit > 1:
                for cpu in cpus:
                    references[cpu] = references.get(cpu, 0) + 1
        return cls(CpuSet(pcpu), CpuSet(numa), references, limit)


UNOCCUPIED: Final = CpuOccupancy()


@dataclass(frozen=True, slots=True)
class NotEnoughCpus:
    """The result for too few CPUs: ``found`` CPUs of the right shape instead of ``wanted``."""

    wanted: int
    found: int
    why: str = "not enough free CPUs"

    def __str__(self) -> str:
        return f"{self.why}: {self.wanted} wanted, {self.found} found"
