"""Who is on a node already, as exclusivity sees it: by CPU and by NUMA node. It reads the ledger and judges nothing."""

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import CpuOccupancy
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.numa import exclusive
from koord_numa.core.objects.vocabulary import CpuExclusivePolicy, NumaPolicy
from koord_numa.core.state.ledger import Holding, Ledger


def cpu_occupancy(ledger: Ledger, limit: int = 1) -> CpuOccupancy:
    """Which CPUs are held under which exclusive policy; where pods share a CPU, the one counted last decides."""
    levels = {CpuExclusivePolicy.PCPU_LEVEL: 0, CpuExclusivePolicy.NUMA_NODE_LEVEL: 0}
    for holding in ledger:
        for policy in levels:
            # A later pod on the same CPU overwrites the level, as in Koordinator's cpu details, which have one policy a CPU.
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
    Which NUMA nodes have pods that name SingleNUMANode and sit on one NUMA node, and which have pods over several.

    Pods with CPUs of their own and pods that share a pool count alike, by where their CPUs and amounts are (pod-level NUMA
    policy, "Goal"). Koordinator's node_allocation.go counts pods with own CPUs only, whatever policy they name.
    """
    single = several = 0
    for holding in ledger:
        mask = numa_mask(holding, machine)
        if mask & (mask - 1):
            # Several bits set: the pod spans NUMA nodes, whatever policy it names.
            several |= mask
        elif holding.request is not None and holding.request.numa.policy is NumaPolicy.SINGLE_NUMA_NODE:
            single |= mask
    return exclusive.NumaOccupancy(single, several)


def numa_mask(holding: Holding, machine: CpuTopology | None) -> int:
    """The NUMA nodes of what the pod holds: of its CPUs, and of its amounts."""
    return holding.mask | machine.numa_of(holding.cpus) if machine is not None and holding.cpus else holding.mask
