"""
Filters whose result depends on pods of other nodes or on volumes, for one request class and all rows of the node table.

The scalar filters of the scope ``CLUSTER`` in ``core.scheduling.filters`` are the specification. Arrays have one element per row.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.fit.node_filters import fits_taints
from koord_numa.core.fit.pod_placement import (
    AFFINITY_RULES,
    ANTI_AFFINITY_RULES,
    EXISTING_ANTI_AFFINITY,
    MISSING_LABEL,
    SPREAD_RULES,
    SpreadCounts,
    fits_spread,
    is_first,
    refused_beside,
)
from koord_numa.core.fit.volumes import (
    NO_VOLUME,
    NO_ZONE,
    SUCCESSORS,
    TOPOLOGY_LABELS,
    WRONG_NODE,
    fits_volume_binding,
    fits_volume_limits,
    fits_volume_restrictions,
    uses_volumes,
)
from koord_numa.core.objects.constraints import NodeTerm, Operator, PodTerm, Requirement, SpreadConstraint, selects
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.volumes import Storage
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.ranking.label_columns import ABSENT, NAME_FIELD, LabelColumn
from koord_numa.engine.ranking.node_numbers import Bools, Ints, compares_numbers, distinct
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.pod_counts import DomainSums, PodSelection, SelectedByTerms, TermCarriers, TermGroup

Refusals = Iterator[tuple[Bools, Rejection]]


class InterPodAffinity:
    """Inter-pod affinity of one request. ``pickers`` are the affinity terms of placed pods that select the pods of the request."""

    def __init__(self, request: PodRequest, pickers: Iterable[PodTerm], sums: DomainSums) -> None:
        demands = request.constraints
        self._request = request
        self._sums = sums
        self._near = PodSelection.of(demands.affinity) if demands.affinity else None
        preferred = [
            *((wish.term, wish.weight) for wish in demands.preferred_affinity),
            # Preferred anti-affinity adds to the same sum with a negative weight.
            *((wish.term, -wish.weight) for wish in demands.preferred_anti_affinity),
        ]
        # Terms with the same topology key share one count, because a pod may have thousands of terms.
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
        """Yield a mask of rejected rows and the rejection for every rule, in the order of ``fits_pod_affinity``."""
        sums = self._sums
        if self._near is not None:
            # Order of ``fits_pod_affinity``: own affinity, own anti-affinity, anti-affinity of placed pods.
            yield ~self._near_enough(self._near), AFFINITY_RULES
        for key, selected in self._apart:
            yield sums.of(selected, key) > 0, ANTI_AFFINITY_RULES
        for key, carriers in self._forbidden:
            yield sums.of(carriers, key) > 0, EXISTING_ANTI_AFFINITY

    def raw_scores(self) -> Ints | None:
        """
        Return the sum of the weights of all affinity terms by row; ``None`` when no term has a weight.

        Follows ``Score`` in ``interpodaffinity/scoring.go``, before normalization. Anti-affinity has a negative weight.
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
        # The first pod of a group fits on every node that has the labels (satisfyPodAffinity in
        # interpodaffinity/filtering.go).
        if not any(each.any() for each in counted) and is_first(self._request, sums.counts.namespaces):
            return labelled
        for each in counted:
            labelled &= each
        return labelled


def _by_key(terms: Iterable[tuple[PodTerm, int]]) -> list[tuple[str, TermGroup]]:
    """Group the terms by topology key, sorted by key."""
    found: dict[str, list[tuple[PodTerm, int]]] = {}
    for term, weight in terms:
        found.setdefault(term.topology_key, []).append((term, weight))
    return [(key, TermGroup(group)) for key, group in sorted(found.items())]


Eligible = Callable[[SpreadConstraint], Bools]
"""Returns the rows that a constraint counts, according to its node inclusion policies."""

Version = Callable[[], Hashable]


class _Counted(ValueObject):
    """Rows that a constraint counts and the ids of their domains. Valid until labels or taints change."""

    column: LabelColumn
    rows: Bools
    domains: Ints


