"""
The zone filter and scores of ``fit/zones.py`` and ``score/zones.py`` for thousands of nodes at once, in NumPy columns.

Nodes that differ only in what is free share one group: an integer array ``(nodes, zones, resources)``. The scalar functions
are the specification; a property test keeps both equal. Groups of more than eight zones use the scalar LeastNUMANodes.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.fit.zones import (
    ALWAYS_ALLOCATABLE,
    aligned_request,
    asks_devices,
    is_host_level,
    is_numa_affine,
)
from koord_numa.core.node import NodeResourceTopology
from koord_numa.core.request import PodRequest
from koord_numa.core.resources import ResourceList
from koord_numa.core.score.least_numa_nodes import Matrix, distance_matrix, least_distance, normalized
from koord_numa.core.score.zones import MAX_SCORE, Weights, score_zones, whole_units
from koord_numa.core.vocabulary import ContainerKind, KubeletPolicy, KubeletScope, KubeQos, ScoringType

_VECTOR_ZONES: Final = 8

_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Per node, in the order given: does the pod fit, and the raw score 0 to 100 (0 where it does not fit)."""

    fits: _Bools
    scores: _Ints


class ZoneColumns:
    """What the zones of many nodes have free, arranged for sweeps. Built once; a sweep changes nothing."""

    def __init__(self, nodes: Iterable[tuple[NodeResourceTopology, ResourceList]]) -> None:
        """``nodes`` are topologies with their node's allocatable amounts (of which only the names matter)."""
        grouped: dict[Hashable, list[tuple[int, NodeResourceTopology, ResourceList]]] = {}
        count = 0
        for index, (topology, allocatable) in enumerate(nodes):
            grouped.setdefault(_shape(topology, allocatable), []).append((index, topology, allocatable))
            count += 1
        self._count = count
        self._groups = [_Group(members) for members in grouped.values()]

    def sweep(self, pod: PodRequest, qos: KubeQos, strategy: ScoringType, weights: Weights) -> SweepResult:
        """Filter every node, and score those that fit."""
        fits = np.zeros(self._count, dtype=np.bool_)
        scores = np.zeros(self._count, dtype=np.int64)
        for group in self._groups:
            group_fits = group.fits(pod, qos)
            fits[group.rows] = group_fits
            scores[group.rows] = np.where(group_fits, group.scores(pod, qos, strategy, weights), 0)
        return SweepResult(fits, scores)


def _shape(topology: NodeResourceTopology, allocatable: ResourceList) -> Hashable:
    kubelet = topology.kubelet
    return (
        tuple((zone.numa, tuple(sorted(zone.available))) for zone in sorted(topology.zones, key=lambda z: z.numa)),
        tuple(sorted(topology.distances.items())),
        (kubelet.topology_policy, kubelet.topology_scope, kubelet.max_numa_nodes),
        tuple(sorted(allocatable)),
    )


