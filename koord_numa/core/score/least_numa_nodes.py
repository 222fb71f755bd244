"""
The LeastNUMANodes score: nodes that need fewer NUMA nodes, and closer ones, score higher (scheduler-plugins' KEP-454).

The smallest number of zones that holds the request decides; among sets of that size the closest by average distance is
taken, and a bonus of half a step is due when no set of that size could be closer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from koord_numa.core.cpu_topology import UNKNOWN_DISTANCE
from koord_numa.core.fit.zones import aligned_request
from koord_numa.core.objects.node import DEFAULT_MAX_NUMA_NODES, NodeResourceTopology
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import ContainerKind, CpuBindPolicy, KubeletScope
from koord_numa.core.pod_resources import amplify
from koord_numa.core.resources import CPU, MILLI, ResourceList, total
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import NumaAccounting, NumaFree, accounts


@dataclass(frozen=True, slots=True)
class Part:
    """One NUMA node that takes ``share`` of the pod: what it has in total, and what was taken before."""

    share: ResourceList
    capacity: ResourceList
    taken: ResourceList


@dataclass(frozen=True, slots=True)
class Placed:
    """One pod's placement on one node, before it is held. ``amounts`` is the pod's effective request."""

    placement: Placement
    amounts: ResourceList
    inventory: Inventory
    ledger: Ledger

    @property
    def has_own_cpus(self) -> bool:
        """Does the pod get CPUs of its own?"""
        return self.placement.bind is not CpuBindPolicy.NONE

    @property
    def numa_nodes(self) -> int:
        """
        How many NUMA nodes the pod is on: those of its CPUs and amounts; all of them when it may run anywhere.

        0 where the node's NUMA nodes are unknown.
        """
        # A pod that may run anywhere may touch all NUMA nodes, so it counts as if it were on each.
        return self.mask.bit_count() or self.numa_total

    @property
    def mask(self) -> int:
        """The NUMA nodes of its CPUs and amounts; 0 when it may run anywhere."""
        machine = self.inventory.machine
        mask = self.placement.mask or 0
        return mask | machine.numa_of(self.placement.cpus) if self.placement.cpus and machine else mask

    @property
    def numa_total(self) -> int:
        """How many NUMA nodes the node has."""
        if self.inventory.zones:
            return len(self.inventory.zones)
        return len(self.inventory.machine.numa_ids) if self.inventory.machine else 0

    @property
    def numa_free(self) -> NumaFree:
        """What was free on each NUMA node before the pod came."""
        # Default accounting: scores compare places, and rules of one pod play no part in it.
        return accounts(self.inventory, self.ledger, NumaAccounting())

    def weighed(self, amounts: ResourceList) -> ResourceList:
        """Amounts of this pod as they weigh on the node: own CPUs amplified."""
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
        """Total and taken of the NUMA nodes that the pod's amounts are on, or of the whole node when it has none."""
        if self.placement.numa:
            parts = self.parts
            return total(part.capacity for part in parts), total(part.taken for part in parts)
        held = dict(self.ledger.amounts)
        own = MILLI * len(self.ledger.cpus)
        # Own CPUs are held bare; they weigh amplified, as the pod to be placed does.
        held[CPU] = held.get(CPU, 0) - own + amplify(own, self.inventory.ratios.get(CPU))
        return self.inventory.allocatable, held


def _part(numa_free: NumaFree, numa: int, share: ResourceList) -> Part:
    at = numa_free.numa_ids.index(numa)
    capacity = {name: amounts[at] for name, amounts in numa_free.total.items()}
    return Part(share, capacity, {name: capacity[name] - numa_free.free[name][at] for name in capacity})


_EXHAUSTIVE_ZONES: Final = 16
"""Up to this many zones the closest set is searched exhaustively; beyond, from each zone's nearest neighbours."""

PREFER_CLOSEST: Final = "prefer-closest-numa-nodes"

Matrix = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """Indices of the chosen zones, and whether no set of that size is closer."""

    zones: tuple[int, ...]
    optimal: bool


def score_least_numa_nodes(pod: PodRequest, topology: NodeResourceTopology) -> int:
    """The score of a Guaranteed pod, 0 to 100: 100 when it asks for nothing that zones publish, 0 when it does not fit."""
    if topology.kubelet.topology_scope is KubeletScope.POD:
        return _score_pod(aligned_request(pod), topology)
    return _score_containers(pod, topology)


