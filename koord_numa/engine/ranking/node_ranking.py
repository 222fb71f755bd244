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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from koord_numa.core.claims.budget import SELECTOR_LIMITS, TurnOverError
from koord_numa.core.fit.node_filters import soft_taints
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection, Unschedulable
from koord_numa.core.scheduling.evaluate import ScoredPlacement, evaluate_alone, score_parts
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.scheduling.scorers import PREFERENCES, Preference, spreads_by_default, weight_of
from koord_numa.core.score.node_scores import MISSING, as_given
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.engine.ranking.cluster_filters import ClusterFilters
from koord_numa.engine.ranking.node_numbers import SPACE, Bools, Ints, distinct
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.score_bounds import NO, ScoreBounds

Raw = tuple[Preference, int, Ints]
"""A preference, its weight, and its raw score by row."""

_ROWS: Final[Mapping[str, Preference]] = {row.name: row for row in PREFERENCES}


class PreferenceRows:
    """The preferences that can tell nodes apart for one request. ``cluster`` is ``None`` for a request that no other pod matters to."""

    def __init__(
        self, ask: SchedulingRequest, profile: Profile, columns: NodeTable, cluster: ClusterFilters | None
    ) -> None:
        self._request = ask.request
        self._by_default = spreads_by_default(ask.request)
        self._columns = columns
        self._cluster = cluster
        self._is_plain = cluster is None and not ask.request.constraints.preferred_nodes
        self._weights = {name: weight_of(row, profile) for name, row in _ROWS.items()}
        self._taints: tuple[int, Ints | None] = (-1, None)  # by kind of node; how many kinds there were
        self._affinity: tuple[tuple[int, int], Ints] | None = None  # by row; the version of the labels

    def raws(self, images: tuple[str, ...] = ()) -> list[Raw]:
        """Every preference with a weight that is not the same for all nodes without further look, for a pod with these images."""
        # A preference that cannot tell nodes apart is left out: it would add the same to all.
        taints, located = self._soft_taints(), self._columns.images.points(images)
        if self._is_plain and taints is None and located is None:
            return []  # as of most pods
        found = {"taints": taints, "node_affinity": self._node_affinity(), "images": located}
        if self._cluster is not None:
            found["pod_affinity"] = self._cluster.affinity.raw_scores()
            found["default_spread" if self._by_default else "spread"] = self._spread(self._cluster)
        return [
            (_ROWS[name], weight, raw)
            for name, raw in found.items()
            if raw is not None and (weight := self._weights[name])
        ]

    def _soft_taints(self) -> Ints | None:
        columns = self._columns
        known, by_kind = self._taints
        if known != columns.kinds_version:
            counts = [soft_taints(self._request, kind.example) for kind in columns.known_kinds]
            # ``None`` where no class has a soft taint that the pod does not tolerate, which is nearly always.
            by_kind = np.array(counts, dtype=np.int64) if any(counts) else None
            self._taints = (columns.kinds_version, by_kind)
        # int64[kinds] spread to int64[table rows].
        return None if by_kind is None else by_kind[columns.kinds]

    def _node_affinity(self) -> Ints | None:
        preferred = self._request.constraints.preferred_nodes
        if not preferred:
            return None
        labels = self._columns.labels
        if self._affinity is None or self._affinity[0] != labels.version:
            raw: Ints = np.zeros(labels.rows, dtype=np.int64)
            for each in preferred:
                # bool[table rows] times the weight: rows that match several terms add them up.
                raw += each.weight * labels.matching((each.term,))
            self._affinity = (labels.version, raw)
        return self._affinity[1]

    def _spread(self, cluster: ClusterFilters) -> Ints | None:
        crowd = cluster.spread.raw_scores()
        if crowd is None:
            return None
        raw, missing = crowd
        raw[missing] = MISSING
        return raw


DETAILED: Final = 64
"""Of so many nodes the numbers are kept too; the others' refusals keep only the sentence that is counted."""

SPARE: Final = 256
"""Sentences that no node says any more and that are not worth a sweep."""

UNKNOWN: Final = -1


Bars = Callable[[str], Rejection | None]
"""Why this class may not go to a node, apart from what the node itself says. When an answer changes, the row must count as changed."""


def no_bars(_node: str) -> Rejection | None:
    """Every node may be asked."""
    return None


