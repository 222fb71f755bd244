"""
Lower and upper bounds of free amounts, and the pods that fit in every state between these bounds.

If the containers of a pod do not depend on each other, the pod fits wherever more is free. This module also finds the
pods for which more room may cause a rejection. ``Sight`` compares states as one pod sees them, so that equal states
are evaluated once. ``Aligner`` does the same for nodes whose CPUs the scheduler assigns and whose kubelet aligns
devices or memory.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from koord_numa.core.cpuset import members
from koord_numa.core.explain import amounts_text
from koord_numa.core.kubelet.demand import ContainerDemand, PodDemand, is_memory, peak_of, pod_demand
from koord_numa.core.kubelet.hypothesis import (
    Counts,
    Hypothesis,
    Signature,
    cpus_by_numa,
    fewest_free,
    pins_init_cpus,
    variant_of,
)
from koord_numa.core.kubelet.state import DevicePool, KubeletNode, KubeletState, ManagerState, MemoryTable, spend
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology
from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList, is_batch, total
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import ValueObject, value_field

NOT_SURELY_ALIGNED: Final = "node(s) whose kubelet might not align the pod to NUMA nodes"

TAKEN: Final = "taken by containers"
"""Key of the sum of held amounts in the derived values of a ledger."""

_STRICT: Final = frozenset({KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE})


class Aligner(ValueObject):
    """
    A kubelet that may reject pods by its own state.

    ``zones`` are the amounts of every NUMA node. ``gone`` are reserved amounts, on unknown NUMA nodes. ``amplified``
    are resources whose published amounts differ from the kubelet's.
    """

    config: KubeletConfig
    zones: tuple[ResourceList, ...]
    gone: ResourceList
    amplified: frozenset[str] = frozenset()

    @property
    def is_strict(self) -> bool:
        """True if the kubelet rejects pods that it cannot align."""
        return self.config.topology_policy in _STRICT

    @property
    def binds_memory(self) -> bool:
        """True if the kubelet binds memory. Without a published policy, a strict kubelet is assumed to bind it."""
        return self.config.memory_policy == "Static" or (self.is_strict and self.config.memory_policy is None)

    def counts(self, resource: str) -> bool:
        """
        Return whether the kubelet aligns this resource. Without a topology manager policy, the memory manager still
        aligns memory.

        A zone that does not list a resource gives no information about it. A resource that no zone lists counts only if
        the published policy of the memory manager shows that the kubelet binds it.
        """
        if not any(resource in zone for zone in self.zones):
            return is_memory(resource) and self.config.memory_policy == "Static"
        if is_memory(resource):
            return self.binds_memory
        if self.config.topology_policy is KubeletPolicy.NONE or is_batch(resource):
            return False
        return resource != CPU or self.config.cpu_policy != "none"


def aligner(node: Node, topology: NodeResourceTopology, ratios: Mapping[str, float]) -> Aligner | None:
    """
    Return the kubelet of a node with scheduler-owned CPUs if it may reject a pod for its NUMA nodes, else ``None``.

    Its managers have at most a NUMA node's capacity. The amount that the Node's allocatable lacks may be missing on any NUMA node
    (``--reserved-memory``).
    """
    policies = topology.kubelet.topology_policy, topology.kubelet.memory_policy
    # Only strict policies reject pods that they cannot align. A static memory manager rejects pods under any policy.
    if policies[0] not in _STRICT and policies[1] != "Static":
        return None
    # Capacity and not allocatable: the kubelet's managers count from the machine's amounts.
    zones = tuple(_capacity(zone.numa, {**zone.allocatable, **zone.capacity}, topology) for zone in topology.zones)
    whole = total(zones)
    gone = {name: max(0, amount - node.allocatable.get(name, 0)) for name, amount in whole.items()}
    return Aligner(topology.kubelet, zones, gone, frozenset(name for name, ratio in ratios.items() if ratio > 1))


def refuse_unsure(request: PodRequest, kubelet: Aligner, ledger: Ledger) -> Rejection | None:
    """
    Return a rejection if this kubelet might reject the pod, depending on the NUMA nodes of the other pods.

    Held amounts of a resource can leave too little of it on a limited number of NUMA nodes. If all resources together
    cannot do so on every NUMA node, one NUMA node has enough of every resource. The merged hint is then a single NUMA
    node and preferred, which every policy admits (policy_restricted.go, policy_single_numa_node.go). Requests that need
    several NUMA nodes are rejected, because they cannot be guaranteed.
    """
    if passing := _only_passing(request, kubelet):
        return _refuse(kubelet, f"{', '.join(passing)} of init containers alone it binds anywhere", resolvable=False)
    if _uses_again(request, kubelet):
        why = "what init containers leave ties the others to NUMA nodes that were chosen without them"
        return _refuse(kubelet, why, resolvable=False)
    taken: dict[str, int] | None = None
    for wanted in _aligned_units(request, kubelet):
        # An amount that no zone lists cannot be compared, but the kubelet may align it.
        if unknown := sorted(name for name in wanted if not any(zone.get(name) for zone in kubelet.zones)):
            return _refuse(kubelet, f"the NUMA nodes of {', '.join(unknown)} are not published", resolvable=False)
        # Only the scheduler amplifies amounts. The kubelet's accounting uses the original amounts.
        if amplified := sorted(kubelet.amplified & wanted.keys()):
            return _refuse(kubelet, f"{', '.join(amplified)} is amplified, by which it does not go", resolvable=False)
        if not any(
            all(zone.get(name, 0) >= max(1, amount) for name, amount in wanted.items()) for zone in kubelet.zones
        ):
            return _refuse(kubelet, f"no NUMA node has {amounts_text(wanted)}", resolvable=False)
        if taken is None:
            taken = total([kubelet.gone, _taken(ledger)])
        # Every resource excludes as many NUMA nodes as possible. In the worst case these are different NUMA nodes.
        closed = sum(_most_closed(kubelet, name, amount, taken.get(name, 0)) for name, amount in wanted.items())
        if closed >= len(kubelet.zones):
            why = f"it chooses by its own state, in which no NUMA node is sure to have {amounts_text(wanted)} left"
            return _refuse(kubelet, why, resolvable=True)
        # In container scope, earlier containers of the pod are held when the next container is aligned.
        taken = total([taken, wanted])
    return None


def _capacity(numa: int, published: ResourceList, topology: NodeResourceTopology) -> ResourceList:
    if topology.machine is None:
        return published
    cpus = topology.machine.numa_bits.get(numa, 0)
    reserved = topology.kubelet.reserved_cpus
    return {**published, CPU: (cpus & ~reserved.bits if reserved else cpus).bit_count() * MILLI}


def _aligned_units(request: PodRequest, kubelet: Aligner) -> Iterator[ResourceList]:
    """Yield the amounts that must be on one NUMA node: of the whole pod, or of every container in order."""
    demand = pod_demand(request)
    whole = kubelet.config.topology_scope is KubeletScope.POD
    for unit in [demand.pod] if whole else [unit for _, unit in demand.containers]:
        wanted = {name: amount for name, amount in _amounts(unit).items() if kubelet.counts(name)}
        if wanted:
            yield wanted


def _only_passing(request: PodRequest, kubelet: Aligner) -> list[str]:
    """Return the memory types of init containers that pod scope gives no hint for (getPodRequestedResources). They may group NUMA nodes."""
    if not kubelet.binds_memory or kubelet.config.topology_scope is not KubeletScope.POD:
        return []
    demand = pod_demand(request)
    return sorted({name for _, unit in demand.containers for name in unit.memory or ()} - set(demand.pod.memory or ()))


def _uses_again(request: PodRequest, kubelet: Aligner) -> bool:
    """Return whether, in container scope, other containers must reuse what an init container leaves (hints for reusable CPUs)."""
    return (
        kubelet.config.topology_scope is KubeletScope.CONTAINER
        and any(container.kind is ContainerKind.INIT for container in request.containers)
        and len(list(_aligned_units(request, kubelet))) > 1
    )


def _amounts(unit: ContainerDemand) -> dict[str, int]:
    cpus = {CPU: unit.cpus * MILLI} if unit.cpus else {}
    memory = {name: amount for name, amount in (unit.memory or {}).items() if amount}
    return {**cpus, **memory, **unit.devices}


def _taken(ledger: Ledger) -> ResourceList:
    """Return the sum over all pods of the ledger, computed once per change."""
    # Cached with the ledger, because every decision on the node reads it.
    known: ResourceList | None = ledger.derived.get(TAKEN)
    if known is None:
        known = ledger.derived[TAKEN] = total(_taken_by(held.request, held.amounts) for held in ledger)
    return known


def _taken_by(request: PodRequest | None, amounts: ResourceList) -> ResourceList:
    """Return the sum over all containers, because what an init container leaves may be on other NUMA nodes than what is reused."""
    if request is None:
        return amounts
    return total(_amounts(unit) for _, unit in pod_demand(request).containers)


def _most_closed(kubelet: Aligner, resource: str, amount: int, taken: int) -> int:
    """
    Return the maximum number of NUMA nodes with less than ``amount`` left if ``taken`` is held. The smallest NUMA nodes are used up first.
    """
    # A request of 0 devices fits on every NUMA node with such devices, in use or not (devicemanager/topology_hints.go).
    if not amount:
        return sum(not zone.get(resource) for zone in kubelet.zones)
    closed = 0
    # Ascending: the smallest NUMA nodes need the least to be excluded.
    for has in sorted(zone.get(resource, 0) for zone in kubelet.zones):
        # A NUMA node is excluded with less than ``amount`` left, for which ``has - amount + 1`` held units suffice.
        taken -= max(0, has - amount + 1)
        if taken < 0:
            break
        closed += 1
    return closed


def _refuse(kubelet: Aligner, why: str, *, resolvable: bool) -> Rejection:
    policy = kubelet.config.topology_policy or "policy unknown"
    what = "CPUs, memory and devices" if kubelet.is_strict else MEMORY
    detail = f"its kubelet aligns {what} itself ({policy}): {why}"
    return Rejection(Reason.KUBELET_ALIGNMENT, NOT_SURELY_ALIGNED, detail, resolvable=resolvable)


NOTHING: Final = ContainerDemand(cpus=0, memory={}, devices={})


STRICT: Final = (KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED)


MOST_FILLED: Final = 6
"""Maximum number of NUMA nodes for which every way is tried in which other pods may fill them up."""


class Bound(ValueObject):
    """Lower or upper bound on the free amounts. ``devices`` counts free devices by resource name and NUMA node, ``managers`` the rest."""

    managers: ManagerState
    devices: Mapping[str, Mapping[int, int]] = value_field(default_factory=dict)


def has_room(request: PodRequest, node: KubeletNode, managers: ManagerState, kept: ContainerDemand = NOTHING) -> bool:
    """
    Return whether amounts show that the managers admit the pod (sufficient condition).

    ``kept`` is taken first, from any NUMA nodes in any shares.
    """
    bound = Bound(managers)
    return has_room_between(request, node, bound, bound, kept)


def has_room_between(
    request: PodRequest, node: KubeletNode, least: Bound, most: Bound, kept: ContainerDemand = NOTHING
) -> bool:
    """
    Return whether ``has_room`` holds in every state between two bounds.

    Such a state has no less free than ``least`` without ``kept``, taken from any NUMA nodes, and no more than ``most``.
    """
    if node.ids_are_real or node.whole_cores is not None:
        return False
    peak = at_most(request)
    if not _is_known(peak, node, least.managers, kept):
        return False
    if needs_no_place(request, node):
        return suffices(node, least.managers, peak, kept)
    if not node.aligns:
        # Only memory is bound to NUMA nodes, independently of other resources.
        memory = ContainerDemand(cpus=0, memory=peak.memory, devices={})
        return suffices(node, least.managers, peak, kept) and some_fits(node, least, memory, kept)
    tying = _tying(request, node)
    if node.static_options.align_by_socket and peak.cpus and not has_plain_sockets(node):
        return False
    if not some_fits(node, least, peak, kept):
        return False
    if node.config.topology_scope is KubeletScope.POD:
        # The hint omits types that only init containers request.
        return not node.pins_memory or (pod_demand(request).pod.memory or {}).keys() == (peak.memory or {}).keys()
    if not tying:
        return True
    kinds = [_kinds(part, node) for part in tying]
    # With align-by-socket, an init container's CPUs may be on several NUMA nodes and tie later containers to all.
    if any(each != kinds[0] for each in kinds) or (node.static_options.align_by_socket and CPU in kinds[0]):
        return False
    return all(
        # The container's own request fits on this NUMA node.
        _fits(node, least, numa, beyond(part, peak, node), kept) or not may_hold(node, most, numa, part)
        for part in tying
        for numa in node.machine.numa_ids
        if not _fits(node, least, numa, peak, kept)
    )


def needs_no_place(request: PodRequest, node: KubeletNode) -> bool:
    """Return whether the verdict does not depend on the NUMA nodes of the pod's CPUs and devices, and no memory is bound."""
    if node.config.topology_policy not in (None, KubeletPolicy.NONE, KubeletPolicy.BEST_EFFORT):
        return False
    return not (node.pins_memory and any(part.memory is not None for _, part in pod_demand(request).containers))


