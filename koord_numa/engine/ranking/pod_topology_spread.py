"""
Topology spread constraints of one request class over all rows of the node table at once (kube-scheduler's ``podtopologyspread`` plugin).

The scalar rules in ``core.fit.spread`` are the specification. Arrays have one element per row of the table unless said otherwise.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.fit.spread import MISSING_LABEL, SPREAD_RULES, SpreadCounts
from koord_numa.core.objects.constraints import SpreadConstraint
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.selectors import selects
from koord_numa.engine.ranking.columns.distinct import distinct
from koord_numa.engine.ranking.columns.domain_sums import DomainSums
from koord_numa.engine.ranking.columns.label_columns import ABSENT, NAME_FIELD, LabelColumn
from koord_numa.engine.ranking.columns.node_numbers import Bools, Ints
from koord_numa.engine.ranking.columns.pod_counts import PodSelection

Eligible = Callable[[SpreadConstraint], Bools]
"""Which rows a constraint counts, by its node inclusion policies."""

Version = Callable[[], Hashable]


@dataclass(frozen=True, slots=True)
class _Counted:
    """What a constraint counts, until labels or taints change: the rows, and the ids of the domains that they are in."""

    column: LabelColumn
    rows: Bools
    domains: Ints


class PodTopologySpread:
    """
    The constraints of one request. ``eligible`` applies ``nodeAffinityPolicy`` and ``nodeTaintsPolicy``; what it says holds as long as
    ``version`` stays the same.
    """

    def __init__(self, request: PodRequest, sums: DomainSums, eligible: Eligible, version: Version) -> None:
        constraints = request.constraints.spread
        labels = dict(request.labels)
        self._constraints = constraints
        self._namespace = request.namespace
        self._sums = sums
        self._eligible = eligible
        self._version = version
        self._known: tuple[Hashable, dict[SpreadConstraint, _Counted]] = (None, {})
        # The pod itself counts beside the others only where its own labels are selected (``selfMatchNum``).
        self._hard: Final = [(it, int(selects(it.selector, labels))) for it in constraints if it.hard]
        self._soft: Final = [it for it in constraints if not it.hard]

    def refusals(self) -> Iterator[tuple[Bools, Rejection]]:
        """Which rows refuse the pod: first those without a label, then those where the skew would be too large (``filtering.go``)."""
        if not self._hard:
            return
        yield ~self._labelled(hard=True), MISSING_LABEL
        for constraint, own in self._hard:
            yield self._too_skewed(constraint, own), SPREAD_RULES

    def counts(self) -> SpreadCounts | None:
        """The counts by domain of every hard constraint, as the scalar rule sees them; ``None`` without any."""
        if not self._hard:
            return None
        found: dict[int, Counter[str]] = {}
        for index, constraint in enumerate(self._constraints):
            if constraint.hard:
                counted = self._counted(constraint)
                here, values = self._per_domain(constraint, counted), counted.column.values
                # Every counted domain is named, those with 0 too: one of them may be the minimum.
                found[index] = Counter({str(values[number]): int(here[number]) for number in counted.domains.tolist()})
        return SpreadCounts(found)

    def raw_scores(self) -> tuple[Ints, Bools] | None:
        """
        How crowded each row is (less is better), and which rows lack a label and are worst of all; ``None`` without a soft constraint.

        As ``scoring.go`` (``Score``): the counts are weighted by ``log(domains + 2)``, so that a constraint over few domains weighs as much
        as one over many. Domains are those of the eligible rows, fitting or not, so that a row's crowd depends on no other row's fit.
        """
        if not self._soft:
            return None
        # float64[table rows], as upstream adds in floating point and rounds once.
        crowd: NDArray[np.float64] = np.zeros(self._sums.labels.rows)
        for constraint in self._soft:
            counted = self._counted(constraint)
            here = self._per_domain(constraint, counted)
            # ``by_domain`` is float64[values of the label]; ids spread it to rows.
            by_domain = here * log(len(counted.domains) + 2) + float(constraint.max_skew - 1)
            by_domain[ABSENT] = 0.0  # where the label is not needed, a node without it is compared by the others
            crowd += by_domain[counted.column.ids]
        return np.floor(crowd + 0.5).astype(np.int64), ~self._labelled(hard=False)

    def _too_skewed(self, constraint: SpreadConstraint, own: int) -> Bools:
        counted = self._counted(constraint)
        here, domains = self._per_domain(constraint, counted), counted.domains
        # Below ``minDomains`` domains the global minimum counts as 0 (minMatchNum in filtering.go).
        lowest = int(here[domains].min()) if len(domains) and len(domains) >= constraint.min_domains else 0
        return here[counted.column.ids] + (own - lowest) > constraint.max_skew

    def _labelled(self, *, hard: bool) -> Bools:
        keys = {it.topology_key for it in self._constraints if it.hard is hard and it.needs_label}
        return self._sums.present(keys or {NAME_FIELD})  # rows of nodes at least

    def _counted(self, constraint: SpreadConstraint) -> _Counted:
        column = self._sums.labels.column(constraint.topology_key)  # made first: a new column is news
        version = (self._version(), self._sums.labels.version)
        # A new version makes every constraint's rows and domains wrong at once.
        if self._known[0] != version:
            self._known = (version, {})
        known = self._known[1].get(constraint)
        if known is None:
            rows = self._labelled(hard=constraint.hard) & self._eligible(constraint)
            # Only values that some counted row has are domains: ids of values that are gone stay in the column.
            known = self._known[1][constraint] = _Counted(column, rows, distinct(column.ids[rows]))
        return known

    def _per_domain(self, constraint: SpreadConstraint, counted: _Counted) -> Ints:
        """By id of the values of the constraint's label, the matching pods on the rows that count."""
        selection = PodSelection((((self._namespace,), None, constraint.selector),), staying=True)
        return self._sums.per_domain(selection, counted.column, counted.rows)
