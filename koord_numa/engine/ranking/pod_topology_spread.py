"""
Topology spread constraints of one request class over all rows of the node table at once (kube-scheduler's ``podtopologyspread`` plugin).

The scalar rules in ``core.fit.spread`` are the specification. Arrays have one element per row of the table unless said otherwise.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.fit.spread import MISSING_LABEL, SPREAD_RULES, SpreadCounts
from koord_numa.core.objects.constraints import SpreadConstraint
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.selectors import selects
from koord_numa.engine.ranking.columns.domain_sums import DomainSums
from koord_numa.engine.ranking.columns.numa_table import Bools, Ints
from koord_numa.engine.ranking.columns.pod_counts import PodSelection

Eligible = Callable[[SpreadConstraint], Bools]
"""Which rows a constraint counts, by its node inclusion policies."""


class PodTopologySpread:
    """The constraints of one request. ``eligible`` applies ``nodeAffinityPolicy`` and ``nodeTaintsPolicy``."""

    def __init__(self, request: PodRequest, sums: DomainSums, eligible: Eligible) -> None:
        constraints = request.constraints.spread
        labels = dict(request.labels)
        self._constraints = constraints
        self._namespace = request.namespace
        self._sums = sums
        self._eligible = eligible
        self._hard: Final = [(it, int(selects(it.selector, labels))) for it in constraints if it.hard]
        self._soft: Final = [it for it in constraints if not it.hard]

    def refusals(self) -> Iterator[tuple[Bools, Rejection]]:
        """Which rows refuse the pod: first those without a label, then those where the skew would be too large (``filtering.go``)."""
        if not self._hard:
            return
        labelled = self._sums.present({it.topology_key for it, _ in self._hard})
        yield ~labelled, MISSING_LABEL
        for constraint, own in self._hard:
            yield self._too_skewed(constraint, own, labelled), SPREAD_RULES

    def counts(self) -> SpreadCounts | None:
        """The counts by domain of every hard constraint, as the scalar rule sees them; ``None`` without any."""
        if not self._hard:
            return None
        labelled = self._sums.present({it.topology_key for it, _ in self._hard})
        found: dict[int, Counter[str]] = {}
        for index, constraint in enumerate(self._constraints):
            if constraint.hard:
                column = self._sums.labels.column(constraint.topology_key)
                where = labelled & self._eligible(constraint)
                here = self._sums.per_domain(self._selection(constraint), column, where)
                ids = np.unique(column.ids[where]).tolist()
                found[index] = Counter({str(column.values[number]): int(here[number]) for number in ids})
        return SpreadCounts(found)

    def raw_scores(self) -> tuple[Ints, Bools] | None:
        """
        How crowded each row is (less is better), and which rows lack a label and are worst of all; ``None`` without a soft constraint.

        As ``scoring.go`` (``Score``): the counts are weighted by ``log(domains + 2)``, so that a constraint over few domains weighs as much
        as one over many. Domains are those of the eligible rows, fitting or not, so that a row's crowd depends on no other row's fit.
        """
        if not self._soft:
            return None
        labelled = self._sums.present({it.topology_key for it in self._soft})
        crowd: NDArray[np.float64] = np.zeros(len(labelled))
        for constraint in self._soft:
            column = self._sums.labels.column(constraint.topology_key)
            where = labelled & self._eligible(constraint)
            here = self._sums.per_domain(self._selection(constraint), column, where)
            domains = len(np.unique(column.ids[where]))
            crowd += here[column.ids] * log(domains + 2) + float(constraint.max_skew - 1)
        return np.floor(crowd + 0.5).astype(np.int64), ~labelled

    def _too_skewed(self, constraint: SpreadConstraint, own: int, labelled: Bools) -> Bools:
        column = self._sums.labels.column(constraint.topology_key)
        where = labelled & self._eligible(constraint)
        here = self._sums.per_domain(self._selection(constraint), column, where)
        domains = np.unique(column.ids[where])
        lowest = int(here[domains].min()) if len(domains) and len(domains) >= constraint.min_domains else 0
        return here[column.ids] + (own - lowest) > constraint.max_skew

    def _selection(self, constraint: SpreadConstraint) -> PodSelection:
        return PodSelection((((self._namespace,), None, constraint.selector),), staying=True)
