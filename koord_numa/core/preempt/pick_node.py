"""Which of several nodes is freed. The order of what counts is written in ``eviction_cost.py``."""

from collections.abc import Iterable

from koord_numa.core.objects.verdicts import Alignment
from koord_numa.core.preempt.eviction_cost import Price, latest_start, price
from koord_numa.core.preempt.victims import PreemptionCandidate


def choose(candidates: Iterable[PreemptionCandidate]) -> PreemptionCandidate | None:
    """The cheapest; ``None`` when there is none."""
    return min(candidates, key=rank, default=None)


def rank(candidate: PreemptionCandidate) -> tuple[Price, bool, bool, float, str]:
    """Sort key of a candidate, the best first; names make it unique. A node that is free at once goes before one to be waited for."""
    return (
        price(candidate.victims, candidate.violations),
        len(candidate.awaited) > len(candidate.victims),
        candidate.placement.alignment is not Alignment.ALIGNED,
        -latest_start(candidate.victims),
        candidate.node,
    )
