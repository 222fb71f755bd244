"""
Pods that more room never harms, whose first container asks for all that they ever hold at once.

Theory. An init container that does so finds room where it had it, or on a lower NUMA node, and everything after it fits there: of each
resource a later container needs no more than the first one has left and no container has kept.

With ``align-by-socket`` the CPUs of a container are of any NUMA nodes of the socket of its hint, and tie later ones to all of these. Sets
of NUMA nodes within one socket are preferred, whatever their size, so that a container which asks for CPUs alone has a preferred hint of
the socket as a whole as long as that has enough of them. What a later one needs the first one has left, all of it in one socket. Together
with memory or devices it is otherwise: a hint that merges other sets than those of the CPUs is not preferred (mergePermutation in policy.go
of the kubelet's topologymanager).
"""

from koord_numa.core.kubelet.managers.aggregates import pod_demand
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState
from koord_numa.core.kubelet.managers.room import NOTHING, STRICT, Bound, at_most, beyond, has_plain_sockets, may_hold
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope


def never_needs_less_room(request: PodRequest, node: KubeletNode) -> bool:
    """Is the pod admitted with more room, too, wherever that is, because its first container asks for all that it ever holds at once?"""
    if node.ids_are_real or node.whole_cores is not None:
        return False
    if node.config.topology_policy not in STRICT or node.config.topology_scope is not KubeletScope.CONTAINER:
        return False
    container, part = pod_demand(request).containers[0]
    if container.kind is not ContainerKind.INIT or beyond(part, at_most(request), node) != NOTHING:
        return False
    if node.static_options.align_by_socket and part.cpus and node.pins_cpus and not _finds_sockets(request, node):
        return False
    # Of several NUMA nodes it would tie later containers to more than these need.
    empty = Bound(KubeletState.empty(node).managers)
    return any(may_hold(node, empty, numa, part) for numa in node.machine.numa_ids)


def _finds_sockets(request: PodRequest, node: KubeletNode) -> bool:
    """Has each later container that asks for CPUs a preferred hint that holds all CPUs of one socket?"""
    # A single NUMA node never holds an init container's CPUs of several.
    if node.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE or not has_plain_sockets(node):
        return False
    later = [part for _, part in pod_demand(request).containers[1:] if part.cpus]
    return not (node.pins_memory and any(part.memory for part in later)) and not any(
        name in node.devices for part in later for name in part.devices
    )