class PodTopologySpread:
    """
    Topology spread constraints of one request.

    ``eligible`` applies ``nodeAffinityPolicy`` and ``nodeTaintsPolicy``. Its result is valid as long as ``version`` returns the same value.
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
        # The pod itself is counted only if the selector matches its own labels (``selfMatchNum``).
        self._hard: Final = [(it, int(selects(it.selector, labels))) for it in constraints if it.hard]
        self._soft: Final = [it for it in constraints if not it.hard]

    def refusals(self) -> Iterator[tuple[Bools, Rejection]]:
        """Yield a mask of rejected rows and the rejection: first missing labels, then excessive skew (``filtering.go``)."""
        if not self._hard:
            return
        yield ~self._labelled(hard=True), MISSING_LABEL
        for constraint, own in self._hard:
            yield self._too_skewed(constraint, own), SPREAD_RULES

    def counts(self) -> SpreadCounts | None:
        """Return the counts by domain of every hard constraint for the scalar rule; ``None`` without hard constraints."""
        if not self._hard:
            return None
        found: dict[int, Counter[str]] = {}
        for index, constraint in enumerate(self._constraints):
            if constraint.hard:
                counted = self._counted(constraint)
                here, values = self._per_domain(constraint, counted), counted.column.values
                # Domains with a count of 0 are included, because the minimum may be one of them.
                found[index] = Counter({str(values[number]): int(here[number]) for number in counted.domains.tolist()})
        return SpreadCounts(found)

    def raw_scores(self) -> tuple[Ints, Bools] | None:
        """
        Return the raw score of each row (less is better) and a mask of rows without a label; ``None`` without soft constraints.

        Follows ``Score`` in ``scoring.go``: counts are weighted by ``log(domains + 2)``, so that a constraint over few domains has the same
        influence as a constraint over many domains. All eligible rows contribute domains, whether the pod fits there or not. The score of a
        row therefore does not depend on whether other rows fit.
        """
        if not self._soft:
            return None
        # float64[table rows], because upstream adds floating-point numbers and rounds once.
        crowd: NDArray[np.float64] = np.zeros(self._sums.labels.rows)
        for constraint in self._soft:
            counted = self._counted(constraint)
            here = self._per_domain(constraint, counted)
            # ``by_domain`` is float64[values of the label]; indexing with the ids expands it to rows.
            by_domain = here * log(len(counted.domains) + 2) + float(constraint.max_skew - 1)
            by_domain[ABSENT] = 0.0  # a node without an optional label is compared by the other constraints
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
        return self._sums.present(keys or {NAME_FIELD})  # selects all rows that have a node

    def _counted(self, constraint: SpreadConstraint) -> _Counted:
        column = self._sums.labels.column(constraint.topology_key)  # first, because a new column changes the version
        version = (self._version(), self._sums.labels.version)
        # A new version invalidates the rows and domains of all constraints.
        if self._known[0] != version:
            self._known = (version, {})
        known = self._known[1].get(constraint)
        if known is None:
            rows = self._labelled(hard=constraint.hard) & self._eligible(constraint)
            # Only values of counted rows are domains. Ids of values that no row has any more stay in the column.
            known = self._known[1][constraint] = _Counted(column, rows, distinct(column.ids[rows]))
        return known

    def _per_domain(self, constraint: SpreadConstraint, counted: _Counted) -> Ints:
        """Return the number of matching pods on counted rows, indexed by value id of the constraint's label."""
        selection = PodSelection((((self._namespace,), None, constraint.selector),), staying=True)
        return self._sums.per_domain(selection, counted.column, counted.rows)


_Refusals = Iterator[tuple[Bools, Rejection]]
_Check = Callable[[PodRequest, Node, Storage], Rejection | None]

_NOWHERE: Final = tuple(Requirement(key, Operator.DOES_NOT_EXIST) for key in TOPOLOGY_LABELS)


