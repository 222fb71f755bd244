"""
Does one NUMA node have room for a whole pod? Then the kubelet admits it, and amounts alone tell.

Theory. A pod without regular init containers is admitted if one NUMA node has all free that its containers hold at once. Every unit
then has a hint of that single NUMA node from each manager: its preferred size is one, so that every policy and scope admits the merged
hint, which is preferred and of one NUMA node as well. Wherever that is, the unit takes no more than it asks for, and the first NUMA node
keeps enough for the units that follow, also of devices that are near several NUMA nodes, and no memory group comes to be.
Pods that come before it fill one NUMA node or another, and each that they are to fill takes its part of what they hold together.

A regular init container ties later ones to the NUMA node that it gets, as long as they have not taken its share over. What is free there
and what it left are together what was free before, less what containers have kept: so the most that the pod holds at once is enough
there, too. Such a pod is admitted if each NUMA node that may hold an init container has that much. Where its init containers differ
in the kinds of what they get, one may tie CPUs to one NUMA node and another devices to another one, and nothing is told.

Best-effort and none refuse nothing because of NUMA nodes. Where no memory is bound, the sum over the node is enough.

Where sockets or whole cores add rules of their own, nothing is told. The node-wide amounts are another check.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from koord_numa.core.kubelet.budget import spend
from koord_numa.core.kubelet.demand import ContainerDemand, peak_of, pod_demand
from koord_numa.core.kubelet.state import KubeletNode, ManagerState
from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, total
from koord_numa.core.value_objects import ValueObject, value_field

NOTHING: Final = ContainerDemand(cpus=0, memory={}, devices={})


STRICT: Final = (KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED)


MOST_FILLED: Final = 6
"""Of so many NUMA nodes every way is tried in which others may fill them up."""


class Bound(ValueObject):
    """What is free at least or at most: as ``managers`` say, but for the resources of ``devices``, so many near each NUMA node."""

    managers: ManagerState
    devices: Mapping[str, Mapping[int, int]] = value_field(default_factory=dict)


def has_room(request: PodRequest, node: KubeletNode, managers: ManagerState, kept: ContainerDemand = NOTHING) -> bool:
    """Do amounts alone tell that the managers admit the pod, also with ``kept`` taken from any NUMA nodes before, in any shares?"""
    bound = Bound(managers)
    return has_room_between(request, node, bound, bound, kept)


def has_room_between(
    request: PodRequest, node: KubeletNode, least: Bound, most: Bound, kept: ContainerDemand = NOTHING
) -> bool:
    """As ``has_room``, in every state with no less free than ``least``, less ``kept`` from any NUMA nodes, and no more than ``most``."""
    if node.ids_are_real or node.whole_cores is not None:
        return False
    peak = at_most(request)
    if not _is_known(peak, node, least.managers, kept):
        return False
    if needs_no_place(request, node):
        return suffices(node, least.managers, peak, kept)
    if not node.aligns:
        # Only memory is bound to NUMA nodes, and by itself.
        memory = ContainerDemand(cpus=0, memory=peak.memory, devices={})
        return suffices(node, least.managers, peak, kept) and some_fits(node, least, memory, kept)
    tying = _tying(request, node)
    if node.static_options.align_by_socket and peak.cpus and not has_plain_sockets(node):
        return False
    if not some_fits(node, least, peak, kept):
        return False
    if node.config.topology_scope is KubeletScope.POD:
        # Types that only init containers ask for are in no hint.
        return not node.pins_memory or (pod_demand(request).pod.memory or {}).keys() == (peak.memory or {}).keys()
    if not tying:
        return True
    kinds = [_kinds(part, node) for part in tying]
    # Sockets may spread an init container's CPUs over several NUMA nodes, all of which it ties.
    if any(each != kinds[0] for each in kinds) or (node.static_options.align_by_socket and CPU in kinds[0]):
        return False
    return all(
        # What the container asks for itself it finds there.
        _fits(node, least, numa, beyond(part, peak, node), kept) or not may_hold(node, most, numa, part)
        for part in tying
        for numa in node.machine.numa_ids
        if not _fits(node, least, numa, peak, kept)
    )


def needs_no_place(request: PodRequest, node: KubeletNode) -> bool:
    """Is it all the same to the kubelet's verdict on which NUMA nodes the pod gets its CPUs and devices, and is no memory bound?"""
    if node.config.topology_policy not in (None, KubeletPolicy.NONE, KubeletPolicy.BEST_EFFORT):
        return False
    return not (node.pins_memory and any(part.memory is not None for _, part in pod_demand(request).containers))


def suffices(node: KubeletNode, managers: ManagerState, demand: ContainerDemand, kept: ContainerDemand) -> bool:
    """Has the node as a whole all these CPUs and devices, beside what is kept?"""
    if demand.cpus and node.pins_cpus and managers.cpus.bit_count() < demand.cpus + kept.cpus:
        return False
    return all(
        (pool.healthy & ~managers.devices[name]).bit_count() >= max(1, demand.devices[name]) + kept.devices.get(name, 0)
        for name, pool in node.devices.items()
        if name in demand.devices
    )


@once_per_request
def at_most(request: PodRequest) -> ContainerDemand:
    """The most that the pod's containers hold at once, an init container's share counted until it is done."""
    parts = pod_demand(request).containers
    return ContainerDemand(
        cpus=peak_of(parts, lambda part: {CPU: part.cpus}).get(CPU, 0),
        memory=peak_of(parts, lambda part: part.memory or {}),
        devices=peak_of(parts, lambda part: part.devices),
    )


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


