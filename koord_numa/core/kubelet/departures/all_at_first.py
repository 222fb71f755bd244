"""
Pods that more room never harms: their first container asks for all that they ever hold at once, or the next one takes over all it had.

Theory. An init container that does so finds room where it had it, or on a lower NUMA node, and everything after it fits there: of each
resource a later container needs no more than the first one has left and no container has kept.

With ``align-by-socket`` the CPUs of a container are of any NUMA nodes of the socket of its hint, and tie later ones to all of these. Sets
of NUMA nodes within one socket are preferred, whatever their size, so that a container which asks for CPUs alone has a preferred hint of
the socket as a whole as long as that has enough of them. What a later one needs the first one has left, all of it in one socket. Together
with memory or devices it is otherwise: a hint that merges other sets than those of the CPUs is not preferred (mergePermutation in policy.go
of the kubelet's topologymanager).

*The same again.* Let all init containers that come first ask for as many CPUs as the container after them, no devices, and none of them for
more memory than the first. The first gets the lowest set of NUMA nodes that has all of it. More CPUs than any smaller set has lie on each
NUMA node of a preferred set, so that the next ones, which must include all of these, prefer no other. Which CPUs are taken follows from
those that are offered, which are the same each time (``CpuStock``): so they get the same ones, until a container keeps all of them, and the
memory is left there. The pod is admitted if the first one is, and more room only leads it to another set. One more container that asks for
no more than the first finds room on the NUMA node where the first was with less room, or on its own if the first is where it was.

Example: NUMA nodes of 12 CPUs. ``init 13, app 13`` goes to the first two with 13 free, and the app holds these very CPUs.
"""

from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.room import NOTHING, STRICT, Bound, at_most, beyond, has_plain_sockets, may_hold
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope


def never_needs_less_room(request: PodRequest, node: KubeletNode) -> bool:
    """Is the pod admitted with more room, too, wherever that is, as its first container asks for all, or all that the next one keeps?"""
    if node.ids_are_real or node.whole_cores is not None:
        return False
    if node.config.topology_policy not in STRICT or node.config.topology_scope is not KubeletScope.CONTAINER:
        return False
    if _takes_the_same(request, node):
        return True
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


def _takes_the_same(request: PodRequest, node: KubeletNode) -> bool:
    """Does a container keep what the init containers before it had, with no more than one after it, which asks for less?"""
    parts = [(container, part) for container, part in pod_demand(request).containers if _is_given_any(part, node)]
    taker = next((at for at, (container, _) in enumerate(parts) if container.kind is not ContainerKind.INIT), 0)
    if not taker or len(parts) > taker + 2 or not node.pins_cpus or node.static_options.align_by_socket:
        return False
    (_, first), *others = parts[: taker + 2]
    if not first.cpus or any(part.cpus != first.cpus for _, part in others[:taker]):
        return False
    if any(part.devices.keys() & node.devices.keys() for _, part in parts):
        return False
    if any(beyond(first, part, node) != NOTHING for _, part in others):
        return False
    empty = Bound(KubeletState.empty(node).managers)
    if any(may_hold(node, empty, numa, first) for numa in node.machine.numa_ids):
        return True
    # Memory may be bound to fewer NUMA nodes than CPUs need, and one more container depends on what is left of several.
    return len(parts) == taker + 1 and not (node.pins_memory and any(part.memory for _, part in parts))


def _is_given_any(part: ContainerDemand, node: KubeletNode) -> bool:
    if part.devices.keys() & node.devices.keys():
        return True
    return bool(part.cpus and node.pins_cpus) or bool(part.memory and node.pins_memory)
