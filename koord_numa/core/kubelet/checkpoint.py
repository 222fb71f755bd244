"""
The exact state of a kubelet, as the node agent publishes it: one hypothesis with real CPU and device IDs.

Events after the state was read are replayed on it (``belief.py``).
"""

from collections.abc import Iterable, Mapping

from koord_numa.core.cpu_topology import Cpu, CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.demand import is_memory
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.node_config import NodeConfig
from koord_numa.core.kubelet.options import STATIC_CPUS, STATIC_MEMORY
from koord_numa.core.kubelet.state import (
    ContainerGrant,
    DevicePool,
    Grant,
    KubeletNode,
    KubeletState,
    ManagerState,
    MemoryBlock,
    PluginDevice,
)
from koord_numa.core.objects.node import ContainerState, KubeletCheckpoint
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import APP, ContainerKind
from koord_numa.core.pod_resources import kube_qos
from koord_numa.core.value_objects import replace

POD_LEVEL = "(pod)"
"""Container name for the resources that a pod holds as a whole (PodLevelResourceManagers)."""


def exact_node(config: NodeConfig, checkpoint: KubeletCheckpoint) -> KubeletNode:
    """
    Return the node with the CPUs, devices and manager settings of the running kubelet.

    The checkpoint takes precedence over the topology.
    """
    known: tuple[KubeletCheckpoint, KubeletNode] | None = config.derived.get("exact node")
    if known is not None and _describes_the_same(known[0], checkpoint):
        return known[1]
    published = config.topology.kubelet
    machine = CpuTopology(
        cpus=tuple(Cpu(row.cpu, row.core, row.numa, row.socket, row.l3) for row in checkpoint.cpus),
        numa_ids=tuple(zone.numa for zone in config.topology.zones),
        distances=config.topology.distances,
    )
    policy, memory_policy = checkpoint.cpu_policy, checkpoint.memory_policy
    node = replace(
        config.node,
        machine=machine,
        config=replace(
            config.node.config,
            cpu_policy=config.node.config.cpu_policy if policy is None else policy,
            cpu_options=published.cpu_options if checkpoint.cpu_options is None else checkpoint.cpu_options,
            memory_policy=config.node.config.memory_policy if memory_policy is None else memory_policy,
            reserved_cpus=CpuSet(checkpoint.reserved_cpus),
        ),
        memory=_memory(config, checkpoint),
        devices={
            name: DevicePool(tuple(PluginDevice(device, mask) for device, mask in sorted(ids.items(), key=_natural)))
            for name, ids in sorted(checkpoint.device_numa.items())
        },
        ids_are_real=True,
        packs=False,
        takes_whole_cores=False,
        is_published=True,
        whole_cores=None,
    )
    config.derived["exact node"] = checkpoint, node
    return node


def _natural(item: tuple[str, int]) -> tuple[int, str]:
    # The order in which device plugins prefer devices is not published. Numbered IDs are sorted by number.
    digits = "".join(letter for letter in item[0] if letter.isdigit())
    return (int(digits[:18]) if digits else 0, item[0])


def _describes_the_same(first: KubeletCheckpoint, second: KubeletCheckpoint) -> bool:
    """Return whether two checkpoints differ at most in the allocations of pods."""
    return (
        (first.cpus, first.reserved_cpus, first.cpu_policy, first.memory_policy, first.cpu_options)
        == (second.cpus, second.reserved_cpus, second.cpu_policy, second.memory_policy, second.cpu_options)
        and first.device_numa == second.device_numa
        and {numa: _allocatable(first, numa) for numa in first.memory}
        == {numa: _allocatable(second, numa) for numa in second.memory}
    )


def _allocatable(checkpoint: KubeletCheckpoint, numa: int) -> dict[str, int]:
    return {name: amounts.allocatable for name, amounts in checkpoint.memory[numa].amounts.items()}


def _memory(config: NodeConfig, checkpoint: KubeletCheckpoint) -> Mapping[int, Mapping[str, int]]:
    if checkpoint.memory_policy != STATIC_MEMORY:
        return {} if checkpoint.memory_policy is not None else config.node.memory
    return {numa: _allocatable(checkpoint, numa) for numa in sorted(checkpoint.memory)}


def exact_hypothesis(
    config: NodeConfig, checkpoint: KubeletCheckpoint, requests: Mapping[str, PodRequest]
) -> Hypothesis:
    """
    Return the state of the kubelet when the checkpoint was read.

    ``requests`` are the requests of known pods by uid. The CPUs, memory and devices of pods without a known request are
    held anonymously and stay held until the next checkpoint.
    """
    node = exact_node(config, checkpoint)
    empty = KubeletState.empty(node)
    managers = empty.managers.copy()
    state = KubeletState(node, managers)
    for uid in sorted(checkpoint.active | checkpoint.pods.keys()):
        held = dict(checkpoint.pods.get(uid, {}))
        if uid in checkpoint.pod_level:
            held[POD_LEVEL] = checkpoint.pod_level[uid]
        request = requests.get(uid)
        kinds = {} if request is None else {container.name: container.kind for container in request.containers}
        order = {name: at for at, name in enumerate(kinds)}
        grants = tuple(
            _grant(name, kinds.get(name, APP), held[name], node)
            for name in sorted(held, key=lambda name: (order.get(name, len(order)), name))
        )
        _take(managers, grants, node)
        if request is not None and (grants or uid in checkpoint.active):
            state = state.with_pod(uid, request, Grant(kube_qos(request), grants), managers)
    return Hypothesis(replace(state, managers=managers))


def _grant(name: str, kind: ContainerKind, held: ContainerState, node: KubeletNode) -> ContainerGrant:
    return ContainerGrant(
        name=name,
        kind=kind,
        cpus=CpuSet(held.cpus if node.config.cpu_policy == STATIC_CPUS else 0),
        memory=tuple(
            MemoryBlock(block.resource, block.size, block.numa_mask)
            for block in held.memory
            if node.pins_memory and is_memory(block.resource)
        ),
        devices={
            resource: known
            for resource, ids in held.devices.items()
            if resource in node.devices
            and (known := tuple(device for device in ids if device in node.devices[resource].places))
        },
    )


def _take(managers: ManagerState, grants: Iterable[ContainerGrant], node: KubeletNode) -> None:
    for grant in grants:
        managers.cpus &= ~grant.cpus.bits
        for resource, ids in grant.devices.items():
            for device in ids:
                managers.devices[resource] |= 1 << node.devices[resource].places[device]
        if managers.memory is not None:
            for block in grant.memory:
                managers.memory.take(block, covered=0)
