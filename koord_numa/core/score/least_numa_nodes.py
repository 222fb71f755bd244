"""
The LeastNUMANodes score: nodes that need fewer and closer NUMA nodes score higher (scheduler-plugins' KEP-454).

The smallest number of zones that holds the request determines the score. Among sets of that size the set with the
smallest average distance is chosen. It earns a bonus of half a step if no set of that size is closer.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from koord_numa.core.cpu_topology import UNKNOWN_DISTANCE
from koord_numa.core.objects.node import DEFAULT_MAX_NUMA_NODES, NodeResourceTopology
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import ContainerKind, CpuBindPolicy, KubeletScope
from koord_numa.core.pod_resources import amplify
from koord_numa.core.resources import CPU, MILLI, ResourceList, add, largest, total
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import NumaAccounting, NumaFree, accounts
from koord_numa.core.value_objects import ValueObject


def aligned_request(pod: PodRequest) -> dict[str, int]:
    """
    Return the request of the pod as a unit: the maximum of all app containers together and any init container, plus
    overhead.

    As computed by the plugin: sidecars count like regular init containers, and pod-level resources are ignored.
    """
    request = total(c.requests for c in pod.containers if c.kind is ContainerKind.APP)
    # Each init container or sidecar is compared with the sum of app containers: the plugin's GetPodEffectiveRequest has
    # no overlap.
    for container in pod.containers:
        if container.kind is not ContainerKind.APP:
            request = largest(request, container.requests)
    return add(request, pod.overhead)


class Part(ValueObject):
    """One NUMA node that takes ``share`` of the pod, with its total amounts and the amounts already taken."""

    share: ResourceList
    capacity: ResourceList
    taken: ResourceList


class PlacedPod(ValueObject):
    """The placement of one pod on one node, before it is assumed. ``amounts`` is the effective request of the pod."""

    placement: Placement
    amounts: ResourceList
    inventory: Inventory
    ledger: Ledger

    @property
    def has_own_cpus(self) -> bool:
        """True if the pod gets exclusive CPUs."""
        return self.placement.bind is not CpuBindPolicy.NONE

    @property
    def numa_nodes(self) -> int:
        """
        The number of NUMA nodes of the pod: those of its CPUs and amounts, or all if it may run anywhere.

        0 if the NUMA nodes of the node are unknown.
        """
        # A pod that may run anywhere may use all NUMA nodes.
        return self.mask.bit_count() or self.numa_total

    @property
    def mask(self) -> int:
        """The NUMA nodes of its CPUs and amounts as a mask, 0 if it may run anywhere."""
        machine = self.inventory.machine
        mask = self.placement.mask or 0
        return mask | machine.numa_of(self.placement.cpus) if self.placement.cpus and machine else mask

    @property
    def numa_total(self) -> int:
        """The number of NUMA nodes of the node."""
        if self.inventory.zones:
            return len(self.inventory.zones)
        return len(self.inventory.machine.numa_ids) if self.inventory.machine else 0

    @property
    def numa_free(self) -> NumaFree:
        """The free amounts of each NUMA node without the pod."""
        # Default accounting: scores compare placements, so rules of a single pod are ignored.
        return accounts(self.inventory, self.ledger, NumaAccounting())

    def weighed(self, amounts: ResourceList) -> ResourceList:
        """Return amounts of the pod as the node accounts for them: exclusive CPUs are amplified."""
        if not self.has_own_cpus or not amounts.get(CPU):
            return amounts
        return {**amounts, CPU: amplify(amounts[CPU], self.inventory.ratios.get(CPU))}

    @property
    def parts(self) -> tuple[Part, ...]:
        """The NUMA nodes that take a part of the pod."""
        numa_free = self.numa_free if self.placement.numa else None
        return tuple(_part(numa_free, numa, share) for numa, share in self.placement.numa) if numa_free else ()

    @property
    def scope(self) -> tuple[ResourceList, ResourceList]:
        """Total and taken amounts of the pod's NUMA nodes, or of the whole node without NUMA amounts."""
        if self.placement.numa:
            parts = self.parts
            return total(part.capacity for part in parts), total(part.taken for part in parts)
        held = dict(self.ledger.amounts)
        own = MILLI * len(self.ledger.cpus)
        # The ledger holds exclusive CPUs without amplification. Scores amplify them, as for the pod to be placed.
        held[CPU] = held.get(CPU, 0) - own + amplify(own, self.inventory.ratios.get(CPU))
        return self.inventory.allocatable, held


def _part(numa_free: NumaFree, numa: int, share: ResourceList) -> Part:
    at = numa_free.numa_ids.index(numa)
    capacity = {name: amounts[at] for name, amounts in numa_free.total.items()}
    return Part(share, capacity, {name: capacity[name] - numa_free.free[name][at] for name in capacity})


