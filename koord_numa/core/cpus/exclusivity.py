"""Who is on a node already, as exclusivity sees it: by CPU and by NUMA node. It reads the ledger and judges nobody."""

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.ask import CpuOccupancy
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.ledger import Ledger
from koord_numa.core.numa import exclusive
from koord_numa.core.vocabulary import CpuExclusivePolicy


def cpu_occupancy(ledger: Ledger, limit: int = 1) -> CpuOccupancy:
    """Which CPUs are held under which exclusive policy; where pods share a CPU, the one counted last decides."""
    levels = {CpuExclusivePolicy.PCPU_LEVEL: 0, CpuExclusivePolicy.NUMA_NODE_LEVEL: 0}
    for holding in ledger:
        for policy in levels:
            levels[policy] &= ~holding.cpus.bits
        if holding.exclusive in levels:
            levels[holding.exclusive] |= holding.cpus.bits
    return CpuOccupancy(
        pcpu_level=CpuSet(levels[CpuExclusivePolicy.PCPU_LEVEL]),
        numa_level=CpuSet(levels[CpuExclusivePolicy.NUMA_NODE_LEVEL]),
        references=ledger.references if limit > 1 else {},
        limit=limit,
    )


def numa_occupancy(ledger: Ledger, machine: CpuTopology | None) -> exclusive.NumaOccupancy:
    """
    Which NUMA nodes are used by pods on a single one only, and which by a pod that spans several.

    Only pods with own CPUs count, as in Koordinator's node_allocation.go.
    """
    single = shared = 0
    if machine is not None:
        for holding in ledger:
            if not holding.cpus.bits:
                continue
            mask = machine.numa_of(holding.cpus)
            if mask & (mask - 1):
                shared |= mask
            else:
                single |= mask
    return exclusive.NumaOccupancy(single & ~shared, shared)
