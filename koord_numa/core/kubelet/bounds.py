"""
Lower and upper bounds of free amounts, and the pods that fit in every state between them.

A pod whose containers need nothing of one another fits wherever more is free. Pods for which more room may be a
rejection (init containers that tie later containers to their NUMA node, several kinds of resources) are named here.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.budget import spend
from koord_numa.core.kubelet.demand import ContainerDemand, PodDemand, peak_of, pod_demand
from koord_numa.core.kubelet.hypothesis import (
    Counts,
    Hypothesis,
    Signature,
    cpus_by_numa,
    fewest_free,
    pins_init_cpus,
    variant_of,
)
from koord_numa.core.kubelet.state import DevicePool, KubeletNode, KubeletState, ManagerState, MemoryTable
from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, ResourceList, total
from koord_numa.core.value_objects import ValueObject, replace, value_field

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


def takes_turns(demand: PodDemand, node: KubeletNode) -> bool:
    """
    May more room for one container leave less for the next? Where they are aligned one by one and need several kinds of resources.

    With one kind the next finds on the NUMA node that the first leaves what it lacks on the other; with several the first may move for a
    device, say, and take CPUs that only its new NUMA node had. Best-effort admits what it cannot align.
    """
    config = node.config
    if len(demand.containers) < 2:
        return False
    if config.topology_scope is not KubeletScope.CONTAINER or config.topology_policy not in STRICT:
        return False
    units = [kinds for _, part in demand.containers if (kinds := _kinds_of(part, node))]
    taken = [kind for kinds in units for kind in kinds]
    return len(set(taken)) > 1 and len(set(taken)) < len(taken)


def is_confined(demand: PodDemand, node: KubeletNode) -> bool:
    """Does an init container tie later containers to the NUMA node that it gets? Only where containers are aligned one by one."""
    # Without alignment, or with one hint for the whole pod, no container is tied to another's NUMA node.
    config = node.config
    if len(demand.containers) < 2:
        return False
    if config.topology_policy in (None, KubeletPolicy.NONE) or config.topology_scope is not KubeletScope.CONTAINER:
        return False
    held = False
    for container, part in demand.containers:
        own = (part.cpus and node.pins_cpus) or any(
            name in node.devices for name, count in part.devices.items() if count
        )
        if held and own:
            return True
        held = held or (bool(own) and container.kind is ContainerKind.INIT)
    return False


def hides_memory(demand: PodDemand, node: KubeletNode) -> bool:
    """
    Does an init container ask for a kind of memory of which the hint of the whole pod knows nothing, as no app container asks for it?

    Then more room may take the pod to a NUMA node without it (getPodRequestedResources in the kubelet's memorymanager/policy_static.go).
    """
    if not node.pins_memory or not node.aligns or node.config.topology_scope is not KubeletScope.POD:
        return False
    known = demand.pod.memory or {}
    return any(
        kind not in known for _, part in demand.containers for kind, amount in (part.memory or {}).items() if amount
    )


def _kinds_of(part: ContainerDemand, node: KubeletNode) -> list[str]:
    """What the managers tie to NUMA nodes for a container; CPUs last."""
    kinds = [name for name, count in part.devices.items() if count and name in node.devices]
    kinds += [kind for kind, amount in (part.memory or {}).items() if amount and node.pins_memory]
    return [*kinds, CPU] if part.cpus and node.pins_cpus else kinds


def binds_freely(demand: PodDemand, node: KubeletNode) -> bool:
    """Return whether the memory manager may bind memory of the pod to several NUMA nodes under this policy."""
    policy = node.config.topology_policy
    if not node.pins_memory or policy is KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    if not any(part.memory for _, part in demand.containers):
        return False
    by_pod = node.config.topology_scope is KubeletScope.POD
    units = [demand.pod] if by_pod else [part for _, part in demand.containers]
    return policy is not KubeletPolicy.RESTRICTED or not all(_fits_one(unit, node) for unit in units)


def _fits_one(unit: ContainerDemand, node: KubeletNode) -> bool:
    """Return whether one empty NUMA node can hold the unit."""
    empty = KubeletState.empty(node).managers
    return any(fits_on(node, empty, numa, unit) for numa in node.machine.numa_ids)


UNPACKED: Final = ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores")
"""Options of the CPU manager with which CPUs of several NUMA nodes are not just packed into one after the other."""


def may_deal_over_numa(node: KubeletNode) -> bool:
    """May CPUs come in any shares, and a pod be refused for that? With best-effort only for memory that is bound."""
    if not (node.distributes_across_numa or not node.is_published or splits_unknown(node)):
        return False
    policy = node.config.topology_policy
    return policy in STRICT or (policy is KubeletPolicy.BEST_EFFORT and node.pins_memory)


def splits_unknown(node: KubeletNode) -> bool:
    """
    Do CPUs of several NUMA nodes come in shares that no packing NUMA node by NUMA node explains, by an option that is published?

    ``prefer-align-cpus-by-uncorecache`` looks for a cache that holds the whole need on each NUMA node before it packs, and
    ``distribute-cpus-across-cores`` takes one CPU of each core in turn (``takeUncoreCache`` and ``takeRemainingCpusSpread`` of
    cpu_assignment.go): with two NUMA nodes of 5 free CPUs containers of 1 and 4 may get 1 of the one and 4 of the other. As caches and
    cores are not published every share is possible, so each is tried.
    """
    return any(node.config.cpu_options.get(name, False) for name in UNPACKED)


def has_room_in_all_ways(request: PodRequest, one: Hypothesis) -> bool:
    """Whatever devices are near; CPUs are where they are."""
    least, most = _ends(request, one)
    return has_room_between(request, one.state.node, least, most)


def unclear_devices(request: PodRequest, states: Iterable[Hypothesis]) -> str:
    """Say which devices keep it open where the pod comes to, if it may be refused for that; else return an empty text."""
    for one in states:
        names = sorted(one.sharing.keys() & everything(request).devices.keys())
        if names and not _is_aligned_once(request, one.state.node) and not has_room_in_all_ways(request, one):
            return f"{', '.join(names)} may be near several NUMA nodes, and which ones is not published"
    return ""


def _is_aligned_once(request: PodRequest, node: KubeletNode) -> bool:
    """Return whether one hint decides for the whole pod, so that asking about each NUMA node is enough."""
    if node.config.topology_scope is KubeletScope.POD:
        return True
    return sum(1 for _, part in pod_demand(request).containers if part.cpus or part.memory or part.devices) == 1


def has_room_whoever_leaves(request: PodRequest, one: Hypothesis, coming: ContainerDemand = NOTHING) -> bool:
    """Whatever devices are near, wherever CPUs are, whichever pods leave, and with ``coming`` taken from any NUMA nodes."""
    node = one.state.node
    least, _ = _ends(request, one)
    moving = sum(len(given.cpus) for uid in one.spread for given in one.state.pods[uid].grant.containers)
    kept = together([coming, ContainerDemand(cpus=moving, memory=None, devices={})])
    all_there = {name: one.sharing[name].counts for name in least.devices}
    most = Bound(KubeletState.empty(node).managers, all_there)
    return has_room_between(request, node, least, most, kept)


def most_room(request: PodRequest, one: Hypothesis) -> Bound:
    """The most that may be free for the pod, whatever devices are near; CPUs that init containers may hold are free."""
    _, most = _ends(request, one)
    loose = 0
    for bits in one.loose.values():
        loose |= bits
    managers = most.managers
    return replace(most, managers=ManagerState(managers.cpus | loose, managers.devices, managers.memory))


def _ends(request: PodRequest, one: Hypothesis) -> tuple[Bound, Bound]:
    fewest: dict[str, Counts] = {}
    most: dict[str, Counts] = {}
    for name in one.sharing.keys() & at_most(request).devices.keys():
        most[name] = one.sharing[name].counts
        fewest[name] = fewest_free(one.sharing[name], one.state.managers.devices[name].bit_count())
    return Bound(one.state.managers, fewest), Bound(one.state.managers, most)


class Sight:
    """One pod that looks at many states of one node."""

    def __init__(self, request: PodRequest, node: KubeletNode) -> None:
        self._demand = pod_demand(request)
        self._all = everything(request)
        self._units = _units(request, node)
        self._has_init_cpus = pins_init_cpus(self._demand, node)
        self._strict = node.config.topology_policy in STRICT
        self._fewest_cpus = min((unit.cpus for unit in self._units if unit.cpus), default=0)
        self._bound: bool | None = None
        self._single: dict[tuple[int, int], bool] = {}  # by variant of the node

    def of(self, state: KubeletState) -> Signature:
        """Equal for states in which the managers treat the pod alike."""
        spend()
        node, managers = state.node, state.managers
        seen: list[object] = [] if self._is_same_on_all_variants(node) else [variant_of(node)]
        if self._all.cpus and node.pins_cpus:
            seen += (
                node.packs,
                node.takes_whole_cores,
                node.whole_cores,
                self.cpus(node, cpus_by_numa(managers.cpus, node)),
            )
        if managers.memory is not None and self._all.memory:
            seen.append(self._memory(managers.memory))
        for name, most in self._all.devices.items():
            pool = node.devices.get(name)
            if pool is not None:
                seen.append(self._devices(name, most, pool, pool.healthy & ~managers.devices[name]))
        return tuple(seen)

    def _is_same_on_all_variants(self, node: KubeletNode) -> bool:
        """Do sockets, distances, and how CPUs are dealt out over several NUMA nodes, make no difference?"""
        if self._all.cpus and node.pins_cpus and not self._stays_on_one(node):
            return False
        return not node.prefers_closest or self._comes_to_one(node)

    def _comes_to_one(self, node: KubeletNode) -> bool:
        """Is each preferred hint of one NUMA node, all of which are equally near to themselves?"""
        machine = node.machine
        if not self._strict or len({machine.distance(numa, numa) for numa in machine.numa_ids}) > 1:
            return False
        return all(self._has_one(unit, node) for unit in self._units)

    def _has_one(self, unit: ContainerDemand, node: KubeletNode) -> bool:
        """Does one of the unit's resources need no more than one NUMA node?"""
        if unit.cpus and node.pins_cpus:
            return True  # else it has been found to need several
        pools = ((node.devices[name], count) for name, count in unit.devices.items() if count and name in node.devices)
        if any(any(here.bit_count() >= count for here in pool.on.values()) for pool, count in pools):
            return True
        wanted = unit.memory or {}
        return bool(wanted) and node.pins_memory and any(_covers(here, wanted) for here in node.memory.values())

    def cpus(self, node: KubeletNode, counts: Sequence[int]) -> Signature | int:
        """Equal where so many free CPUs on every NUMA node are the same to the pod."""
        if not node.aligns:
            return sum(counts)  # taken without a look at NUMA nodes
        most = self._all.cpus
        if not self._stays_on_one(node):
            return tuple(counts)
        if node.packs and self._has_init_cpus:
            most = 2 * most + 8 * len(self._demand.containers)  # ``cpu_overlap`` looks at no more
        capped = [min(count, most) if count >= self._fewest_cpus else 0 for count in counts]
        if self._has_init_cpus:
            # Of a NUMA node that is entirely free more is known (``whole_node_overlap``).
            whole = zip(counts, node.machine.numa_bits.values(), strict=True)
            return (*capped, *[count == bits.bit_count() for count, bits in whole])
        return tuple(capped)

    def _stays_on_one(self, node: KubeletNode) -> bool:
        """Does each unit get its CPUs from one NUMA node?"""
        variant = variant_of(node)
        if variant not in self._single:
            largest = max(bits.bit_count() for bits in node.machine.numa_bits.values())
            plain = not node.static_options.align_by_socket and node.whole_cores is None
            # A preferred hint is no wider than the narrowest that one of its resources needs.
            self._single[variant] = self._strict and plain and all(unit.cpus <= largest for unit in self._units)
        return self._single[variant]

    def _memory(self, table: MemoryTable) -> Signature:
        kinds = (self._all.memory or {}).items()
        free = [tuple([min(amounts.get(kind, 0), most) for kind, most in kinds]) for amounts in table.free.values()]
        if not self._binds_to_one(table):
            return (*free, *table.groups.values(), *map(bool, table.blocks.values()))
        alone = (
            table.groups[numa] == 1 << numa and self._is_any_bound(amounts) for numa, amounts in table.free.items()
        )
        return tuple([here if usable else None for here, usable in zip(free, alone, strict=True)])

    def _binds_to_one(self, table: MemoryTable) -> bool:
        """Is the memory of each unit bound to one NUMA node, so that groups of several and what is in use there is not looked at?"""
        if self._bound is None:
            empty = list(table.supply.values())
            # Under scope pod types that only init containers ask for are in no hint.
            hinted = set().union(*[unit.memory or () for unit in self._units]) == (self._all.memory or {}).keys()
            self._bound = (
                self._strict
                and hinted
                and all(any(_covers(amounts, unit.memory) for amounts in empty) for unit in self._units if unit.memory)
            )
        return self._bound

    def _is_any_bound(self, free: ResourceList) -> bool:
        return any(_covers(free, unit.memory) for unit in self._units if unit.memory)

    def _devices(self, name: str, most: int, pool: DevicePool, free: int) -> Signature:
        largest = max(unit.devices.get(name, 0) for unit in self._units)
        wide = largest > max((here.bit_count() for here in pool.on.values()), default=0)
        if self._strict and not (wide or pool.assumed) and all(_is_near_one(device.near) for device in pool.devices):
            counts = [min(most, (free & here).bit_count()) for here in pool.on.values()]
            return (tuple(counts), min(most, free.bit_count()))
        masks = [pool.devices[place].near for place in members(free)]
        return (*masks, tuple(sorted(device.near for device in pool.devices))) if wide else tuple(masks)


def _covers(amounts: ResourceList, demand: ResourceList) -> bool:
    return all(amounts.get(kind, 0) >= amount for kind, amount in demand.items())


def _is_near_one(near: int) -> bool:
    return not near & (near - 1)


def _units(request: PodRequest, node: KubeletNode) -> Sequence[ContainerDemand]:
    """What is aligned together."""
    demand = pod_demand(request)
    return [demand.pod] if node.config.topology_scope is KubeletScope.POD else [part for _, part in demand.containers]
