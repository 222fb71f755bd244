"""
Would the kubelet admit the pod if nothing else were on the node? Where it would not, evicting pods cannot help.

Asked for every refusal, so that most are answered from amounts alone.

Theory. A pod without regular init containers is admitted if one NUMA node of the empty node has all that its containers ask for together.
Every unit then has a hint of that single NUMA node from each manager: its preferred size is one, so that every policy and scope admits the
merged hint, which is preferred and of one NUMA node as well. Wherever that is, the unit takes no more than it asks for, and the first NUMA
node keeps enough for the units that follow, also of devices that are near several NUMA nodes, and no memory group comes to be.
A regular init container ties later ones to the NUMA node that it gets, which may be any: such a pod is admitted if each has that much.
Elsewhere, and where sockets or whole cores add rules of their own, the kubelet's procedure is asked.
"""

from koord_numa.core.kubelet.managers.admit import DryRunAdmitted, dry_run
from koord_numa.core.kubelet.managers.aggregates import ContainerDemand, PodDemand, pod_demand
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState
from koord_numa.core.kubelet.managers.predicates import check_node_fit
from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import total


def fits_empty_node(request: PodRequest, node: KubeletNode) -> bool:
    """Whether the kubelet of this node admits the pod while no other is there."""
    # The cheaper of two things that both have to hold.
    if check_node_fit(effective_requests(request), {}, node.allocatable) is not None:
        return False
    return has_room(request, node) or isinstance(dry_run(KubeletState.empty(node), request), DryRunAdmitted)


def has_room(request: PodRequest, node: KubeletNode) -> bool:
    """Do amounts alone tell that the managers of the empty node admit the pod?"""
    if node.ids_are_real or node.whole_cores is not None or node.static_options.align_by_socket:
        return False
    everything = _everything(request)
    if not _known(everything, node):
        return False
    places = (_has(node, numa, everything) for numa in node.machine.numa_ids)
    return all(places) if _begins(pod_demand(request)) else any(places)


def _begins(demand: PodDemand) -> bool:
    return any(container.kind is ContainerKind.INIT for container, _ in demand.containers)


@once_per_request
def _everything(request: PodRequest) -> ContainerDemand:
    """What all containers ask for together, as if all held it at once."""
    parts = [part for _, part in pod_demand(request).containers]
    return ContainerDemand(
        cpus=sum(part.cpus for part in parts),
        memory=total(part.memory or {} for part in parts),
        devices=total(part.devices for part in parts),
    )


def _known(demand: ContainerDemand, node: KubeletNode) -> bool:
    """Does the memory manager know all these types, and are there enough of the devices that are near no NUMA node?"""
    if node.pins_memory and any(kind not in supply for supply in node.memory.values() for kind in demand.memory or ()):
        return False  # a type that one NUMA node lacks is refused wherever the pod is
    return all(
        pool.hosts or pool.healthy.bit_count() >= max(1, demand.devices[name])
        for name, pool in node.devices.items()
        if name in demand.devices
    )


def _has(node: KubeletNode, numa: int, demand: ContainerDemand) -> bool:
    """Has this NUMA node all of it by itself, while nothing is in use?"""
    if demand.cpus and node.pins_cpus and (node.machine.numa_bits[numa] & ~node.reserved).bit_count() < demand.cpus:
        return False
    if node.pins_memory and any(node.memory[numa][kind] < amount for kind, amount in (demand.memory or {}).items()):
        return False
    return all(
        # Also where a container names the device and asks for none: the kubelet looks for NUMA nodes that have some.
        (pool.healthy & pool.on.get(numa, 0)).bit_count() >= max(1, demand.devices[name])
        for name, pool in node.devices.items()
        if name in demand.devices and pool.hosts
    )
