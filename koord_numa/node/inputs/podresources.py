"""
The kubelet's own account of what it gave to whom (``podresources`` API v1), reduced to what a topology says.

``read_resources`` turns the answers of ``List`` and ``GetAllocatableResources`` into plain values. It trusts neither sizes nor ids:
an answer that makes no sense is a ``PodResourcesError``, and the topology published last stays.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koord_numa.core.cpuset import EMPTY, MAX_CPU, CpuSet
from koord_numa.core.objects.kubelet_checkpoint import HeldMemory

MOST_NUMA_NODES: Final = 1024
LARGEST: Final = 2**60
"""Bytes; more memory than this is no amount but a mistake."""


class PodResourcesError(Exception):
    """The kubelet's answer cannot be used; the text names the pod or resource and what is wrong."""


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """What one container holds exclusively: CPUs, devices by resource name, and memory blocks."""

    name: str
    cpus: CpuSet = EMPTY
    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    memory: tuple[HeldMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class PodHoldings:
    """One active pod of the kubelet."""

    namespace: str
    name: str
    containers: tuple[ContainerResources, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name: what fingerprints are made of."""
        return self.namespace, self.name

    @property
    def cpus(self) -> CpuSet:
        """All exclusive CPUs of its containers."""
        return CpuSet.of(cpu for container in self.containers for cpu in container.cpus)


@dataclass(frozen=True, slots=True)
class PodResources:
    """
    What the kubelet may hand out and what it has handed out.

    Memory is bytes by NUMA node and resource name, devices the NUMA nodes of each device by resource name and id; a device near no
    NUMA node in particular has none.
    """

    pods: tuple[PodHoldings, ...] = ()
    allocatable_cpus: CpuSet = EMPTY
    allocatable_memory: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    held_memory: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    devices: Mapping[str, Mapping[str, frozenset[int]]] = field(default_factory=dict)
    held_cpus: CpuSet = EMPTY
    held_devices: Mapping[str, frozenset[str]] = field(default_factory=dict)


def read_resources(listed: Any, allocatable: Any) -> PodResources:
    """
    Put the two answers (``ListPodResourcesResponse``, ``AllocatableResourcesResponse``) together.

    Raises ``PodResourcesError`` for ids out of range, a CPU given twice, a pod listed twice, or held CPUs and devices that the
    kubelet does not have: such an answer mixes two moments, and the next one will not.
    """
    pods = tuple(_pod(pod) for pod in listed.pod_resources)
    # One may terminate while its successor of the same name is admitted. Fingerprints go by name and could not tell them apart.
    if len({pod.key for pod in pods}) != len(pods):
        raise PodResourcesError("a pod is listed twice")
    can = _cpus(allocatable.cpu_ids, "the allocatable resources")
    devices = _devices(allocatable.devices)
    held_cpus, held_devices = _held(pods)
    # Under the none policy the kubelet names no CPU allocatable (cpumanager/policy_none.go): nothing to contradict.
    if can and not held_cpus <= can:
        raise PodResourcesError(f"containers hold CPUs {held_cpus - can} that are not allocatable")
    held_memory: dict[int, dict[str, int]] = {}
    for pod in listed.pod_resources:
        for container in pod.containers:
            _add_memory(held_memory, container.memory, f"pod {pod.namespace}/{pod.name}")
    allocatable_memory: dict[int, dict[str, int]] = {}
    _add_memory(allocatable_memory, allocatable.memory, "the allocatable resources")
    return PodResources(
        pods=pods,
        allocatable_cpus=can,
        allocatable_memory=allocatable_memory,
        held_memory=held_memory,
        devices=devices,
        held_cpus=held_cpus,
        held_devices=held_devices,
    )


def _pod(pod: Any) -> PodHoldings:
    who = f"pod {pod.namespace}/{pod.name}"
    containers = []
    for container in pod.containers:
        devices: dict[str, frozenset[str]] = {}
        for entry in container.devices:
            # A resource may come in several entries, one a device or a NUMA node.
            devices[entry.resource_name] = devices.get(entry.resource_name, frozenset()) | set(entry.device_ids)
        memory = sorted(_blocks(container.memory, who), key=lambda block: (block.resource, block.numa_mask, block.size))
        containers.append(ContainerResources(container.name, _cpus(container.cpu_ids, who), devices, tuple(memory)))
    return PodHoldings(pod.namespace, pod.name, tuple(containers))


def _blocks(blocks: Iterable[Any], who: str) -> Iterator[HeldMemory]:
    for block in blocks:
        if not 0 <= block.size <= LARGEST:
            raise PodResourcesError(f"{who}: {block.size} bytes of {block.memory_type}")
        # A block of size 0 is that of an init container whose memory the app container uses.
        if block.size:
            mask = sum(1 << numa for numa in _numa(block.topology.nodes, who))
            yield HeldMemory(mask, block.memory_type, block.size)


def _held(pods: Iterable[PodHoldings]) -> tuple[CpuSet, dict[str, frozenset[str]]]:
    cpus = EMPTY
    devices: dict[str, frozenset[str]] = {}
    for pod in pods:
        # Containers of one pod may share CPUs: a sidecar's successor, pod-level managers. Two pods never do.
        if both := cpus & pod.cpus:
            raise PodResourcesError(f"CPUs {both} are held by pod {pod.namespace}/{pod.name} and by another one")
        cpus |= pod.cpus
        for container in pod.containers:
            for name, ids in container.devices.items():
                devices[name] = devices.get(name, frozenset()) | ids
    return cpus, devices


def _cpus(ids: Iterable[int], who: str) -> CpuSet:
    bits = 0
    for cpu in ids:
        if not 0 <= cpu <= MAX_CPU:
            raise PodResourcesError(f"{who}: {cpu} is no CPU id")
        bits |= 1 << cpu
    return CpuSet(bits)


def _numa(nodes: Iterable[Any], who: str) -> frozenset[int]:
    found = frozenset(node.ID for node in nodes)
    for numa in found:
        if not 0 <= numa < MOST_NUMA_NODES:
            raise PodResourcesError(f"{who}: {numa} is no NUMA node")
    return found


def _devices(entries: Iterable[Any]) -> dict[str, dict[str, frozenset[int]]]:
    found: dict[str, dict[str, frozenset[int]]] = {}
    for entry in entries:
        places = _numa(entry.topology.nodes, f"device {entry.resource_name}")
        known = found.setdefault(entry.resource_name, {})
        # A device may come in several entries, too, and is near the NUMA nodes of all of them.
        for device in entry.device_ids:
            known[device] = known.get(device, frozenset()) | places
    return found


def _add_memory(found: dict[int, dict[str, int]], blocks: Iterable[Any], who: str) -> None:
    for block in blocks:
        if not 0 <= block.size <= LARGEST:
            raise PodResourcesError(f"{who}: {block.size} bytes of {block.memory_type}")
        # In full on each: the kubelet does not tell how a block is spread over its NUMA nodes.
        for numa in _numa(block.topology.nodes, who):
            here = found.setdefault(numa, {})
            here[block.memory_type] = here.get(block.memory_type, 0) + block.size