def suffices(node: KubeletNode, managers: ManagerState, demand: ContainerDemand, kept: ContainerDemand) -> bool:
    """Return whether the whole node has these CPUs and devices in addition to ``kept``."""
    if demand.cpus and node.pins_cpus and managers.cpus.bit_count() < demand.cpus + kept.cpus:
        return False
    return all(
        (pool.healthy & ~managers.devices[name]).bit_count() >= max(1, demand.devices[name]) + kept.devices.get(name, 0)
        for name, pool in node.devices.items()
        if name in demand.devices
    )


@once_per_request
def at_most(request: PodRequest) -> ContainerDemand:
    """Return the most that the containers hold at the same time. The share of an init container counts until it is done."""
    parts = pod_demand(request).containers
    return ContainerDemand(
        cpus=peak_of(parts, lambda part: {CPU: part.cpus}).get(CPU, 0),
        memory=peak_of(parts, lambda part: part.memory or {}),
        devices=peak_of(parts, lambda part: part.devices),
    )


def asks_managers(request: PodRequest, node: KubeletNode) -> bool:
    """
    Return whether the managers of this node allocate anything to the pod.

    A pod without such allocations is admitted wherever other pods are.
    """
    return any(
        (part.cpus and node.pins_cpus)
        or (part.memory and node.pins_memory)
        or part.devices.keys() & node.devices.keys()
        for _, part in pod_demand(request).containers
    )


