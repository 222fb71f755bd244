"""
How full a place would be with one more pod, as a score of 0 to 100. A place is a whole node or some of its NUMA nodes.

Amounts are exact integers; the balanced score uses exact fractions' spread in floating point, truncated, as kube-scheduler does.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Final

from koord_numa.core.objects.vocabulary import ScoringType
from koord_numa.core.resources import CPU, MEMORY, ResourceList

MAX_SCORE: Final = 100
ALWAYS_SCORED: Final = (CPU, MEMORY)
"""These count even when the pod asks for none; other resources only when it asks for them (Koordinator's scorer)."""

FILLING: Final = frozenset({ScoringType.MOST_ALLOCATED, ScoringType.LEAST_ALLOCATED, ScoringType.BALANCED_ALLOCATION})
"""The strategies that say something about how full a place is."""

Weights = Mapping[str, int]


def score_filling(
    strategy: ScoringType, wanted: ResourceList, offer: ResourceList, held: ResourceList, weights: Weights
) -> int:
    """
    The score of a place that offers ``offer`` of which ``held`` is taken, once ``wanted`` is added.

    Most: how full; Least: how empty; Balanced: how alike the resources' fractions are. As Koordinator's and kube-scheduler's resource
    allocation scorers: each resource's score is truncated, then the weighted mean. ``LeastNUMANodes`` says nothing about
    filling: 0.
    """
    parts = [
        (weight, held.get(name, 0) + wanted.get(name, 0), capacity)
        for name, weight in weights.items()
        if (capacity := offer.get(name, 0)) > 0 and (name in ALWAYS_SCORED or counts(name, wanted))
    ]
    return score_parts(strategy, parts)


def counts(resource: str, wanted: ResourceList) -> bool:
    """Does this resource count in the score of a pod that wants these amounts?"""
    return resource in ALWAYS_SCORED or wanted.get(resource, 0) > 0


def score_parts(strategy: ScoringType, parts: Sequence[tuple[int, int, int]]) -> int:
    """As ``score_filling``, for the weight, the use and the (positive) capacity of each resource that counts."""
    term = _TERMS.get(strategy)
    if term is None:
        # ``LeastNUMANodes`` does not look at filling.
        is_balanced = strategy is ScoringType.BALANCED_ALLOCATION
        return _balance([min(1.0, used / capacity) for _, used, capacity in parts]) if is_balanced else 0
    points = share = 0
    for weight, used, capacity in parts:
        points += weight * term(used, capacity)
        share += weight
    # Truncated after the mean, and each term before it: both truncations are upstream's.
    return points // share if share else 0


def _most(used: int, capacity: int) -> int:
    # Cut at capacity: overcommitted places are full and not more than that.
    return used * MAX_SCORE // capacity if used < capacity else MAX_SCORE


def _least(used: int, capacity: int) -> int:
    return max(0, capacity - used) * MAX_SCORE // capacity


_TERMS: Final[Mapping[ScoringType, Callable[[int, int], int]]] = {
    ScoringType.MOST_ALLOCATED: _most,
    ScoringType.LEAST_ALLOCATED: _least,
}


def _balance(fractions: list[float]) -> int:
    """100 when all fractions are equal, less by their standard deviation (kube-scheduler's ``balanced_allocation.go``)."""
    if not fractions:
        return 0
    mean = sum(fractions) / len(fractions)
    deviation = sqrt(sum((fraction - mean) * (fraction - mean) for fraction in fractions) / len(fractions))
    return int((1 - deviation) * MAX_SCORE)
