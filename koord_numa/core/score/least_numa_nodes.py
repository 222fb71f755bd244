"""
The LeastNUMANodes score: nodes that need fewer NUMA nodes, and closer ones, score higher (scheduler-plugins' KEP-454).

The smallest number of zones that holds the request decides; among sets of that size the closest by average distance is
taken, and a bonus of half a step is due when no set of that size could be closer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from koord_numa.core.cpu_topology import UNKNOWN_DISTANCE
from koord_numa.core.fit.zones import aligned_request
from koord_numa.core.node import NodeResourceTopology, Zone
from koord_numa.core.request import PodRequest
from koord_numa.core.resources import ResourceList
from koord_numa.core.vocabulary import ContainerKind, KubeletScope

_EXHAUSTIVE_ZONES: Final = 16
"""Up to this many zones the closest set is searched exhaustively; beyond, from each zone's nearest neighbours."""

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
    step = 100 // highest
    return max(0, 100 - zones * step + (step // 2 if optimal else 0))


def _score_pod(request: ResourceList, topology: NodeResourceTopology) -> int:
    free = [dict(zone.available) for zone in topology.zones]
    if not _concerns(request, free):
        return 100
    choice = _least_zones(request, free, distance_matrix(topology.zones, topology))
    if choice is None:
        return 0
    return normalized(len(choice.zones), optimal=choice.optimal, highest=topology.kubelet.max_numa_nodes)


def _score_containers(pod: PodRequest, topology: NodeResourceTopology) -> int:
    """Init then app containers; each consumes what it gets, zone by zone in ascending id."""
    free = [dict(zone.available) for zone in topology.zones]
    matrix = distance_matrix(topology.zones, topology)
    most, optimal = 0, True
    for container in sorted(pod.containers, key=lambda c: c.kind is ContainerKind.APP):
        if not _concerns(container.requests, free):
            continue
        choice = _least_zones(container.requests, free, matrix)
        if choice is None:
            return 0
        most = max(most, len(choice.zones))
        optimal = optimal and choice.optimal
        ascending = sorted(choice.zones, key=lambda index: topology.zones[index].numa)
        _drain(container.requests, [free[index] for index in ascending])
    return normalized(most, optimal=optimal, highest=topology.kubelet.max_numa_nodes) if most else 100


def _concerns(request: ResourceList, free: Sequence[ResourceList]) -> bool:
    return any(name in zone for name in request for zone in free)


def _drain(request: ResourceList, zones: Sequence[dict[str, int]]) -> None:
    for name, quantity in request.items():
        rest = quantity
        for zone in zones:
            taken = min(rest, max(0, zone.get(name, 0)))
            if name in zone:
                zone[name] -= taken
            rest -= taken


def _least_zones(request: ResourceList, free: Sequence[ResourceList], matrix: Matrix) -> _Choice | None:
    """The smallest, then closest set of zones that list every requested resource and together hold the request."""
    usable = [index for index, zone in enumerate(free) if all(name in zone for name in request)]
    needs = [(name, quantity) for name, quantity in request.items() if quantity]
    columns = [[free[index][name] for index in usable] for name, _ in needs]
    quantities = [quantity for _, quantity in needs]
    for size in range(1, len(usable) + 1):
        if any(sum(sorted(column)[-size:]) < quantity for column, quantity in zip(columns, quantities, strict=True)):
            continue
        best = _closest(((tuple(usable[i] for i in s)) for s in _fitting(columns, quantities, size)), matrix, size)
        if best is not None:
            return best
    return None


def _closest(subsets: Iterator[tuple[int, ...]], matrix: Matrix, size: int) -> _Choice | None:
    lower = least_distance(matrix, size)
    best: tuple[int, ...] | None = None
    best_distance = 0
    for subset in subsets:
        distance = _distance(matrix, subset)
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
            reachable = all(
                quantity <= 0 or sum(sorted(column[index + 1 :], reverse=True)[: left - 1]) >= quantity
                for column, quantity in zip(columns, need, strict=True)
            )
            if reachable:
                yield from extend((*chosen, index), index + 1, need)

    return extend((), 0, quantities)


def distance_matrix(zones: Sequence[Zone], topology: NodeResourceTopology) -> Matrix:
    """Published costs between these zones, in their order; what nobody published counts ``UNKNOWN_DISTANCE``."""
    costs = topology.distances
    return tuple(tuple(costs.get((a.numa, b.numa), UNKNOWN_DISTANCE) for b in zones) for a in zones)


def _distance(matrix: Matrix, subset: Sequence[int]) -> int:
    """The sum over ordered pairs, each zone with itself included: sets of one size compare like their averages."""
    return sum(matrix[a][b] for a in subset for b in subset)


@lru_cache(maxsize=1024)
def least_distance(matrix: Matrix, size: int) -> int:
    """The smallest distance of any set of this size, whether it holds the request or not."""
    count = len(matrix)
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
