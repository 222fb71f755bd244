"""The machine behind ``node.koordinator.sh/cpu-topology``. Nodes of one model share one ``CpuTopology``: it is built once."""

from collections.abc import Hashable, Mapping
from hashlib import blake2b
from typing import Final

from pydantic import Field

from koord_numa.core.cpu_topology import MAX_NUMA, Cpu, CpuTopology
from koord_numa.core.cpuset import MAX_CPU
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.parsed_cache import ParsedCache
from koord_numa.wire.parsing import GoJson, Id, read_json
from koord_numa.wire.pod.pod_annotations import numa_id

Distances = Mapping[tuple[int, int], int]


class CpuModel(GoJson):
    """One logical CPU. ``uncore`` is ours: the agent may name the last-level cache, else the socket stands for it."""

    id: Id = 0
    core: Id = 0
    socket: Id = 0
    node: Id = 0
    uncore: Id | None = None


class CpuTopologyModel(GoJson):
    """``node.koordinator.sh/cpu-topology``."""

    detail: list[CpuModel] = Field([])


def machine(text: str, numa_ids: frozenset[int], distances: Distances, path: FieldPath) -> CpuTopology:
    """
    The machine with these CPUs, also with NUMA nodes that have none.

    Raises ``WireError`` when no CPU is listed, one is listed twice, an id is out of range, or there are too many NUMA nodes.
    """
    # By digest: the text of a large machine has tens of kilobytes, and would be kept for every node of the model.
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    key = digest, numa_ids, tuple(sorted(distances.items()))
    known = _MACHINES.get(key)
    if known is None:
        cpus = _cpus(text, path)
        count = len(numa_ids.union(cpu.numa for cpu in cpus))
        if count > MAX_NUMA:
            raise path.error(f"{count} NUMA nodes are too many, at most {MAX_NUMA} are supported")
        made = CpuTopology(cpus=cpus, numa_ids=tuple(numa_ids), distances=dict(distances))
        known = _MACHINES.put(key, made, len(text))
    return known


def _cpus(text: str, path: FieldPath) -> tuple[Cpu, ...]:
    found: dict[int, Cpu] = {}
    for model in read_json(CpuTopologyModel, text, path).detail:
        if model.id > MAX_CPU:
            raise path.error(f"CPU {model.id} is above {MAX_CPU}")
        if model.id in found:
            raise path.error(f"CPU {model.id} is listed twice")
        found[model.id] = Cpu(
            id=model.id,
            core=model.core,
            numa=numa_id(model.node, path),
            socket=model.socket,
            # Without a cache id the socket stands for it, so that uncore alignment means socket alignment.
            uncore=model.socket if model.uncore is None else model.uncore,
        )
    if not found:
        raise path.error("no CPU is listed")
    return tuple(sorted(found.values()))


_MACHINES: Final[ParsedCache[Hashable, CpuTopology]] = ParsedCache(16 << 20)
