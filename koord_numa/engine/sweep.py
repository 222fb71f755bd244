"""
Looks at many nodes at once: which of them may take a request, and at most how well. Never wrong in the other direction.

The scalar ``core.decide.evaluate`` is the specification. For every row the sweep gives a bound: ``NO`` only where
``evaluate`` refuses, else a score that ``evaluate`` cannot exceed. A property test keeps that true.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from koord_numa.core.allocation.demand import CpuUse
from koord_numa.core.amounts import CPU, MILLI, Amounts
from koord_numa.core.decide import NUMA_STEP, Ask, Rules, fits_objects, score_node_affinity, score_taints
from koord_numa.core.kubelet.aggregates import pod_demand
from koord_numa.core.node import Node
from koord_numa.core.score.filling import ALWAYS_SCORED, MAX_SCORE
from koord_numa.core.verdicts import Rejection
from koord_numa.core.vocabulary import NumaPolicy, ScoringType
from koord_numa.engine.columns import Columns
from koord_numa.engine.zone_columns import Bools, Ints

NO: Final = -1


@dataclass(frozen=True, slots=True)
class MayAlign:
    """
    Where a pod may be put on chosen NUMA nodes: wherever zones are published (``by_itself``), where every pod is pinned, where
    a kubelet aligns it. ``single``: only one NUMA node will do. ``pinned`` is the most milli-CPU that a kubelet would pin for one
    container.
    """

    by_itself: bool
    where_pinned: bool
    by_kubelet: bool
    single: bool
    pinned: int


def alignment_of(ask: Ask, rules: Rules) -> MayAlign:
    """What a request says about its alignment, before any node is looked at."""
    demand = ask.demand
    parts = [part for _, part in pod_demand(ask.request).containers]
    pinned = MILLI * max((part.cpus for part in parts), default=0)
    by_kubelet = any(part.cpus or part.memory or part.devices for part in parts)
    if isinstance(demand, Rejection):
        return MayAlign(by_itself=False, where_pinned=False, by_kubelet=by_kubelet, single=False, pinned=pinned)
    named, default = demand.numa is not NumaPolicy.NONE, rules.allocate.numa_policy is not NumaPolicy.NONE
    return MayAlign(
        by_itself=named or (default and demand.use is not CpuUse.SHARED) or demand.use is CpuUse.POOL_OF_ONE_NUMA,
        where_pinned=default,
        by_kubelet=by_kubelet,
        single=demand.numa is NumaPolicy.SINGLE_NUMA_NODE,
        pinned=pinned,
    )


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
        self._alignment = alignment_of(ask, rules)
        self._of_mark: Ints = np.zeros(0, dtype=np.int64)
        self._of_node: dict[int, tuple[Node, int]] = {}

    def bounds(self, rows: Ints) -> Ints:
        """An upper bound of the score of each of these rows, or ``NO``. The columns must be up to date."""
        columns, amounts = self._columns, self._ask.amounts
        bound = self._objects(rows)
        possible = (bound > NO) & columns.usable[rows] & (columns.free_pods[rows] >= 1)
        for name, amount in amounts.items():
            if amount > 0:
                free = columns.column(columns.offered, name)[rows] - columns.column(columns.held, name)[rows]
                possible &= free >= amount
        bound = bound + self._rules.parts.resources * self._filling(rows, amounts)
        fewest, aligned = self._numa_nodes(rows, amounts)
        possible &= ~self._must_be_single(rows) | (fewest <= 1)
        score = np.maximum(0, MAX_SCORE - NUMA_STEP * (fewest - 1))
        bound += self._rules.parts.numa * np.where(aligned, score, 0)
        return np.where(possible, bound, NO)

    def _numa_nodes(self, rows: Ints, amounts: Amounts) -> tuple[Ints, Bools]:
        """The fewest NUMA nodes that might do, where the pod might be aligned at all."""
        zones, may = self._columns.zones, self._alignment
        ours = zones.wants[rows] | may.by_itself | (zones.pins[rows] & may.where_pinned)
        aligned = (zones.published[rows] & ours) | (zones.kubelet[rows] & may.by_kubelet)
        fewest = np.ones(len(rows), dtype=np.int64)
        for name, amount in amounts.items():
            if amount > 0 and name in zones.free:
                fewest = np.maximum(fewest, zones.fewest(rows, name, amount))
        if may.pinned and CPU in zones.free:
            fewest = np.where(zones.kubelet[rows], zones.fewest(rows, CPU, may.pinned), fewest)
        else:
            fewest = np.where(zones.kubelet[rows], 1, fewest)
        return fewest, aligned

    def _must_be_single(self, rows: Ints) -> Bools:
        zones = self._columns.zones
        ours = zones.published[rows] & (zones.single[rows] | self._alignment.single)
        return ours | (zones.kubelet[rows] & zones.single[rows])

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

    def _filling(self, rows: Ints, wanted: Amounts) -> Ints:
        """As ``score_filling`` of whole nodes, for every row."""
        strategy, columns = self._rules.scoring, self._columns
        total, share = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        fractions = []
        for name, weight in self._rules.weights.items():
            if name not in ALWAYS_SCORED and wanted.get(name, 0) <= 0:
                continue
            offered = columns.column(columns.offered, name)[rows]
            used = columns.column(columns.held, name)[rows] + wanted.get(name, 0)
            there, divisor = offered > 0, np.maximum(offered, 1)
            if strategy is ScoringType.MOST_ALLOCATED:
                term = np.minimum(used, offered) * MAX_SCORE // divisor
            else:
                term = np.maximum(0, offered - used) * MAX_SCORE // divisor
            fractions.append(np.where(there, np.minimum(1.0, used / divisor), np.nan))
            total += np.where(there, weight * term, 0)
            share += np.where(there, weight, 0)
        if strategy is ScoringType.BALANCED_ALLOCATION:
            return _balance(np.array(fractions))
        if strategy is ScoringType.LEAST_NUMA_NODES:
            return np.zeros(len(rows), dtype=np.int64)
        return total // np.maximum(share, 1)


def _balance(fractions: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Ints:
    """One more than the truncated balanced score: the order of additions may differ in the last digit."""
    count = (~np.isnan(fractions)).sum(axis=0)
    filled = np.nan_to_num(fractions)
    mean = filled.sum(axis=0) / np.maximum(count, 1)
    spread = np.where(np.isnan(fractions), 0.0, (fractions - mean) ** 2).sum(axis=0) / np.maximum(count, 1)
    score = ((1 - np.sqrt(spread)) * MAX_SCORE).astype(np.int64) + 1
    return np.where(count == 0, 0, np.minimum(MAX_SCORE, score))
