"""
NUMA nodes: which CPUs they have, how far they are apart, and their memory.

A CPU belongs to the NUMA node whose ``cpulist`` or ``cpumap`` has it. Where several claim it (firmware that describes one memory as
many NUMA nodes) or none does (its NUMA node has no directory), the CPU's own ``nodeN`` link decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.node.sysfs.cpus import CPU
from koord_numa.node.sysfs.files import Sysfs
from koord_numa.node.sysfs.memory import NODE, MemoryNode, read_memory, whole_memory

MOST_NUMA_NODES: Final = 1024
"""NUMA ids end here, as in the kernel (``MAX_NUMNODES``)."""


@dataclass(frozen=True, slots=True)
class NumaNodes:
    """``memory`` has one entry a NUMA node, ascending; ``of_cpu`` leaves out CPUs that belong to none."""

    memory: tuple[MemoryNode, ...]
    of_cpu: Mapping[int, int]
    distances: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_numa_nodes(sysfs: Sysfs, online: CpuSet) -> NumaNodes:
    """
    The NUMA nodes of the machine; one, of number 0, where the kernel knows none, as the kubelet counts.

    Raises ``SysfsError`` when a NUMA node lacks a file that others have, or distances do not fit together.
    """
    ids = sysfs.numbered("node", *NODE)
    if not ids:
        return NumaNodes((whole_memory(sysfs),), dict.fromkeys(online, 0))
    if ids[-1] >= MOST_NUMA_NODES:
        raise sysfs.error(f"NUMA node {ids[-1]} is not below {MOST_NUMA_NODES}", *NODE)
    warnings: list[str] = []
    of_cpu = _numa_of_cpus(sysfs, ids, online, warnings)
    # A NUMA node with CPUs and no memory may have no directory; it is a node of its own nevertheless, since CPUs link to it.
    everything = sorted({*ids, *of_cpu.values()})
    warnings += [
        f"NUMA node {numa} has CPUs and no directory: its memory is not online"
        for numa in everything
        if numa not in ids
    ]
    memory = {numa: read_memory(sysfs, numa) for numa in ids}
    # All or none, as for the CPUs' topology: one missing meminfo is a reading that was interrupted.
    untold = [numa for numa in ids if memory[numa].memory is None]
    if untold and len(untold) != len(ids):
        raise sysfs.error("is missing, and other NUMA nodes have it", *NODE, f"node{untold[0]}", "meminfo")
    return NumaNodes(
        memory=tuple(memory.get(numa) or MemoryNode(numa, 0) for numa in everything),
        of_cpu=of_cpu,
        distances=_distances(sysfs, ids, everything, warnings),
        warnings=tuple(warnings),
    )


def _numa_of_cpus(sysfs: Sysfs, ids: list[int], online: CpuSet, warnings: list[str]) -> dict[int, int]:
    claims = _claims(sysfs, ids, online)
    found: dict[int, int] = {}
    several, none = [], []
    for cpu in online:
        claimed = claims.get(cpu, [])
        linked = [numa for numa in sysfs.numbered("node", *CPU, f"cpu{cpu}") if numa < MOST_NUMA_NODES]
        if len(claimed) == 1:
            found[cpu] = claimed[0]
        elif claimed:
            several.append(cpu)
            # The lowest as the last resort, so that the answer does not depend on the order of reading.
            found[cpu] = next((numa for numa in linked if numa in claimed), claimed[0])
        elif len(linked) == 1:
            found[cpu] = linked[0]
        else:
            none.append(cpu)
    if several:
        warnings.append(f"several NUMA nodes claim CPUs {CpuSet.of(several)}: their own links decide, else the lowest")
    if none:
        warnings.append(f"CPUs {CpuSet.of(none)} belong to no NUMA node and are left out")
    return found


def _claims(sysfs: Sysfs, ids: list[int], online: CpuSet) -> dict[int, list[int]]:
    """The NUMA nodes that list a CPU, by CPU."""
    claims: dict[int, list[int]] = {}
    untold = []
    for numa in ids:
        members = sysfs.cpus((*NODE, f"node{numa}"), "cpulist", "cpumap", online)
        if members is None:
            untold.append(numa)
        for cpu in members or ():
            claims.setdefault(cpu, []).append(numa)
    if untold and len(untold) != len(ids):
        raise sysfs.error("names no CPUs, and other NUMA nodes do", *NODE, f"node{untold[0]}")
    return claims


def _distances(sysfs: Sysfs, ids: list[int], everything: list[int], warnings: list[str]) -> dict[int, dict[int, int]]:
    """Costs by NUMA node. The kernel prints one column for every NUMA node that is online."""
    rows: dict[int, list[int]] = {}
    for numa in ids:
        text = sysfs.text(*NODE, f"node{numa}", "distance")
        if text is None:
            continue
        words = text.split()
        if not words or not all(word.isdecimal() and len(word) <= 9 for word in words):
            raise sysfs.error(f"{text[:40]!r} is no list of distances", *NODE, f"node{numa}", "distance")
        rows[numa] = [int(word) for word in words]
    if not rows:
        return {}
    if len(rows) != len(ids):
        missing = next(numa for numa in ids if numa not in rows)
        raise sysfs.error("is missing, and other NUMA nodes have it", *NODE, f"node{missing}", "distance")
    widths = sorted({len(row) for row in rows.values()})
    if len(widths) > 1:
        raise sysfs.error(f"NUMA nodes list between {widths[0]} and {widths[-1]} distances", *NODE)
    # Only the width tells whether NUMA nodes without a directory have a column.
    columns = next((known for known in (everything, ids) if len(known) == widths[0]), None)
    if columns is None:
        warnings.append(f"distances to {widths[0]} NUMA nodes are listed and there are {len(everything)}: none is used")
        return {}
    return {numa: dict(zip(columns, row, strict=True)) for numa, row in rows.items()}
