"""Score nodes by their NUMA zones, with the scheduler-plugins' allocation strategies."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from koord_numa.core.fit.zones import aligned_request
from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope, KubeQos, NodeScoring, ScoringType
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.score.least_numa_nodes import Placed, score_least_numa_nodes, score_placed_by_numa_nodes
from koord_numa.core.score.node_scores import MAX_SCORE, Strategy, score_filling, score_koordinator

NUMA_STEP: Final = 10
"""Points lost for a NUMA node in the ``100 - 10 * numa`` of the pod-level NUMA policy proposal; full utilisation is worth as much."""


def score_node(method: NodeScoring, placed: Placed, strategy: Strategy) -> int:
    """The score of a placement by this method, 0 to 100; 0 where nothing is known of the node's NUMA nodes, by every method."""
    return METHODS[method](placed, strategy) if placed.numa_total else 0


def score_fewest(placement: Placement) -> int:
    """100 on one NUMA node, ``NUMA_STEP`` less for every further one; 0 where nothing was aligned."""
    if placement.mask is None:
        return 0
    # Cut at 0: eleven NUMA nodes and more are equally bad.
    return max(0, MAX_SCORE - NUMA_STEP * (placement.numa_nodes - 1))


def score_orchestration(placed: Placed, strategy: Strategy) -> int:
    """
    Half of A + B: how well the NUMA nodes take the pod, and how many of the node's NUMA nodes its CPUs involve.

    Fine-grained CPU orchestration, "Score phase".
    """
    return (score_numa_topology(placed, strategy) + score_cpu_allocation(placed, strategy)) // 2


def score_numa_topology(placed: Placed, strategy: Strategy) -> int:
    """A: the lowest score of any NUMA node that takes a part of the pod; 0 when no alignment was attempted."""
    return min(
        (strategy.score(part.capacity, part.taken, placed.weighed(part.share)) for part in placed.parts), default=0
    )


def score_cpu_allocation(placed: Placed, strategy: Strategy) -> int:
    """
    B: NUMA nodes involved out of all, by the strategy; only for pods with CPUs of their own.

    Two of eight score (8 - 2) * 100 / 8 under LeastAllocated. One number is always in balance with itself.
    """
    if not placed.has_own_cpus:
        return 0
    involved, there = placed.numa_nodes, placed.numa_total
    if strategy.type is ScoringType.BALANCED_ALLOCATION:
        # The balanced strategy compares fractions of several resources, and here there is only one.
        return MAX_SCORE
    if strategy.type is ScoringType.MOST_ALLOCATED:
        return involved * MAX_SCORE // there
    return (there - involved) * MAX_SCORE // there


