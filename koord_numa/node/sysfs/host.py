"""What ``read_host`` finds out about a machine, put together from CPUs, NUMA nodes and PCI devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.node.sysfs.caches import Caches, read_caches
from koord_numa.node.sysfs.cpus import CpuPlace, isolated_cpus, online_cpus, read_places
from koord_numa.node.sysfs.files import Sysfs, SysfsError
from koord_numa.node.sysfs.memory import MemoryNode
from koord_numa.node.sysfs.numa import NumaNodes, read_numa_nodes
from koord_numa.node.sysfs.pci import PciDevice, read_pci


@dataclass(frozen=True, slots=True)
class HostCpu:
    """
    One online logical CPU. ``core`` counts the cores of the machine in the order of their first CPU, as ``lscpu`` does; ``socket``
    is the firmware's id; ``l3`` is ``None`` where the kernel names no last-level cache.
    """

    id: int
    core: int
    socket: int
    die: int
    numa: int
    l3: int | None


@dataclass(frozen=True, slots=True)
class HostNuma:
    """
    One NUMA node, with or without CPUs. ``memory`` is bytes and ``None`` where the kernel does not tell; ``pages`` counts huge
    pages by their size in bytes; ``distances`` are ACPI SLIT costs by NUMA node.
    """

    id: int
    memory: int | None
    pages: Mapping[int, int] = field(default_factory=dict)
    distances: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Host:
    """A machine. ``cpus`` and ``numa`` ascend by id; ``warnings`` are oddities that do not make it unusable."""

    cpus: tuple[HostCpu, ...]
    numa: tuple[HostNuma, ...]
    isolated: CpuSet = EMPTY
    pci: tuple[PciDevice, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def cpu_set(self) -> CpuSet:
        """All online CPUs that belong to a NUMA node."""
        return CpuSet.of(cpu.id for cpu in self.cpus)

    def cpus_of(self, numa: int) -> CpuSet:
        """The online CPUs of one NUMA node."""
        return CpuSet.of(cpu.id for cpu in self.cpus if cpu.numa == numa)


def read_host(root: Path) -> Host:
    """
    The machine described by the sysfs mounted at ``root`` (procfs is looked for beside it, for machines without NUMA nodes).

    Raises ``SysfsError`` when a file contradicts another one or cannot be understood, so that no half-read machine is published.
    """
    sysfs = Sysfs(root)
    online = online_cpus(sysfs)
    numa = read_numa_nodes(sysfs, online)
    places = read_places(sysfs, [cpu for cpu in online if cpu in numa.of_cpu])
    caches = read_caches(sysfs, places)
    pci = read_pci(sysfs)
    isolated = isolated_cpus(sysfs)
    # Last: whether a file was cut short shows only when all that matter were read.
    sysfs.check_complete()
    return Host(
        cpus=_cpus(places, numa, caches),
        # CPU-less NUMA nodes (CXL, HBM) are zones as well: their memory can be asked for.
        numa=tuple(_numa(node, numa) for node in numa.memory),
        isolated=isolated & online,  # the kernel lists isolated CPUs also while they are offline
        pci=pci,
        warnings=(*numa.warnings, *filter(None, [caches.warning])),
    )


def _numa(node: MemoryNode, numa: NumaNodes) -> HostNuma:
    return HostNuma(node.id, node.memory, node.pages, numa.distances.get(node.id, {}))


def _cpus(places: Mapping[int, CpuPlace], numa: NumaNodes, caches: Caches) -> tuple[HostCpu, ...]:
    _check_siblings(places, numa)
    cores: dict[object, int] = {}
    found = []
    for cpu, place in sorted(places.items()):
        # NUMA nodes of one socket may count their cores from 0 each, and the dies of one NUMA node too.
        core = numa.of_cpu[cpu], place.socket, place.die, place.core_id, place.siblings.bits
        found.append(
            HostCpu(
                id=cpu,
                core=cores.setdefault(core, len(cores)),
                socket=max(0, place.socket),  # -1 is the kernel's word for unknown; there is one socket then
                die=max(0, place.die),
                numa=numa.of_cpu[cpu],
                l3=caches.of_cpu.get(cpu),
            )
        )
    if not found:
        raise SysfsError("no online CPU belongs to a NUMA node")
    return tuple(found)


def _check_siblings(places: Mapping[int, CpuPlace], numa: NumaNodes) -> None:
    """Threads of one core share everything. A file that was read while the kernel changed it shows up here."""
    for cpu, place in places.items():
        for other in place.siblings:
            there = places[other]
            if (place.socket, place.die, numa.of_cpu[cpu]) != (there.socket, there.die, numa.of_cpu[other]):
                raise SysfsError(f"CPUs {cpu} and {other} are threads of one core in two sockets, dies or NUMA nodes")
    # Siblings with core ids of their own are compute units; where some have and some have not, an id is wrong.
    threads = [(place, places[other]) for cpu, place in places.items() for other in place.siblings if other > cpu]
    if len({place.core_id == there.core_id for place, there in threads}) > 1:
        raise SysfsError("some siblings share their core id and others do not")
