"""
The filters whose answer depends on pods of other nodes or on volumes, for one request class and all rows of the node table at once.

The scalar filters of the scope ``CLUSTER`` in ``core.scheduling.filters`` are the specification. Arrays have one element per row.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from koord_numa.core.fit.node_filters import fits_taints
from koord_numa.core.fit.pod_affinity import refused_beside
from koord_numa.core.fit.spread import fits_spread
from koord_numa.core.fit.volumes import uses_volumes
from koord_numa.core.objects.constraints import PodTerm, SpreadConstraint
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.volumes import Storage
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.engine.ranking.columns.domain_sums import DomainSums
from koord_numa.engine.ranking.columns.node_class import compares_numbers
from koord_numa.engine.ranking.columns.node_numbers import Bools
from koord_numa.engine.ranking.columns.node_table import NodeTable
from koord_numa.engine.ranking.inter_pod_affinity import InterPodAffinity
from koord_numa.engine.ranking.pod_topology_spread import PodTopologySpread
from koord_numa.engine.ranking.volume_filters import volume_refusals

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
