"""
The filters whose answer depends on pods of other nodes or on volumes, for one request class and all rows of the node table at once.

The scalar filters of the scope ``CLUSTER`` in ``core.scheduling.filters`` are the specification. Arrays have one element per row.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.fit.node_filters import fits_taints
from koord_numa.core.fit.pod_affinity import (
    AFFINITY_RULES,
    ANTI_AFFINITY_RULES,
    EXISTING_ANTI_AFFINITY,
    is_first,
    refused_beside,
)
from koord_numa.core.fit.spread import MISSING_LABEL, SPREAD_RULES, SpreadCounts, fits_spread
from koord_numa.core.fit.volume_binding import NO_VOLUME, WRONG_NODE, fits_volume_binding
from koord_numa.core.fit.volumes import (
    NO_ZONE,
    SUCCESSORS,
    TOPOLOGY_LABELS,
    fits_volume_limits,
    fits_volume_restrictions,
    uses_volumes,
)
from koord_numa.core.objects.constraints import NodeTerm, Operator, PodTerm, Requirement, SpreadConstraint
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.volumes import Storage
from koord_numa.core.selectors import selects
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.engine.ranking.label_columns import ABSENT, NAME_FIELD, LabelColumn
from koord_numa.engine.ranking.node_numbers import Bools, Ints, compares_numbers, distinct
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.pod_counts import DomainSums, PodSelection, SelectedByTerms, TermCarriers, TermGroup

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


_Refusals = Iterator[tuple[Bools, Rejection]]
_Check = Callable[[PodRequest, Node, Storage], Rejection | None]

_NOWHERE: Final = tuple(Requirement(key, Operator.DOES_NOT_EXIST) for key in TOPOLOGY_LABELS)


def volume_refusals(request: PodRequest, storage: Storage, columns: NodeTable) -> _Refusals:
    """Which rows refuse the pod for its volumes, and why, a rule at a time. ``refuse_claims`` must have had no objection."""
    # bool[table rows]: which rows no rule has refused yet, so that costly rules are asked of these only.
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
        # Named apart, as its reason is not about the node: another node was chosen for the claim.
        if not left.all():
            yield (
                ~left,
                Rejection(
                    Reason.VOLUME, NO_VOLUME, "a claim of the pod is being bound for another node", resolvable=False
                ),
            )
        # Unbound claims look for volumes node by node; the rows that are left are few where label terms decide first.
        yield from _asked(request, storage, columns, _rows(columns, columns.row_of, left), fits_volume_binding)


def _bound(request: PodRequest, storage: Storage, columns: NodeTable) -> _Refusals:
    """Bound volumes, by node affinity and by zone."""
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
    """The rows that are left when claims are being bound for one node already: that node's, or all."""
    left = np.ones(columns.labels.rows, dtype=np.bool_)
    for name in request.constraints.claims:
        claim = storage.claims[request.namespace, name]
        node = "" if claim.bound else storage.node_of(claim)
        if node:
            # A claim that is bound for a node which is gone leaves no row.
            only = np.zeros_like(left)
            if (row := columns.row_of.get(node)) is not None:
                only[row] = True
            left &= only
    return left


def _rows(columns: NodeTable, by_node: Mapping[str, object], left: Bools) -> list[int]:
    """The rows of these nodes, as far as they are left."""
    rows = [row for name in by_node if (row := columns.row_of.get(name)) is not None]
    return [row for row in rows if left[row]]


def _asked(request: PodRequest, storage: Storage, columns: NodeTable, rows: list[int], check: _Check) -> _Refusals:
    """Ask these rows one by one; rows that give the same sentence share the rejection of the first."""
    found: dict[str, tuple[Bools, Rejection]] = {}
    for row in rows:
        info = columns.records[row]
        if info is None or info.node is None:
            continue
        rejection = check(request, info.node, storage)
        if rejection is None:
            continue
        # One rejection a sentence: details differ by node, and the first stands for all.
        if rejection.message not in found:
            found[rejection.message] = (np.zeros(columns.labels.rows, dtype=np.bool_), rejection)
        found[rejection.message][0][row] = True
    yield from found.values()


