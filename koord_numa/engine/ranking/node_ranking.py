"""
Which node is best for one request class, remembered from decision to decision: only what changed is looked at again.

Theory. Every row of the node table has a key, ``score * SPACE + rank``, where the rank is larger the earlier the name comes: one maximum
answers "best score, then first name". A key is first an upper bound, taken from ``ScoreBounds``; it becomes exact when the row is
evaluated, or ``NO``. When the largest key is exact, no other row can be better. Finding it among 50,000 keys takes some microseconds.

Preferences compare the nodes that fit, so what they add depends on the lowest and the highest raw score among those. Whether a row fits is
only sure when it has been evaluated; therefore a row that fits is found at each extreme first (its *witness*), and only then are the raw
scores normalized and added to the keys. Filters that depend on pods elsewhere take rows out before that.

Example. Keys (scores) 90?, 80!, 70? where ``!`` is exact; matching pods around them 0, 2, 4 under preferred anti-affinity. Row 0 and row
2 are the extremes and are evaluated; row 0 turns out not to fit, so the extremes are 2 and 4: rows 1 and 2 earn 100 and 0 points, and row
1 wins.

Array shapes: every array has one element per row of the table (its capacity), if it is not said to be about some rows only.
"""

from typing import Final

import numpy as np

from koord_numa.core.claims.budget import SELECTOR_LIMITS, TurnOverError
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection, Unschedulable
from koord_numa.core.scheduling.evaluate import ScoredPlacement, evaluate_alone
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.score.node_scores import MISSING, as_given
from koord_numa.engine.ranking.cluster_filters import ClusterFilters
from koord_numa.engine.ranking.columns.name_order import SPACE
from koord_numa.engine.ranking.columns.node_numbers import Bools, Ints
from koord_numa.engine.ranking.columns.node_table import NodeTable
from koord_numa.engine.ranking.preference_rows import PreferenceRows
from koord_numa.engine.ranking.rejections import Bars, RejectionTable, no_bars
from koord_numa.engine.ranking.score_bounds import NO, ScoreBounds
from koord_numa.engine.ranking.settled import LateRules, Settled
from koord_numa.engine.ranking.undecided import LimitReached, Undecided

STEP: Final = np.array(SPACE)  # a 0-d array: NumPy converts a Python integer at every operation
FEW: Final = 2
"""So many changed rows are evaluated at once; for more, a sweep finds out first which of them matter."""


TURN_STEPS: Final = 4_000
"""Comparisons of affinity terms with kinds of placed pods in one turn of a decision, about 10 ms. Other decisions go on between turns."""
MAX_TURNS: Final = 1_000
"""Turns after which a decision ends in one turn more."""


