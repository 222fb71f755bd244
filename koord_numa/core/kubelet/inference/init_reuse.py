"""
CPUs and devices that finished init containers still hold: the kubelet keeps them until the pod is gone, exporters overlook them.

The pod resources API lists running containers only, so what it leaves out is estimated here from the pods' requests.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from koord_numa.core.bit_sets import lowest
from koord_numa.core.kubelet.admit import DryRunAdmitted, Trust, dry_run
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.inference.hypothesis import SOMEONE, Hypothesis, held_by_init, pins_init_cpus
from koord_numa.core.kubelet.room import STRICT
from koord_numa.core.kubelet.state import KubeletNode, KubeletState, ManagerState
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MILLI, NOTHING, ResourceList, total
from koord_numa.core.value_objects import replace

MOST_SOCKETS: Final = 8
"""Of a machine."""


def without_leftovers(
    zones: Sequence[Zone], pods: Sequence[PodDemand], parted: ResourceList = NOTHING
) -> tuple[Zone, ...]:
    """
    The zones with less available, where init containers have left more than later ones took over, and ``parted`` beside that.

    On which NUMA node that is is not published, so it is missing on each. An exporter that does count them shows more in use than
    running containers ask for: that much is not subtracted again.
    """
    left = dict(total([parted, *(pod.leftovers for pod in pods)]))
    if not left:
        return tuple(zones)
    running = {name: sum(pod.lasting.get(name, 0) for pod in pods) for name in left}
    missing: dict[str, int] = {}
    for name, amount in left.items():
        in_use = sum(zone.allocatable.get(name, 0) - zone.available.get(name, 0) for zone in zones)
        # What is in use beyond the requests of running containers is counted by the exporter already.
        hidden = amount - max(0, in_use - running[name])
        if hidden > 0:
            missing[name] = hidden
    if not missing:
        return tuple(zones)
    return tuple(
        replace(zone, available={name: amount - missing.get(name, 0) for name, amount in zone.available.items()})
        for zone in zones
    )


def parted_cpus(pods: Iterable[PodDemand], node: KubeletNode, devices: Collection[str]) -> dict[str, int]:
    """
    CPUs (milli) that init containers may hold although later ones of their pods ask for as many, as these were given other NUMA nodes.

    ``devices`` names those that the kubelet aligns.

    Example: ``init 2, app 6`` on NUMA nodes of 5 and 6 CPUs, where the app's devices are near both. The init container goes to the
    first one, the app to the second one, and 8 CPUs are held where 6 are shown.
    """
    found = 0
    for demand in pods:
        if node.pins_cpus and may_be_parted(demand, node, devices):
            inits = sum(part.cpus for container, part in demand.containers if _is_init(container))
            found += max(0, inits * MILLI - demand.leftovers.get(CPU, 0))
    return {CPU: found} if found else {}


def with_loose_cpus(start: Hypothesis) -> Hypothesis:
    """
    With the CPUs that finished init containers may still hold on every NUMA node. Nothing shows where they are, but under strict policies
    they are beside CPUs that their pod holds, and those are in use there: on the NUMA node or, with sockets aligned, in the socket.
    """
    state, node = start.state, start.state.node
    left = [(_most_left(request, node), _beside(request, node)) for request in start.unlocated.values()]
    held = 0
    policy, total_left = node.config.topology_policy, sum(most for most, _ in left)
    if policy is KubeletPolicy.NONE or (policy is KubeletPolicy.BEST_EFFORT and not node.pins_memory):
        # Only how many CPUs are free in all decides there.
        held = lowest(state.managers.cpus, min(total_left, state.managers.cpus.bit_count()))
    else:
        for here in node.machine.numa_bits.values() if total_left else ():
            near = _offered_with(here, node) & ~node.reserved
            used, free = (near & ~state.managers.cpus).bit_count(), state.managers.cpus & here
            held |= lowest(free, min(_at_most(left, used), free.bit_count()))
    if not held:
        return start
    managers = ManagerState(state.managers.cpus & ~held, state.managers.devices, state.managers.memory)
    return replace(start, state=replace(state, managers=managers), loose={SOMEONE: held})


def _offered_with(here: int, node: KubeletNode) -> int:
    """The CPUs, as bits, that containers may have got together with those of this NUMA node."""
    if not node.static_options.align_by_socket:
        return here
    return sum(bits for bits in node.machine.socket_bits.values() if bits & here)


def _beside(request: PodRequest, node: KubeletNode) -> int:
    """
    So many CPUs at least are in use on the NUMA node, or in the socket, in which the pod's init containers hold others.

    Later containers must have the NUMA nodes of those in their hints, and strict policies keep them to one if they fit it. Together with
    what they fit, one hint of the whole pod has room for its init containers, which may need several.
    """
    demand = pod_demand(request)
    taking = [
        (container.kind is not ContainerKind.INIT, part.cpus) for container, part in demand.containers if part.cpus
    ]
    lasting = sum(count for lasts, count in taking if lasts)
    if node.config.topology_scope is KubeletScope.POD:
        count, needed = lasting, demand.pod.cpus
    else:
        # What init containers hold in the end the last container has had to be beside, unless it is one of them.
        count, needed = next((count if lasts else 0 for lasts, count in reversed(taking)), 0), lasting
    widest = max((bits & ~node.reserved).bit_count() for bits in node.machine.numa_bits.values())
    # What needs several NUMA nodes may have any number on each of them.
    return count if node.config.topology_policy in STRICT and needed <= widest else 0


def _at_most(left: Sequence[tuple[int, int]], used: int) -> int:
    """The most that is left by any of these pods whose CPUs in use together are no more than are in use."""
    best = [0] * (used + 1)
    for most, beside in left:
        if most:
            for room in range(used, beside - 1, -1):
                best[room] = max(best[room], best[room - beside] + most)
    return best[used]


def _most_left(request: PodRequest, node: KubeletNode) -> int:
    """
    The most CPUs that init containers of the pod may hold beside those of containers that keep running.

    The more is free where they are the fewer are taken over. So a NUMA node of which nothing is in use tells, if none is larger, the
    containers that came before them are elsewhere, and none that came between them may be.
    """
    if not node.pins_cpus:
        return 0
    demand = pod_demand(request)
    every = sum(part.cpus for container, part in demand.containers if container.kind is ContainerKind.INIT)
    if not every or not pins_init_cpus(demand, node):
        return every  # no later container takes any of them
    inits = [at for at, (container, part) in enumerate(demand.containers) if part.cpus and _is_init(container)]
    between = demand.containers[inits[0] : inits[-1]]
    sizes = {bits.bit_count() for bits in node.machine.numa_bits.values() if bits}
    if len(sizes) > 1 or any(part.cpus and not _is_init(container) for container, part in between):
        return every
    if may_be_parted(demand, node, node.devices):
        return every
    unused = KubeletState.empty(node)
    unused = replace(unused, managers=replace(unused.managers, cpus=node.machine.bits))
    alone = replace(request, containers=request.containers[inits[0] :])
    answers = [dry_run(unused, each, Trust.INFERRED, CpuReuse.LEAST) for each in (request, alone)]
    return max(held_by_init(each.grant).bit_count() if isinstance(each, DryRunAdmitted) else every for each in answers)


def _is_init(container: Container) -> bool:
    return container.kind is ContainerKind.INIT


def may_be_parted(demand: PodDemand, node: KubeletNode, devices: Collection[str]) -> bool:
    """
    May a later container have been given other NUMA nodes than the pod's init containers, on a node that is not empty?

    Best-effort admits a container that its memory or devices keep away from the CPUs of an init container; other policies refuse it.
    """
    config = node.config
    if config.topology_policy is not KubeletPolicy.BEST_EFFORT or config.topology_scope is not KubeletScope.CONTAINER:
        return False
    return node.pins_memory or any(name in devices for _, part in demand.containers for name in part.devices)