@once_per_request
def everything(request: PodRequest) -> ContainerDemand:
    """Return the sum of the requests of all containers."""
    return together(part for _, part in pod_demand(request).containers)


def together(demands: Iterable[ContainerDemand]) -> ContainerDemand:
    """Return the sum of the demands."""
    parts = list(demands)
    return ContainerDemand(
        cpus=sum(part.cpus for part in parts),
        memory=total(part.memory or {} for part in parts),
        devices=total(part.devices for part in parts),
    )


def beyond(part: ContainerDemand, peak: ContainerDemand, node: KubeletNode) -> ContainerDemand:
    """
    Return the resources of ``peak`` of which the container asks for less than the peak, limited to resources that a manager allocates.
    """
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
    """
    Return whether each NUMA node is in one socket, and there are no more sockets than NUMA nodes.

    Otherwise a hint of one NUMA node may not be preferred.
    """
    machine = node.machine
    there = [bits for bits in machine.numa_bits.values() if bits]
    within = all(any(not bits & ~socket for socket in machine.socket_bits.values()) for bits in there)
    return within and len(machine.socket_bits) <= len(there)


def _tying(request: PodRequest, node: KubeletNode) -> list[ContainerDemand]:
    """
    Return the init containers that may tie later containers to a NUMA node.

    These init containers have CPUs or devices of their own and come before other such containers.
    """
    parts = [(container, part) for container, part in pod_demand(request).containers if _kinds(part, node)]
    return [part for container, part in parts[:-1] if container.kind is ContainerKind.INIT]


