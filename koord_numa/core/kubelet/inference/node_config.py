"""
What the published objects say about one kubelet's node, whatever is free there: its machine, its managers, what each NUMA node has.

Worked out once for a node and its topology; ``inferred_state.py`` fills in what is free. CPU ids are made up: only counts are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Self

from koord_numa.core.cpu_topology import Cpu, CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.demand import is_memory
from koord_numa.core.kubelet.inference.socket_cpus import ANY_THREADS
from koord_numa.core.kubelet.options import (
    FULL_CORES,
    LIKELY_THREADS,
    OVER_NUMA,
    STATIC_MEMORY,
    likely_config,
)
from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.value_objects import replace

BY_SOCKET: Final = "align-by-socket"

SPREADING: Final = (
    BY_SOCKET,
    "distribute-cpus-across-cores",
    "prefer-align-cpus-by-uncorecache",
)
"""Options of the static CPU manager policy with which CPUs are not just packed into the cores of a NUMA node."""

Distances = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """
    The node as its kubelet knows it before the first pod, but for its devices, whose names are in ``devices``.

    ``topology`` and ``allocatable`` are what it was made of; ``node`` is the same object as long as only what is available changes.
    ``derived`` is what others worked out of the topology, by their names for it: it goes with it.
    """

    node: KubeletNode
    devices: tuple[str, ...]
    topology: NodeResourceTopology
    allocatable: ResourceList
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, topology: NodeResourceTopology, allocatable: ResourceList, architecture: str = "") -> Self:
        """
        From the topology and the Node object's allocatable amounts.

        A manager whose resources no zone lists is taken to be off, as exporters list exactly what is managed. ``architecture`` is the
        Node's, empty where it names none.
        """
        zones = topology.zones
        listed = sorted({kind for zone in zones for kind in zone.allocatable if is_memory(kind)})
        # An exporter that lists memory although the memory manager is off describes the machine, not what is bound.
        kinds = [] if topology.kubelet.memory_policy == "None" else listed
        machine = _machine(
            tuple((zone.numa, zone.capacity.get(CPU, 0) // MILLI) for zone in zones),
            tuple(sorted(topology.distances.items())),
        )
        node = KubeletNode(
            machine=machine,
            config=replace(
                likely_config(topology),
                memory_policy=STATIC_MEMORY if kinds else "None",
                # The reserved CPUs are those that the machine has and no zone allocates.
                reserved_cpus=CpuSet(
                    machine.bits & ~first_cpus(machine, [(zone.numa, zone.allocatable) for zone in zones])
                ),
            ),
            allocatable=allocatable,
            memory={zone.numa: {kind: zone.allocatable.get(kind, 0) for kind in kinds} for zone in zones}
            if kinds
            else {},
            ids_are_real=False,
            packs=architecture in LIKELY_THREADS and packs_cpus(topology.kubelet),
            may_pack=architecture in LIKELY_THREADS and topology.kubelet.cpu_policy is None,
            core_threads=_core_threads(topology.kubelet, architecture),
            is_published=topology.kubelet.cpu_policy is not None,
            takes_whole_cores=packs_cpus(topology.kubelet) and bool(topology.kubelet.cpu_options.get(FULL_CORES)),
        )
        devices = {name for zone in zones for name in zone.allocatable if name != CPU and not is_memory(name)}
        return cls(node, tuple(sorted(devices)), topology, allocatable)

    def holds_for(self, topology: NodeResourceTopology, allocatable: ResourceList) -> bool:
        """Do these objects differ at most in what is available?"""
        old = self.topology
        return (
            _same(allocatable, self.allocatable)
            and _same(topology.kubelet, old.kubelet)
            and _same(topology.distances, old.distances)
            and (topology.zones is old.zones or _have_the_same(topology.zones, old.zones))
        )


def packs_cpus(config: KubeletConfig) -> bool:
    """Are CPUs known to be taken core by core on each NUMA node? With no option that spreads them or looks at uncore caches."""
    return config.cpu_policy is not None and not any(config.cpu_options.get(name, False) for name in SPREADING)


def _core_threads(config: KubeletConfig, architecture: str) -> tuple[int, ...]:
    """The threads that a core may have where CPUs are known to be packed into sockets; empty where that is not known."""
    others = {name: on for name, on in config.cpu_options.items() if name != BY_SOCKET}
    if not packs_cpus(replace(config, cpu_options=others)) or others.get(OVER_NUMA):
        return ()
    return (1, *LIKELY_THREADS[architecture]) if architecture in LIKELY_THREADS else ANY_THREADS


def first_cpus(machine: CpuTopology, amounts: Sequence[tuple[int, ResourceList]]) -> int:
    """Bits of the first CPUs of every NUMA node, as many as its amount says."""
    chosen = 0
    # Made-up ids are contiguous on every NUMA node, so that ``bits & -bits`` is its first CPU and the product a run of CPUs.
    for numa, amount in amounts:
        bits = machine.numa_bits[numa]
        count = min(max(0, amount.get(CPU, 0) // MILLI), bits.bit_count())
        chosen |= ((1 << count) - 1) * (bits & -bits)
    return chosen


def _same(one: object, other: object) -> bool:
    """Equal, most often because it is the same object."""
    # Identity first: informers hand out the same object until it changes.
    return one is other or one == other


def _have_the_same(zones: Sequence[Zone], others: Sequence[Zone]) -> bool:
    return len(zones) == len(others) and all(
        zone.numa == other.numa and _same(zone.capacity, other.capacity) and _same(zone.allocatable, other.allocatable)
        for zone, other in zip(zones, others, strict=True)
    )


# Nodes come in models: the same counts and distances give one machine, and its derived tables are shared.
@lru_cache(maxsize=1024)
def _machine(counts: tuple[tuple[int, int], ...], distances: tuple[tuple[tuple[int, int], int], ...]) -> CpuTopology:
    cpus: list[Cpu] = []
    for numa, count in counts:
        # Sockets, caches and threads are not published: each CPU is a core, each NUMA node a socket, and whole cores are judged
        # apart.
        first = len(cpus)
        cpus += (Cpu(id=first + i, core=first + i, numa=numa, socket=numa, uncore=numa) for i in range(count))
    return CpuTopology(cpus=tuple(cpus), numa_ids=tuple(numa for numa, _ in counts), distances=dict(distances))
