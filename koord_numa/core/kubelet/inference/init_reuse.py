"""
CPUs and devices that finished init containers still hold: the kubelet keeps them until the pod is gone, exporters overlook them.

The pod resources API lists running containers only, so what it leaves out is estimated here from the pods' requests. Where the kubelet is
known to pack CPUs into cores, and its pods are known from the first one on, how many they hold together follows from how the cores are in
use (``CoreUse``), by NUMA node or, where nothing is aligned, on the whole machine.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from koord_numa.core.bit_sets import lowest
from koord_numa.core.kubelet.inference.hypothesis import SOMEONE, Hypothesis, held_by_init, pins_init_cpus
from koord_numa.core.kubelet.inference.variants import freed
from koord_numa.core.kubelet.managers.admit import DryRunAdmitted, Trust, dry_run
from koord_numa.core.kubelet.managers.aggregates import PodDemand, pod_demand
from koord_numa.core.kubelet.managers.cpu_overlap import CoreUse
from koord_numa.core.kubelet.managers.cpus import CpuReuse
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState, ManagerState
from koord_numa.core.kubelet.managers.results import ContainerGrant
from koord_numa.core.kubelet.managers.room import STRICT
from koord_numa.core.kubelet.spreading.places import places_of
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


def packing_after(before: Hypothesis, containers: Sequence[ContainerGrant]) -> tuple[CoreUse, ...] | None:
    """How the cores of each place are in use after one more pod was given this; ``None`` where that is not known."""
    taking = [one for one in containers if one.cpus]
    known = _packing_before(before)
    if known is None or not taking:
        return known
    node = before.state.node
    inits = any(one.kind is ContainerKind.INIT for one in taking)
    if inits and max(len(one.cpus) for one in taking) > most_in_order(node):
        return None
    at = {_place_of(one, node) for one in taking}
    # Containers of one pod on several NUMA nodes have nothing to do with one another only where none hands CPUs on.
    if -1 in at or (inits and len(at) > 1):
        return None
    found = list(known)
    for place in at:
        takes = tuple(
            (one.kind is ContainerKind.INIT, len(one.cpus)) for one in taking if _place_of(one, node) == place
        )
        after = found[place].after(takes, in_order=node.aligns and len(known) > 1)
        if after is None:
            return None
        found[place] = after
    return tuple(found)


def _packing_before(before: Hypothesis) -> tuple[CoreUse, ...] | None:
    node = before.state.node
    if before.packing is not None or not node.packs or node.takes_whole_cores:
        return before.packing
    places = places_of(node)
    free = sum(places) & ~node.reserved
    held = any(one.cpus for pod in before.state.pods.values() for one in pod.grant.containers)
    if held or before.unplaced or before.unlocated or before.state.managers.cpus != free:
        return None
    # With sockets aligned, or an even share of each NUMA node, CPUs are not just packed.
    if node.static_options.align_by_socket or (node.deals_over_numa and not node.aligns):
        return None
    even = not any(bits.bit_count() % 2 for bits in node.machine.numa_bits.values())
    return tuple(CoreUse.of_empty(bits.bit_count(), (bits & node.reserved).bit_count(), even=even) for bits in places)


def most_in_order(node: KubeletNode) -> int:
    """
    Containers with so many CPUs at most choose cores in one order, whatever their number: none takes a whole NUMA node or socket first.

    One NUMA node may have several sockets (up to eight).
    """
    sizes = [bits.bit_count() for bits in node.machine.numa_bits.values() if bits]
    if len(sizes) == 1:
        return sizes[0] // MOST_SOCKETS - 1
    return max(sizes) if node.aligns else min(sizes) - 1


def _place_of(container: ContainerGrant, node: KubeletNode) -> int:
    """Which place a container's CPUs come from; -1 where that may be several."""
    if not node.aligns:
        return 0
    mask = container.hint.mask if container.hint is not None else None
    numas = list(node.machine.numa_bits)
    if mask is None or mask.bit_count() != 1 or mask.bit_length() - 1 not in numas:
        return -1
    numa = mask.bit_length() - 1
    return -1 if container.cpus.bits & ~node.machine.numa_bits[numa] else numas.index(numa)


def without_excess(one: Hypothesis) -> Hypothesis:
    """The hypothesis with no more CPUs held by init containers than all of them together can have left behind."""
    if not one.loose or one.packing is None:
        return one
    loose = excess = 0
    for bits in one.loose.values():
        loose |= bits
    for here, use in zip(places_of(one.state.node), one.packing, strict=True):
        more = use.least_free - (one.state.managers.cpus & here).bit_count()
        if more > 0:
            excess |= lowest(loose & here, min(more, (loose & here).bit_count()))
    return freed(one, excess) if excess else one