# The same few zones for thousands of volumes.
@lru_cache(maxsize=4096)
def zone_terms(zones: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[NodeTerm, ...]:
    """The nodes that are in the zone and region that a volume's labels name, as ``fits_volume_zone`` decides it, as node terms."""
    alternatives: list[tuple[Requirement, ...]] = [()]
    for key, values in zones:
        named: list[tuple[Requirement, ...]] = [(Requirement(key, Operator.IN, values),)]
        successor = SUCCESSORS.get(key)
        # A node with the old label only is in the zone; with the successor too that one decides.
        if successor is not None:
            named.append((Requirement(key, Operator.DOES_NOT_EXIST), Requirement(successor, Operator.IN, values)))
        alternatives = [(*former, *more) for former in alternatives for more in named]
    return (NodeTerm(labels=_NOWHERE), *(NodeTerm(labels=each) for each in alternatives))


StorageNow = Callable[[], Storage]


DevicesAt = Callable[[NodeSnapshot, Placement], Placement | Rejection]
"""Completes a placement with devices for the pod's resource claims, or refuses the node."""


RefuseEarly = Callable[[NodeSnapshot], tuple[Rejection | None, bool]]
"""A refusal for lack of devices that needs no placement, and whether finding out cost something."""


class ClusterFilters:
    """What keeps one request away from nodes for reasons that lie elsewhere. ``pickers`` are terms of placed pods that pick its pods."""

    def __init__(
        self, request: PodRequest, pickers: Iterable[PodTerm], columns: NodeTable, storage: StorageNow
    ) -> None:
        sums = DomainSums(columns.pods, columns.labels)
        self._request = request
        self._columns = columns
        self._storage = storage
        # bool[table rows], kept with the version of the labels that it was made of.
        self._matching: tuple[tuple[int, int], Bools] | None = None
        # Filled in by the selector: only classes with resource claims have these.
        self.devices: DevicesAt | None = None
        self.refuse_early: RefuseEarly = lambda _: (None, False)
        self.begin_turn: Callable[[int | None], None] = lambda _units: None  # bounds what selectors take
        self.spent: Callable[[], int] = lambda: 0  # what searching for devices took, in nodes asked
        self.affinity = InterPodAffinity(request, pickers, sums)
        self.spread = PodTopologySpread(request, sums, self._eligible, lambda: columns.taints_version)

    def refusals(self) -> Iterator[tuple[Bools, Rejection]]:
        """Which rows refuse the pod and why, a rule at a time, in the order of the filters."""
        # In the order of ``FILTERS``, so that the first refusal of a row is the one that the scalar rule gives.
        if uses_volumes(self._request):
            yield from volume_refusals(self._request, self._storage(), self._columns)
        yield from self.spread.refusals()
        yield from self.affinity.refusals()

    def blocked(self) -> Bools | None:
        """Which rows refuse the pod for any reason; ``None`` when nothing here can refuse it."""
        blocked: Bools | None = None
        for refused, _ in self.refusals():
            blocked = refused if blocked is None else blocked | refused
        return blocked

    def settle(self, seen: NodeSnapshot, placement: Placement) -> Placement | Rejection:
        """The last look at the best row, by rules that are asked of few nodes only: what pods for which room is kept there forbid."""
        refused = self._refused_beside(seen) if seen.nominated else None
        if refused is not None or self.devices is None:
            return refused or placement
        return self.devices(seen, placement)

    def _refused_beside(self, seen: NodeSnapshot) -> Rejection | None:
        counts = self.spread.counts()
        # Asked with the nominated pods of this node alone: counts over all rows leave them out.
        refused = None if counts is None else fits_spread(self._request, seen.node, counts, seen.nominated)
        return refused or refused_beside(self._request, seen.node, seen.nominated, self._columns.pods.namespaces)

    def _eligible(self, constraint: SpreadConstraint) -> Bools:
        """The rows that a spread constraint counts, by its node inclusion policies (``podtopologyspread/common.go``)."""
        if constraint.honor_affinity:
            eligible = self._node_affinity()
        else:
            eligible = np.ones(self._columns.labels.rows, dtype=np.bool_)
        if not constraint.honor_taints:
            return eligible
        # A toleration of a numeric value cannot be judged by class: classes have such values blotted out.
        if compares_numbers(self._request):
            return eligible & self._tolerated_by_row()
        tolerated = [fits_taints(self._request, kind.example) is None for kind in self._columns.known_kinds]
        # One answer a class, spread to the rows by their class number.
        return eligible & np.array(tolerated, dtype=np.bool_)[self._columns.kinds]

    def _tolerated_by_row(self) -> Bools:
        tolerated = np.zeros(self._columns.labels.rows, dtype=np.bool_)
        for row, record in enumerate(self._columns.records):
            if record is not None and record.node is not None:
                tolerated[row] = fits_taints(self._request, record.node) is None
        return tolerated

    def _node_affinity(self) -> Bools:
        """The rows that the pod's nodeSelector and required node affinity match; remembered until a label changes."""
        labels, demands = self._columns.labels, self._request.constraints
        if self._matching is None or self._matching[0] != labels.version:
            matching = labels.equal(demands.node_selector)
            if demands.node_terms is not None:
                matching &= labels.matching(demands.node_terms)
            self._matching = (labels.version, matching)
        return self._matching[1]
