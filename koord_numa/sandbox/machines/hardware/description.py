"""The description of a simulated node: hardware, the component that selects CPUs, labels and configuration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.node import KubeletConfig, Taint
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MEMORY, MILLI, PODS
from koord_numa.sandbox.machines.agents.koordlet_devices import DeviceDescription

GIB = 2**30
PAGE_BYTES: Mapping[str, int] = {"2Mi": 2 * 2**20, "1Gi": GIB}


class Numbering(Enum):
    """The order of CPU ids within the cores of a machine."""

    ADJACENT = "adjacent"  # (0, 1), (2, 3), … as on POWER and many virtual machines
    SPLIT = "split"  # all first threads, then all second threads, as on most x86 servers


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """A device of a resource such as ``nvidia.com/gpu``. ``numa`` is ``None`` if its NUMA node is unknown."""

    resource: str
    id: str
    numa: int | None


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware of a node.

    ``memory`` is in bytes per NUMA node, huge pages included. ``pages`` is the number of huge pages per NUMA node by
    size (``2Mi``, ``1Gi``). A device plugin advertises ``devices``. ``claimed_devices`` are available only through
    claims.
    """

    machine: CpuTopology
    memory: Mapping[int, int]
    pages: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    devices: tuple[SimulatedDevice, ...] = ()
    claimed_devices: tuple[SimulatedDevice, ...] = ()

    def hugepage_bytes(self, numa: int) -> dict[str, int]:
        """Return the bytes of huge pages on a NUMA node, by resource name."""
        return {f"hugepages-{size}": count * PAGE_BYTES[size] for size, count in self.pages.get(numa, {}).items()}

    def plain_memory(self, numa: int) -> int:
        """Return the bytes of a NUMA node that are not reserved for huge pages."""
        return self.memory.get(numa, 0) - sum(self.hugepage_bytes(numa).values())

    def devices_on(self, numa: int) -> dict[str, int]:
        """Return the number of devices on a NUMA node, by resource."""
        counts: dict[str, int] = {}
        for device in sorted(self.devices, key=lambda device: device.resource):
            if device.numa == numa:
                counts[device.resource] = counts.get(device.resource, 0) + 1
        return counts

    def device_counts(self) -> dict[str, int]:
        """Return the number of devices, by resource."""
        counts: dict[str, int] = {}
        for device in sorted(self.devices, key=lambda device: device.resource):
            counts[device.resource] = counts.get(device.resource, 0) + 1
        return counts


@dataclass(frozen=True, slots=True)
class Shape:
    """A regular machine: NUMA nodes per socket, cores per NUMA node and threads per core.

    ``memory`` is in bytes per NUMA node and ``pages`` is huge pages per NUMA node. ``devices`` has the NUMA node of
    every device by resource. ``claimed_devices`` has the same for devices that no device plugin advertises. ``costs``
    are the distances to the NUMA node itself, to a NUMA node on the same socket, and to a NUMA node on another socket.
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
        """Return the hardware of the shape."""
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


def devices_of(places_of: Mapping[str, Sequence[int | None]]) -> Iterator[SimulatedDevice]:
    """Yield the devices of every resource from their NUMA nodes."""
    for resource, places in sorted(places_of.items()):
        for place, numa in enumerate(places):
            yield SimulatedDevice(resource, f"{resource.rsplit('/', 1)[-1]}-{place}", numa)


HOSTNAME_LABEL: Final = "kubernetes.io/hostname"


class Style(Enum):
    """The component that selects CPU ids on the node and the publisher of its topology."""

    KOORDINATOR = "koordinator"  # the scheduler selects; Koordinator's agent publishes and applies
    KUBELET = "kubelet"  # the kubelet selects; an exporter publishes


STATIC_KUBELET: Final = KubeletConfig(
    topology_policy=KubeletPolicy.SINGLE_NUMA_NODE,
    topology_scope=KubeletScope.CONTAINER,
    cpu_policy="static",
    memory_policy="Static",
)
"""Usual configuration of nodes for latency-sensitive pods."""

PLAIN_KUBELET: Final = KubeletConfig(topology_policy=KubeletPolicy.NONE, cpu_policy="none", memory_policy="None")
"""Defaults of the kubelet. With Koordinator's agent the kubelet should not assign CPUs."""


class CpuDriver(StrEnum):
    """The CPU attributes that dra-driver-cpu, with an external allocator, publishes."""

    AUTO = "auto"  # ``layout`` if the kubelet does not pin CPUs, else nothing
    LAYOUT = "layout"  # CPU ids and siblings, as on its main branch
    COUNT = "count"  # only the number of CPUs, as in release v0.2; the topology has the rest


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A simulated node.

    ``labels`` are added to the default labels, and include Koordinator's node labels. ``reserved`` are CPUs for the
    system, published in Koordinator's reservation annotation or reserved in the kubelet's configuration.
    ``reserved_memory`` is in bytes per NUMA node. With ``hidden`` the topology omits kubelet settings that current
    exporters do not publish. With ``agent`` a node agent on ``NodeServices`` publishes the topology, not the
    simulation. With ``kubelet_state`` the simulation publishes the kubelet's exact state like the node agent.
    ``cpu_driver`` selects the CPU attributes of dra-driver-cpu. ``devices_by_id`` are published in a Device object.
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
    devices_by_id: tuple[DeviceDescription, ...] = ()

    def __post_init__(self) -> None:
        if not self.reserved <= self.hardware.machine.all:
            raise ValueError(f"node {self.name} reserves CPUs {self.reserved} that the machine does not have")

    @property
    def all_labels(self) -> dict[str, str]:
        """The node's labels, including the labels that every kubelet sets."""
        usual = {HOSTNAME_LABEL: self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        return {**usual, **self.labels}

    @property
    def capacity(self) -> dict[str, int]:
        """The capacity of the machine in internal units."""
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
        """The allocatable amounts of the kubelet in internal units.

        Koordinator's reservation is not subtracted, because its scheduler subtracts it. Amounts are amplified as in
        Koordinator's webhook: the raw amount times the ratio, truncated to whole units.
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
