"""
Looks at many nodes at once: which of them may take a request, and at most how well. Never wrong in the other direction.

The scalar ``core.decide.evaluate`` is the specification. For every row the sweep gives a bound: ``NO`` only where
``evaluate`` refuses, else a score that ``evaluate`` cannot exceed. A property test keeps that true.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from koord_numa.core.allocation.demand import CpuUse
from koord_numa.core.amounts import CPU, MILLI
from koord_numa.core.decide import Ask, Rules, fits_objects, score_node_affinity, score_taints
from koord_numa.core.kubelet.aggregates import pod_demand
from koord_numa.core.node import Node
from koord_numa.core.score.composite import NUMA_STEP
from koord_numa.core.score.filling import MAX_SCORE
from koord_numa.core.verdicts import Rejection
from koord_numa.core.vocabulary import NodeScoring, NumaPolicy
from koord_numa.engine.bookkeeping import Bookkeeping
from koord_numa.engine.columns import Columns
from koord_numa.engine.zone_columns import GROUNDS, Bools, Ground, Ints

NO: Final = -1


@dataclass(frozen=True, slots=True)
class Alignment:
    """
    What a request says about its alignment, before any node is looked at: by ground, may it be aligned there, and must it then sit on
    one NUMA node? ``pinned`` is the most milli-CPU that a kubelet would pin for one container.
    """

    may: Bools
    single: Bools
    pinned: int

    @classmethod
    def of(cls, ask: Ask, rules: Rules) -> "Alignment":
        """For one request under one set of rules."""
        demand = ask.demand
        parts = [part for _, part in pod_demand(ask.request).containers]
        in_kubelet = any(part.cpus or part.memory or part.devices for part in parts)
        default = rules.allocate.numa_policy is not NumaPolicy.NONE
        named = always = False
        if not isinstance(demand, Rejection):
            named = demand.numa is NumaPolicy.SINGLE_NUMA_NODE
            by_default = default and demand.use is not CpuUse.SHARED
            always = demand.numa is not NumaPolicy.NONE or by_default or demand.use is CpuUse.POOL_OF_ONE_NUMA
        may, single = np.zeros(GROUNDS, dtype=np.bool_), np.zeros(GROUNDS, dtype=np.bool_)
        for number in range(GROUNDS):
            ground = Ground(number)
            if Ground.KUBELET in ground:
                may[number], single[number] = in_kubelet, Ground.SINGLE in ground
            elif Ground.ZONES in ground:
                may[number] = always or Ground.WANTS in ground or (default and Ground.PINS in ground)
                single[number] = named or Ground.SINGLE in ground
        return cls(may, single, MILLI * max((part.cpus for part in parts), default=0))


class Sweep:
    """Bounds for one request under one set of rules."""

    def __init__(self, ask: Ask, rules: Rules, columns: Columns) -> None:
        self._ask = ask
        self._rules = rules
        self._columns = columns
        demands = ask.request.constraints
        self._by_labels = bool(
            demands.node_name or demands.node_selector or demands.node_terms is not None or demands.preferred_nodes
        )
        self._alignment = Alignment.of(ask, rules)
        self._ledger = Bookkeeping(ask, rules, columns)
        self._of_mark: Ints = np.zeros(0, dtype=np.int64)
        self._of_node: dict[int, tuple[Node, int]] = {}

    def bounds(self, rows: Ints) -> Ints:
        """An upper bound of the score of each of these rows, or ``NO``. The columns must be up to date."""
        columns, parts = self._columns, self._rules.parts
        sums = self._ledger.sums(rows)
        ground = columns.zones.ground[rows]
        fewest = self._fewest(rows, ground)
        bound = self._objects(rows)
        possible = (bound > NO) & columns.usable[rows] & (columns.free_pods[rows] >= 1) & sums.fits
        possible &= ~self._alignment.single[ground] | (fewest <= 1)
        bound = bound + parts.resources * sums.filling + parts.devices * sums.sparing
        bound += parts.numa * self._numa(ground, fewest)
        return np.where(possible, bound, NO)

    def _numa(self, ground: Ints, fewest: Ints) -> Ints:
        """Methods that look at how full NUMA nodes are may give any score; the default counts NUMA nodes."""
        if self._rules.node_scoring is not NodeScoring.FEWEST_NUMA_NODES:
            return np.full(len(ground), MAX_SCORE, dtype=np.int64)
        aligned: Ints = np.maximum(0, MAX_SCORE + NUMA_STEP - NUMA_STEP * fewest)
        return np.where(self._alignment.may[ground], aligned, 0)

    def _fewest(self, rows: Ints, ground: Ints) -> Ints:
        """The fewest NUMA nodes that might do."""
        zones, pinned = self._columns.zones, self._alignment.pinned
        fewest = np.ones(len(rows), dtype=np.int64)
        for name, amount in self._ask.amounts.items():
            if amount > 0 and name in zones.free:
                fewest = np.maximum(fewest, zones.fewest(rows, name, amount))
        kubelet = (ground & Ground.KUBELET) > 0
        if pinned != self._ask.amounts.get(CPU, 0) and kubelet.any():  # else it is the same question
            for_kubelet = zones.fewest(rows, CPU, pinned) if pinned and CPU in zones.free else 1
            fewest = np.where(kubelet, for_kubelet, fewest)
        return fewest

    def _objects(self, rows: Ints) -> Ints:
        """What the Node objects alone say: ``NO``, or their part of the score."""
        columns = self._columns
        if self._by_labels:
            return np.fromiter((self._of_row(int(row)) for row in rows), dtype=np.int64, count=len(rows))
        examples = columns.mark_examples
        if len(self._of_mark) < len(examples):
            self._of_mark = np.array([self._of(node) for node in examples], dtype=np.int64)
        return self._of_mark[columns.marks[rows]] if len(examples) else np.full(len(rows), NO, dtype=np.int64)

    def _of_row(self, row: int) -> int:
        record = self._columns.records[row]
        if record is None or record.node is None:
            return NO
        known = self._of_node.get(row)
        if known is None or known[0] is not record.node:
            known = self._of_node[row] = (record.node, self._of(record.node))
        return known[1]

    def _of(self, node: Node) -> int:
        request, parts = self._ask.request, self._rules.parts
        if fits_objects(request, node) is not None:
            return NO
        return parts.node_affinity * score_node_affinity(request, node) + parts.taints * score_taints(request, node)
