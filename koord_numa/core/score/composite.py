"""
How well a placement sits on the NUMA nodes of a node whose CPUs are ours, as a table of methods; configuration picks one.

Every score is 0 to 100 and absolute: it depends on one node only, so it can be remembered. The proposals divide by the best of all
feasible nodes instead; a constant scale puts them into the same order.
"""

from collections.abc import Callable, Mapping
from typing import Final

from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import NodeScoring, ScoringType
from koord_numa.core.score.least_numa_nodes import score_placed_by_numa_nodes
from koord_numa.core.score.node_resources import MAX_SCORE, score_filling
from koord_numa.core.score.numa_scores import Strategy, score_koordinator
from koord_numa.core.score.placed import Placed

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
    return max(0, MAX_SCORE - NUMA_STEP * (placement.mask.bit_count() - 1))


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