class _Group:
    """Nodes of one shape: same zones, listed resources, policy and distances."""

    def __init__(self, members: Sequence[tuple[int, NodeResourceTopology, ResourceList]]) -> None:
        self.rows = np.array([index for index, _, _ in members], dtype=np.int64)
        self._topologies = [topology for _, topology, _ in members]
        self._model = self._topologies[0]
        zones = sorted(self._model.zones, key=lambda zone: zone.numa)
        self._names = sorted({name for zone in zones for name in zone.available})
        self._column = {name: index for index, name in enumerate(self._names)}
        self._lists = np.array([[name in z.available for name in self._names] for z in zones], dtype=np.bool_)
        self._lists = self._lists.reshape(len(zones), len(self._names))
        self._allocatable = frozenset(members[0][2]) | ALWAYS_ALLOCATABLE
        self._matrix = distance_matrix(zones, self._model)
        self._free = np.array(
            [
                [
                    [zone.available.get(name, 0) for name in self._names]
                    for zone in sorted(t.zones, key=lambda z: z.numa)
                ]
                for t in self._topologies
            ],
            dtype=np.int64,
        ).reshape(len(members), len(zones), len(self._names))

    def fits(self, pod: PodRequest, qos: KubeQos) -> _Bools:
        """As ``fits_zones``, for every node of the group."""
        everyone: _Bools = np.ones(len(self.rows), dtype=np.bool_)
        if qos is KubeQos.BEST_EFFORT and not asks_devices(pod.containers):
            return everyone
        if self._model.kubelet.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
            return everyone
        if self._model.kubelet.topology_scope is KubeletScope.POD:
            return self._some(self._candidates(self._free, aligned_request(pod), qos))
        free = self._free.copy()
        for container in sorted(pod.containers, key=lambda c: c.kind is ContainerKind.APP):
            candidates = self._candidates(free, container.requests, qos)
            everyone &= self._some(candidates)
            if container.kind is ContainerKind.APP:
                self._take(free, candidates.argmax(axis=1), container.requests, qos)
        return everyone

    @staticmethod
    def _some(candidates: _Bools) -> _Bools:
        return np.asarray(candidates.any(axis=1), dtype=np.bool_)

    def _candidates(self, free: _Ints, request: ResourceList, qos: KubeQos) -> _Bools:
        """Zones that hold the request, ``(nodes, zones)``. Without zones one imaginary zone stands for the node."""
        shape = (free.shape[0], max(1, free.shape[1]))
        good = np.ones(shape, dtype=np.bool_)
        for name, quantity in request.items():
            if not quantity:
                continue
            if name not in self._allocatable:
                return np.zeros(shape, dtype=np.bool_)
            column = self._column.get(name)
            if column is None:
                if is_host_level(name):
                    continue
                return np.zeros(shape, dtype=np.bool_)
            good &= self._lists[:, column]
            if qos is KubeQos.GUARANTEED or not is_numa_affine(name):
                good &= free[:, :, column] >= quantity
        return good

    def _take(self, free: _Ints, chosen: _Ints, request: ResourceList, qos: KubeQos) -> None:
        if not free.shape[1]:
            return
        nodes = np.arange(free.shape[0])
        for name, quantity in request.items():
            column = self._column.get(name)
            if column is not None and (qos is KubeQos.GUARANTEED or not is_numa_affine(name)):
                free[nodes, chosen, column] -= quantity * self._lists[chosen, column]

    def scores(self, pod: PodRequest, qos: KubeQos, strategy: ScoringType, weights: Weights) -> _Ints:
        """As ``score_zones``, for every node of the group."""
        count = len(self.rows)
        if qos is not KubeQos.GUARANTEED:
            return np.full(count, MAX_SCORE, dtype=np.int64)
        if strategy is ScoringType.LEAST_NUMA_NODES:
            if len(self._matrix) > _VECTOR_ZONES:
                scalar = [score_zones(pod, qos, t, strategy, weights) for t in self._topologies]
                return np.array(scalar, dtype=np.int64)
            return self._least_numa_nodes(pod)
        if self._model.kubelet.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
            return np.zeros(count, dtype=np.int64)
        if self._model.kubelet.topology_scope is KubeletScope.POD:
            return self._lowest(aligned_request(pod), strategy, weights)
        parts = [self._lowest(container.requests, strategy, weights) for container in pod.containers]
        return sum(parts, np.zeros(count, dtype=np.int64)) // max(1, len(parts))

    def _lowest(self, request: ResourceList, strategy: ScoringType, weights: Weights) -> _Ints:
        """The smallest non-zero zone score of every node."""
        if strategy is ScoringType.BALANCED_ALLOCATION:
            zones = self._balanced(request)
        else:
            zones = self._weighted(request, strategy, weights)
        lowest = np.where(zones == 0, MAX_SCORE + 1, zones).min(axis=1, initial=MAX_SCORE + 1)
        return np.where(lowest > MAX_SCORE, 0, lowest)

    def _weighted(self, request: ResourceList, strategy: ScoringType, weights: Weights) -> _Ints:
        score = np.zeros(self._free.shape[:2], dtype=np.int64)
        share = 0
        for name, amount in request.items():
            weight = max(1, weights.get(name, 1))
            share += weight
            if name not in self._column:
                continue
            have = self._free[:, :, self._column[name]]
            units, want = _whole(name, have), whole_units(name, amount)
            room = units - want if strategy is ScoringType.LEAST_ALLOCATED else np.int64(want)
            term = np.minimum(MAX_SCORE, room * MAX_SCORE // np.maximum(units, 1))
            score += np.where((have > 0) & (amount <= have), weight * term, 0)
        return score // share if share else score

    def _balanced(self, request: ResourceList) -> _Ints:
        shape = self._free.shape[:2]
        fractions = []
        for name, amount in request.items():
            have = self._free[:, :, self._column[name]] if name in self._column else np.zeros(shape, dtype=np.int64)
            fractions.append(np.where(have > 0, whole_units(name, amount) / np.maximum(_whole(name, have), 1), 1.0))
        if len(fractions) < 2:
            over = fractions[0] > 1 if fractions else np.zeros(shape, dtype=np.bool_)
            return np.where(over, 0, MAX_SCORE)
        mean = sum(fractions, np.zeros(shape)) / len(fractions)
        squares = sum(((f - mean) * (f - mean) for f in fractions), np.zeros(shape))
        score = ((1 - squares / (len(fractions) - 1)) * MAX_SCORE).astype(np.int64)
        over = np.logical_or.reduce([fraction > 1 for fraction in fractions])
        return np.where(over, 0, score)

    def _least_numa_nodes(self, pod: PodRequest) -> _Ints:
        scope = self._model.kubelet.topology_scope
        if scope is KubeletScope.POD:
            units: list[ResourceList] = [aligned_request(pod)]
        else:
            units = [c.requests for c in sorted(pod.containers, key=lambda c: c.kind is ContainerKind.APP)]
        free = self._free.copy()
        most = np.zeros(len(self.rows), dtype=np.int64)
        possible = np.ones(len(self.rows), dtype=np.bool_)
        optimal = np.ones(len(self.rows), dtype=np.bool_)
        for request in units:
            if not any(name in self._column for name in request):
                continue
            members, size, best = self._least_zones(free, request)
            possible &= size > 0
            most = np.maximum(most, size)
            optimal &= best
            self._drain(free, members, request)
        table = np.array(
            [
                [normalized(zones, optimal=best, highest=self._model.kubelet.max_numa_nodes) for best in (False, True)]
                for zones in range(len(self._matrix) + 1)
            ],
            dtype=np.int64,
        )
        score = np.where(most == 0, MAX_SCORE, table[most, optimal.astype(np.int64)])
        return np.where(possible, score, 0)

    def _least_zones(self, free: _Ints, request: ResourceList) -> tuple[_Bools, _Ints, _Bools]:
        """Per node: members of the smallest, then closest set ``(nodes, zones)``; its size (0: none); is it optimal?"""
        nodes, zones = free.shape[:2]
        members = np.zeros((nodes, zones), dtype=np.bool_)
        size = np.zeros(nodes, dtype=np.int64)
        optimal = np.zeros(nodes, dtype=np.bool_)
        usable = np.ones(zones, dtype=np.bool_)
        for name in request:
            column = self._column.get(name)
            usable &= self._lists[:, column] if column is not None else False
        needs = [(self._column[name], quantity) for name, quantity in request.items() if quantity and usable.any()]
        open_rows = np.arange(nodes)
        for k in range(1, zones + 1):
            sets = _subsets(zones, k)
            sets = sets[(sets <= usable).all(axis=1)]
            if not len(sets) or not len(open_rows):
                break
            fit = np.ones((len(open_rows), len(sets)), dtype=np.bool_)
            for column, quantity in needs:
                fit &= free[open_rows, :, column] @ sets.T.astype(np.int64) >= quantity
            cost = np.array([_cost(self._matrix, tuple(np.flatnonzero(s))) for s in sets], dtype=np.int64)
            costs = np.where(fit, cost, np.iinfo(np.int64).max)
            best = costs.argmin(axis=1)
            found = fit.any(axis=1)
            rows = open_rows[found]
            members[rows] = sets[best[found]]
            size[rows] = k
            optimal[rows] = cost[best[found]] == least_distance(self._matrix, k)
            open_rows = open_rows[~found]
        return members, size, optimal

    def _drain(self, free: _Ints, members: _Bools, request: ResourceList) -> None:
        for name, quantity in request.items():
            column = self._column.get(name)
            if column is None:
                continue
            rest = np.full(free.shape[0], quantity, dtype=np.int64)
            for zone in range(free.shape[1]):
                taken = np.where(members[:, zone], np.minimum(rest, np.maximum(0, free[:, zone, column])), 0)
                free[:, zone, column] -= taken
                rest -= taken


def _whole(name: str, amounts: _Ints) -> _Ints:
    return -(-amounts // 1000) if name == "cpu" else amounts


@lru_cache(maxsize=128)
def _subsets(zones: int, size: int) -> _Bools:
    """All sets of ``size`` zones in lexicographic order, as rows of booleans."""
    chosen = list(combinations(range(zones), size))
    rows = np.zeros((len(chosen), zones), dtype=np.bool_)
    for row, members in enumerate(chosen):
        rows[row, list(members)] = True
    return rows


@lru_cache(maxsize=4096)
def _cost(matrix: Matrix, members: tuple[int, ...]) -> int:
    return sum(matrix[a][b] for a in members for b in members)
