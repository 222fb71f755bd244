"""
Does one NUMA node have room for a whole pod? Then the kubelet admits it, and amounts alone tell.

Theory. A pod without regular init containers is admitted if one NUMA node has all free that its containers ask for together. Every unit
then has a hint of that single NUMA node from each manager: its preferred size is one, so that every policy and scope admits the merged
hint, which is preferred and of one NUMA node as well. Wherever that is, the unit takes no more than it asks for, and the first NUMA node
keeps enough for the units that follow, also of devices that are near several NUMA nodes, and no memory group comes to be.
A regular init container ties later ones to the NUMA node that it gets, which may be any: such a pod is admitted if each has that much.
Where sockets or whole cores add rules of their own, nothing is told. The node-wide amounts are another check.
"""

from collections.abc import Iterable
from typing import Final

from koord_numa.core.kubelet.managers.aggregates import ContainerDemand, pod_demand
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import ManagerState
from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.resources import total

NOTHING: Final = ContainerDemand(cpus=0, memory={}, devices={})


def has_room(request: PodRequest, node: KubeletNode, managers: ManagerState, kept: ContainerDemand = NOTHING) -> bool:
    """Do amounts alone tell that the managers admit the pod, also with ``kept`` taken from any NUMA nodes before?"""
    if node.ids_are_real or node.whole_cores is not None or node.static_options.align_by_socket:
        return False
    demand = everything(request)
    if not _is_known(demand, node, managers, kept):
        return False
    places = (fits_on(node, managers, numa, demand, kept) for numa in node.machine.numa_ids)
    parts = pod_demand(request).containers
    return all(places) if any(container.kind is ContainerKind.INIT for container, _ in parts) else any(places)


def asks_managers(request: PodRequest, node: KubeletNode) -> bool:
    """Do this node's managers give the pod anything? One to which they give nothing they admit wherever other pods are."""
    return any(
        (part.cpus and node.pins_cpus)
        or (part.memory and node.pins_memory)
        or part.devices.keys() & node.devices.keys()
        for _, part in pod_demand(request).containers
    )


@once_per_request
def everything(request: PodRequest) -> ContainerDemand:
    """What all containers ask for together, as if all held it at once."""
    return together(part for _, part in pod_demand(request).containers)


def together(demands: Iterable[ContainerDemand]) -> ContainerDemand:
    """The sum of these."""
    parts = list(demands)
    return ContainerDemand(
        cpus=sum(part.cpus for part in parts),
        memory=total(part.memory or {} for part in parts),
        devices=total(part.devices for part in parts),
    )


def _is_known(demand: ContainerDemand, node: KubeletNode, managers: ManagerState, kept: ContainerDemand) -> bool:
    """Does the memory manager know all these types, and are enough devices left that are near no NUMA node?"""
    if managers.memory is not None and not managers.memory.knows(demand.memory or ()):
        return False  # a type that one NUMA node lacks is refused wherever the pod is
    return all(
        pool.hosts
        or (pool.healthy & ~managers.devices[name]).bit_count()
        >= max(1, demand.devices[name]) + kept.devices.get(name, 0)
        for name, pool in node.devices.items()
        if name in demand.devices
    )


def fits_on(
    node: KubeletNode, managers: ManagerState, numa: int, demand: ContainerDemand, kept: ContainerDemand = NOTHING
) -> bool:
    """Has this NUMA node all of it by itself, beside what is kept?"""
    free = (managers.cpus & node.machine.numa_bits[numa]).bit_count()
    if demand.cpus and node.pins_cpus and free < demand.cpus + kept.cpus:
        return False
    memory = managers.memory
    if memory is not None and demand.memory:
        # In a group with others it takes no memory of its own.
        if memory.groups[numa] != 1 << numa:
            return False
        taken = kept.memory or {}
        if any(memory.free[numa][kind] < amount + taken.get(kind, 0) for kind, amount in demand.memory.items()):
            return False
    return all(
        # Also where a container names the device and asks for none: the kubelet looks for NUMA nodes that have some.
        (pool.healthy & ~managers.devices[name] & pool.on.get(numa, 0)).bit_count()
        >= max(1, demand.devices[name]) + kept.devices.get(name, 0)
        for name, pool in node.devices.items()
        if name in demand.devices and pool.hosts
    )