_EXHAUSTIVE_ZONES: Final = 16
"""
Maximum number of zones for an exhaustive search of the closest set. Beyond, nearest neighbors of each zone are used.
"""

PREFER_CLOSEST: Final = "prefer-closest-numa-nodes"

Matrix = tuple[tuple[int, ...], ...]


class _Choice(ValueObject):
    """Indices of the chosen zones, and whether no set of that size is closer."""

    zones: tuple[int, ...]
    optimal: bool


def score_least_numa_nodes(pod: PodRequest, topology: NodeResourceTopology) -> int:
    """
    Return the score of a Guaranteed pod, 0 to 100.

    The score is 100 if zones publish none of the requested resources, and 0 if the pod does not fit.
    """
    if topology.kubelet.topology_scope is KubeletScope.POD:
        return _score_pod(aligned_request(pod), topology)
    return _score_containers(pod, topology)


def normalized(zones: int, *, optimal: bool, highest: int) -> int:
    """Return ``100 - zones * step`` with ``step = 100 // highest``, plus half a step if optimal, at least 0."""
    # Integer division as upstream: with 8 NUMA nodes a step is 12 and half a step 6.
    step = 100 // highest
    return max(0, 100 - zones * step + (step // 2 if optimal else 0))


def _score_pod(request: ResourceList, topology: NodeResourceTopology) -> int:
    free = [dict(zone.available) for zone in topology.zones]
    request = _listed(request, free)
    # Zones publish none of the requested resources, so no NUMA node is needed.
    if not request:
        return 100
    choice = least_zones(
        request, free, distance_matrix(_ids(topology), topology.distances), closest=_closest_first(topology)
    )
    if choice is None:
        return 0
    return normalized(len(choice.zones), optimal=choice.optimal, highest=topology.kubelet.max_numa_nodes)


def _score_containers(pod: PodRequest, topology: NodeResourceTopology) -> int:
    """Score init containers, then app containers. Each container consumes its request, zone by zone in ascending id."""
    free = [dict(zone.available) for zone in topology.zones]
    matrix = distance_matrix(_ids(topology), topology.distances)
    most, optimal = 0, True
    # Stable sort: upstream handles init containers first, then app containers.
    for container in sorted(pod.containers, key=lambda c: c.kind is ContainerKind.APP):
        request = _listed(container.requests, free)
        if not request:
            continue
        choice = least_zones(request, free, matrix, closest=_closest_first(topology))
        if choice is None:
            return 0
        most = max(most, len(choice.zones))
        # One container without an optimal set suffices to lose the bonus.
        optimal = optimal and choice.optimal
        ascending = sorted(choice.zones, key=lambda index: topology.zones[index].numa)
        drain(request, [free[index] for index in ascending])
    return normalized(most, optimal=optimal, highest=topology.kubelet.max_numa_nodes) if most else 100


def score_placed_by_numa_nodes(placed: PlacedPod) -> int:
    """
    Return the LeastNUMANodes score of a placement by the scheduler, from its NUMA nodes and their distance.

    A pod without NUMA nodes gets the score of the smallest set that could hold its request, which upstream computes
    from available amounts.
    """
    machine = placed.inventory.machine
    ids = placed.inventory.numa_ids or (machine.numa_ids if machine else ())
    matrix = distance_matrix(ids, machine.distances if machine else {})
    mask = placed.mask
    if mask:
        chosen = [index for index, numa in enumerate(ids) if mask >> numa & 1]
        # The bonus compares with all sets of that size, whether they hold the pod or not.
        optimal = _distance(matrix, chosen) == least_distance(matrix, len(chosen)) if chosen else True
        return normalized(mask.bit_count(), optimal=optimal, highest=DEFAULT_MAX_NUMA_NODES)
    free = placed.numa_free.free
    zones = [{name: amounts[at] for name, amounts in free.items()} for at in range(len(placed.inventory.numa_ids))]
    request = _listed(placed.amounts, zones)
    if not request:
        return 100
    choice = least_zones(request, zones, matrix, closest=True)
    return (
        0 if choice is None else normalized(len(choice.zones), optimal=choice.optimal, highest=DEFAULT_MAX_NUMA_NODES)
    )


def _listed(request: ResourceList, free: Sequence[ResourceList]) -> ResourceList:
    """
    Return the part of a request that any zone lists.

    Other resources are not NUMA resources: "it's valid to request only non NUMA resources".
    """
    return {name: amount for name, amount in request.items() if any(name in zone for zone in free)}


def _ids(topology: NodeResourceTopology) -> tuple[int, ...]:
    return tuple(zone.numa for zone in topology.zones)


def _closest_first(topology: NodeResourceTopology) -> bool:
    """
    Return whether distances count: unless the kubelet has prefer-closest-numa-nodes disabled (KEP-454, "Proposal").
    """
    return topology.kubelet.topology_options.get(PREFER_CLOSEST, True)


def drain(request: ResourceList, zones: Sequence[dict[str, int]]) -> None:
    """Subtract a request from the zones, one zone after the other."""
    for name, quantity in request.items():
        rest = quantity
        for zone in zones:
            taken = min(rest, max(0, zone.get(name, 0)))
            if name in zone:
                zone[name] -= taken
            rest -= taken


def least_zones(
    request: ResourceList, free: Sequence[ResourceList], matrix: Matrix, *, closest: bool
) -> _Choice | None:
    """
    Return the smallest, then closest set of zones that list every requested resource and together hold the request, or
    None.

    If distances do not count, the first of the smallest sets is chosen. A single zone is always optimal.
    """
    usable = [index for index, zone in enumerate(free) if all(name in zone for name in request)]
    needs = [(name, quantity) for name, quantity in request.items() if quantity]
    columns = [[free[index][name] for index in usable] for name, _ in needs]
    quantities = [quantity for _, quantity in needs]
    for size in range(1, len(usable) + 1):
        # A cheap bound before subsets are generated: the ``size`` largest amounts of each resource.
        if any(sum(sorted(column)[-size:]) < quantity for column, quantity in zip(columns, quantities, strict=True)):
            continue
        subsets = (tuple(usable[i] for i in s) for s in _fitting(columns, quantities, size))
        if closest:
            best = _closest(subsets, matrix, size)
        else:
            first = next(subsets, None)
            best = None if first is None else _Choice(first, optimal=size == 1)
        if best is not None:
            return best
    return None


def _closest(subsets: Iterator[tuple[int, ...]], matrix: Matrix, size: int) -> _Choice | None:
    lower = least_distance(matrix, size)
    best: tuple[int, ...] | None = None
    best_distance = 0
    for subset in subsets:
        distance = _distance(matrix, subset)
        # The distance is minimal: no later set is better, and the first set wins a tie.
        if distance == lower:
            return _Choice(subset, optimal=True)
        if best is None or distance < best_distance:
            best, best_distance = subset, distance
    return None if best is None else _Choice(best, optimal=False)


def _fitting(columns: Sequence[Sequence[int]], quantities: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """
    Yield subsets of ``size`` positions whose sums reach all quantities, in lexicographic order.

    Hopeless branches are cut.
    """
    count = len(columns[0]) if columns else size

    def extend(chosen: tuple[int, ...], start: int, rest: Sequence[int]) -> Iterator[tuple[int, ...]]:
        left = size - len(chosen)
        if not left:
            yield chosen
            return
        for index in range(start, count - left + 1):
            need = [quantity - column[index] for column, quantity in zip(columns, rest, strict=True)]
            # The remaining quantity must be reachable with the largest remaining amounts.
            reachable = all(
                quantity <= 0 or sum(sorted(column[index + 1 :], reverse=True)[: left - 1]) >= quantity
                for column, quantity in zip(columns, need, strict=True)
            )
            if reachable:
                yield from extend((*chosen, index), index + 1, need)

    return extend((), 0, quantities)


def distance_matrix(ids: Sequence[int], costs: Mapping[tuple[int, int], int]) -> Matrix:
    """
    Return the published distances between the NUMA nodes, in their order. Missing distances are ``UNKNOWN_DISTANCE``.
    """
    return tuple(tuple(costs.get((a, b), UNKNOWN_DISTANCE) for b in ids) for a in ids)


def _distance(matrix: Matrix, subset: Sequence[int]) -> int:
    """
    Return the sum of distances over ordered pairs, including each zone with itself.

    Sets of equal size compare like their averages.
    """
    return sum(matrix[a][b] for a in subset for b in subset)


@lru_cache(maxsize=1024)
def least_distance(matrix: Matrix, size: int) -> int:
    """Return the smallest distance of any set of this size, whether it holds the request or not."""
    count = len(matrix)
    # Too many sets for an exhaustive search: the nearest neighbors of each zone give an upper bound of the distance.
    if count <= _EXHAUSTIVE_ZONES:
        return min(_sums(matrix, size))
    return min(
        _distance(
            matrix, sorted(range(count), key=lambda other: (matrix[start][other] + matrix[other][start], other))[:size]
        )
        for start in range(count)
    )


def _sums(matrix: Matrix, size: int) -> Iterator[int]:
    """Yield the distances of all sets of ``size``, computed incrementally."""
    count = len(matrix)

    def extend(chosen: tuple[int, ...], start: int, distance: int) -> Iterator[int]:
        left = size - len(chosen)
        if not left:
            yield distance
            return
        for index in range(start, count - left + 1):
            added = matrix[index][index] + sum(matrix[index][other] + matrix[other][index] for other in chosen)
            yield from extend((*chosen, index), index + 1, distance + added)

    return extend((), 0, 0)
