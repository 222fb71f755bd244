"""
Would the kubelet admit the pod if nothing else were on the node, or would it never?

The first says whether evicting pods may help, the second whether a pod on its way is sure to be refused. A pod that the empty node refuses
may be admitted on a used one, where its init container does not get the NUMA node that is too small for what follows.
"""

from koord_numa.core.kubelet.admit import DryRunAdmitted, dry_run
from koord_numa.core.kubelet.demand import ContainerDemand, check_node_fit, pod_demand
from koord_numa.core.kubelet.room import has_room
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import NOTHING


def fits_empty_node(request: PodRequest, node: KubeletNode) -> bool:
    """Whether the kubelet of this node admits the pod while no other is there. Asked for every refusal, so amounts come first."""
    if check_node_fit(effective_requests(request), {}, node.allocatable) is not None:
        return False
    empty = KubeletState.empty(node)
    return has_room(request, node, empty.managers) or isinstance(dry_run(empty, request), DryRunAdmitted)


def never_fits(request: PodRequest, node: KubeletNode, *, keeps_cores: bool) -> bool:
    """
    Whether the kubelet refuses the pod whatever else is there, and wherever that is. A no says nothing.

    ``keeps_cores``: it gives whole cores only, which have several threads. Their numbers are powers of two, so that odd counts are refused
    (``Allocate`` in policy_static.go of the cpumanager). Under single-numa-node some NUMA node must have all that a unit asks for. The
    memory manager keeps silent about a whole pod for which no set of NUMA nodes has enough, and may still find room for one container
    after the other: in scope pod only CPUs tell. Devices may become healthy, so that their numbers tell nothing.
    """
    demand = pod_demand(request)
    if keeps_cores and node.pins_cpus and [count for count in demand.counts if count % 2]:
        return True
    if node.config.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    if node.config.topology_scope is KubeletScope.POD:
        return _exceeds_each(ContainerDemand(cpus=demand.pod.cpus, memory=None, devices={}), node)
    for _, unit in demand.containers:
        if _exceeds_each(unit, node):
            break
    else:
        return False
    return True


def _exceeds_each(unit: ContainerDemand, node: KubeletNode) -> bool:
    """Does the unit ask for more than any NUMA node has when it is empty?"""
    for numa in node.machine.numa_ids:
        if not _exceeds(unit, node, numa):
            break
    else:
        return True
    return False


def _exceeds(unit: ContainerDemand, node: KubeletNode, numa: int) -> bool:
    """Does the unit ask for more than the NUMA node has when it is empty?"""
    if node.pins_cpus and unit.cpus > (node.machine.numa_bits[numa] & ~node.reserved).bit_count():
        return True
    if not unit.memory or not node.pins_memory:
        return False
    there = node.memory.get(numa, NOTHING)
    for kind, amount in unit.memory.items():
        if amount > there.get(kind, amount):
            break
    else:
        return False
    return True
