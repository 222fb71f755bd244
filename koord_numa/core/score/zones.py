"""Scores of nodes by their NUMA zones, with the allocation strategies of scheduler-plugins."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from koord_numa.core.fit.zones import aligned_request
from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope, KubeQos, NodeScoring, ScoringType
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.score.least_numa_nodes import PlacedPod, score_least_numa_nodes, score_placed_by_numa_nodes
from koord_numa.core.score.node_scores import MAX_SCORE, Strategy, score_filling, score_koordinator

NUMA_STEP: Final = 10
"""
Points per NUMA node in the ``100 - 10 * numa`` of the pod-level NUMA policy proposal.

Full utilization earns as many points.
"""


def score_node(method: NodeScoring, placed: PlacedPod, strategy: Strategy) -> int:
    """
    Return the score of a placement by a method, 0 to 100. 0 for every method if the NUMA nodes of the node are unknown.
    """
    return METHODS[method](placed, strategy) if placed.numa_total else 0


def score_fewest(placement: Placement) -> int:
    """Return 100 for one NUMA node, ``NUMA_STEP`` less for each further NUMA node, 0 without alignment."""
    if placement.mask is None:
        return 0
    # At least 0: more than ten NUMA nodes are equally bad.
    return max(0, MAX_SCORE - NUMA_STEP * (placement.numa_nodes - 1))


def score_orchestration(placed: PlacedPod, strategy: Strategy) -> int:
    """
    Return half of A + B: the fit of the NUMA nodes, and the share of the node's NUMA nodes with CPUs of the pod.

    Fine-grained CPU orchestration, "Score phase".
    """
    return (score_numa_topology(placed, strategy) + score_cpu_allocation(placed, strategy)) // 2


def score_numa_topology(placed: PlacedPod, strategy: Strategy) -> int:
    """Return A: the lowest score of any NUMA node that takes a part of the pod, 0 without alignment."""
    return min(
        (strategy.score(part.capacity, part.taken, placed.weighed(part.share)) for part in placed.parts), default=0
    )


def score_cpu_allocation(placed: PlacedPod, strategy: Strategy) -> int:
    """
    Return B: the share of involved NUMA nodes by the strategy, only for pods with exclusive CPUs.

    Two of eight score (8 - 2) * 100
    8 under LeastAllocated. A single fraction is always balanced.
    """
    if not placed.has_own_cpus:
        return 0
    involved, there = placed.numa_nodes, placed.numa_total
    if strategy.type is ScoringType.BALANCED_ALLOCATION:
        # The balanced strategy compares fractions of several resources, but here is only one.
        return MAX_SCORE
    if strategy.type is ScoringType.MOST_ALLOCATED:
        return involved * MAX_SCORE // there
    return (there - involved) * MAX_SCORE // there


def score_pod_level(placed: PlacedPod, strategy: Strategy) -> int:
    """
    Return ``(100 - 10 * NUMA nodes) + 10 * utilization`` of the pod's place, including the pod.

    Fewer NUMA nodes always win. Among equal numbers the fuller place wins, so that single-NUMA pods are packed and
    others find room (pod-level NUMA topology policy, "Score"). A single NUMA node that the pod fills completely scores
    90 + 10. Only requested resources count: a full NUMA node is full whatever memory a pod without a memory request
    leaves.
    """
    capacity, taken = placed.scope
    wanted = {name: amount for name, amount in placed.weighed(placed.amounts).items() if amount > 0}
    capacity = {name: amount for name, amount in capacity.items() if name in wanted}
    full = score_filling(ScoringType.MOST_ALLOCATED, wanted, capacity, taken, strategy.weights)
    # Full utilization earns as much as one NUMA node, so fewer NUMA nodes are never outweighed. Rounded up, because the
    # utilization is positive and truncation must not favor two full NUMA nodes.
    utilisation = -(-NUMA_STEP * full // MAX_SCORE) or 1
    return min(MAX_SCORE, max(0, MAX_SCORE - NUMA_STEP * placed.numa_nodes) + utilisation)


METHODS: Final[Mapping[NodeScoring, Callable[[PlacedPod, Strategy], int]]] = {
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
    Return the raw score of one node for one pod, 0 to 100.

    Pods that are not Guaranteed score 100 everywhere, nodes without topology 0. ``LeastNUMANodes`` applies to every
    kubelet policy, the other strategies only to single-numa-node.
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
    # The mean over all containers, including init containers, as the plugin's containerScopeScore.
    return sum(scores) // len(scores) if scores else 0


def whole_units(resource: str, amount: int) -> int:
    """Return an amount in the unit of scores: whole CPUs, rounded up. Other resources are unchanged."""
    return -(-amount // MILLI) if resource == CPU else amount


def _node_score(zone_score: _ZoneScore, request: ResourceList, zones: Sequence[Zone], weights: Weights) -> int:
    # The minimum, because the kubelet may choose the worst zone that fits.
    return min((score for zone in zones if (score := zone_score(request, zone.available, weights))), default=0)


def _most_allocated(ask: ResourceList, free: ResourceList, weights: Weights) -> int:
    return _weighted(ask, free, weights, lambda want, have: want * MAX_SCORE // have)


def _least_allocated(ask: ResourceList, free: ResourceList, weights: Weights) -> int:
    return _weighted(ask, free, weights, lambda want, have: (have - want) * MAX_SCORE // have)


def _weighted(ask: ResourceList, free: ResourceList, weights: Weights, term: Callable[[int, int], int]) -> int:
    """
    Return the weighted mean over the resources that fit.

    The fit is decided on exact amounts, the terms use whole units.

    A resource without a weight does not count, as on nodes whose CPUs the scheduler owns. Upstream gives it the weight
    1.
    """
    score = share = 0
    for name, amount in ask.items():
        weight = weights.get(name, 0)
        # The weight of a resource that does not fit also counts, so that a zone without it scores lower.
        share += weight
        have = free.get(name, 0)
        if have > 0 and amount <= have:
            score += weight * min(MAX_SCORE, term(whole_units(name, amount), whole_units(name, have)))
    return score // share if share else 0


def _balanced_allocation(ask: ResourceList, free: ResourceList, weights: Weights) -> int:
    """Return the balance of the utilization of all resources: 1 minus the sample variance of the fractions."""
    fractions = [
        whole_units(name, amount) / whole_units(name, free[name]) if free.get(name, 0) > 0 else 1.0
        for name, amount in ask.items()
        if weights.get(name, 0)
    ]
    if any(fraction > 1 for fraction in fractions):
        return 0
    # The sample variance needs two values.
    if len(fractions) < 2:
        return MAX_SCORE  # a single resource is always balanced; upstream casts NaN here
    mean = sum(fractions) / len(fractions)
    variance = sum((fraction - mean) * (fraction - mean) for fraction in fractions) / (len(fractions) - 1)
    return int((1 - variance) * MAX_SCORE)


_STRATEGIES: Mapping[ScoringType, _ZoneScore] = {
    ScoringType.MOST_ALLOCATED: _most_allocated,
    ScoringType.LEAST_ALLOCATED: _least_allocated,
    ScoringType.BALANCED_ALLOCATION: _balanced_allocation,
}
