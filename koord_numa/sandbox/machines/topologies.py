"""The Node and NodeResourceTopology objects of simulated machines, as kubelets, koordlet and exporters publish them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.kubelet import KubeletNode, KubeletState
from koord_numa.core.objects.node import KubeletAllocation, KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList, format_amount
from koord_numa.sandbox.machines.description import NodeDescription, Style
from koord_numa.wire import names

Json = dict[str, Any]


def node_object(node: NodeDescription, now: str) -> Json:
    """Return the Node with labels, annotations, taints and status. ``now`` is an RFC 3339 time."""
    metadata: Json = {"name": node.name, "labels": node.all_labels}
    annotations: dict[str, str] = {}
    if node.style is Style.KOORDINATOR and node.reserved:
        annotations[names.RESERVATION] = reservation(node)
    if node.amplification:
        annotations[names.AMPLIFICATION] = orjson.dumps(dict(sorted(node.amplification.items()))).decode()
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {
            "taints": [{"key": taint.key, "value": taint.value, "effect": taint.effect.value} for taint in node.taints]
        },
        "status": node_status(node, now),
    }


def node_status(node: NodeDescription, now: str) -> Json:
    """Return the status of a ready node with its capacity and allocatable amounts."""
    return {
        "capacity": {name: format_amount(name, amount) for name, amount in node.capacity.items()},
        "allocatable": {name: format_amount(name, amount) for name, amount in node.allocatable.items()},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "simulated kubelet is ready",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }
        ],
        "addresses": [{"type": "Hostname", "address": node.name}],
        "nodeInfo": {"kubeletVersion": "v1.36.0-simulated", "operatingSystem": "linux", "architecture": "amd64"},
    }


def reservation(node: NodeDescription) -> str:
    """Return Koordinator's reservation annotation, which the agent repeats on the topology."""
    return orjson.dumps({"reservedCPUs": str(node.reserved)} if node.reserved else {}).decode()


_POLICY_WORDS: Final[Mapping[KubeletPolicy, str]] = {
    KubeletPolicy.BEST_EFFORT: "BestEffort",
    KubeletPolicy.RESTRICTED: "Restricted",
    KubeletPolicy.SINGLE_NUMA_NODE: "SingleNUMANode",
}


def zone_offer(node: NodeDescription, numa: int) -> dict[str, int]:
    """Return the amounts of a NUMA node in internal units: CPUs, memory without huge pages, huge pages, devices."""
    hardware = node.hardware
    return {
        CPU: hardware.machine.numa_bits[numa].bit_count() * MILLI,
        MEMORY: max(0, hardware.plain_memory(numa) - node.reserved_memory),
        **hardware.hugepage_bytes(numa),
        **hardware.devices_on(numa),
    }


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that pods hold.

    Amounts per NUMA node, exclusive CPUs, the exclusive CPUs of LSE pods, and pods with CPUs from the kubelet.
    """

    numa: Mapping[int, ResourceList] = field(default_factory=dict)
    own: CpuSet = EMPTY
    closed: CpuSet = EMPTY
    kubelet_pods: tuple[KubeletAllocation, ...] = ()


def koordinator_topology(node: NodeDescription, usage: Usage) -> Json:
    """Return the topology that koordlet's node topology reporter writes.

    ``available`` reflects the usage of pods. This is an addition for users: Koordinator's scheduler reads only
    ``allocatable``. CPUs reserved by the kubelet stay in the shared pools, CPUs of the reservation do not. Best-effort
    pods avoid only the CPUs of LSE pods.
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
    """Return the kubelet's topology policy and scope as a topologyPolicies value."""
    word = _POLICY_WORDS.get(kubelet.topology_policy or KubeletPolicy.NONE)
    scope = "PodLevel" if kubelet.topology_scope is KubeletScope.POD else "ContainerLevel"
    return f"{word}{scope}" if word else "None"


def zone_object(node: NodeDescription, numa: int, resources: list[dict[str, str]]) -> Json:
    """Return a zone with its distances and resources."""
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
    """Return a resource of a zone with quantities."""
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


ALL_PODS: Final = "all"