def score_pod_level(placed: Placed, strategy: Strategy) -> int:
    """
    ``(100 - 10 * NUMA nodes) + 10 * utilisation`` of the place that the pod is put in, the pod included.

    Fewer NUMA nodes always win; among equals the fuller place, so that single-NUMA pods gather and others find room
    (pod-level NUMA topology policy, "Score"). A single NUMA node that the pod fills up scores 90 + 10. Only resources that the
    pod requests count: a full NUMA node is full whatever memory a pod without a memory request leaves.
    """
    capacity, taken = placed.scope
    wanted = {name: amount for name, amount in placed.weighed(placed.amounts).items() if amount > 0}
    capacity = {name: amount for name, amount in capacity.items() if name in wanted}
    full = score_filling(ScoringType.MOST_ALLOCATED, wanted, capacity, taken, strategy.weights)
    # Full utilisation is worth one NUMA node, so that fewer NUMA nodes are never outweighed.
    # Rounded up: a pod takes something, and a tenth of a point must not be lost against two full NUMA nodes.
    utilisation = -(-NUMA_STEP * full // MAX_SCORE) or 1
    return min(MAX_SCORE, max(0, MAX_SCORE - NUMA_STEP * placed.numa_nodes) + utilisation)


METHODS: Final[Mapping[NodeScoring, Callable[[Placed, Strategy], int]]] = {
    NodeScoring.FEWEST_NUMA_NODES: lambda placed, _strategy: score_fewest(placed.placement),
    NodeScoring.CPU_ORCHESTRATION: score_orchestration,
    NodeScoring.KOORDINATOR: score_koordinator,
    NodeScoring.POD_LEVEL_POLICY: score_pod_level,
    NodeScoring.LEAST_NUMA_NODES: lambda placed, _strategy: score_placed_by_numa_nodes(placed),
}


Weights = Mapping[str, int]
_ZoneScore = Callable[[ResourceList, ResourceList, Weights], int]


def score_zones(
    pod: PodRequest, qos: KubeQos, topology: NodeResourceTopology | None, strategy: ScoringType, weights: Weights
) -> int:
    """
    The raw score of one node, 0 to 100, for one pod.

    Pods that are not Guaranteed score 100 everywhere, nodes without topology 0. ``LeastNUMANodes`` works for every kubelet
    policy; the others only where the kubelet demands a single NUMA node.
    """
    if qos is not KubeQos.GUARANTEED:
        return MAX_SCORE
    if topology is None:
        return 0
    if strategy is ScoringType.LEAST_NUMA_NODES:
        return score_least_numa_nodes(pod, topology)
    if topology.kubelet.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return 0
    zone_score = _STRATEGIES[strategy]
    if topology.kubelet.topology_scope is KubeletScope.POD:
        return _node_score(zone_score, aligned_request(pod), topology.zones, weights)
    scores = [_node_score(zone_score, c.requests, topology.zones, weights) for c in pod.containers]
    # The mean over containers, init containers included, as the plugin's containerScopeScore.
    return sum(scores) // len(scores) if scores else 0


def whole_units(resource: str, amount: int) -> int:
    """An amount in the unit that scores are computed in: whole CPUs, rounded up; other resources as they are."""
    return -(-amount // MILLI) if resource == CPU else amount


def _node_score(zone_score: _ZoneScore, request: ResourceList, zones: Sequence[Zone], weights: Weights) -> int:
    # The smallest: the kubelet may pick the worst zone that fits.
    return min((score for zone in zones if (score := zone_score(request, zone.available, weights))), default=0)


def _most_allocated(ask: ResourceList, free: ResourceList, weights: Weights) -> int:
    return _weighted(ask, free, weights, lambda want, have: want * MAX_SCORE // have)


def _least_allocated(ask: ResourceList, free: ResourceList, weights: Weights) -> int:
    return _weighted(ask, free, weights, lambda want, have: (have - want) * MAX_SCORE // have)


def _weighted(ask: ResourceList, free: ResourceList, weights: Weights, term: Callable[[int, int], int]) -> int:
    """
    The weighted mean over what fits; whether it fits is decided on exact amounts, the terms on whole units.

    A resource without a weight counts nothing, as on nodes whose CPUs the scheduler owns; upstream gives it the weight 1.
    """
    score = share = 0
    for name, amount in ask.items():
        weight = weights.get(name, 0)
        # Weights count even where the resource does not fit, so that a zone without it scores lower.
        share += weight
        have = free.get(name, 0)
        if have > 0 and amount <= have:
            score += weight * min(MAX_SCORE, term(whole_units(name, amount), whole_units(name, have)))
    return score // share if share else 0


def _balanced_allocation(ask: ResourceList, free: ResourceList, weights: Weights) -> int:
    """High when all resources are used in the same proportion: 1 minus the sample variance of the fractions."""
    fractions = [
        whole_units(name, amount) / whole_units(name, free[name]) if free.get(name, 0) > 0 else 1.0
        for name, amount in ask.items()
        if weights.get(name, 0)
    ]
    if any(fraction > 1 for fraction in fractions):
        return 0
    # The sample variance needs two values.
    if len(fractions) < 2:
        return MAX_SCORE  # one resource is always in balance with itself; upstream casts NaN here
    mean = sum(fractions) / len(fractions)
    variance = sum((fraction - mean) * (fraction - mean) for fraction in fractions) / (len(fractions) - 1)
    return int((1 - variance) * MAX_SCORE)


_STRATEGIES: Mapping[ScoringType, _ZoneScore] = {
    ScoringType.MOST_ALLOCATED: _most_allocated,
    ScoringType.LEAST_ALLOCATED: _least_allocated,
    ScoringType.BALANCED_ALLOCATION: _balanced_allocation,
}
