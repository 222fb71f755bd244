"""NodeResourceTopologies as Koordinator's agent publishes them: CPUs one by one, shared pools, what the kubelet holds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.node import KubeletAllocation, KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.quantity import format_amount
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList
from koord_numa.sandbox.machines.hardware.description import NodeDescription
from koord_numa.sandbox.machines.hardware.node_objects import Json, reservation
from koord_numa.wire import names

_POLICY_WORDS: Final[Mapping[KubeletPolicy, str]] = {
    KubeletPolicy.BEST_EFFORT: "BestEffort",
    KubeletPolicy.RESTRICTED: "Restricted",
    KubeletPolicy.SINGLE_NUMA_NODE: "SingleNUMANode",
}


def zone_offer(node: NodeDescription, numa: int) -> dict[str, int]:
    """What one NUMA node has to give, in our units: CPUs, memory without huge pages, huge pages, devices."""
    hardware = node.hardware
    return {
        CPU: hardware.machine.numa_bits[numa].bit_count() * MILLI,
        MEMORY: max(0, hardware.plain_memory(numa) - node.reserved_memory),
        **hardware.hugepage_bytes(numa),
        **hardware.devices_on(numa),
    }


@dataclass(frozen=True, slots=True)
class Usage:
    """What pods hold on the node: amounts per NUMA node, CPUs of their own, of these the LSE pods', and the kubelet's pods."""

    numa: Mapping[int, ResourceList] = field(default_factory=dict)
    own: CpuSet = EMPTY
    closed: CpuSet = EMPTY
    kubelet_pods: tuple[KubeletAllocation, ...] = ()


def koordinator_topology(node: NodeDescription, usage: Usage) -> Json:
    """
    The topology at one moment, as koordlet's node topology reporter writes it.

    That ``available`` follows what pods hold is our addition for people: Koordinator's scheduler reads ``allocatable`` only.
    CPUs reserved by the kubelet stay in the shared pools, those of the reservation do not; best-effort pods keep away from
    CPUs of LSE pods alone.
    """
    by_kubelet = CpuSet.of(cpu for pod in usage.kubelet_pods for cpu in pod.cpus)
    return {
        "apiVersion": f"{names.TOPOLOGY_GROUP}/v1alpha1",
        "kind": names.TOPOLOGY_KIND,
        "metadata": {
            "name": node.name,
            "labels": {names.MANAGED_BY: names.MANAGED_BY_KOORDINATOR},
            "annotations": {
                names.CPU_TOPOLOGY: _text({"detail": [*_details(node)]}),
                names.CPU_MANAGER_POLICY: _text(_cpu_manager(node.kubelet)),
                names.POD_CPU_ALLOCS: _text([_allocation(pod) for pod in usage.kubelet_pods]),
                names.CPU_SHARED_POOLS: _text(_pools(node, usage.own | by_kubelet)),
                names.BE_CPU_SHARED_POOLS: _text(_pools(node, usage.closed | by_kubelet)),
                names.RESERVATION: reservation(node),
            },
        },
        "topologyPolicies": [topology_policy(node.kubelet)],
        "zones": [_zone(node, numa, usage.numa.get(numa, {})) for numa in node.hardware.machine.numa_ids],
    }


def topology_policy(kubelet: KubeletConfig) -> str:
    """The kubelet's policy and scope in one word."""
    word = _POLICY_WORDS.get(kubelet.topology_policy or KubeletPolicy.NONE)
    scope = "PodLevel" if kubelet.topology_scope is KubeletScope.POD else "ContainerLevel"
    return f"{word}{scope}" if word else "None"


def zone_object(node: NodeDescription, numa: int, resources: list[dict[str, str]]) -> Json:
    """One zone with its distances and resources."""
    machine = node.hardware.machine
    return {
        "name": f"{names.ZONE_PREFIX}{numa}",
        "type": names.ZONE_TYPE_NUMA,
        "costs": [
            {"name": f"{names.ZONE_PREFIX}{other}", "value": machine.distances[numa, other]}
            for other in machine.numa_ids
            if (numa, other) in machine.distances
        ],
        "resources": resources,
    }


def resource(name: str, capacity: int, allocatable: int, available: int) -> dict[str, str]:
    """One resource of a zone, as quantities."""
    amounts = {"capacity": capacity, "allocatable": allocatable, "available": max(0, available)}
    return {"name": name} | {key: format_amount(name, amount) for key, amount in amounts.items()}


def _zone(node: NodeDescription, numa: int, held: ResourceList) -> Json:
    offer = zone_offer(node, numa)
    whole = {**offer, MEMORY: node.hardware.plain_memory(numa)}
    return zone_object(
        node,
        numa,
        [resource(name, whole[name], offer[name], offer[name] - held.get(name, 0)) for name in offer],
    )


def _details(node: NodeDescription) -> Iterable[dict[str, int]]:
    for cpu in node.hardware.machine.cpus:
        yield {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.numa}


def _pools(node: NodeDescription, taken: CpuSet) -> list[Json]:
    machine = node.hardware.machine
    free = machine.all - taken - node.reserved
    sockets = {cpu.numa: cpu.socket for cpu in reversed(machine.cpus)}
    pools = [
        {"socket": sockets[numa], "node": numa, "cpuset": str(CpuSet(bits) & free)}
        for numa, bits in machine.numa_bits.items()
        if bits
    ]
    return sorted(pools, key=lambda pool: (pool["socket"], pool["node"]))


def _cpu_manager(kubelet: KubeletConfig) -> Json:
    found: Json = {"policy": kubelet.cpu_policy or "none"}
    if kubelet.cpu_options:
        found["options"] = {name: str(value).lower() for name, value in sorted(kubelet.cpu_options.items())}
    if kubelet.reserved_cpus:
        found["reservedCPUs"] = str(kubelet.reserved_cpus)
    return found


def _allocation(pod: KubeletAllocation) -> Json:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "cpuset": str(pod.cpus),
        "managedByKubelet": pod.managed_by_kubelet,
    }


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()
