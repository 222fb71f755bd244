"""
Looks at many nodes at once: which of them may take a request, and at most how well. Never wrong in the other direction.

The scalar ``core.scheduling.evaluate`` is the specification. For every row the sweep gives a bound: ``NO`` only where
``evaluate`` refuses, else a score that ``evaluate`` cannot exceed. A property test keeps that true.

Theory. This is branch and bound: ``NodeRanking`` evaluates the node with the largest bound, puts its score in place of the bound, and
repeats this until the largest value is a score; no other node can exceed it. What is bounded is the weighted sum of ``SCORERS``;
preferences are added later (``preference_rows``). The bound holds because no term is less than what ``evaluate`` gives for it:

- Filters on the Node object are evaluated themselves, for each node class, or for each row if the request reads labels.
- Amounts of whole nodes are compared and scored in ``ResourceBounds``.
- The alignment is relaxed: ``fewest`` counts, for each resource by itself, how many of the emptiest NUMA nodes hold the amount. A
  placement takes one set of NUMA nodes for all resources, under bind policies too, so it takes at least ``fewest`` of
  them, and the ``numa`` score falls with their number. Any other method of that score, and exclusivity, count as ``MAX_SCORE``.

Shapes. ``rows`` are n indices into the node table; the bounds are ``int64[n]``. ``reach`` of the NUMA table is
``int64[resources, counts, table rows]`` and does not fall along ``counts``. ``ClassJudgement`` holds ``objects[kinds]``,
``wanted[resources, kinds]`` and ``points[kinds, counts + 2]``, whose second index is ``fewest``: 1 to ``counts + 1``.

Example. A pod wants 6000 milli-CPU aligned. NUMA nodes with 4000, 3000 and 500 free have the ``reach`` 4000, 7000, 7500. One of these
is below 6000, hence ``fewest`` is 1 + 1 = 2 and the ``numa`` score at most 100 + 10 - 10 * 2 = 90. With a ``resources`` score
of 40 and weights of 1 the bound is 90 + 40 = 130. Where a bind policy cannot use all free CPUs of the first two NUMA
nodes, ``evaluate`` takes three (80 + 40 = 120) or refuses: below the bound in either case.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from koord_numa.core.allocation.demand import CpuUse
from koord_numa.core.kubelet.managers.aggregates import pod_demand
from koord_numa.core.kubelet.unsupported_policies import refuse_promises
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import NodeScoring, NumaPolicy
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.scheduling.evaluate import fits_node_object
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.scheduling.scorers import SCORERS, wants_exclusivity, weight_of
from koord_numa.core.score.composite import NUMA_STEP
from koord_numa.core.score.node_resources import MAX_SCORE
from koord_numa.engine.ranking.columns.node_class import NodeClass, compares_numbers
from koord_numa.engine.ranking.columns.node_table import NodeTable
from koord_numa.engine.ranking.columns.numa_table import UNLIMITED, Ints
from koord_numa.engine.ranking.resource_bounds import ResourceBounds

NO: Final = -1
NEVER: Final = -(1 << 40)
"""Points that no other part of a score can make up for."""


@dataclass(frozen=True, slots=True)
class RequestAlignment:
    """
    What a request says about its alignment, before any node is looked at. ``pinned`` is the most milli-CPU that a kubelet would pin for one
    container, ``counts`` are the CPUs of each; ``amounts`` are those of the whole pod.
    """

    amounts: ResourceList
    pinned: int
    counts: tuple[int, ...]
    in_kubelet: bool  # does a kubelet align any of it?
    always: bool  # wherever NUMA nodes are ours to align on?
    default: bool  # where pods with whole CPUs get their own?
    one: bool  # on one NUMA node only, by its own policy?

    @classmethod
    def of(cls, ask: SchedulingRequest, rules: Profile) -> Self:
        """For one request under one set of rules."""
        demand = ask.demand
        pod = pod_demand(ask.request)
        parts = [part for _, part in pod.containers]
        default = rules.allocate.numa_policy is not NumaPolicy.NONE
        one = always = False
        if not isinstance(demand, Rejection):
            one = demand.numa is NumaPolicy.SINGLE_NUMA_NODE
            by_default = default and demand.use is not CpuUse.SHARED
            always = demand.numa is not NumaPolicy.NONE or by_default or demand.use is CpuUse.POOL_OF_ONE_NUMA
        return cls(
            amounts=ask.amounts,
            pinned=MILLI * max(pod.counts, default=0),
            counts=pod.counts,
            in_kubelet=any(part.cpus or part.memory or part.devices for part in parts),
            always=always,
            default=default,
            one=one,
        )

    def may_be_on(self, kind: NodeClass) -> bool:
        """May the pod be aligned on such a node?"""
        if kind.config is not None:
            return self.in_kubelet
        return kind.zones and (self.always or kind.policy is not NumaPolicy.NONE or (self.default and kind.pins))

    def needs_one_on(self, kind: NodeClass) -> bool:
        """Would it have to sit on one NUMA node there?"""
        return kind.wants_one or (self.one and kind.config is None and kind.zones)

    def splits_cores_of(self, kind: NodeClass) -> bool:
        """Would a container split a core that has to be kept whole?"""
        return any(count % kind.threads for count in self.counts)

    def wanted_on(self, kind: NodeClass) -> ResourceList:
        """What has to be found on NUMA nodes. A kubelet looks only for CPUs that it pins, of each container by itself."""
        return self.amounts if kind.config is None else {CPU: self.pinned}


@dataclass(frozen=True, slots=True)
class ClassJudgement:
    """
    What a request class makes of each kind of node, ``NEVER`` where that refuses it.

    ``objects`` is what the Node objects are worth, ``wanted[resource, kind]`` has to be found on NUMA nodes, and ``points[kind, fewest]``
    is what the number of those is worth that it takes at least.
    """

    objects: Ints
    points: Ints
    wanted: Ints
    version: int  # of the table's kinds
    reach: tuple[int, ...]  # how many resources and NUMA nodes there were


class ScoreBounds:
    """Bounds for one request under one set of rules."""

    def __init__(self, ask: SchedulingRequest, rules: Profile, columns: NodeTable) -> None:
        self._ask = ask
        self._rules = rules
        self._columns = columns
        demands = ask.request.constraints
        self._by_labels = bool(
            demands.node_name
            or demands.node_selector
            or demands.node_terms is not None
            or compares_numbers(ask.request)
        )
        self._weights = {row.name: weight_of(row, rules) for row in SCORERS}
        self._alignment = RequestAlignment.of(ask, rules)
        self._ledger = ResourceBounds(ask, rules, columns)
        self._judgement = self._judge()
        self._of_node: dict[int, tuple[Node, int]] = {}

    def bounds(self, rows: Ints) -> Ints:
        """An upper bound of the score of each of these rows, or ``NO``. The columns must be up to date."""
        columns, judged = self._columns, self._up_to_date()
        kinds, sums = columns.kinds.take(rows), self._ledger.sums(rows)
        fewest = columns.zones.fewest(rows, judged.wanted.take(kinds, axis=1))
        objects = self._row_by_row(rows) if self._by_labels else judged.objects.take(kinds)
        bound = objects + judged.points[kinds, fewest]
        bound += self._weights["resources"] * sums.filling
        bound += self._weights["devices"] * sums.sparing
        np.copyto(bound, NO, where=~sums.fits | (bound < 0))
        return bound

    def _up_to_date(self) -> ClassJudgement:
        columns, judged = self._columns, self._judgement
        if judged.version != columns.kinds_version or judged.reach != columns.zones.reach.shape[:2]:
            judged = self._judgement = self._judge()
        return judged

    def _judge(self) -> ClassJudgement:
        columns, alignment = self._columns, self._alignment
        kinds, reach = columns.known_kinds, columns.zones.reach.shape[:2]
        width = reach[1]
        wanted = [alignment.wanted_on(kind) for kind in kinds]
        return ClassJudgement(
            objects=np.array([self._of(kind.example) for kind in kinds], dtype=np.int64),
            points=np.array([self._points(kind, width + 2) for kind in kinds], dtype=np.int64),
            wanted=np.array(
                [[min(amounts.get(name, 0), UNLIMITED) for amounts in wanted] for name in columns.zones.places],
                dtype=np.int64,
            ),
            version=columns.kinds_version,
            reach=reach,
        )

    def _points(self, kind: NodeClass, counts: int) -> list[int]:
        """Methods that look at how full NUMA nodes are may give any score; the default counts NUMA nodes."""
        if kind.config is not None and refuse_promises(self._ask.request, kind.config) is not None:
            return [NEVER] * counts
        if self._alignment.splits_cores_of(kind):
            return [NEVER] * counts
        weight, one = self._weights["numa"], self._alignment.needs_one_on(kind)
        exclusivity = self._weights["exclusivity"] * MAX_SCORE if wants_exclusivity(self._ask) else 0
        points = []
        for fewest in range(counts):
            score = max(0, MAX_SCORE + NUMA_STEP - NUMA_STEP * fewest) if self._alignment.may_be_on(kind) else 0
            if self._rules.numa_method is not NodeScoring.FEWEST_NUMA_NODES:
                score = MAX_SCORE
            points.append(NEVER if one and fewest > 1 else weight * score + exclusivity)
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
        return 0 if fits_node_object(self._ask, node) is None else NEVER
