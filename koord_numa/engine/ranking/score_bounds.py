"""
Looks at many nodes at once: which of them may take a request, and at most how well. Never wrong in the other direction.

The scalar ``core.scheduling.evaluate`` is the specification. For every row the sweep gives a bound: below zero only
where ``evaluate`` refuses, else a score that ``evaluate`` cannot exceed. A property test keeps that true.

Theory. This is branch and bound: ``NodeRanking`` evaluates the node with the largest bound, puts its score in place of the bound, and
repeats this until the largest value is a score; no other node can exceed it. What is bounded is the weighted sum of ``SCORERS``;
preferences are added later (``preference_rows``). The bound holds because no term is less than what ``evaluate`` gives for it:

- Filters on the Node object are evaluated themselves, for each node class; names and labels for all rows at once (``selected_rows``).
- Amounts of whole nodes and of NUMA nodes are compared in one operation (``NodeNumbers``); ``ResourceBounds`` scores those of whole nodes.
- The alignment is relaxed: ``fewest`` counts, for each resource by itself, how many of the emptiest NUMA nodes hold the amount. A
  placement takes one set of NUMA nodes for all resources, under bind policies too, so it takes at least ``fewest`` of
  them, and the ``numa`` and ``alignment`` scores fall with their number; ``numa_score_bounds`` has the proof for each method.
  Exclusivity, shape and claims count as ``MAX_SCORE``.

Shapes. ``rows`` are n indices into the node table; the bounds are ``int64[n]``. ``ClassJudgement`` holds ``wanted[kinds, lines]`` and
points by kind and line, with the lines of ``NodeNumbers``. Points by ``fewest`` have ``counts + 2`` columns: ``fewest`` is 1 to
``counts + 1``, or ``NOTHING_LISTED``, whose points are the last ones.

Example. A pod wants 6000 milli-CPU aligned. NUMA nodes with 4000, 3000 and 500 free have 4000, 7000 and 7500 together, from the emptiest
on. One of these is below 6000, hence ``fewest`` is 1 + 1 = 2 and the ``numa`` score at most 100 + 10 - 10 * 2 = 90. With a ``resources``
score of 40 and weights of 1 the bound is 90 + 40 = 130. Where a bind policy cannot use all free CPUs of the first two NUMA
nodes, ``evaluate`` takes three (80 + 40 = 120) or refuses: below the bound in either case.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import NodeScoring
from koord_numa.core.scheduling.evaluate import fits_node_object
from koord_numa.core.scheduling.placement import refuse_by_kubelet_config
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, without_resources
from koord_numa.core.scheduling.scorers import (
    SCORERS,
    prefers_shape,
    wants_devices,
    wants_exclusivity,
    wants_numa_spread,
    wants_own_cpus,
    weight_of,
)
from koord_numa.core.score.node_scores import MAX_SCORE
from koord_numa.core.value_objects import replace
from koord_numa.engine.ranking.label_columns import NAME_FIELD, LabelColumns
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
    """Does the request say anything about names or labels of nodes that must hold?"""
    demands = request.constraints
    return bool(demands.node_name or demands.node_selector or demands.node_terms is not None)


def of_any_node(ask: SchedulingRequest) -> SchedulingRequest:
    """The same without what it says about names and labels."""
    free = replace(ask.request.constraints, node_name="", node_selector=(), node_terms=None)
    return replace(ask, request=replace(ask.request, constraints=free))


class SelectedRows:
    """As ``core.fit.node_name`` and ``core.fit.node_affinity`` say of each node by itself; a mask ``bool[table rows]``."""

    def __init__(self, request: PodRequest, labels: LabelColumns) -> None:
        self._demands = request.constraints
        self._labels = labels
        self._known: tuple[tuple[int, int], Bools] | None = None  # the version of the labels

    def mask(self) -> Bools:
        """Computed again when a label or name that is looked at has changed on some row."""
        if self._known is None or self._known[0] != self._labels.version:
            mask = self._mask()
            # read after the mask is made
            self._known = (self._labels.version, mask)  # the first look makes columns, which is a version of its own
        return self._known[1]

    def _mask(self) -> Bools:
        demands, labels = self._demands, self._labels
        mask = labels.equal(demands.node_selector)
        if demands.node_terms is not None:
            mask &= labels.matching(demands.node_terms)
        if demands.node_name:
            mask &= labels.equal(((NAME_FIELD, demands.node_name),))
        return np.asarray(mask, dtype=np.bool_)


NO: Final = -1
"""The bound of rows that are not looked at; those of others that refuse are less."""
EXPLORES: Final = NEVER // 2
"""As ``NEVER``, for a pod that would explore: such a placement earns no points whatever else there is (``score_parts``)."""
MAY_EXPLORE: Final = np.array((NEVER + EXPLORES) // 2)
"""A sum between this and zero has ``EXPLORES`` in it and no ``NEVER``."""

NOTHING: Final = -(1 << 62)
"""What is wanted of a line that no row is too little in."""
UNLISTED: Final = 1
"""A line that nothing is wanted of: it stands for rows whose NUMA nodes list nothing that is wanted of them."""


@dataclass(frozen=True, slots=True)
class ClassJudgement:
    """
    What a request class makes of each kind of node, ``NEVER`` where that refuses it.

    ``wanted[kind, line]`` has to be there in a row of the node numbers, and ``points[starts[kind] + line]`` is what the kind is worth where
    ``line`` is the first that has less, at the best filling and sparing. It is line 0, which nothing is wanted of, where nothing is short.
    """

    points: Ints  # of one dimension, as NumPy takes several times as long to look up two indices
    starts: Ints
    wanted: Ints
    explores: bool  # would the request explore on any kind?
    version: tuple[int, int]  # of the table's kinds and of the lines


class ScoreBounds:
    """Bounds for one request under one set of rules."""

    def __init__(self, ask: SchedulingRequest, rules: Profile, columns: NodeTable) -> None:
        self._ask = ask
        self._rules = rules
        self._columns = columns
        self._by_count = rules.numa_method is NodeScoring.LEAST_NUMA_NODES
        self._by_numbers = compares_numbers(ask.request)
        self._selected = SelectedRows(ask.request, columns.labels) if names_nodes(ask.request) else None
        # What names and labels say is answered by row; classes know nothing of these.
        self._anywhere = ask if self._selected is None else of_any_node(ask)
        self._weights = {row.name: weight_of(row, rules) for row in SCORERS}
        extended = () if ask.claims is None else ask.claims.extended
        # As a node sees it that serves all extended resources by claim, which wants the least of NUMA nodes; the other end is beside it.
        least = without_resources(ask, (name for name, _ in extended)) if extended else ask
        self._alignment = RequestAlignment.of(least, rules)
        self._ends = ((least, self._alignment), (ask, RequestAlignment.of(ask, rules))) if extended else ()
        self._ledger = ResourceBounds(ask, rules, columns.amounts, self._weights)
        self._judgement = self._judge()
        # By row, the node that was judged and what it was worth: identity tells whether it still holds.
        self._of_node: dict[int, tuple[Node, int]] = {}

    def bounds(self, rows: Ints) -> Ints:
        """An upper bound of the score of each of these rows, below zero where they refuse. The columns must be up to date."""
        if self._selected is None:
            return self._bounds(rows)
        selected = self._selected.mask().take(rows)
        # ``NO`` first: rows that are not selected are never looked at.
        bound: Ints = np.full(len(rows), NO, dtype=np.int64)
        if selected.any():
            bound[selected] = self._bounds(rows[selected])
        return bound

    def _bounds(self, rows: Ints) -> Ints:
        """Of rows whose names and labels fit."""
        judged, kinds = self._up_to_date(), self._columns.kinds[rows]
        numbers, wanted = self._columns.numbers.rows.take(rows, axis=0), judged.wanted.take(kinds, axis=0)
        # Arrays of one shape, side by side in memory, are compared in a fraction of the time that NumPy takes to broadcast.
        first = (numbers < wanted).argmax(axis=1)
        if self._by_count:
            # No zone lists anything that is wanted: no count of NUMA nodes means anything then.
            first[(first == ZERO) & ~self._lists_any(numbers, wanted)] = UNLISTED
        first += judged.starts[kinds]
        bound: Ints = judged.points[first]
        if self._by_numbers:
            bound += self._row_by_row(rows)
        bound += self._ledger.points(rows, numbers)
        if judged.explores:
            bound[(bound < ZERO) & (bound > MAY_EXPLORE)] = 0
        return bound

    def _lists_any(self, numbers: Ints, wanted: Ints) -> Bools:
        """Whether NUMA nodes of these rows list any of the resources that are wanted there."""
        # What the emptiest NUMA node has; an unlisted resource is unlimited there.
        emptiest = slice(-len(self._columns.numbers.places), None)
        listed: Bools = (numbers[:, emptiest] < UNLIMITED) & (wanted[:, emptiest] > 0)
        found: Bools = np.logical_or.reduce(listed, axis=1)
        return found

    def _up_to_date(self) -> ClassJudgement:
        columns, judged = self._columns, self._judgement
        # Judged again when a class number got another meaning, or lines of the numbers have moved.
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
        # As in the table, where ``UNLIMITED`` stands for "not published per NUMA node".
        aligned = [[min(each.get(name, 0), UNLIMITED) for name in numbers.places] for each in amounts]
        wanted[:, numbers.first_reach :] = np.tile(np.array(aligned, dtype=np.int64), numbers.counts)
        # Judged row by row where the kind does not tell.
        objects = np.array([0 if self._by_numbers else self._of(kind.example) for kind in kinds], dtype=np.int64)
        points = np.array([self._points(kind, numbers.counts + 2) for kind in kinds], dtype=np.int64) + objects[:, None]
        # At the best filling and sparing.
        points += (self._weights["resources"] + self._weights["devices"]) * MAX_SCORE
        return ClassJudgement(
            points=self._by_line(points).ravel(),
            starts=np.arange(len(kinds)) * numbers.rows.shape[1],
            wanted=wanted,
            explores=any(kind.explores and alignment.splits_cores_of(kind) for kind in kinds),
            version=(columns.kinds_version, columns.numbers.version),
        )

    def _by_line(self, points: Ints) -> Ints:
        """Points by kind and line, of points by the number of NUMA nodes that are needed at least, the last where nothing is listed."""
        numbers = self._columns.numbers
        found = np.full((len(points), numbers.rows.shape[1]), NEVER, dtype=np.int64)
        found[:, 0], found[:, UNLISTED] = points[:, 0], points[:, -1]
        # Where all NUMA nodes together have too little one more is needed than there are, then all of them, and so on.
        found[:, numbers.first_reach :] = np.repeat(points[:, numbers.counts : 0 : -1], len(numbers.places), axis=1)
        return found

    def _points(self, kind: NodeClass, counts: int) -> list[int]:
        """By the least number of NUMA nodes that are needed, the most that they, exclusivity, shape and claims are worth on such a node."""
        if not self._ends:
            return self._points_of(self._ask, self._alignment, kind, counts)
        # Which extended resources are amounts differs by row: no count of NUMA nodes bounds a row that the other end describes.
        return [max(max(self._points_of(ask, alignment, kind, counts)) for ask, alignment in self._ends)] * counts

    def _points_of(
        self, ask: SchedulingRequest, alignment: RequestAlignment, kind: NodeClass, counts: int
    ) -> list[int]:
        # A kubelet that cannot keep what the pod demands refuses whatever is free.
        if kind.config is not None and refuse_by_kubelet_config(ask, kind.config) is not None:
            return [NEVER] * counts
        weight, one = self._weights["numa"], alignment.needs_one_on(kind)
        # Exclusivity, shape and claims at their best: they are known only once a placement is.
        most = self._weights["exclusivity"] * MAX_SCORE if wants_exclusivity(self._ask) else 0
        most += self._weights["numa_spread"] * MAX_SCORE if wants_numa_spread(self._ask) else 0
        most += self._weights["shape"] * MAX_SCORE if prefers_shape(self._ask) else 0
        most += self._weights["claims"] * MAX_SCORE if wants_devices(self._ask) else 0
        if alignment.splits_cores_of(kind):
            most = EXPLORES if kind.explores else NEVER
        points, owns = [], wants_own_cpus(ask)
        for fewest in (*range(1, counts), NOTHING_LISTED):
            score = numa_score_bound(self._rules.numa_method, alignment, kind, fewest)
            # A policy for one NUMA node refuses what needs two, by free amounts alone.
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
