"""
Is a pod admitted whichever pods leave, to which a restricted kubelet gives nothing but CPUs, one container after the other?

Theory. Where only the CPU manager has hints, a container is admitted if and only if a set of NUMA nodes of a preferred kind has CPUs
enough, free ones and those that init containers left to it, and all of the latter (generateCPUTopologyHints in policy_static.go of the
cpumanager). CPUs are taken from that set. What a set has of both together changes only by what other containers of the pod keep.

*Wide containers.* Preferred are the sets of as few NUMA nodes as the container needs on the empty machine. Let init containers fit one NUMA
node, none of them larger than the first, and one container after them keep CPUs. The first goes to any NUMA node with room, and there are
always all CPUs that the others find. The last one may take any set with this NUMA node: of as many NUMA nodes as it needs, those with the
most room. However many pods leave, no NUMA node has less room; pods that come take at most all that they hold from such a set.

*Sockets.* With ``align-by-socket`` sets inside one socket are preferred too, and CPUs come from all of the socket. So a socket is what a
NUMA node is elsewhere, for containers that fit one NUMA node, and what ``room.py`` says of NUMA nodes holds of sockets: a pod is
admitted if one of them has all that it ever holds at once, and so has each that may hold an init container that ties later ones to it.

Example: NUMA nodes of 12 CPUs, of which the last two are free. ``init 1, app 13`` is admitted wherever a single CPU is free: the app
finds it again there, and 12 more on the last NUMA node, or on the one before it.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from heapq import nlargest
from itertools import accumulate

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.departures.least_cpus import least_free
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.room import at_most, everything, has_plain_sockets
from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope

Part = tuple[ContainerKind, int]
"""A container, and how many CPUs it asks for."""


def finds_cpus(request: PodRequest, one: Hypothesis, coming: int = 0) -> bool:
    """Do the managers admit the pod with any pods of this state gone, and ``coming`` CPUs taken from anywhere? A no says nothing."""
    node = one.state.node
    if not (_goes_by_numbers(node) and _wants_cpus_alone(request, node)):
        return False
    parts = [(container.kind, part.cpus) for container, part in pod_demand(request).containers if part.cpus]
    if not node.static_options.align_by_socket:
        return _finds_wide(parts, one, coming)
    return has_plain_sockets(node) and _finds_socket(parts, at_most(request).cpus, one, coming)


def _goes_by_numbers(node: KubeletNode) -> bool:
    if node.ids_are_real or node.whole_cores is not None or not node.pins_cpus:
        return False
    config = node.config
    return config.topology_policy is KubeletPolicy.RESTRICTED and config.topology_scope is KubeletScope.CONTAINER


def _wants_cpus_alone(request: PodRequest, node: KubeletNode) -> bool:
    asked = everything(request)
    others = asked.devices.keys() & node.devices.keys() or (asked.memory and node.pins_memory)
    return bool(asked.cpus) and not others


def _finds_wide(parts: Sequence[Part], one: Hypothesis, coming: int) -> bool:
    *init, (last, wanted) = parts
    machine = one.state.node.machine
    first = init[0][1] if init else 0
    if last is ContainerKind.INIT or any(kind is not ContainerKind.INIT or count > first for kind, count in init):
        return False
    if first and _fewest(machine, first) > 1:
        return False
    free = {numa: least_free(one, here) for numa, here in machine.numa_bits.items() if here}
    others = _fewest(machine, wanted) - 1
    if not init:
        return sum(nlargest(others + 1, free.values())) - coming >= wanted
    size = {numa: (machine.numa_bits[numa] & ~one.state.node.reserved).bit_count() for numa in free}
    return _some_keeps(first, free, coming) and all(
        max(has, first) + sum(nlargest(others, (free[other] for other in free if other != numa))) - coming >= wanted
        for numa, has in free.items()
        if size[numa] >= first
    )


def _finds_socket(parts: Sequence[Part], most: int, one: Hypothesis, coming: int) -> bool:
    node = one.state.node
    if any(_fewest(node.machine, count) > 1 for _, count in parts):
        return False
    sockets = node.machine.socket_bits
    free = {socket: least_free(one, bits) for socket, bits in sockets.items()}
    # One that asks for as much as the pod ever holds finds that where it goes.
    tying = [count for kind, count in parts[:-1] if kind is ContainerKind.INIT and count < most]
    return _some_keeps(most, free, coming) and all(
        free[socket] - coming >= most
        for socket, bits in sockets.items()
        if any((bits & ~node.reserved).bit_count() >= count for count in tying)
    )


def _some_keeps(wanted: int, free: Mapping[int, int], coming: int) -> bool:
    """Has some part of the machine so many CPUs, however those that come are spread? Each takes what leaves one too few there."""
    return coming < sum(max(0, has - wanted + 1) for has in free.values())


def _fewest(machine: CpuTopology, wanted: int) -> int:
    """How many NUMA nodes it takes at least, on the empty machine, to gather so many CPUs."""
    sizes = sorted((bits.bit_count() for bits in machine.numa_bits.values()), reverse=True)
    return bisect_left([*accumulate(sizes)], wanted) + 1
