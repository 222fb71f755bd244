"""Which of several nodes is freed. The order of what counts is written in ``eviction_cost.py``."""

from koord_numa.core.objects.verdicts import Alignment
from koord_numa.core.ordering import candidate_order
from koord_numa.core.preempt.eviction_cost import Price, latest_start, price
from koord_numa.core.preempt.victims import PreemptionCandidate

Rank = tuple[Price, bool, bool, float, str]


def rank(candidate: PreemptionCandidate) -> Rank:
    """Sort key of a candidate, the best first."""
    return candidate_order(
        price(candidate.victims, candidate.violations),
        # More awaited than evicted: pods there are leaving anyway, so that waiting may be all that is needed.
        is_waited_for=len(candidate.awaited) > len(candidate.victims),
        is_aligned=candidate.placement.alignment is Alignment.ALIGNED,
        latest_start=latest_start(candidate.victims),
        node=candidate.node,
    )
