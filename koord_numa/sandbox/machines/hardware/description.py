"""A simulated node: its hardware, who owns its CPUs, and how it is labelled and configured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.node import KubeletConfig, Taint
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MEMORY, MILLI, PODS
from koord_numa.sandbox.machines.hardware.hardware import Hardware

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
