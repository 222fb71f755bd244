"""
Koordinator's scoring strategies: how well a request would sit in a capacity that is partly used, 0 to 100.

The capacity may be a node's or that of a set of NUMA nodes; which, and what counts as used, is the caller's business.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isqrt
from typing import Final

from koord_numa.core.amounts import CPU, EPHEMERAL_STORAGE, MEMORY, Amounts
from koord_numa.core.vocabulary import ScoringType

MAX_SCORE: Final = 100
_ALWAYS: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})
"""Scored even if the pod asks for none: an idle resource is part of how full a node is (Koordinator's scoring.go)."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A scoring type and how much each resource counts."""

    type: ScoringType = ScoringType.LEAST_ALLOCATED
    weights: Mapping[str, int] = field(default_factory=lambda: {CPU: 1, MEMORY: 1})


def score(strategy: Strategy, capacity: Amounts, used: Amounts, request: Amounts) -> int:
    """
    The score of putting ``request`` on top of ``used`` into ``capacity``; a resource that there is none of counts nothing.

    LeastAllocated and MostAllocated truncate every term and then their weighted mean, as Koordinator's scoring.go.
    BalancedAllocation is high when all resources end up filled alike, as kube-scheduler's plugin of that name.
    ``ValueError`` for LeastNUMANodes, which compares numbers of NUMA nodes and no amounts.
    """
    if strategy.type is ScoringType.BALANCED_ALLOCATION:
        return _balance([(q, c) for _, q, c in _filled(strategy, capacity, used, request)])
    term = _TERMS.get(strategy.type)
    if term is None:
        raise ValueError(f"{strategy.type} does not compare amounts")
    points = weights = 0
    for weight, filled, there in _filled(strategy, capacity, used, request):
        points += weight * term(filled, there)
        weights += weight
    return points // weights if weights else 0


def _filled(strategy: Strategy, capacity: Amounts, used: Amounts, request: Amounts) -> Iterator[tuple[int, int, int]]:
    for name, weight in strategy.weights.items():
        there, wanted = capacity.get(name, 0), request.get(name, 0)
        if there and (wanted or name in _ALWAYS):
            yield weight, used.get(name, 0) + wanted, there


def _least(filled: int, there: int) -> int:
    return (there - filled) * MAX_SCORE // there if filled <= there else 0


def _most(filled: int, there: int) -> int:
    return min(filled, there) * MAX_SCORE // there


def _balance(filled: list[tuple[int, int]]) -> int:
    """100 less the standard deviation of the filled shares, in percent; exact integers, so every machine agrees."""
    if not filled:
        return 0
    scale = 10**6
    shares = [min(scale, q * scale // c) for q, c in filled]
    count = len(shares)
    # n²·variance = n·Σx² - (Σx)²
    deviation = isqrt(count * sum(x * x for x in shares) - sum(shares) ** 2)
    return (count * scale - deviation) * MAX_SCORE // (count * scale)


_TERMS: Final[Mapping[ScoringType, Callable[[int, int], int]]] = {
    ScoringType.LEAST_ALLOCATED: _least,
    ScoringType.MOST_ALLOCATED: _most,
}
