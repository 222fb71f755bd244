"""A node whose kubelet selects CPUs.

It admits pods exactly like the kubelet's managers and publishes like an exporter.
"""

from collections.abc import Mapping
from typing import Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import NotAdmitted, admit
from koord_numa.core.kubelet.state import ContainerGrant, DevicePool, KubeletNode, KubeletState, PluginDevice
from koord_numa.core.objects.node import KubeletCheckpoint
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.resources import ResourceList
from koord_numa.sandbox.machines.agents.agent import (
    AdmittedPod,
    AgentAllocation,
    Claim,
    RefusedPod,
    capacity_of,
    with_rest,
)
from koord_numa.sandbox.machines.agents.kubelet_files import KubeletMemory, checkpoint
from koord_numa.sandbox.machines.hardware.description import Hardware, NodeDescription
from koord_numa.sandbox.machines.hardware.topologies import Json, exported_topology

MAX_GONE: Final = 256
"""Maximum number of remembered uids of departed pods, as in the node agent."""


class KubeletAgent:
    """A kubelet with its CPU, memory, device and topology managers."""

    def __init__(self, node: NodeDescription) -> None:
        """Create the agent of an empty node."""
        self.node = node
        self.kubelet = kubelet_node(node)
        self._capacity = capacity_of(node)
        self._state = KubeletState.empty(self.kubelet)
        self._pods: dict[str, PodKey] = {}
        self._stale: dict[str, tuple[ContainerGrant, ...]] = {}  # of terminated pods, until the next admission
        self._gone: dict[str, None] = {}  # most recent uids of rejected and terminated pods

    def admit(self, pod: Pod) -> AdmittedPod | RefusedPod:
        """Admit the pod. A pod that was admitted before keeps its allocation, whatever changes."""
        uid = pod.key.uid
        if uid not in self._pods:
            # The kubelet releases terminated pods before it allocates.
            self._stale.clear()
            verdict = admit(self._state, uid, pod.request)
            # Also for a rejected pod: it is the state after the kubelet has cleaned up.
            self._state = verdict.state
            if isinstance(verdict, NotAdmitted):
                self._depart(uid)
                return RefusedPod(verdict.refusal.reason, verdict.refusal.detail)
            self._pods[uid] = pod.key
        return AdmittedPod(self._allocation(uid))

    def remove(self, uid: str) -> None:
        """Release all resources of a pod."""
        if self._pods.pop(uid, None) is not None:
            self._stale[uid] = self._state.pods[uid].grant.containers
            self._depart(uid)
            self._state = self._state.without(uid)

    def topology(self) -> Json:
        """Return the topology that an exporter publishes."""
        pods = [(key.namespace, key.name) for key in self._pods.values()]
        return exported_topology(self.node, self.kubelet, self._state, pods)

    def grants(self) -> dict[str, tuple[ContainerGrant, ...]]:
        """Return the kubelet's grants to containers, by pod uid."""
        return {uid: admitted.grant.containers for uid, admitted in self._state.pods.items()}

    def memory(self) -> KubeletMemory:
        """Return the content of the kubelet's checkpoint files."""
        return KubeletMemory(self.kubelet, self.grants(), dict(self._stale))

    def checkpoint(self, read_at: float) -> KubeletCheckpoint:
        """Return the state that a node agent publishes. ``read_at`` is in seconds since the epoch."""
        return checkpoint(self.memory(), self._pods, self._gone, read_at)

    def _depart(self, uid: str) -> None:
        self._gone[uid] = None
        while len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def _allocation(self, uid: str) -> AgentAllocation:
        """Return the allocation of all containers.

        An init container returns its memory, but neither CPUs nor devices.
        """
        resident = self._state.pods[uid]
        containers = resident.grant.containers
        blocks = [block for each in containers if each.kind is not ContainerKind.INIT for block in each.memory]
        return AgentAllocation(
            cpus=CpuSet.of(cpu for each in containers for cpu in each.cpus),
            devices=frozenset(
                f"{resource} {device}"
                for each in containers
                for resource in each.devices
                for device in each.devices[resource]
            ),
            claims=with_rest(
                (Claim(block.resource, block.amount, block.mask) for block in blocks),
                resident.requests,
                self._capacity,
                self.kubelet.machine.numa_mask,
            ),
        )


def kubelet_node(node: NodeDescription) -> KubeletNode:
    """Return the facts that a kubelet has before the first pod."""
    hardware = node.hardware
    return KubeletNode(
        machine=hardware.machine,
        config=node.kubelet,
        allocatable=node.allocatable,
        memory={numa: _memory(node, numa) for numa in hardware.machine.numa_ids},
        devices=_devices(hardware),
    )


def _memory(node: NodeDescription, numa: int) -> ResourceList:
    """Return the memory of a NUMA node. It has an entry for every huge page size of the machine."""
    sizes = {name: 0 for other in node.hardware.pages for name in node.hardware.hugepage_bytes(other)}
    plain = max(0, node.hardware.plain_memory(numa) - node.reserved_memory)
    return {"memory": plain, **sizes, **node.hardware.hugepage_bytes(numa)}


def _devices(hardware: Hardware) -> Mapping[str, DevicePool]:
    found: dict[str, list[PluginDevice]] = {}
    for device in hardware.devices:
        # A device without a NUMA node has no preference, like a device whose plugin reports no topology.
        near = 0 if device.numa is None else 1 << device.numa
        found.setdefault(device.resource, []).append(PluginDevice(device.id, near))
    return {resource: DevicePool(tuple(devices)) for resource, devices in sorted(found.items())}
