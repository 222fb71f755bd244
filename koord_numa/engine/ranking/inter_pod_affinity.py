"""
Inter-pod affinity of one request class over all rows of the node table at once (kube-scheduler's ``interpodaffinity`` plugin).

The scalar rules in ``core.fit.pod_affinity`` are the specification; a property test holds both to the same answers. Arrays have one element
per row of the table.
"""

from collections.abc import Iterable, Iterator

from koord_numa.core.fit.pod_affinity import AFFINITY_RULES, ANTI_AFFINITY_RULES, EXISTING_ANTI_AFFINITY, is_first
from koord_numa.core.objects.constraints import PodTerm
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.engine.ranking.columns.domain_sums import DomainSums
from koord_numa.engine.ranking.columns.node_numbers import Bools, Ints
from koord_numa.engine.ranking.columns.pod_counts import (
    PodSelection,
    SelectedByTerms,
    TermCarriers,
    TermGroup,
)

Refusals = Iterator[tuple[Bools, Rejection]]


class InterPodAffinity:
    """What placed pods mean for one request. ``pickers`` are the terms of placed pods that pick its pods."""

    def __init__(self, request: PodRequest, pickers: Iterable[PodTerm], sums: DomainSums) -> None:
        demands = request.constraints
        self._request = request
        self._sums = sums
        self._near = PodSelection.of(demands.affinity) if demands.affinity else None
        preferred = [
            *((wish.term, wish.weight) for wish in demands.preferred_affinity),
            # Anti-affinity pushes: the same sum with the opposite sign.
            *((wish.term, -wish.weight) for wish in demands.preferred_anti_affinity),
        ]
        # Terms of one topology key are counted together, as a pod may have thousands.
        self._apart = [
            (key, SelectedByTerms(group)) for key, group in _by_key((term, 1) for term in demands.anti_affinity)
        ]
        picked = _by_key((term, 1) for term in pickers)
        self._forbidden = [(key, TermCarriers(group, forbids=True)) for key, group in picked]
        self._scored: list[tuple[str, SelectedByTerms | TermCarriers]] = [
            *((key, SelectedByTerms(group)) for key, group in _by_key(preferred)),
            *((key, TermCarriers(group, forbids=False)) for key, group in picked),
        ]

    def refusals(self) -> Refusals:
        """Which rows refuse the pod and why, a rule at a time, in the order of ``fits_pod_affinity``."""
        sums = self._sums
        if self._near is not None:
            # In the order of ``fits_pod_affinity``: own affinity, own anti-affinity, that of placed pods.
            yield ~self._near_enough(self._near), AFFINITY_RULES
        for key, selected in self._apart:
            yield sums.of(selected, key) > 0, ANTI_AFFINITY_RULES
        for key, carriers in self._forbidden:
            yield sums.of(carriers, key) > 0, EXISTING_ANTI_AFFINITY

    def raw_scores(self) -> Ints | None:
        """
        By row, the weights of the terms that pull the pod there, less those that push it away; ``None`` when no term has any weight.

        As ``interpodaffinity/scoring.go`` (``Score``), before its normalisation.
        """
        sums = self._sums
        total: Ints | None = None
        for key, weighing in self._scored:
            part = sums.of(weighing, key)
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


def _by_key(terms: Iterable[tuple[PodTerm, int]]) -> list[tuple[str, TermGroup]]:
    """The terms by topology key, in the order of the keys."""
    found: dict[str, list[tuple[PodTerm, int]]] = {}
    for term, weight in terms:
        found.setdefault(term.topology_key, []).append((term, weight))
    return [(key, TermGroup(group)) for key, group in sorted(found.items())]