def normalized(zones: int, *, optimal: bool, highest: int) -> int:
    """``100 - zones * step`` with ``step = 100 // highest``, plus half a step when optimal; never below 0."""
    # Integer division as upstream: with 8 NUMA nodes a step is 12, and half of it 6.
    step = 100 // highest
    return max(0, 100 - zones * step + (step // 2 if optimal else 0))


def _score_pod(request: ResourceList, topology: NodeResourceTopology) -> int:
    free = [dict(zone.available) for zone in topology.zones]
    request = _listed(request, free)
    # Nothing that zones publish is asked for: no NUMA node is needed, the best there is.
    if not request:
        return 100
    choice = least_zones(
        request, free, distance_matrix(_ids(topology), topology.distances), closest=_closest_first(topology)
    )
    if choice is None:
        return 0
    return normalized(len(choice.zones), optimal=choice.optimal, highest=topology.kubelet.max_numa_nodes)


def _score_containers(pod: PodRequest, topology: NodeResourceTopology) -> int:
    """Init then app containers; each consumes what it gets, zone by zone in ascending id."""
    free = [dict(zone.available) for zone in topology.zones]
    matrix = distance_matrix(_ids(topology), topology.distances)
    most, optimal = 0, True
    # Stable sort: upstream handles init containers first and then app containers.
    for container in sorted(pod.containers, key=lambda c: c.kind is ContainerKind.APP):
        request = _listed(container.requests, free)
        if not request:
            continue
        choice = least_zones(request, free, matrix, closest=_closest_first(topology))
        if choice is None:
            return 0
        most = max(most, len(choice.zones))
        # One container that is not as close as could be is enough to lose the bonus.
        optimal = optimal and choice.optimal
        ascending = sorted(choice.zones, key=lambda index: topology.zones[index].numa)
        drain(request, [free[index] for index in ascending])
    return normalized(most, optimal=optimal, highest=topology.kubelet.max_numa_nodes) if most else 100


def score_placed_by_numa_nodes(placed: Placed) -> int:
    """
    The same score where the scheduler chooses: by the NUMA nodes that the placement is on, and how close they are.

    A pod that is bound to no NUMA node needs as few as could hold what it requests: upstream computes that from what is available.
    """
    machine = placed.inventory.machine
    ids = placed.inventory.numa_ids or (machine.numa_ids if machine else ())
    matrix = distance_matrix(ids, machine.distances if machine else {})
    mask = placed.mask
    if mask:
        chosen = [index for index, numa in enumerate(ids) if mask >> numa & 1]
        # The bonus compares with any set of that size, whether it holds the pod or not.
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
    """The part of a request that some zone lists. The rest is no NUMA resource: "it's valid to request only non NUMA resources"."""
    return {name: amount for name, amount in request.items() if any(name in zone for zone in free)}


def _ids(topology: NodeResourceTopology) -> tuple[int, ...]:
    return tuple(zone.numa for zone in topology.zones)


def _closest_first(topology: NodeResourceTopology) -> bool:
    """Distances count unless the kubelet is known to have prefer-closest-numa-nodes off (KEP-454, "Proposal")."""
    return topology.kubelet.topology_options.get(PREFER_CLOSEST, True)


def drain(request: ResourceList, zones: Sequence[dict[str, int]]) -> None:
    """Take a request out of these zones, each emptied before the next."""
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
    The smallest, then closest set of zones that list every requested resource and together hold the request.

    Where distances do not count the first of the smallest sets; a single zone is as close as can be all the same.
    """
    usable = [index for index, zone in enumerate(free) if all(name in zone for name in request)]
    needs = [(name, quantity) for name, quantity in request.items() if quantity]
    columns = [[free[index][name] for index in usable] for name, _ in needs]
    quantities = [quantity for _, quantity in needs]
    for size in range(1, len(usable) + 1):
        # A cheap bound before subsets are made: the ``size`` largest amounts of each resource.
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
        # As close as any set can be: no later one is better, and the first wins a tie.
        if distance == lower:
            return _Choice(subset, optimal=True)
        if best is None or distance < best_distance:
            best, best_distance = subset, distance
    return None if best is None else _Choice(best, optimal=False)


def _fitting(columns: Sequence[Sequence[int]], quantities: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Subsets of ``size`` positions whose sums reach all quantities, in lexicographic order; hopeless branches are cut."""
    count = len(columns[0]) if columns else size

    def extend(chosen: tuple[int, ...], start: int, rest: Sequence[int]) -> Iterator[tuple[int, ...]]:
        left = size - len(chosen)
        if not left:
            yield chosen
            return
        for index in range(start, count - left + 1):
            need = [quantity - column[index] for column, quantity in zip(columns, rest, strict=True)]
            # The rest of a need must be reachable with the largest amounts that are left.
            reachable = all(
                quantity <= 0 or sum(sorted(column[index + 1 :], reverse=True)[: left - 1]) >= quantity
                for column, quantity in zip(columns, need, strict=True)
            )
            if reachable:
                yield from extend((*chosen, index), index + 1, need)

    return extend((), 0, quantities)


def distance_matrix(ids: Sequence[int], costs: Mapping[tuple[int, int], int]) -> Matrix:
    """Published costs between these NUMA nodes, in their order; what is not published counts ``UNKNOWN_DISTANCE``."""
    return tuple(tuple(costs.get((a, b), UNKNOWN_DISTANCE) for b in ids) for a in ids)


def _distance(matrix: Matrix, subset: Sequence[int]) -> int:
    """The sum over ordered pairs, each zone with itself included: sets of one size compare like their averages."""
    return sum(matrix[a][b] for a in subset for b in subset)


@lru_cache(maxsize=1024)
def least_distance(matrix: Matrix, size: int) -> int:
    """The smallest distance of any set of this size, whether it holds the request or not."""
    count = len(matrix)
    # Beyond that width all sets are too many: nearest neighbours of each zone bound the distance from above.
    if count <= _EXHAUSTIVE_ZONES:
        return min(_sums(matrix, size))
    return min(
        _distance(
            matrix, sorted(range(count), key=lambda other: (matrix[start][other] + matrix[other][start], other))[:size]
        )
        for start in range(count)
    )


def _sums(matrix: Matrix, size: int) -> Iterator[int]:
    """Distances of all sets of ``size``, built up pair by pair."""
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
