"""
Which node is best for one request class, remembered from decision to decision: only what changed is looked at again.

Theory: every row has a key, ``score * SPACE + (SPACE - number of the name)``, so that one maximum answers "best score, then
first name". A key is a bound, taken from a sweep, until it is the largest; then the node is evaluated and its key becomes exact,
or negative, which means no. When the largest key is exact, no other node can be better. Finding it among 50,000 keys takes some
microseconds.

The best node for a pod that cares for other pods or for volumes: everything is looked at anew, but few nodes are asked everything.

A sweep bounds what each node can be worth by itself; what other pods add is exact and cheap. Nodes are then asked from the
highest bound down, until none of the rest can be better.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from koord_numa.core.decide import (
    Profile,
    SchedulingRequest,
    ScoredPlacement,
    evaluate,
    fits_around,
    refuse_everywhere,
    score_around,
)
from koord_numa.core.verdicts import Placement, Rejection, Unschedulable
from koord_numa.engine.ranking.name_order import SPACE
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.numa_table import Ints
from koord_numa.engine.ranking.rejections import RejectionTable
from koord_numa.engine.ranking.score_bounds import NO, ScoreBounds

STEP: Final = np.array(SPACE)
FEW: Final = 2
"""So many changed rows are evaluated at once; for more, a sweep finds out first which of them matter."""


Bars = Callable[[str], Rejection | None]
"""Why this class may not go to a node, apart from what the node itself says. When an answer changes, the row must count as changed."""


def no_bars(_node: str) -> Rejection | None:
    """Every node may be asked."""
    return None


class NodeRanking:
    """The nodes as one request class sees them."""

    def __init__(self, ask: SchedulingRequest, rules: Profile, columns: NodeTable, bars: Bars = no_bars) -> None:
        self._ask = ask
        self._rules = rules
        self._columns = columns
        self._bars = bars
        self._sweep = ScoreBounds(ask, rules, columns)
        self._position: int | None = None
        self._epoch = -1
        self._keys: Ints = np.zeros(0, dtype=np.int64)
        self._fits: dict[int, Placement] = {}  # rows whose key is exact
        self._refusals = RejectionTable()
        self._told: dict[str, Rejection] = {}
        self._told_rows: dict[int, str] = {}  # whose refusal was told of a row
        self._told_at: int | None = None  # the position of the journal then

    def choose(self) -> Placement | Unschedulable:
        """The placement on the best node as things are now, or why there is none."""
        self._catch_up()
        while self._keys[row := int(self._keys.argmax())] >= 0:
            known = self._fits.get(row)
            if known is not None:
                return known
            self._evaluate(row)
        return Unschedulable(self._explain())

    def _catch_up(self) -> None:
        columns = self._columns
        columns.refresh()
        rows = None if self._position is None else columns.rows_since(self._position)
        self._position = columns.position
        if rows is None or self._epoch != columns.order.epoch:
            self._start_over()
            return
        if not rows:
            return
        self._fit_size()
        changed = np.array(rows, dtype=np.int64)
        self._refusals.forget(changed)
        for row in self._fits.keys() & rows:
            del self._fits[row]
        if len(rows) <= FEW:
            for row in rows:
                self._evaluate(row)
        else:
            self._bound(changed)

    def _start_over(self) -> None:
        self._epoch = self._columns.order.epoch
        self._keys = np.full(0, NO, dtype=np.int64)
        self._fits.clear()
        self._fit_size()
        self._refusals.clear()
        self._told_at = None
        self._bound(np.arange(len(self._columns), dtype=np.int64))

    def _fit_size(self) -> None:
        """As much room as the columns have."""
        missing = len(self._columns.kinds) - len(self._keys)
        if missing > 0:
            self._keys = np.concatenate([self._keys, np.full(missing, NO, dtype=np.int64)])
            self._refusals.resize(len(self._keys))

    def _bound(self, rows: Ints) -> None:
        self._keys[rows] = self._sweep.bounds(rows) * STEP + self._columns.ranks.take(
            rows
        )  # negative where bounded by NO

    def _evaluate(self, row: int) -> None:
        """Replace a row's bound by the truth."""
        candidate = self._columns.candidate(row)
        if candidate is None:
            self._keys[row] = NO
            return
        answer = self._bars(candidate.node.name) or evaluate(self._ask, candidate, self._rules)
        if isinstance(answer, ScoredPlacement):
            self._fits[row] = answer.placement
            self._keys[row] = answer.score * SPACE + int(self._columns.ranks[row])
        else:
            self._refusals.add(row, answer)
            self._keys[row] = NO

    def _explain(self) -> dict[str, Rejection]:
        """Every node's refusal; only nodes that changed since the last time are asked."""
        changed = None if self._told_at is None else self._columns.rows_since(self._told_at)
        rows = range(len(self._columns)) if changed is None else changed
        self._told_at = self._columns.position
        for row in rows:
            former = self._told_rows.pop(row, None)
            if former is not None:
                del self._told[former]
        for row in rows:
            record = self._columns.records[row]
            if record is None or record.node is None:
                continue
            if self._refusals.get(row) is None:
                self._evaluate(row)
            refusal = self._refusals.get(row)
            if refusal is not None:
                self._told_rows[row] = record.name
                self._told[record.name] = refusal
        return dict(self._told)


def best_around(ask: SchedulingRequest, rules: Profile, columns: NodeTable, bars: Bars) -> Placement | None:
    """What ``core.decide.decide`` would choose among all nodes that nothing bars; ``None`` when it would choose none."""
    if refuse_everywhere(ask) is not None:
        return None
    best: tuple[int, str] | None = None
    chosen: Placement | None = None
    for bound, name, row in _promising(ask, rules, columns):
        if best is not None and best <= (bound, name):
            break
        candidate = columns.candidate(row)
        if candidate is None or bars(name) is not None:
            continue
        answer = evaluate(ask, candidate, rules)
        if isinstance(answer, ScoredPlacement) and (best is None or (-answer.score, name) < best):
            best, chosen = (-answer.score, name), answer.placement
    return chosen


def _promising(ask: SchedulingRequest, rules: Profile, columns: NodeTable) -> list[tuple[int, str, int]]:
    """Rows that may take the pod, by the most they can be worth and then by name: negated bound, name, row."""
    columns.refresh()
    bounds = ScoreBounds(ask, rules, columns).bounds(np.arange(len(columns), dtype=np.int64))
    found: list[tuple[int, str, int]] = []
    for row in np.flatnonzero(bounds > NO).tolist():
        record = columns.records[row]
        if record is not None and record.node is not None and fits_around(ask, record.node) is None:
            found.append((-int(bounds[row]) - score_around(ask, record.node, rules), record.name, row))
    return sorted(found)
