"""A simulated node: its hardware, who owns its CPUs, and how it is labelled and configured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.node import KubeletConfig, Taint
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MEMORY, MILLI, PODS

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


HOSTNAME_LABEL: Final = "kubernetes.io/hostname"


class Style(Enum):
    """Who chooses CPU ids on the node, and who publishes its topology."""

    KOORDINATOR = "koordinator"  # the scheduler chooses; Koordinator's agent publishes and applies
    KUBELET = "kubelet"  # the kubelet chooses; an exporter publishes


STATIC_KUBELET: Final = KubeletConfig(
    topology_policy=KubeletPolicy.SINGLE_NUMA_NODE,
    topology_scope=KubeletScope.CONTAINER,
    cpu_policy="static",
    memory_policy="Static",
)
"""What an operator of latency-sensitive nodes usually sets."""

PLAIN_KUBELET: Final = KubeletConfig(topology_policy=KubeletPolicy.NONE, cpu_policy="none", memory_policy="None")
"""The kubelet's defaults; beside Koordinator's agent it should not assign CPUs."""


class CpuDriver(StrEnum):
    """What dra-driver-cpu, with an external allocator, publishes of a machine's CPUs."""

    AUTO = "auto"  # as ``layout`` where a kubelet leaves CPUs alone, else nothing
    LAYOUT = "layout"  # CPU ids and siblings, as its main branch
    COUNT = "count"  # only how many there are, as its release v0.2: the rest is known from the topology


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """
    One simulated node.

    ``labels`` are added to those every node has; Koordinator's node labels are among them. ``reserved`` are CPUs for the
    system: announced by Koordinator's reservation annotation, or reserved in the kubelet's configuration. ``reserved_memory``
    is bytes per NUMA node. ``hidden`` leaves out of the topology what today's exporters do not publish of a kubelet. The topology of
    a node with ``agent`` is published by a node agent that runs on its ``NodeServices``, not by the simulation. With ``kubelet_state`` the
    simulation publishes the kubelet's exact state as the node agent does. ``cpu_driver`` is what dra-driver-cpu publishes of the CPUs.
    """

    name: str
    hardware: Hardware
    style: Style = Style.KOORDINATOR
    kubelet: KubeletConfig = PLAIN_KUBELET
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    reserved: CpuSet = EMPTY
    reserved_memory: int = 0
    amplification: Mapping[str, float] = field(default_factory=dict)
    pods: int = 110
    ephemeral_storage: int = 200 * 2**30
    hidden: bool = False
    agent: bool = False
    kubelet_state: bool = False
    cpu_driver: CpuDriver = CpuDriver.AUTO

    def __post_init__(self) -> None:
        if not self.reserved <= self.hardware.machine.all:
            raise ValueError(f"node {self.name} reserves CPUs {self.reserved} that the machine does not have")

    @property
    def all_labels(self) -> dict[str, str]:
        """The node's labels, those that every kubelet sets among them."""
        usual = {HOSTNAME_LABEL: self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        return {**usual, **self.labels}

    @property
    def capacity(self) -> dict[str, int]:
        """Everything the machine has, in our units."""
        hardware = self.hardware
        numa_ids = hardware.machine.numa_ids
        pages: dict[str, int] = {}
        for numa in numa_ids:
            for name, size in hardware.hugepage_bytes(numa).items():
                pages[name] = pages.get(name, 0) + size
        return {
            CPU: len(hardware.machine.cpus) * MILLI,
            MEMORY: sum(hardware.memory.get(numa, 0) for numa in numa_ids),
            "ephemeral-storage": self.ephemeral_storage,
            PODS: self.pods,
            **pages,
            **hardware.device_counts(),
        }

    @property
    def allocatable(self) -> dict[str, int]:
        """
        What the kubelet would offer. Koordinator's reservation is not in it: its scheduler subtracts that itself.

        Amplified like Koordinator's webhook does it: raw amounts times ratio, cut to whole units.
        """
        found = dict(self.capacity)
        numa_ids = self.hardware.machine.numa_ids
        pages = sum(sum(self.hardware.hugepage_bytes(numa).values()) for numa in numa_ids)
        found[MEMORY] = max(0, found[MEMORY] - pages - self.reserved_memory * len(numa_ids))
        if self.style is Style.KUBELET:
            found[CPU] -= len(self.reserved) * MILLI
        for name, ratio in self.amplification.items():
            if name in found and ratio > 1:
                found[name] = int(found[name] * ratio)
        return found
