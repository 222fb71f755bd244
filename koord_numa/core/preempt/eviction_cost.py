"""
What an eviction costs, and which node is the cheapest. The order among pods is ``ordering.importance``.

The order is kube-scheduler's (``pickOneNodeForPreemption``): fewest violations of disruption budgets; then the lowest priority of
the most important victim; then the smallest sum of priorities; then the fewest victims. After that an aligned placement goes
before any other, then the victims that started last, then the name that comes first.
"""

from collections.abc import Sequence
from typing import Final

from koord_numa.core.objects.request import Pod

LIFT: Final = 1 << 31
"""Added to every priority before they are summed, so that negative ones do not make many victims look cheap (as kube-scheduler)."""

Price = tuple[int, int, int, int]


def price(victims: Sequence[Pod], violations: int) -> Price:
    """What these victims cost: violations, highest priority, sum of priorities, number. No victim at all is cheapest."""
    priorities = [pod.request.priority for pod in victims]
    # Below every possible priority: no victim costs less than any.
    return (violations, max(priorities, default=-LIFT - 1), sum(each + LIFT for each in priorities), len(victims))


def latest_start(victims: Sequence[Pod]) -> float:
    """When the oldest of the most important victims was created; later is better, and none is best."""
    if not victims:
        return float("inf")
    highest = max(pod.request.priority for pod in victims)
    return min(pod.created for pod in victims if pod.request.priority == highest)
