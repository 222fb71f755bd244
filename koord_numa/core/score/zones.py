"""
Scores of one node from its published zones, as the scheduler-plugins' allocation strategies define them (KEP-119, KEP-454).

A zone is scored by how a request would fill it; the node's score is the smallest zone score, for the kubelet may
pick the worst one. Amounts are rounded up to whole units first. Where upstream crashes (no requests, one resource, gaps in
zone ids) the formulas' limits apply.
"""

from collections.abc import Callable, Mapping, Sequence

from koord_numa.core.fit.zones import aligned_request
from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope, KubeQos, ScoringType
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.score.least_numa_nodes import score_least_numa_nodes
from koord_numa.core.score.node_resources import MAX_SCORE

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