def volume_refusals(request: PodRequest, storage: Storage, columns: NodeTable) -> _Refusals:
    """Yield a mask of rejected rows and the rejection for every volume rule. The caller has checked ``refuse_claims`` before."""
    # bool[table rows]: rows that no rule has rejected yet. Expensive rules are evaluated for these rows only.
    left = np.ones(columns.labels.rows, dtype=np.bool_)
    if request.constraints.disks:
        yield from _asked(request, storage, columns, _rows(columns, storage.on_node, left), fits_volume_restrictions)
    for refused, rejection in _bound(request, storage, columns):
        left &= ~refused
        yield refused, rejection
    if storage.csi_nodes:
        yield from _asked(request, storage, columns, _rows(columns, storage.csi_nodes, left), fits_volume_limits)
    if any(not storage.claims[request.namespace, name].bound for name in request.constraints.claims):
        left &= _chosen(request, storage, columns)
        # A separate rejection, because the reason is not a property of the node: another node was chosen for the claim.
        if not left.all():
            yield (
                ~left,
                Rejection(
                    Reason.VOLUME, NO_VOLUME, "a claim of the pod is being bound for another node", resolvable=False
                ),
            )
        # Volumes for unbound claims are searched node by node. Few rows are left where label terms are evaluated first.
        yield from _asked(request, storage, columns, _rows(columns, columns.row_of, left), fits_volume_binding)


def _bound(request: PodRequest, storage: Storage, columns: NodeTable) -> _Refusals:
    """Check bound volumes by node affinity and by zone."""
    for name in request.constraints.claims:
        claim = storage.claims[request.namespace, name]
        volume = storage.volumes.get(claim.volume) if claim.bound else None
        if volume is None:
            continue
        detail = f"volume {volume.name} of claim {name}"
        if volume.node_terms is not None:
            refused = ~columns.labels.matching(volume.node_terms)
            yield refused, Rejection(Reason.VOLUME, WRONG_NODE, detail, resolvable=False)
        if volume.zones:
            refused = ~columns.labels.matching(zone_terms(volume.zones))
            yield refused, Rejection(Reason.VOLUME_ZONE, NO_ZONE, detail, resolvable=False)


def _chosen(request: PodRequest, storage: Storage, columns: NodeTable) -> Bools:
    """Return the rows that are left: the selected node if claims are already being bound for a node, else all rows."""
    left = np.ones(columns.labels.rows, dtype=np.bool_)
    for name in request.constraints.claims:
        claim = storage.claims[request.namespace, name]
        node = "" if claim.bound else storage.node_of(claim)
        if node:
            # If the selected node does not exist any more, no row is left.
            only = np.zeros_like(left)
            if (row := columns.row_of.get(node)) is not None:
                only[row] = True
            left &= only
    return left


def _rows(columns: NodeTable, by_node: Mapping[str, object], left: Bools) -> list[int]:
    """Return the rows of these nodes that are still left."""
    rows = [row for name in by_node if (row := columns.row_of.get(name)) is not None]
    return [row for row in rows if left[row]]


def _asked(request: PodRequest, storage: Storage, columns: NodeTable, rows: list[int], check: _Check) -> _Refusals:
    """Evaluate the check for each of these rows. Rows with the same message share the rejection of the first row."""
    found: dict[str, tuple[Bools, Rejection]] = {}
    for row in rows:
        info = columns.records[row]
        if info is None or info.node is None:
            continue
        rejection = check(request, info.node, storage)
        if rejection is None:
            continue
        # One rejection per message: details differ by node, and the first rejection represents all.
        if rejection.message not in found:
            found[rejection.message] = (np.zeros(columns.labels.rows, dtype=np.bool_), rejection)
        found[rejection.message][0][row] = True
    yield from found.values()