class NodeRanking:
    """The nodes as one request class sees them."""

    def __init__(
        self,
        ask: SchedulingRequest,
        rules: Profile,
        columns: NodeTable,
        bars: Bars = no_bars,
        cluster: ClusterFilters | None = None,
    ) -> None:
        self._ask = ask
        self._cluster = cluster
        self._preferences = PreferenceRows(ask, rules, columns, cluster)
        self._rules = rules
        self._columns = columns
        self._bars = bars
        self._sweep = ScoreBounds(ask, rules, columns)
        self._position: int | None = None
        self._epoch = -1
        self._keys: Ints = np.zeros(0, dtype=np.int64)
        self._exact: Bools = np.zeros(0, dtype=np.bool_)  # rows in ``_fits``
        self._fits: dict[int, Placement] = {}  # rows whose key is exact
        self._refusals = RejectionTable()
        self._told: dict[str, Rejection] = {}
        self._told_rows: dict[int, str] = {}  # whose refusal was told of a row
        self._told_at: int | None = None  # the position of the journal then
        self._untold: set[int] = set()
        self._left: int | None = None  # nodes that this decision may still ask, if that is limited
        self._turns = 0  # of this decision
        self._reported = False  # has an exception been reported?
        self._late = None if cluster is None else LateRules(ask, rules, cluster)

    def choose_some(self, limit: int, images: tuple[str, ...] = ()) -> Placement | Undecided | None:
        """
        As ``choose``, asking at most so many nodes one by one; ``UNDECIDED`` when more have to be asked.

        What was found out is kept, so that the next call goes on from there in the state of its moment.
        """
        self._left, counts = limit, self._columns.pods
        # Counts that others drop before this decision is over would be begun for ever.
        counts.steps = TURN_STEPS if self._turns < MAX_TURNS else None
        self._turns += 1
        try:
            answer = self.choose(images)
        except (LimitReached, TurnOverError):
            return Undecided.UNDECIDED
        else:
            self._turns = 0
            return answer
        finally:
            self._left = counts.steps = None
            if self._cluster is not None:
                self._cluster.begin_turn(None)

    def choose(self, images: tuple[str, ...] = (), only: Bools | None = None) -> Placement | None:
        """
        The placement on the best node now, for a pod of the class with these images; ``None`` where none takes it (see ``explain``).

        ``only`` is a mask of the rows that may be chosen: bool[rows of the table].
        """
        self._catch_up()
        if self._cluster is not None:
            self._cluster.begin_turn(None if self._left is None else SELECTOR_LIMITS.turn)
        blocked = None if self._cluster is None else self._cluster.blocked()
        raws = self._preferences.raws(images)
        if self._late is not None:
            self._late.refusals.clear()
        if self._cluster is None and not raws and only is None:  # keys need no copy: nothing is added to them
            return self._best_alone()
        keys = self._keys.copy()
        if only is not None:
            keys[~only] = NO
        if blocked is not None:
            keys[blocked] = NO
        for preference, _, raw in raws:
            if preference.normalize is not as_given:
                self._find_witnesses(keys, raw)
        rows = np.flatnonzero(keys >= 0)  # int64[rows that may fit]: extremes are taken over these alone
        for preference, weight, raw in raws:
            keys[rows] += (weight * preference.normalize(raw[rows])) * STEP
        return self._best(keys)

    def leaders(self, count: int) -> list[str]:
        """Names of the nodes with the largest keys of the last ``choose``, in no particular order; a key may be a bound still."""
        rows = np.flatnonzero(self._keys >= 0)
        if len(rows) > count:
            rows = rows[np.argpartition(self._keys[rows], len(rows) - count)[-count:]]
        return self._columns.named(rows.tolist())

    def _best_alone(self) -> Placement | None:
        """As ``_best``, where what is known of a row is all that there is to say about it."""
        keys = self._keys[: len(self._columns)]
        while keys[row := int(keys.argmax())] >= 0:
            # A bound that was exact, as it is most often: the row's key is the largest still.
            if row in self._fits or self._evaluate_within_limit(row, None):
                return self._fits[row]
        return None

    def _best(self, keys: Ints) -> Placement | None:
        """The placement at the largest of the keys, which are changed where rows have to be evaluated first."""
        settled = Settled(self._count_asked)
        keys = keys[: len(self._columns)]  # rows beyond are room to grow
        row = int(keys.argmax())
        while keys[row] > settled.key:
            if (known := self._fits.get(row)) is not None:
                if self._late is None:
                    return known
                seen = self._columns.candidate(row)
                if seen is not None and self._late.settle(seen, known, int(keys[row]), settled):
                    break
                keys[row] = NO
            elif self._refuses_early(row):
                keys[row] = NO
            elif self._evaluate_within_limit(row, keys):
                continue  # the bound was exact, as it is most often: the row's key is the largest still
            row = int(keys.argmax())
        return settled.placement

    def _refuses_early(self, row: int) -> bool:
        late = self._late
        refused, is_new = (False, False) if late is None else late.refuse_early(self._columns.candidate(row))
        self._count_asked(int(is_new))
        return refused

    def _find_witnesses(self, keys: Ints, raw: Ints) -> None:
        """Evaluate rows until one that fits is known at the lowest and at the highest raw score. Rows that do not fit lose their key."""
        while True:
            rows = np.flatnonzero((keys >= 0) & (raw != MISSING))
            if not len(rows):
                return
            values = raw[rows]
            lowest, highest = values.min(), values.max()
            exact = self._exact[rows]
            unsure = [
                int(rows[int((values == extreme).argmax())])
                for extreme in {int(lowest), int(highest)}
                if lowest != highest and not (exact & (values == extreme)).any()
            ]
            if not unsure:
                return
            for row in unsure:
                self._evaluate_within_limit(row, keys)

    def explain(self) -> Unschedulable:
        """Every node's refusal in the state of the last ``choose``, which found none."""
        told = self._explain()
        if self._cluster is None or self._late is None:
            return Unschedulable(told)
        for refused, rejection in self._cluster.refusals():
            for name in self._columns.named(np.flatnonzero(refused[: len(self._columns)]).tolist()):
                told.setdefault(name, rejection)
        return Unschedulable(self._late.refusals | told)

    def _catch_up(self) -> None:
        columns, journal = self._columns, self._columns.journal
        columns.refresh()
        changed = None if self._position is None else journal.changes_since(self._position)
        self._position = journal.position
        if changed is None or self._epoch != columns.order.epoch:
            self._start_over()
            return
        if len(columns.kinds) > len(self._keys):
            self._fit_size()
        if len(changed) <= FEW:
            for row in sorted(set(changed.tolist())):
                self._fits.pop(row, None)
                self._exact[row] = False
                self._refusals.forget(row)
                self._evaluate(row)
            return
        self._refusals.forget(changed)
        for row in changed[self._exact[changed]].tolist():
            self._fits.pop(row, None)
        self._exact[changed] = False
        self._bound(changed)

    def _start_over(self) -> None:
        self._epoch = self._columns.order.epoch
        self._keys = np.full(0, NO, dtype=np.int64)
        self._exact = np.zeros(0, dtype=np.bool_)
        self._fits.clear()
        self._fit_size()
        self._refusals.clear()
        self._untold.clear()
        self._told_at = None
        self._bound(np.arange(len(self._columns), dtype=np.int64))

    def _fit_size(self) -> None:
        """As much room as the columns have."""
        missing = len(self._columns.kinds) - len(self._keys)
        self._keys = np.concatenate([self._keys, np.full(missing, NO, dtype=np.int64)])
        self._exact = np.concatenate([self._exact, np.zeros(missing, dtype=np.bool_)])
        self._refusals.resize(len(self._keys))

    def _bound(self, rows: Ints) -> None:
        # Below zero where the bound is, as a rank is less than ``STEP``.
        self._keys[rows] = self._sweep.bounds(rows) * STEP + self._columns.ranks[rows]

    def explain_some(self, limit: int) -> bool:
        """Find out the refusals of at most so many nodes of which none is known; returns whether all are known then."""
        if self._position is None:
            self._catch_up()
        count = min(len(self._columns), len(self._keys))
        unknown = np.flatnonzero(~self._exact[:count] & self._refusals.unknown(count))
        asked = 0
        for row in unknown.tolist():
            record = self._columns.records[row]
            if record is None or record.node is None:
                continue
            if asked == limit:
                return False
            self._evaluate(row)
            asked += 1
        return True

    def _evaluate_within_limit(self, row: int, added: Ints | None) -> bool:
        """Evaluate a row: in keys with preferences ``added`` its score replaces its bound. Was the bound exact?"""
        if self._left is not None:
            self._count_asked()
        bound = self._keys[row]
        self._evaluate(row)
        if added is not None:
            added[row] = NO if self._keys[row] < 0 else added[row] - bound + self._keys[row]
        return bool(self._keys[row] == bound)

    def _count_asked(self, nodes: int = 1) -> None:
        if self._left is not None and nodes:
            if self._left <= 0:
                raise LimitReached
            self._left -= nodes

    def _evaluate(self, row: int) -> None:
        """Replace a row's bound by the truth. An exception about this node and this pod is a refusal, told once a class."""
        try:
            seen = self._columns.candidate(row)
            answer = (
                None if seen is None else self._bars(seen.node.name) or evaluate_alone(self._ask, seen, self._rules)
            )
        except Exception as error:  # noqa: BLE001 - contained: the other nodes may take the pod
            answer = Rejection(Reason.BAD_NODE, "node(s) could not be judged", f"{error!r}"[:200], resolvable=False)
            if not self._reported:
                self._reported = True
                self._columns.report(row, error)
        if answer is None:
            self._keys[row] = NO
        elif isinstance(answer, ScoredPlacement):
            self._fits[row] = answer.placement
            self._exact[row] = True
            self._keys[row] = answer.score * SPACE + int(self._columns.ranks[row])
        else:
            self._refusals.add(row, answer)
            self._keys[row] = NO

    def _explain(self) -> dict[str, Rejection]:
        """Every node's refusal; only nodes that changed since the last time are asked."""
        changed = None if self._told_at is None else self._columns.rows_since(self._told_at)
        rows = range(len(self._columns)) if changed is None else sorted({*changed, *self._untold})
        self._untold.clear()
        self._told_at = self._columns.position
        for row in rows:
            if (former := self._told_rows.pop(row, None)) is not None:
                del self._told[former]
        for row in rows:
            record = self._columns.records[row]
            if record is None or record.node is None:
                continue
            if self._keys[row] >= 0:
                self._untold.add(row)  # it is refused for what is on other nodes, which is not remembered
                continue
            if self._refusals.get(row) is None:
                self._evaluate(row)
            if (refusal := self._refusals.get(row)) is not None:
                self._told_rows[row] = record.name
                self._told[record.name] = refusal
        return dict(self._told)
