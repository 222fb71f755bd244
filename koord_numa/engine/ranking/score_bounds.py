"""
Upper bounds on the scores of many nodes at once.

The scalar ``core.scheduling.evaluate`` is the specification. The bound of a row is negative only if ``evaluate`` rejects the node, else
``evaluate`` never returns a higher score. A property test checks this.

``NodeRanking`` uses the bounds for branch and bound: it evaluates the node with the largest bound, replaces the bound by the score, and
stops when the largest value is a score.
"""

from typing import Final

import numpy as np

from koord_numa.core.devices import DeviceDemand, device_demand
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import NodeScoring
from koord_numa.core.scheduling.filters import fits_node_object
from koord_numa.core.scheduling.placement import refuse_by_kubelet_config
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, without_resources
from koord_numa.core.scheduling.scorers import (
    SCORERS,
    wants_own_cpus,
    weight_of,
)
from koord_numa.core.score.node_scores import MAX_SCORE
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.engine.ranking.label_columns import NAME_FIELD, DeviceBounds, LabelColumns
from koord_numa.engine.ranking.node_numbers import FREE, UNLIMITED, Bools, Ints, NodeClass, compares_numbers
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.resource_bounds import (
    NEVER,
    NOTHING_LISTED,
    ZERO,
    RequestAlignment,
    ResourceBounds,
    alignment_bound,
    numa_score_bound,
)


def names_nodes(request: PodRequest) -> bool:
    """Return whether the request has hard requirements on names or labels of nodes."""
    demands = request.constraints
    return bool(demands.node_name or demands.node_selector or demands.node_terms is not None)


def of_any_node(ask: SchedulingRequest) -> SchedulingRequest:
    """Return the request without requirements on names and labels of nodes."""
    free = replace(ask.request.constraints, node_name="", node_selector=(), node_terms=None)
    return replace(ask, request=replace(ask.request, constraints=free))


class SelectedRows:
    """Rows that ``fits_node_name`` and ``fits_node_affinity`` accept, as a mask ``bool[table rows]``."""

    def __init__(self, request: PodRequest, labels: LabelColumns) -> None:
        self._demands = request.constraints
        self._labels = labels
        self._known: tuple[tuple[int, int], Bools] | None = None  # with the version of the labels

    def mask(self) -> Bools:
        """Return the mask. It is recomputed when a relevant label or name has changed on some row."""
        if self._known is None or self._known[0] != self._labels.version:
            mask = self._mask()
            # The version is read after the mask is computed.
            self._known = (
                self._labels.version,
                mask,
            )  # the first computation creates columns, which changes the version
        return self._known[1]

    def _mask(self) -> Bools:
        demands, labels = self._demands, self._labels
        mask = labels.equal(demands.node_selector)
        if demands.node_terms is not None:
            mask &= labels.matching(demands.node_terms)
        if demands.node_name:
            mask &= labels.equal(((NAME_FIELD, demands.node_name),))
        return np.asarray(mask, dtype=np.bool_)


TIGHT: Final = frozenset(("resources", "devices", "numa", "alignment", "partitions"))
"""Scorers with a bound of their own. Every other scorer counts as ``MAX_SCORE``."""

