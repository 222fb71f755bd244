"""
The ways to score a node for a placement that the proposals and Koordinator know, as rows of a table; configuration picks one.

Every score is absolute: it depends on one node only, so it can be remembered. ``normalise`` brings the scores of all
feasible nodes to a common scale, which never changes their order.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from koord_numa.core.score.filling import MAX_SCORE, score_filling
from koord_numa.core.score.koordinator import score_koordinator
from koord_numa.core.score.placed import Placed
from koord_numa.core.score.strategy import Strategy
from koord_numa.core.vocabulary import ScoringType


class NodeScoring(StrEnum):
    """How a node is scored. ``ORCHESTRATION`` is the default of the fine-grained CPU orchestration proposal, A + B."""

    KOORDINATOR = "Koordinator"
    ORCHESTRATION = "CPUOrchestration"
    POD_LEVEL = "PodLevelPolicy"


DEFAULT: Final = NodeScoring.ORCHESTRATION

NUMA_STEP: Final = 10
"""What every NUMA node costs in the pod-level policy's score, and what full utilisation is worth there."""


def score_node(method: NodeScoring, placed: Placed, strategy: Strategy) -> int:
    """The score of a node by this method: 0 to 100, up to 200 for A + B before it is normalised."""
    return METHODS[method](placed, strategy)


def score_orchestration(placed: Placed, strategy: Strategy) -> int:
    """
    A + B: how well the NUMA nodes take the pod, and how many of the node's NUMA nodes its CPUs involve.

    Fine-grained CPU orchestration, "Score phase". 0 where nothing is known of the node's NUMA nodes.
    """
    if not placed.numa_total:
        return 0
    return score_numa_topology(placed, strategy) + score_cpu_allocation(placed, strategy)


def score_numa_topology(placed: Placed, strategy: Strategy) -> int:
    """A: the lowest score of any NUMA node that takes a part of the pod; 0 when no alignment was attempted."""
    scores = []
    for numa, share in placed.placement.numa:
        capacity, taken = placed.capacity_on(numa)
        scores.append(strategy.score(capacity, taken, placed.weighed(share)))
    return min(scores, default=0)


def score_cpu_allocation(placed: Placed, strategy: Strategy) -> int:
    """
    B: NUMA nodes involved out of all, by the strategy; only for pods with CPUs of their own.

    Two of eight score (8 - 2) * 100 / 8 under LeastAllocated. One number is always in balance with itself.
    """
    if not placed.has_own_cpus:
        return 0
    involved, there = placed.numa_nodes, placed.numa_total
    if strategy.type is ScoringType.BALANCED_ALLOCATION:
        return MAX_SCORE
    if strategy.type is ScoringType.MOST_ALLOCATED:
        return involved * MAX_SCORE // there
    return (there - involved) * MAX_SCORE // there


def score_pod_level(placed: Placed, strategy: Strategy) -> int:
    """
    ``(100 - 10 * NUMA nodes) + 10 * utilisation`` of the place that the pod is put in, the pod included.

    Fewer NUMA nodes always win; among equals the fuller place, so that single-NUMA pods gather and others find room
    (pod-level NUMA topology policy, "Score").
    """
    capacity, taken = placed.scope
    wanted = placed.weighed(placed.amounts)
    full = score_filling(ScoringType.MOST_ALLOCATED, wanted, capacity, taken, strategy.weights)
    return max(0, MAX_SCORE - NUMA_STEP * placed.numa_nodes) + NUMA_STEP * full // MAX_SCORE


def normalise(scores: Mapping[str, int]) -> dict[str, int]:
    """Scores of all feasible nodes on the scale 0 to 100: the best gets 100, as kube-scheduler's ``DefaultNormalizeScore``."""
    best = max(scores.values(), default=0)
    return {node: score * MAX_SCORE // best if best else 0 for node, score in scores.items()}


METHODS: Final[Mapping[NodeScoring, Callable[[Placed, Strategy], int]]] = {
    NodeScoring.KOORDINATOR: score_koordinator,
    NodeScoring.ORCHESTRATION: score_orchestration,
    NodeScoring.POD_LEVEL: score_pod_level,
}
