"""A request for CPUs of one node, who holds CPUs there already, and the answer that there are not enough."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy
from koord_numa.core.value_objects import ValueObject


class CpuRequest(ValueObject, gc=False):
    """How many CPUs one pod wants and of which shape. Every bind policy but ``FULL_PCPUS`` means spreading."""

    count: int
    bind: CpuBindPolicy = CpuBindPolicy.NONE
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE
    strategy: NumaAllocateStrategy = NumaAllocateStrategy.MOST_ALLOCATED


@dataclass(frozen=True, slots=True)
class CpuOccupancy:
    """
    Who already holds CPUs of the node: CPUs of pods with an exclusive policy, and by how many pods each CPU is held.

    ``limit`` is how many pods may share one CPU; use counts matter only when it is above one.
    """

    pcpu_level: CpuSet = EMPTY
    numa_level: CpuSet = EMPTY
    references: Mapping[int, int] = field(default_factory=dict)
    limit: int = 1

    @classmethod
    def of(cls, holdings: Iterable[tuple[CpuSet, CpuExclusivePolicy]], limit: int = 1) -> "CpuOccupancy":
        """The occupancy that these pods' CPUs and policies make."""
        pcpu = numa = 0
        references: dict[int, int] = {}
        for cpus, exclusive in holdings:
            if exclusive is CpuExclusivePolicy.PCPU_LEVEL:
                pcpu |= cpus.bits
            elif exclusive is CpuExclusivePolicy.NUMA_NODE_LEVEL:
                numa |= cpus.bits
            # One entry a held CPU and pod: on large nodes this is most of the cost, and unused where CPUs are not shared.
            if limit > 1:
                for cpu in cpus:
                    references[cpu] = references.get(cpu, 0) + 1
        return cls(CpuSet(pcpu), CpuSet(numa), references, limit)


UNOCCUPIED: Final = CpuOccupancy()


@dataclass(frozen=True, slots=True)
class NotEnoughCpus:
    """The answer no: ``found`` CPUs of the right shape where ``wanted`` were asked for."""

    wanted: int
    found: int
    why: str = "not enough free CPUs"

    def __str__(self) -> str:
        return f"{self.why}: {self.wanted} wanted, {self.found} found"