def beyond(part: ContainerDemand, peak: ContainerDemand, node: KubeletNode) -> ContainerDemand:
    """Of ``peak`` the resources of which the container asks for less itself, as far as the managers give any of them."""
    memory, devices = part.memory or {}, part.devices
    kinds = (peak.memory or {}).items() if node.pins_memory else ()
    return ContainerDemand(
        cpus=peak.cpus if node.pins_cpus and part.cpus < peak.cpus else 0,
        memory={kind: amount for kind, amount in kinds if memory.get(kind, 0) < amount},
        devices={
            name: count
            for name, count in peak.devices.items()
            if name in node.devices and devices.get(name, -1) < count
        },
    )


def has_plain_sockets(node: KubeletNode) -> bool:
    """Is each NUMA node in one socket, and are sockets no more than these? Else a hint of one NUMA node may not be preferred."""
    machine = node.machine
    there = [bits for bits in machine.numa_bits.values() if bits]
    within = all(any(not bits & ~socket for socket in machine.socket_bits.values()) for bits in there)
    return within and len(machine.socket_bits) <= len(there)


def _tying(request: PodRequest, node: KubeletNode) -> list[ContainerDemand]:
    """The init containers that may tie later ones to a NUMA node: those with CPUs or devices of their own, before others with some."""
    parts = [(container, part) for container, part in pod_demand(request).containers if _kinds(part, node)]
    return [part for container, part in parts[:-1] if container.kind is ContainerKind.INIT]


def _kinds(part: ContainerDemand, node: KubeletNode) -> set[str]:
    kinds = {
        name for name, count in part.devices.items() if count and name in node.devices and node.devices[name].hosts
    }
    return kinds | {CPU} if part.cpus and node.pins_cpus else kinds


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
    return _fits(node, Bound(managers), numa, demand, kept)


def _fits(node: KubeletNode, bound: Bound, numa: int, demand: ContainerDemand, kept: ContainerDemand) -> bool:
    if not _has_cpus_and_memory(node, bound.managers, numa, demand, kept):
        return False
    return all(
        # Also where a container names the device and asks for none: the kubelet looks for NUMA nodes that have some.
        _free_devices(node, bound, numa, name) >= max(1, demand.devices[name]) + kept.devices.get(name, 0)
        for name, pool in node.devices.items()
        if name in demand.devices and pool.hosts
    )


def some_fits(
    node: KubeletNode,
    least: Bound,
    demand: ContainerDemand,
    kept: ContainerDemand,
    among: Collection[int] | None = None,
) -> bool:
    """Has some NUMA node, of those ``among`` all, all of it by itself, however ``kept`` is spread over them?"""
    chosen = node.machine.numa_ids if among is None else among
    numas = [numa for numa in chosen if _fits(node, least, numa, demand, NOTHING)]
    if kept is NOTHING or not numas:
        return bool(numas)
    spare = [_spare(node, least, numa, demand) for numa in numas]
    taken = {CPU: kept.cpus, **(kept.memory or {}), **kept.devices}
    # Those with most room are hardest to fill up; with some left out a no is possible, a yes is not.
    spare.sort(key=lambda one: min((left / max(1, taken.get(name, 0)) for name, left in one.items()), default=0))
    return not _fills_up(spare[-MOST_FILLED:], taken)


def _spare(node: KubeletNode, least: Bound, numa: int, demand: ContainerDemand) -> dict[str, int]:
    """By resource how much may be taken from the NUMA node while it still has all of the demand."""
    managers, found = least.managers, {}
    if demand.cpus and node.pins_cpus:
        found[CPU] = (managers.cpus & node.machine.numa_bits[numa]).bit_count() - demand.cpus
    if managers.memory is not None:
        found.update(
            {kind: managers.memory.free[numa][kind] - amount for kind, amount in (demand.memory or {}).items()}
        )
    for name, count in demand.devices.items():
        if name in node.devices and node.devices[name].hosts:
            found[name] = _free_devices(node, least, numa, name) - max(1, count)
    return found


def _fills_up(spare: Sequence[Mapping[str, int]], taken: Mapping[str, int]) -> bool:
    """Is what is taken enough to leave too little of some resource on each of these NUMA nodes?"""
    spend()
    if not spare:
        return True
    return any(
        left < taken.get(name, 0) and _fills_up(spare[1:], {**taken, name: taken[name] - left - 1})
        for name, left in spare[0].items()
    )


def may_hold(node: KubeletNode, most: Bound, numa: int, demand: ContainerDemand) -> bool:
    """May the demand get a hint of this NUMA node alone?"""
    return _has_cpus_and_memory(node, most.managers, numa, demand, NOTHING) and all(
        _free_devices(node, most, numa, name) >= count
        for name, count in demand.devices.items()
        if name in node.devices and node.devices[name].hosts
    )


def _has_cpus_and_memory(
    node: KubeletNode, managers: ManagerState, numa: int, demand: ContainerDemand, kept: ContainerDemand
) -> bool:
    free = (managers.cpus & node.machine.numa_bits[numa]).bit_count()
    if demand.cpus and node.pins_cpus and free < demand.cpus + kept.cpus:
        return False
    memory = managers.memory
    if memory is not None and demand.memory:
        # In a group with others it takes no memory of its own.
        if memory.groups[numa] != 1 << numa:
            return False
        taken = kept.memory or {}
        return all(
            memory.free[numa].get(kind, 0) >= amount + taken.get(kind, 0) for kind, amount in demand.memory.items()
        )
    return True


def _free_devices(node: KubeletNode, bound: Bound, numa: int, name: str) -> int:
    if name in bound.devices:
        return bound.devices[name].get(numa, 0)
    pool = node.devices[name]
    return (pool.healthy & ~bound.managers.devices[name] & pool.on.get(numa, 0)).bit_count()
