"""The hardware of a simulated node: CPUs, memory and huge pages per NUMA node, devices. Nothing about Kubernetes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of

GIB = 2**30
PAGE_BYTES: Mapping[str, int] = {"2Mi": 2 * 2**20, "1Gi": GIB}


class Numbering(Enum):
    """Where the threads of a core stand in the order of CPU ids."""

    ADJACENT = "adjacent"  # (0, 1), (2, 3), … as on POWER and many virtual machines
    SPLIT = "split"  # all first threads, then all second ones, as on most x86 servers


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a resource such as ``nvidia.com/gpu``; ``numa`` is ``None`` when its place is unknown."""

    resource: str
    id: str
    numa: int | None


@dataclass(frozen=True, slots=True)
class Hardware:
    """
    The hardware of one node. ``memory`` is bytes per NUMA node, huge pages included; ``pages`` counts huge pages per
    NUMA node by size (``2Mi``, ``1Gi``). A device plugin advertises ``devices``; ``claimed_devices`` can only be had by claim.
    """

    machine: CpuTopology
    memory: Mapping[int, int]
    pages: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    claimed_devices: tuple[Device, ...] = ()

    def hugepage_bytes(self, numa: int) -> dict[str, int]:
        """Bytes of huge pages on a NUMA node, by resource name."""
        return {f"hugepages-{size}": count * PAGE_BYTES[size] for size, count in self.pages.get(numa, {}).items()}

    def plain_memory(self, numa: int) -> int:
        """Bytes of a NUMA node that are not set aside for huge pages."""
        return self.memory.get(numa, 0) - sum(self.hugepage_bytes(numa).values())

    def devices_on(self, numa: int) -> dict[str, int]:
        """How many devices of each kind are near a NUMA node."""
        counts: dict[str, int] = {}
        for device in sorted(self.devices, key=lambda device: device.resource):
            if device.numa == numa:
                counts[device.resource] = counts.get(device.resource, 0) + 1
        return counts

    def device_counts(self) -> dict[str, int]:
        """How many devices there are of each kind."""
        counts: dict[str, int] = {}
        for device in sorted(self.devices, key=lambda device: device.resource):
            counts[device.resource] = counts.get(device.resource, 0) + 1
        return counts


@dataclass(frozen=True, slots=True)
class Shape:
    """
    A regular machine in a few numbers: NUMA nodes per socket, cores per NUMA node, threads per core.

    ``memory`` is bytes per NUMA node, ``pages`` huge pages per NUMA node, ``devices`` the NUMA node of each device by
    resource, ``claimed_devices`` those of devices that no device plugin advertises. ``costs`` are the distances to a NUMA node itself,
    to one on the same socket, and to one on another.
    """

    sockets: int = 2
    numa: int = 1
    cores: int = 8
    threads: int = 2
    memory: int = 64 * GIB
    numbering: Numbering = Numbering.SPLIT
    pages: Mapping[str, int] = field(default_factory=dict)
    devices: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    claimed_devices: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    costs: tuple[int, int, int] = (10, 12, 32)

    def build(self) -> Hardware:
        """The machine."""
        numa_ids = range(self.sockets * self.numa)
        here, near, far = self.costs
        distances = [
            [here if a == b else near if a // self.numa == b // self.numa else far for b in numa_ids] for a in numa_ids
        ]
        return Hardware(
            machine=cpu_topology_of(self._rows(), numa_ids=numa_ids, distances=distances),
            memory=dict.fromkeys(numa_ids, self.memory),
            pages={numa: dict(self.pages) for numa in numa_ids} if self.pages else {},
            devices=tuple(devices_of(self.devices)),
            claimed_devices=tuple(devices_of(self.claimed_devices)),
        )

    def _rows(self) -> Iterator[tuple[int, int, int, int]]:
        cores = self.sockets * self.numa * self.cores
        for core in range(cores):
            numa = core // self.cores
            for thread in range(self.threads):
                split = self.numbering is Numbering.SPLIT
                cpu = thread * cores + core if split else core * self.threads + thread
                yield cpu, core, numa // self.numa, numa


def devices_of(places_of: Mapping[str, Sequence[int | None]]) -> Iterator[Device]:
    """The devices of each resource, by the NUMA node of each."""
    for resource, places in sorted(places_of.items()):
        for place, numa in enumerate(places):
            yield Device(resource, f"{resource.rsplit('/', 1)[-1]}-{place}", numa)