def _kinds(part: ContainerDemand, node: KubeletNode) -> set[str]:
    kinds = {
        name for name, count in part.devices.items() if count and name in node.devices and node.devices[name].hosts
    }
    return kinds | {CPU} if part.cpus and node.pins_cpus else kinds


def _is_known(demand: ContainerDemand, node: KubeletNode, managers: ManagerState, kept: ContainerDemand) -> bool:
    """Return whether the memory manager knows all types, and resources whose devices are near no NUMA node have enough free devices."""
    if managers.memory is not None and not managers.memory.knows(demand.memory or ()):
        return False  # The kubelet rejects a type that one NUMA node lacks, on any NUMA node.
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
    """Return whether this NUMA node alone has all of the demand in addition to ``kept``."""
    return _fits(node, Bound(managers), numa, demand, kept)


def _fits(node: KubeletNode, bound: Bound, numa: int, demand: ContainerDemand, kept: ContainerDemand) -> bool:
    if not _has_cpus_and_memory(node, bound.managers, numa, demand, kept):
        return False
    return all(
        # At least 1, also for a request of 0: the kubelet searches for NUMA nodes that have such a device.
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
    """
    Return whether a NUMA node alone has all of the demand, for every distribution of ``kept`` over the NUMA nodes.

    ``among`` limits the NUMA nodes; the default is all.
    """
    chosen = node.machine.numa_ids if among is None else among
    numas = [numa for numa in chosen if _fits(node, least, numa, demand, NOTHING)]
    if kept is NOTHING or not numas:
        return bool(numas)
    spare = [_spare(node, least, numa, demand) for numa in numas]
    taken = {CPU: kept.cpus, **(kept.memory or {}), **kept.devices}
    # NUMA nodes with the most room are hardest to fill up. Leaving others out may turn a yes into a no only.
    spare.sort(key=lambda one: min((left / max(1, taken.get(name, 0)) for name, left in one.items()), default=0))
    return not _fills_up(spare[-MOST_FILLED:], taken)


def _spare(node: KubeletNode, least: Bound, numa: int, demand: ContainerDemand) -> dict[str, int]:
    """Return by resource how much may be taken from the NUMA node while it still has all of the demand."""
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
    """Return whether ``taken`` can leave too little of a resource on each of these NUMA nodes."""
    spend()
    if not spare:
        return True
    return any(
        left < taken.get(name, 0) and _fills_up(spare[1:], {**taken, name: taken[name] - left - 1})
        for name, left in spare[0].items()
    )


def may_hold(node: KubeletNode, most: Bound, numa: int, demand: ContainerDemand) -> bool:
    """Return whether the demand may get a hint of this NUMA node alone."""
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
        # A NUMA node in a group with others cannot bind memory alone.
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
    Return whether more room for one container may leave less for the next container.

    That is possible if containers are aligned separately and need several kinds of resources. With a single kind, the
    next container can use the NUMA node that the first container no longer takes. With several kinds, the first
    container may move for a device and take CPUs that only its new NUMA node had. Best-effort admits what it cannot
    align.
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
    """Return whether an init container ties later containers to its NUMA node. Possible only if containers are aligned separately."""
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
    Return whether an init container asks for a memory type that is missing in the hint of the pod, because no app container asks for it.

    In that case, more room may move the pod to a NUMA node without this type (getPodRequestedResources in the kubelet's
    memorymanager/policy_static.go).
    """
    if not node.pins_memory or not node.aligns or node.config.topology_scope is not KubeletScope.POD:
        return False
    known = demand.pod.memory or {}
    return any(
        kind not in known for _, part in demand.containers for kind, amount in (part.memory or {}).items() if amount
    )


def _kinds_of(part: ContainerDemand, node: KubeletNode) -> list[str]:
    """Return the kinds of resources of a container that the managers tie to NUMA nodes, CPUs last."""
    kinds = [name for name, count in part.devices.items() if count and name in node.devices]
    kinds += [kind for kind, amount in (part.memory or {}).items() if amount and node.pins_memory]
    return [*kinds, CPU] if part.cpus and node.pins_cpus else kinds


def binds_freely(demand: PodDemand, node: KubeletNode) -> bool:
    """
    Return whether the memory manager may bind memory of the pod to several NUMA nodes under this policy.

    Under the strict policies too, if no NUMA node could hold the pod as a whole: where the memory manager finds no NUMA
    nodes for it, it states no preference, and then binds each container on its own (GetPodTopologyHints and Allocate in
    memorymanager/policy_static.go).
    """
    if not node.pins_memory or not any(part.memory for _, part in demand.containers):
        return False
    by_pod = node.config.topology_scope is KubeletScope.POD
    units = [demand.pod] if by_pod else [part for _, part in demand.containers]
    return node.config.topology_policy not in STRICT or not all(_fits_one(unit, node) for unit in units)


def _fits_one(unit: ContainerDemand, node: KubeletNode) -> bool:
    """Return whether one empty NUMA node can hold the unit."""
    empty = KubeletState.empty(node).managers
    return any(fits_on(node, empty, numa, unit) for numa in node.machine.numa_ids)


UNPACKED: Final = ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores")
"""CPU manager options with which the CPU manager does not simply fill NUMA nodes one after the other."""


def may_deal_over_numa(node: KubeletNode) -> bool:
    """
    Return whether CPUs may come in any shares per NUMA node, and the pod may be rejected for that.

    Under best-effort, only bound memory can cause such a rejection.
    """
    if not (node.distributes_across_numa or not node.is_published or splits_unknown(node)):
        return False
    policy = node.config.topology_policy
    return policy in STRICT or (policy is KubeletPolicy.BEST_EFFORT and node.pins_memory)


def splits_unknown(node: KubeletNode) -> bool:
    """
    Return whether a published option splits CPUs over NUMA nodes in shares that packing does not explain.

    ``prefer-align-cpus-by-uncorecache`` first searches each NUMA node for a cache that holds the whole request.
    ``distribute-cpus-across-cores`` takes one CPU of each core in turn (``takeUncoreCache`` and
    ``takeRemainingCpusSpread`` of cpu_assignment.go). With two NUMA nodes of 5 free CPUs, containers of 1 and 4 CPUs
    may get 1 CPU of the first NUMA node and 4 of the second. Caches and cores are not published, so every share is
    possible and is tried.
    """
    return any(node.config.cpu_options.get(name, False) for name in UNPACKED)


def has_room_in_all_ways(request: PodRequest, one: Hypothesis) -> bool:
    """Return whether the pod fits for all possible NUMA nodes of shared devices. The NUMA nodes of CPUs are as in the hypothesis."""
    least, most = _ends(request, one)
    return has_room_between(request, one.state.node, least, most)


def unclear_devices(request: PodRequest, states: Iterable[Hypothesis]) -> str:
    """
    Return a message that names the devices for which the placement of the pod is not known, else an empty text.

    Devices are named only if the pod may be rejected because of them.
    """
    for one in states:
        names = sorted(one.sharing.keys() & everything(request).devices.keys())
        if names and not _is_decided_once(request, names, one.state.node) and not has_room_in_all_ways(request, one):
            return may_be_near(names)
    return ""


def may_be_near(names: Iterable[str]) -> str:
    """Return the reason of a rejection because of these devices."""
    return f"{', '.join(names)} may be near several NUMA nodes, and which ones is not published"


MOST_SETS: Final = 4
"""Maximum number of NUMA nodes for which every set of NUMA nodes is evaluated that free devices may be near."""


def asks_for_one_device(request: PodRequest, names: Collection[str], node: KubeletNode) -> bool:
    """
    Return whether the containers of the pod ask for a single device of these resources in all.

    Its hints depend only on the set of NUMA nodes that the free devices are near (generateDeviceTopologyHints in
    topology_hints.go). ``False`` also on nodes with too many such sets.
    """
    asked = everything(request).devices
    return len(node.machine.numa_ids) <= MOST_SETS and [asked[name] for name in names] == [1]


def _is_decided_once(request: PodRequest, names: Collection[str], node: KubeletNode) -> bool:
    """
    Return whether a single hint decides for all of these devices of the pod, so that evaluating each result of the hint is enough.

    If other containers are aligned, too, only single NUMA nodes and the whole machine are evaluated. The hint must have no other result.
    """
    if node.config.topology_scope is KubeletScope.POD or asks_for_one_device(request, names, node):
        return True
    parts = [part for _, part in pod_demand(request).containers if part.cpus or part.memory or part.devices]
    few = node.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE or len(node.machine.numa_ids) <= 2
    return (few or len(parts) == 1) and sum(not part.devices.keys().isdisjoint(names) for part in parts) == 1


def has_room_whoever_leaves(request: PodRequest, one: Hypothesis, coming: ContainerDemand = NOTHING) -> bool:
    """
    Return whether the pod fits for all NUMA nodes of shared devices and spread CPUs, and for all departures (sufficient condition).

    ``coming`` is taken first, from any NUMA nodes.
    """
    node = one.state.node
    least, _ = _ends(request, one)
    moving = sum(len(given.cpus) for uid in one.spread for given in one.state.pods[uid].grant.containers)
    kept = together([coming, ContainerDemand(cpus=moving, memory=None, devices={})])
    all_there = {name: one.sharing[name].counts for name in least.devices}
    most = Bound(KubeletState.empty(node).managers, all_there)
    return has_room_between(request, node, least, most, kept)


def _ends(request: PodRequest, one: Hypothesis) -> tuple[Bound, Bound]:
    fewest: dict[str, Counts] = {}
    most: dict[str, Counts] = {}
    for name in one.sharing.keys() & at_most(request).devices.keys():
        most[name] = one.sharing[name].counts
        fewest[name] = fewest_free(one.sharing[name], one.state.managers.devices[name].bit_count())
    return Bound(one.state.managers, fewest), Bound(one.state.managers, most)


class Sight:
    """Keys that are equal for states of one node that the pod cannot distinguish."""

    def __init__(self, request: PodRequest, node: KubeletNode) -> None:
        self._demand = pod_demand(request)
        self._all = everything(request)
        self._units = _units(request, node)
        self._has_init_cpus = pins_init_cpus(self._demand, node)
        self._strict = node.config.topology_policy in STRICT
        self._fewest_cpus = min((unit.cpus for unit in self._units if unit.cpus), default=0)
        self._bound: bool | None = None
        self._single: dict[tuple[int, int], bool] = {}  # By variant of the node.

    def of(self, state: KubeletState) -> Signature:
        """Return a key that is equal for states in which the managers treat the pod alike."""
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
        """Return whether sockets, distances, and the split of CPUs over NUMA nodes do not matter to the pod."""
        if self._all.cpus and node.pins_cpus and not self._stays_on_one(node):
            return False
        return not node.prefers_closest or self._comes_to_one(node)

    def _comes_to_one(self, node: KubeletNode) -> bool:
        """Return whether each preferred hint has one NUMA node, and all NUMA nodes have the same distance to themselves."""
        machine = node.machine
        if not self._strict or len({machine.distance(numa, numa) for numa in machine.numa_ids}) > 1:
            return False
        return all(self._has_one(unit, node) for unit in self._units)

    def _has_one(self, unit: ContainerDemand, node: KubeletNode) -> bool:
        """Return whether any resource of the unit fits on one NUMA node."""
        if unit.cpus and node.pins_cpus:
            return True  # ``_is_same_on_all_variants`` has ruled out CPUs of several NUMA nodes.
        pools = ((node.devices[name], count) for name, count in unit.devices.items() if count and name in node.devices)
        if any(any(here.bit_count() >= count for here in pool.on.values()) for pool, count in pools):
            return True
        wanted = unit.memory or {}
        return bool(wanted) and node.pins_memory and any(_covers(here, wanted) for here in node.memory.values())

    def cpus(self, node: KubeletNode, counts: Sequence[int]) -> Signature | int:
        """Return a key that is equal for free CPU counts per NUMA node that the pod cannot distinguish."""
        if not node.aligns:
            return sum(counts)  # CPUs are taken from any NUMA node.
        most = self._all.cpus
        if not self._stays_on_one(node):
            return tuple(counts)
        if node.packs and self._has_init_cpus:
            most = 2 * most + 8 * len(self._demand.containers)  # ``reuse_by_counts`` evaluates no more CPUs.
        capped = [min(count, most) if count >= self._fewest_cpus else 0 for count in counts]
        if self._has_init_cpus:
            # More is known about CPU reuse on an entirely free NUMA node (``reuse_on_empty_numa``).
            whole = zip(counts, node.machine.numa_bits.values(), strict=True)
            return (*capped, *[count == bits.bit_count() for count, bits in whole])
        return tuple(capped)

    def _stays_on_one(self, node: KubeletNode) -> bool:
        """Return whether each unit gets its CPUs from one NUMA node."""
        variant = variant_of(node)
        if variant not in self._single:
            largest = max(bits.bit_count() for bits in node.machine.numa_bits.values())
            plain = not node.static_options.align_by_socket and node.whole_cores is None
            # A preferred hint is no wider than the narrowest hint of one of its resources.
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
        """
        Return whether the memory of each unit is bound to one NUMA node.

        Groups of several NUMA nodes, and the memory in use there, do not matter in that case.
        """
        if self._bound is None:
            empty = list(table.supply.values())
            # In pod scope, the hint omits types that only init containers request.
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
    """Return the demands that are aligned together: the pod in pod scope, else its containers."""
    demand = pod_demand(request)
    return [demand.pod] if node.config.topology_scope is KubeletScope.POD else [part for _, part in demand.containers]
