"""
The kubelet's device, CPU and memory manager as hint providers of the topology manager, at one point of one pod's admission.

Each answers from what is free at that moment; none holds anything by answering. The order is the kubelet's: devices, CPUs, memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koord_numa.core.kubelet.managers.aggregates import ContainerDemand
from koord_numa.core.kubelet.managers.cpus import CpuStock
from koord_numa.core.kubelet.managers.devices import DeviceStock
from koord_numa.core.kubelet.managers.memory import MemoryTable, Reusable
from koord_numa.core.numa.hint_providers import Answer, Hints
from koord_numa.core.resources import CPU


@dataclass(slots=True)
class DeviceManager:
    """``stocks`` are the devices of every resource with a plugin. GetTopologyHints in devicemanager/topology_hints.go."""

    stocks: Mapping[str, DeviceStock]

    def hints(self, ask: ContainerDemand) -> Answer:
        """One answer for each device resource that the node has; devices without a NUMA node have no preference."""
        found: dict[str, Hints] = {}
        for resource, needed in ask.devices.items():
            # The kubelet skips resources that no plugin has registered.
            if resource in self.stocks:
                found[resource] = self.stocks[resource].hints(needed)
        return found


@dataclass(slots=True)
class CpuManager:
    """``stock`` is ``None`` under policy ``none``. GetTopologyHints in cpumanager/policy_static.go."""

    stock: CpuStock | None

    def hints(self, ask: ContainerDemand) -> Answer:
        """Nothing to say about containers that run in the shared pool."""
        return {CPU: self.stock.hints(ask.cpus)} if ask.cpus and self.stock is not None else None


@dataclass(slots=True)
class MemoryManager:
    """``table`` is ``None`` under policy ``None``. GetTopologyHints in memorymanager/policy_static.go."""

    table: MemoryTable | None
    reusable: Reusable

    def hints(self, ask: ContainerDemand) -> Answer:
        """The same masks for every memory type; nothing at all where no mask has enough, and then the allocation fails."""
        # ``None`` is "no preference": the kubelet's memory manager returns no hints in both cases, and Allocate fails later.
        if not ask.memory or self.table is None or not self.table.knows(ask.memory):
            return None
        rule = self.table.hints(ask.memory, self.reusable)
        return dict.fromkeys(ask.memory, rule) if rule else None