# Thousands of volumes share a few zones.
@lru_cache(maxsize=4096)
def zone_terms(zones: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[NodeTerm, ...]:
    """Return node terms for the nodes in the zone and region of a volume's labels, equivalent to ``fits_volume_zone``."""
    alternatives: list[tuple[Requirement, ...]] = [()]
    for key, values in zones:
        named: list[tuple[Requirement, ...]] = [(Requirement(key, Operator.IN, values),)]
        successor = SUCCESSORS.get(key)
        # A node that has only the old label is in the zone. If it also has the successor label, the successor decides.
        if successor is not None:
            named.append((Requirement(key, Operator.DOES_NOT_EXIST), Requirement(successor, Operator.IN, values)))
        alternatives = [(*former, *more) for former in alternatives for more in named]
    return (NodeTerm(labels=_NOWHERE), *(NodeTerm(labels=each) for each in alternatives))


StorageNow = Callable[[], Storage]


DevicesAt = Callable[[NodeSnapshot, Placement], Placement | Rejection]
"""Completes a placement with devices for the pod's resource claims, or rejects the node."""


RefuseEarly = Callable[[NodeSnapshot], tuple[Rejection | None, bool]]
"""Returns a rejection for missing devices that needs no placement, and whether computing it had a cost."""


class ClusterFilters:
    """Filters of one request that read the whole cluster. ``pickers`` are the terms of placed pods that select the request's pods."""

    def __init__(
        self, request: PodRequest, pickers: Iterable[PodTerm], columns: NodeTable, storage: StorageNow
    ) -> None:
        sums = DomainSums(columns.pods, columns.labels)
        self._request = request
        self._columns = columns
        self._storage = storage
        # bool[table rows], stored with the version of the labels that it was computed from.
        self._matching: tuple[tuple[int, int], Bools] | None = None
        # Set by the selector for classes with resource claims only.
        self.devices: DevicesAt | None = None
        self.refuse_early: RefuseEarly = lambda _: (None, False)
        self.begin_turn: Callable[[int | None], None] = lambda _units: None  # limits the work of device selectors
        self.spent: Callable[[], int] = lambda: 0  # cost of the device search, in evaluated nodes
        self.affinity = InterPodAffinity(request, pickers, sums)
        self.spread = PodTopologySpread(request, sums, self._eligible, lambda: columns.taints_version)

    def refusals(self) -> Iterator[tuple[Bools, Rejection]]:
        """Yield a mask of rejected rows and the rejection for every rule, in the order of the filters."""
        # In the order of ``FILTERS``, so that the first rejection of a row equals the rejection of the scalar rule.
        if uses_volumes(self._request):
            yield from volume_refusals(self._request, self._storage(), self._columns)
        yield from self.spread.refusals()
        yield from self.affinity.refusals()

    def blocked(self) -> Bools | None:
        """Return the rows that any rule rejects; ``None`` when no rule applies to the request."""
        blocked: Bools | None = None
        for refused, _ in self.refusals():
            blocked = refused if blocked is None else blocked | refused
        return blocked

    def settle(self, seen: NodeSnapshot, placement: Placement) -> Placement | Rejection:
        """
        Check the best row against nominated pods, then complete the placement with devices.

        These rules are evaluated for few nodes only.
        """
        refused = self._refused_beside(seen) if seen.nominated else None
        if refused is not None or self.devices is None:
            return refused or placement
        return self.devices(seen, placement)

    def _refused_beside(self, seen: NodeSnapshot) -> Rejection | None:
        counts = self.spread.counts()
        # Evaluated with the nominated pods of this node only: the counts over all rows exclude nominated pods.
        refused = None if counts is None else fits_spread(self._request, seen.node, counts, seen.nominated)
        return refused or refused_beside(self._request, seen.node, seen.nominated, self._columns.pods.namespaces)

    def _eligible(self, constraint: SpreadConstraint) -> Bools:
        """Return the rows that a spread constraint counts, by its node inclusion policies (``podtopologyspread/common.go``)."""
        if constraint.honor_affinity:
            # The rows that match nodeSelector and required node affinity. Cached until a label changes.
            labels, demands = self._columns.labels, self._request.constraints
            if self._matching is None or self._matching[0] != labels.version:
                matching = labels.equal(demands.node_selector)
                if demands.node_terms is not None:
                    matching &= labels.matching(demands.node_terms)
                self._matching = (labels.version, matching)
            eligible = self._matching[1]
        else:
            eligible = np.ones(self._columns.labels.rows, dtype=np.bool_)
        if not constraint.honor_taints:
            return eligible
        # Node classes replace numeric taint values, so that a toleration of a numeric value has to be evaluated for
        # every row.
        if compares_numbers(self._request):
            return eligible & self._tolerated_by_row()
        tolerated = [fits_taints(self._request, kind.example) is None for kind in self._columns.known_kinds]
        # One result per class, expanded to rows by class number.
        return eligible & np.array(tolerated, dtype=np.bool_)[self._columns.kinds]

    def _tolerated_by_row(self) -> Bools:
        tolerated = np.zeros(self._columns.labels.rows, dtype=np.bool_)
        for row, record in enumerate(self._columns.records):
            if record is not None and record.node is not None:
                tolerated[row] = fits_taints(self._request, record.node) is None
        return tolerated
