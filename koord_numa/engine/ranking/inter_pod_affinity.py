"""
Inter-pod affinity of one request class over all rows of the node table at once (kube-scheduler's ``interpodaffinity`` plugin).

The scalar rules in ``core.fit.pod_affinity`` are the specification; a property test holds both to the same answers. Arrays have one element
per row of the table.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from koord_numa.core.fit.pod_affinity import AFFINITY_RULES, ANTI_AFFINITY_RULES, EXISTING_ANTI_AFFINITY, is_first
from koord_numa.core.objects.constraints import PodTerm
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.engine.ranking.columns.domain_sums import DomainSums
from koord_numa.engine.ranking.columns.node_numbers import Bools, Ints
from koord_numa.engine.ranking.columns.pod_counts import PodSelection, TermCarriers

Refusals = Iterator[tuple[Bools, Rejection]]


class InterPodAffinity:
    """What placed pods mean for one request. ``pickers`` are the terms of placed pods that pick its pods."""

    def __init__(self, request: PodRequest, pickers: Iterable[PodTerm], sums: DomainSums) -> None:
        demands = request.constraints
        self._request = request
        self._sums = sums
        # Sorted, since a set has no order and the first refusal of a row names the reason.
        self._pickers: Final = sorted(pickers, key=repr)
        self._near = PodSelection.of(demands.affinity) if demands.affinity else None
        self._preferred = [
            *((wish.weight, wish.term) for wish in demands.preferred_affinity),
            # Anti-affinity pushes: the same sum with the opposite sign.
            *((-wish.weight, wish.term) for wish in demands.preferred_anti_affinity),
        ]

    def refusals(self) -> Refusals:
        """Which rows refuse the pod and why, a rule at a time, in the order of ``fits_pod_affinity``."""
        demands, sums = self._request.constraints, self._sums
        if self._near is not None:
            # In the order of ``fits_pod_affinity``: own affinity, own anti-affinity, that of placed pods.
            yield ~self._near_enough(self._near), AFFINITY_RULES
        for term in demands.anti_affinity:
            yield sums.of(PodSelection.of((term,)), term.topology_key) > 0, ANTI_AFFINITY_RULES
        for term in self._pickers:
            yield sums.of(TermCarriers(term, forbids=True), term.topology_key) > 0, EXISTING_ANTI_AFFINITY

    def raw_scores(self) -> Ints | None:
        """
        By row, the weights of the terms that pull the pod there, less those that push it away; ``None`` when no term has any weight.

        As ``interpodaffinity/scoring.go`` (``Score``), before its normalisation.
        """
        sums = self._sums
        total: Ints | None = None
        for weight, term in self._preferred:
            part = weight * sums.of(PodSelection.of((term,)), term.topology_key)
            total = part if total is None else total + part
        for term in self._pickers:
            part = sums.of(TermCarriers(term, forbids=False), term.topology_key)
            total = part if total is None else total + part
        return total

    def _near_enough(self, selection: PodSelection) -> Bools:
        terms, sums = self._request.constraints.affinity, self._sums
        keys = {term.topology_key for term in terms}
        labelled = sums.present(keys)
        counted = [sums.of(selection, key) > 0 for key in sorted(keys)]
        # The first pod of a group may go anywhere that has the labels (satisfyPodAffinity in interpodaffinity/filtering.go).
        if not any(each.any() for each in counted) and is_first(self._request, sums.counts.namespaces):
            return labelled
        for each in counted:
            labelled &= each
        return labelled
