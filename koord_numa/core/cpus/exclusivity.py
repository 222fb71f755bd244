"""The CPUs held by pods with an exclusive policy, from the ledger."""

from koord_numa.core.cpus.cpu_request import CpuOccupancy
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuExclusivePolicy
from koord_numa.core.state.ledger import Ledger


def cpu_occupancy(ledger: Ledger, limit: int = 1) -> CpuOccupancy:
    """Return the CPUs held under each exclusive policy. If pods share a CPU, the last one decides."""
    levels = {CpuExclusivePolicy.PCPU_LEVEL: 0, CpuExclusivePolicy.NUMA_NODE_LEVEL: 0}
    for holding in ledger:
        for policy in levels:
            # A later pod on the same CPU overwrites the level, as in Koordinator's cpu details, which have one policy
            # per CPU.
            levels[policy] &= ~holding.cpus.bits
        if holding.exclusive in levels:
            levels[holding.exclusive] |= holding.cpus.bits
    return CpuOccupancy(
        pcpu_level=CpuSet(levels[CpuExclusivePolicy.PCPU_LEVEL]),
        numa_level=CpuSet(levels[CpuExclusivePolicy.NUMA_NODE_LEVEL]),
        references=ledger.references if limit > 1 else {},
        limit=limit,
    )