@dataclass(slots=True)
class RejectionTable:
    """What was last heard of each row. Bounded: details of a few rows, one shared object for the rest."""

    # int64[table rows]: the index into ``_words`` of what each row said last.
    _codes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _words: list[Rejection] = field(default_factory=list)
    _code_of: dict[tuple[Reason, str, bool], int] = field(default_factory=dict)
    _detailed: dict[int, Rejection] = field(default_factory=dict)  # what is forgotten has the code ``UNKNOWN``
    _forgot: bool = False  # may some of it be forgotten?
    _most_words: int = SPARE

    def resize(self, rows: int) -> None:
        """Make room for rows that have said nothing yet."""
        grown = np.full(rows, UNKNOWN, dtype=np.int64)
        grown[: len(self._codes)] = self._codes
        self._codes = grown

    def add(self, row: int, rejection: Rejection) -> None:
        """Remember a refusal."""
        words = (rejection.reason, rejection.message, rejection.resolvable)
        code = self._code_of.get(words)
        if code is None:
            # Swept when the number has doubled since the last sweep, so that sweeps cost a constant share of what is added.
            if len(self._words) >= self._most_words:
                self._drop_unused()
            code = self._code_of[words] = len(self._words)
            # Without details: one object serves all rows that say the same.
            self._words.append(Rejection(rejection.reason, rejection.message, resolvable=rejection.resolvable))
        if self._forgot and len(self._detailed) >= DETAILED:
            self._detailed = {row: kept for row, kept in self._detailed.items() if self._codes[row] != UNKNOWN}
            self._forgot = False
        self._detailed.pop(row, None)
        if len(self._detailed) < DETAILED:
            self._detailed[row] = rejection
        self._codes[row] = code

    def get(self, row: int) -> Rejection | None:
        """The refusal of a row, ``None`` when none is known."""
        code = int(self._codes[row])
        return None if code == UNKNOWN else self._detailed.get(row) or self._words[code]

    def unknown(self, rows: int) -> Bools:
        """Of which of the first rows is no refusal known?"""
        unknown: Bools = self._codes[:rows] == UNKNOWN
        return unknown

    def forget(self, rows: Ints | int) -> None:
        """These nodes changed: their refusals hold no longer."""
        if not self._words:
            return  # no row has been refused yet
        self._codes[rows] = UNKNOWN
        self._forgot = True

    def clear(self) -> None:
        """Forget everything."""
        self._codes[:] = UNKNOWN
        self._detailed.clear()

    def _drop_unused(self) -> None:
        """Sentences may quote taints and labels, which change for ever: those that no row says now are forgotten."""
        used = distinct(self._codes[self._codes != UNKNOWN])
        renumbered = np.full(len(self._words) + 1, UNKNOWN, dtype=np.int64)  # the last place is that of UNKNOWN itself
        renumbered[used] = np.arange(len(used))
        # An array of indices as a translation table; -1 picks its last entry, which is UNKNOWN.
        self._codes = renumbered[self._codes]
        self._words = [self._words[code] for code in used.tolist()]
        self._code_of = {(each.reason, each.message, each.resolvable): code for code, each in enumerate(self._words)}
        self._most_words = 2 * len(self._words) + SPARE


COMPARED: Final = 32
"""Of nodes whose score falls when devices for resource claims are chosen, so many are compared."""


@dataclass(slots=True)
class Settled:
    """The best complete placement so far, by its key; ``count`` of them were compared."""

    charge: Callable[[int], None]  # told what was spent, in nodes asked; may end this part of the decision
    key: int = NO
    placement: Placement | None = None
    count: int = 0

    def note(self, key: int, placement: Placement) -> None:
        """Keep the placement if it is better; of equal keys, which nodes never have, the first."""
        self.count += 1
        if self.placement is None or key > self.key:
            # Never below ``NO``, which ends the search: a complete placement counts however little it is worth.
            self.key, self.placement = max(key, NO), placement


class LateRules:
    """The rules that are asked of the best rows only. ``refusals`` are those of the last decision, by node."""

    def __init__(self, ask: SchedulingRequest, rules: Profile, cluster: ClusterFilters) -> None:
        self._ask = ask
        self._rules = rules
        self._cluster = cluster
        self.refusals: dict[str, Rejection] = {}

    def refuse_early(self, seen: NodeSnapshot | None) -> tuple[bool, bool]:
        """Does a node refuse the pod whatever else it says, and has that been found out just now?"""
        refusal, is_new = (None, False) if seen is None else self._cluster.refuse_early(seen)
        if refusal is None or seen is None:
            return False, False
        # Remembered by node, so that ``explain`` can tell of rows that were never placed.
        self.refusals[seen.node.name] = refusal
        return True, is_new

    def settle(self, seen: NodeSnapshot, placement: Placement, key: int, best: Settled) -> bool:
        """Complete the placement and note it where it is the best so far; returns whether the search can end."""
        # Devices may move the pod to other NUMA nodes, so that its points are counted again.
        settled = self._cluster.settle(seen, placement)
        if isinstance(settled, Rejection):
            self.refusals[seen.node.name] = settled
            best.charge(self._cluster.spent())
            return False
        if settled is not placement:
            # Keys are points times ``SPACE`` plus the rank of the name, which stays.
            key -= SPACE * (self._points(seen, placement) - self._points(seen, settled))
        best.note(key, settled)
        # So many complete placements were compared: the best of them is taken.
        return best.count == COMPARED

    def _points(self, seen: NodeSnapshot, placement: Placement) -> int:
        return sum(score_parts(self._ask, seen, placement, self._rules).values())


class Undecided(Enum):
    """A decision that has to go on later."""

    UNDECIDED = "undecided"


class LimitReached(Exception):
    """So many nodes were asked that others have their turn."""


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
        self._left, counts = limit * (1 + self._turns // MAX_TURNS), self._columns.pods
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
        # Within the limit of the turn, if there is one.
        if len(changed) <= (FEW if self._left is None else min(FEW, self._left)):
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