def exported_topology(
    node: NodeDescription, kubelet: KubeletNode, state: KubeletState, pods: Iterable[tuple[str, str]]
) -> Json:
    """Return the topology of an exporter. ``pods`` are (namespace, name) of all running pods.

    ``cpu`` is listed only if the kubelet assigns CPUs, and ``memory`` and huge pages only if it binds memory:
    otherwise there is nothing to align. A zone without resources lists ``cpu`` with nothing allocatable.
    """
    return {
        "apiVersion": f"{names.TOPOLOGY_GROUP}/v1alpha2",
        "kind": names.TOPOLOGY_KIND,
        "metadata": {"name": node.name},
        "topologyPolicies": [topology_policy(node.kubelet)],
        "attributes": [{"name": name, "value": value} for name, value in _attributes(node, pods)],
        "zones": [
            zone_object(node, numa, [*_resources(node, kubelet, state, numa)] or [_nothing(kubelet, numa)])
            for numa in node.hardware.machine.numa_ids
        ],
    }


def _attributes(node: NodeDescription, pods: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    config = node.kubelet
    yield names.ATTRIBUTE_TOPOLOGY_POLICY, (config.topology_policy or KubeletPolicy.NONE).value
    yield names.ATTRIBUTE_TOPOLOGY_SCOPE, config.topology_scope.value
    yield names.ATTRIBUTE_MAX_NUMA_NODES, str(config.max_numa_nodes)
    yield names.ATTRIBUTE_FINGERPRINT, fingerprint(pods)
    yield names.ATTRIBUTE_FINGERPRINT_METHOD, ALL_PODS
    if not node.hidden:
        yield from _unusual_attributes(config)


def _unusual_attributes(config: KubeletConfig) -> Iterator[tuple[str, str]]:
    """Yield attributes that current exporters do not publish, although a scheduler could use them."""
    for option, value in sorted(config.topology_options.items()):
        yield names.ATTRIBUTE_TOPOLOGY_OPTION + _camel(option), str(value).lower()
    yield names.ATTRIBUTE_CPU_POLICY, config.cpu_policy or "none"
    for option, value in sorted(config.cpu_options.items()):
        yield names.ATTRIBUTE_CPU_OPTION + _camel(option), str(value).lower()
    yield names.ATTRIBUTE_MEMORY_POLICY, config.memory_policy or "None"
    yield names.ATTRIBUTE_RESERVED_CPUS, str(config.reserved_cpus or "")


def _resources(node: NodeDescription, kubelet: KubeletNode, state: KubeletState, numa: int) -> Iterator[dict[str, str]]:
    here = kubelet.machine.numa_bits[numa]
    if kubelet.pins_cpus and here:
        may = (here & ~kubelet.reserved).bit_count() * MILLI
        free = (here & state.managers.cpus).bit_count() * MILLI
        yield resource(CPU, here.bit_count() * MILLI, may, free)
    if state.managers.memory is not None:
        yield from _memory(node, kubelet, state, numa)
    for name, pool in sorted(kubelet.devices.items()):
        near = pool.near(1 << numa) & pool.healthy
        if near:
            count = near.bit_count()
            yield resource(name, count, count, (near & ~state.managers.devices[name]).bit_count())


def _memory(node: NodeDescription, kubelet: KubeletNode, state: KubeletState, numa: int) -> Iterator[dict[str, str]]:
    assert state.managers.memory is not None  # noqa: S101  (called only when memory is bound)
    capacity = {MEMORY: node.hardware.memory.get(numa, 0), **node.hardware.hugepage_bytes(numa)}
    free = state.managers.memory.free.get(numa, {})
    for name, amount in kubelet.memory.get(numa, {}).items():
        if amount or name == MEMORY:
            yield resource(name, capacity[name], amount, free.get(name, 0))


def _nothing(kubelet: KubeletNode, numa: int) -> dict[str, str]:
    return resource(CPU, kubelet.machine.numa_bits[numa].bit_count() * MILLI, 0, 0)


def _camel(option: str) -> str:
    return "".join(word.capitalize() for word in option.split("-"))