NO: Final = -1
"""Bound of rows that are not evaluated. Bounds of other rejecting rows are smaller."""
EXPLORES: Final = NEVER // 2
"""Like ``NEVER``, for a pod that would explore: the score of such a placement is 0 (``score_parts``)."""
MAY_EXPLORE: Final = np.array((NEVER + EXPLORES) // 2)
"""Threshold: a negative sum above it contains ``EXPLORES`` and not ``NEVER``."""

NOTHING: Final = -(1 << 62)
"""Required amount of a line that every row satisfies."""
UNLISTED: Final = 1
"""Line without a required amount. Represents rows whose NUMA nodes do not list any of the requested resources."""


class ClassJudgement(ValueObject):
    """
    Requirements and scores of a request class by node class; ``NEVER`` where the node class is rejected.

    ``wanted[kind, line]`` is the required amount. ``points[starts[kind] + line]`` is the bound, with the maximum scores for filling and
    sparing, where ``line`` is the first line with too little. ``line`` is 0, which has no requirement, if no line has too little.
    """

    points: Ints  # one-dimensional, because NumPy takes several times as long to look up two indices
    starts: Ints
    wanted: Ints
    explores: bool  # whether the request would explore on any class
    one_numa_node: Bools  # by class: whether the scheduler places the request on a single NUMA node
    version: tuple[int, int]  # versions of the table's classes and of the lines


class ScoreBounds:
    """
    Upper bounds for one request under one profile.

    The weighted sum of ``SCORERS`` is bounded; preferences are added later (``PreferenceRows``). No term is less than the term of
    ``evaluate``:

    - Filters on the Node object are evaluated for each node class, filters on names and labels for all rows (``SelectedRows``).
    - Amounts of whole nodes and of NUMA nodes are compared in one operation (``NodeNumbers``). ``ResourceBounds`` scores whole nodes.
    - The alignment is relaxed: ``fewest`` is, for each resource separately, the number of emptiest NUMA nodes that hold the amount.
      A placement uses one set of NUMA nodes for all resources, so it uses at least ``fewest``, and the ``numa`` and ``alignment`` scores
      decrease with the number of NUMA nodes; see ``numa_score_bound`` and ``alignment_bound``. Scorers that are not ``TIGHT`` count as
      ``MAX_SCORE``.

    Shapes: ``rows`` are n row indices; bounds are ``int64[n]``. ``ClassJudgement`` holds ``wanted[kinds, lines]`` and points by class and
    line, with the lines of ``NodeNumbers``. Points by ``fewest`` have ``counts + 2`` columns: 1 to ``counts + 1``, then ``NOTHING_LISTED``.

    Example. A pod requests 6000 milli-CPU aligned. NUMA nodes with 4000, 3000 and 500 free have the sums 4000, 7000 and 7500. One sum is
    below 6000, so ``fewest`` is 2 and the ``numa`` score at most 100 + 10 - 10 * 2 = 90. With a ``resources`` score of 40 and weights of 1
    the bound is 130. If a bind policy cannot use all free CPUs of the first two NUMA nodes, ``evaluate`` uses three (80 + 40 = 120) or
    rejects the node.
    """

    def __init__(self, ask: SchedulingRequest, rules: Profile, columns: NodeTable) -> None:
        self._ask = ask
        self._rules = rules
        self._columns = columns
        self._by_count = rules.numa_method is NodeScoring.LEAST_NUMA_NODES
        self._by_numbers = compares_numbers(ask.request)
        self._selected = SelectedRows(ask.request, columns.labels) if names_nodes(ask.request) else None
        # Requirements on names and labels are evaluated by row; classes do not include them.
        self._anywhere = ask if self._selected is None else of_any_node(ask)
        self._weights = {row.name: weight_of(row, rules) for row in SCORERS}
        others = (row for row in SCORERS if row.name not in TIGHT and row.concerns(ask))
        self._most_of_others = sum(self._weights[row.name] * MAX_SCORE for row in others)
        extended = () if ask.claims is None else ask.claims.extended
        # For a node that serves all extended resources by claim, which requires the least of NUMA nodes. ``_ends`` adds
        # the opposite case.
        least = without_resources(ask, (name for name, _ in extended)) if extended else ask
        self._alignment = RequestAlignment.of(least, rules)
        self._ends = ((least, self._alignment), (ask, RequestAlignment.of(ask, rules))) if extended else ()
        self._ledger = ResourceBounds(ask, rules, columns.amounts, self._weights)
        has_devices = isinstance(device_demand(ask.request), DeviceDemand)
        self._devices = DeviceBounds(ask, columns.devices, self._weights["partitions"], NEVER) if has_devices else None
        self._judgement = self._judge()
        # By row, the evaluated node and its result. The result is valid for the same node object.
        self._of_node: dict[int, tuple[Node, int]] = {}

    def bounds(self, rows: Ints) -> Ints:
        """Return an upper bound of the score of each row, negative if the row is rejected. The columns must be up to date."""
        if self._selected is None:
            return self._bounds(rows)
        selected = self._selected.mask().take(rows)
        # Rows that are not selected keep ``NO`` and are not evaluated.
        bound: Ints = np.full(len(rows), NO, dtype=np.int64)
        if selected.any():
            bound[selected] = self._bounds(rows[selected])
        return bound

    def _bounds(self, rows: Ints) -> Ints:
        """Return the bounds of rows with matching names and labels."""
        judged, kinds = self._up_to_date(), self._columns.kinds[rows]
        numbers, wanted = self._columns.numbers.rows.take(rows, axis=0), judged.wanted.take(kinds, axis=0)
        # Comparing contiguous arrays of the same shape takes a fraction of the time of broadcasting.
        first = (numbers < wanted).argmax(axis=1)
        if self._by_count:
            # No NUMA node lists a requested resource: the number of NUMA nodes is undefined.
            first[(first == ZERO) & ~self._lists_any(numbers, wanted)] = UNLISTED
        first += judged.starts[kinds]
        bound: Ints = judged.points[first]
        if self._by_numbers:
            bound += self._row_by_row(rows)
        bound += self._ledger.points(rows, numbers)
        if self._devices is not None:
            bound += self._devices.points(rows, self._ledger.lists_all(rows), judged.one_numa_node[kinds])
        if judged.explores:
            bound[(bound < ZERO) & (bound > MAY_EXPLORE)] = 0
        return bound

    def _lists_any(self, numbers: Ints, wanted: Ints) -> Bools:
        """Return whether NUMA nodes of these rows list any of the resources requested from NUMA nodes."""
        # Free amount of the emptiest NUMA node; unlimited for an unlisted resource.
        emptiest = slice(-len(self._columns.numbers.places), None)
        listed: Bools = (numbers[:, emptiest] < UNLIMITED) & (wanted[:, emptiest] > 0)
        found: Bools = np.logical_or.reduce(listed, axis=1)
        return found

    def _up_to_date(self) -> ClassJudgement:
        columns, judged = self._columns, self._judgement
        # Recomputed when a class number was reused or lines have moved.
        if judged.version != (columns.kinds_version, columns.numbers.version):
            judged = self._judgement = self._judge()
        return judged

    def _judge(self) -> ClassJudgement:
        columns, alignment, requested = self._columns, self._alignment, self._ledger.requested()
        kinds, numbers = columns.known_kinds, columns.numbers
        wanted = np.full((len(kinds), numbers.rows.shape[1]), NOTHING, dtype=np.int64)
        for line, amount in requested.items():
            wanted[:, FREE + line] = amount
        amounts = [alignment.wanted_on(kind) for kind in kinds]
        # As in the table, where ``UNLIMITED`` means "not published per NUMA node".
        aligned = [[min(each.get(name, 0), UNLIMITED) for name in numbers.places] for each in amounts]
        wanted[:, numbers.first_reach :] = np.tile(np.array(aligned, dtype=np.int64), numbers.counts)
        # Evaluated by row where the class is not sufficient.
        objects = np.array([0 if self._by_numbers else self._of(kind.example) for kind in kinds], dtype=np.int64)
        points = np.array([self._points(kind, numbers.counts + 2) for kind in kinds], dtype=np.int64) + objects[:, None]
        # With the maximum scores for filling and sparing.
        points += (self._weights["resources"] + self._weights["devices"]) * MAX_SCORE
        return ClassJudgement(
            points=self._by_line(points).ravel(),
            starts=np.arange(len(kinds)) * numbers.rows.shape[1],
            wanted=wanted,
            explores=any(kind.explores and alignment.splits_cores_of(kind) for kind in kinds),
            one_numa_node=np.array(
                [kind.config is None and alignment.needs_one_on(kind) for kind in kinds], dtype=np.bool_
            ),
            version=(columns.kinds_version, columns.numbers.version),
        )

    def _by_line(self, points: Ints) -> Ints:
        """Convert points by minimum number of NUMA nodes (last: nothing listed) to points by class and line."""
        numbers = self._columns.numbers
        found = np.full((len(points), numbers.rows.shape[1]), NEVER, dtype=np.int64)
        found[:, 0], found[:, UNLISTED] = points[:, 0], points[:, -1]
        # If the sum over all NUMA nodes is too small, ``fewest`` is one more than there are; with the next sum, all of
        # them, and so on.
        found[:, numbers.first_reach :] = np.repeat(points[:, numbers.counts : 0 : -1], len(numbers.places), axis=1)
        return found

    def _points(self, kind: NodeClass, counts: int) -> list[int]:
        """Return the maximum score on a class by minimum number of NUMA nodes, without filling, sparing and partitions."""
        if not self._ends:
            return self._points_of(self._ask, self._alignment, kind, counts)
        # Rows differ in which extended resources are amounts, so that the number of NUMA nodes cannot be used as a
        # bound.
        return [max(max(self._points_of(ask, alignment, kind, counts)) for ask, alignment in self._ends)] * counts

    def _points_of(
        self, ask: SchedulingRequest, alignment: RequestAlignment, kind: NodeClass, counts: int
    ) -> list[int]:
        # A kubelet whose configuration cannot satisfy the pod rejects it whatever is free.
        if kind.config is not None and refuse_by_kubelet_config(ask, kind.config) is not None:
            return [NEVER] * counts
        weight, one = self._weights["numa"], alignment.needs_one_on(kind)
        most = self._most_of_others
        if alignment.splits_cores_of(kind):
            most = EXPLORES if kind.explores else NEVER
        points, owns = [], wants_own_cpus(ask)
        for fewest in (*range(1, counts), NOTHING_LISTED):
            score = numa_score_bound(self._rules.numa_method, alignment, kind, fewest)
            # A single-NUMA-node policy rejects a pod whose amounts need two NUMA nodes.
            aligned = self._weights["alignment"] * alignment_bound(alignment, kind, fewest) if owns else 0
            points.append(NEVER if one and fewest > 1 else weight * score + aligned + most)
        return points

    def _row_by_row(self, rows: Ints) -> Ints:
        return np.fromiter((self._of_row(int(row)) for row in rows), dtype=np.int64, count=len(rows))

    def _of_row(self, row: int) -> int:
        record = self._columns.records[row]
        if record is None or record.node is None:
            return NEVER
        known = self._of_node.get(row)
        if known is None or known[0] is not record.node:
            known = self._of_node[row] = (record.node, self._of(record.node))
        return known[1]

    def _of(self, node: Node) -> int:
        return 0 if fits_node_object(self._anywhere, node) is None else NEVER
