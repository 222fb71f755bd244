"""
Amounts per NUMA node of a pod whose CPUs move: what ``numaNodeResources`` says afterwards, and whether NUMA nodes have room for it.

Theory. Where the number of CPUs on every NUMA node stays as it is, so do all amounts. Otherwise CPU is what the pod has there, and
everything else follows the CPUs: each NUMA node gets the share of the CPUs that it has, the lowest one what rounding leaves. The
result depends on the CPUs alone, so that a pod may be moved in several steps.

Example: 4 CPUs and 8 GiB, half on NUMA node 0 and half on 1. On CPUs of NUMA node 1 alone: 4 CPUs and 8 GiB there.
"""

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.resources import CPU, MILLI, ResourceList, total

NumaAmounts = tuple[tuple[int, ResourceList], ...]
"""Amounts by NUMA id, ascending."""


def amounts_after(numa: NumaAmounts, topology: CpuTopology, cpus: CpuSet) -> NumaAmounts:
    """The amounts per NUMA node of a pod that held ``numa`` and now has these CPUs. A pod without NUMA amounts gets none."""
    counts = {node: count for node, here in topology.numa_bits.items() if (count := (here & cpus.bits).bit_count())}
    # CPUs per NUMA node unchanged: amounts stay to the byte, rounding included.
    if not numa or counts == {node: held.get(CPU, 0) // MILLI for node, held in numa if held.get(CPU)}:
        return numa
    held, number = total(amounts for _, amounts in numa), len(cpus)
    shares = {
        # Shares of zero are left out, so that a NUMA node is named only where the pod has something.
        node: {name: amount * count // number for name, amount in held.items() if amount * count // number}
        for node, count in sorted(counts.items())
    }
    # The lowest NUMA node takes what rounding leaves, so that the sum is kept.
    first = min(shares)
    for name, amount in held.items():
        rest = amount - sum(share.get(name, 0) for share in shares.values())
        if rest:
            shares[first][name] = shares[first].get(name, 0) + rest
    return tuple(shares.items())
