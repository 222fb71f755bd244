"""
Ranking of the nodes for one request class. Kept between decisions; only changed nodes are evaluated again.

Every row of the node table has a key ``score * SPACE + rank``, where the rank is larger for earlier names. The maximum is the best score
with the first name. A key starts as an upper bound from ``ScoreBounds`` and becomes exact, or ``NO``, when the row is evaluated. When the
largest key is exact, no other row is better.

Arrays have one element per row of the table (its capacity), unless stated otherwise.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.claims import SELECTOR_LIMITS, TurnOverError
from koord_numa.core.explain import DROPPED, Group, distance, group_of
from koord_numa.core.fit.node_filters import soft_taints
from koord_numa.core.kubelet import STEP_COUNT, KubeletView
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection, Unschedulable
from koord_numa.core.scheduling.filters import ScoredPlacement, evaluate_alone, score_parts
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.scheduling.scorers import PREFERENCES, Preference, spreads_by_default, weight_of
from koord_numa.core.score.node_scores import MISSING, as_given
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.value_objects import MutableObject, value_field
from koord_numa.engine.ranking.cluster_filters import ClusterFilters
from koord_numa.engine.ranking.node_numbers import SPACE, Bools, Ints, distinct
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.score_bounds import NO, ScoreBounds

Raw = tuple[Preference, int, Ints]
"""A preference, its weight, and its raw score by row."""

_ROWS: Final[Mapping[str, Preference]] = {row.name: row for row in PREFERENCES}


class PreferenceRows:
    """Preferences that can distinguish nodes for one request. ``cluster`` is ``None`` if the request does not depend on other pods."""

    def __init__(
        self, ask: SchedulingRequest, profile: Profile, columns: NodeTable, cluster: ClusterFilters | None
    ) -> None:
        self._request = ask.request
        self._by_default = spreads_by_default(ask.request)
        self._columns = columns
        self._cluster = cluster
        self._is_plain = cluster is None and not ask.request.constraints.preferred_nodes
        self._weights = {name: weight_of(row, profile) for name, row in _ROWS.items()}
        self._taints: tuple[int, Ints | None] = (-1, None)  # by node class, with the version of the classes
        self._affinity: tuple[tuple[int, int], Ints] | None = None  # by row, with the version of the labels

    def raws(self, images: tuple[str, ...] = ()) -> list[Raw]:
        """Return the raw scores of every preference that differs between nodes, for a pod with these images."""
        # A preference that gives all nodes the same score is omitted.
        taints, located = self._soft_taints(), self._columns.images.points(images)
        if self._is_plain and taints is None and located is None:
            return []  # true for most pods
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
            # ``None`` if no class has a soft taint that the pod does not tolerate, which is the usual case.
            by_kind = np.array(counts, dtype=np.int64) if any(counts) else None
            self._taints = (columns.kinds_version, by_kind)
        # int64[classes] expanded to int64[table rows].
        return None if by_kind is None else by_kind[columns.kinds]

    def _node_affinity(self) -> Ints | None:
        preferred = self._request.constraints.preferred_nodes
        if not preferred:
            return None
        labels = self._columns.labels
        if self._affinity is None or self._affinity[0] != labels.version:
            raw: Ints = np.zeros(labels.rows, dtype=np.int64)
            for each in preferred:
                # bool[table rows] times the weight: rows that match several terms get the sum.
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


DETAILED: Final = 16
"""
Number of rows whose rejection is stored with details: the closest row of each group, then the closest rows. Other rows keep the counted
message. At most 8 rows are shown or evaluated for advice.
"""

SPARE: Final = 256
"""Number of unused messages that are tolerated before they are removed."""

UNKNOWN: Final = -1


Bars = Callable[[str], Rejection | None]
"""
Returns why the class is barred from a node for reasons outside the node. When the result changes, the row must be recorded as changed.
"""


def no_bars(_node: str) -> Rejection | None:
    """Return ``None``: no node is barred."""
    return None


class RejectionTable(MutableObject):
    """
    The last rejection of each row. A few rows have details. The others share one object per message and size, which bounds the memory.

    ``representatives`` are the rows whose details matter. Their details may be missing until the row is evaluated again.
    """

    # int32[table rows]: index into ``_words`` of the row's last rejection.
    _codes: NDArray[np.int32] = value_field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    # float32[table rows]: distance of the row's last rejection, see ``core.explain.distance``.
    _distances: NDArray[np.float32] = value_field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    _words: list[Rejection] = value_field(default_factory=list)
    _groups: list[tuple[Group, bool]] = value_field(default_factory=list)  # of each element of ``_words``
    _code_of: dict[tuple[Group, bool], int] = value_field(default_factory=dict)
    _detailed: dict[int, Rejection] = value_field(default_factory=dict)  # forgotten rows have the code ``UNKNOWN``
    _most_words: int = SPARE

    def resize(self, rows: int) -> None:
        """Grow to this number of rows. New rows have no rejection."""
        grown = np.full(rows, UNKNOWN, dtype=np.int32)
        grown[: len(self._codes)] = self._codes
        self._codes = grown
        distances = np.zeros(rows, dtype=np.float32)
        distances[: len(self._distances)] = self._distances
        self._distances = distances

    def add(self, row: int, rejection: Rejection) -> None:
        """Store the rejection of a row."""
        group = (group_of(rejection), rejection.resolvable)
        code = self._code_of.get(group)
        if code is None:
            # Swept when the number has doubled since the last sweep, so that the cost is a constant share of the
            # additions.
            if len(self._words) >= self._most_words:
                self._drop_unused()
            code = self._code_of[group] = len(self._words)
            # Without details: all rows with this message and size share one object.
            self._words.append(
                Rejection(rejection.reason, rejection.message, resolvable=rejection.resolvable, lack=DROPPED)
            )
            self._groups.append(group)
        if row in self._detailed or len(self._detailed) < DETAILED:
            self._detailed[row] = rejection
        self._codes[row] = code
        self._distances[row] = distance(rejection)

    def get(self, row: int) -> Rejection | None:
        """Return the rejection of a row, ``None`` when it is unknown."""
        code = int(self._codes[row])
        return None if code == UNKNOWN else self._detailed.get(row) or self._words[code]

    def representatives(self, ranks: Ints) -> list[int]:
        """
        Return the rows whose rejections a message describes: of each group the row that is closest to fitting, then the next closest rows.

        Of equally close rows, the row with the largest rank comes first. Details of all other rows are dropped. Rows for which
        ``has_details`` is false must be evaluated again.
        """
        rows = np.flatnonzero(self._codes != UNKNOWN)
        # int64[known rows]: the closest first.
        rows = rows[np.lexsort((-ranks[rows], self._distances[rows]))]
        first = np.unique(self._codes[rows], return_index=True)[1]
        first.sort()
        chosen: list[int] = rows[first][:DETAILED].tolist()
        if len(chosen) < DETAILED:
            taken = set(chosen)
            chosen += [row for row in rows[: 2 * DETAILED].tolist() if row not in taken][: DETAILED - len(chosen)]
        self._detailed = {row: kept for row in chosen if (kept := self._detailed.get(row)) is not None}
        return chosen

    def has_details(self, row: int) -> bool:
        """Return whether the rejection of the row is stored with details."""
        return row in self._detailed

    def unknown(self, rows: int) -> Bools:
        """Return which of the first ``rows`` rows have no known rejection."""
        unknown: Bools = self._codes[:rows] == UNKNOWN
        return unknown

    def forget(self, rows: Ints | int) -> None:
        """Forget the rejections of changed rows."""
        if not self._words:
            return  # no row has been rejected yet
        self._codes[rows] = UNKNOWN
        # Details must not outlive their rejection: the row may be rejected again without details.
        for row in [row for row in self._detailed if self._codes[row] == UNKNOWN]:
            del self._detailed[row]

    def clear(self) -> None:
        """Forget all rejections."""
        self._codes[:] = UNKNOWN
        self._detailed.clear()

    def _drop_unused(self) -> None:
        """Remove messages that no row has now. Messages may contain taints and labels, whose number is not bounded."""
        used = distinct(self._codes[self._codes != UNKNOWN].astype(np.int64)).tolist()
        renumbered = np.full(len(self._words) + 1, UNKNOWN, dtype=np.int32)  # the last element is for UNKNOWN
        renumbered[used] = np.arange(len(used), dtype=np.int32)
        # Translation table: the index -1 selects the last element, which is UNKNOWN.
        self._codes = renumbered[self._codes]
        self._words = [self._words[code] for code in used]
        self._groups = [self._groups[code] for code in used]
        self._code_of = {group: code for code, group in enumerate(self._groups)}
        self._most_words = 2 * len(self._words) + SPARE


COMPARED: Final = 32
"""Maximum complete placements that a decision compares if the devices for resource claims lower the scores."""


class Settled(MutableObject):
    """The complete placement with the largest key so far. ``count`` is the number of complete placements compared."""

    charge: Callable[[int], None]  # called with the cost in evaluated nodes; may end this turn of the decision
    key: int = NO
    placement: Placement | None = None
    count: int = 0

    def note(self, key: int, placement: Placement) -> None:
        """Keep the placement if its key is larger. Keys of different nodes are never equal."""
        self.count += 1
        if self.placement is None or key > self.key:
            # At least ``NO``, so that the search ends: any complete placement is acceptable, whatever its score.
            self.key, self.placement = max(key, NO), placement


class LateRules:
    """Rules that are evaluated for the best rows only. ``refusals`` holds the rejections of the last decision by node."""

    def __init__(self, ask: SchedulingRequest, rules: Profile, cluster: ClusterFilters) -> None:
        self._ask = ask
        self._rules = rules
        self._cluster = cluster
        self.refusals: dict[str, Rejection] = {}

    def refuse_early(self, seen: NodeSnapshot | None) -> tuple[bool, bool]:
        """Return whether the node rejects the pod before placement, and whether that was computed by this call."""
        refusal, is_new = (None, False) if seen is None else self._cluster.refuse_early(seen)
        if refusal is None or seen is None:
            return False, False
        # Stored by node for ``explain``, because these rows are never placed.
        self.refusals[seen.node.name] = refusal
        return True, is_new

    def settle(self, seen: NodeSnapshot, placement: Placement, key: int, best: Settled) -> bool:
        """Complete the placement and keep it if it is the best so far. Return whether the search can end."""
        # Devices may move the pod to other NUMA nodes, which changes the score.
        settled = self._cluster.settle(seen, placement)
        if isinstance(settled, Rejection):
            self.refusals[seen.node.name] = settled
            best.charge(self._cluster.spent())
            return False
        if settled is not placement:
            # Keys are ``score * SPACE + rank``, and the rank does not change.
            key -= SPACE * (self._points(seen, placement) - self._points(seen, settled))
        best.note(key, settled)
        # The best of ``COMPARED`` complete placements is chosen.
        return best.count == COMPARED

    def _points(self, seen: NodeSnapshot, placement: Placement) -> int:
        return sum(score_parts(self._ask, seen, placement, self._rules).values())


class Undecided(Enum):
    """Result of a decision that continues in a later turn."""

    UNDECIDED = "undecided"


class LimitReached(Exception):
    """Raised when the decision has evaluated the maximum number of nodes of this turn."""


STEP: Final = np.array(SPACE)  # a 0-d array: NumPy converts a Python integer at every operation
KUBELET_STEPS: Final = 5
"""Steps of an evaluation with the states of a kubelet. Any other evaluation is a step of about 0.1 ms."""
STEPS_OF_A_NODE: Final = 4
"""Steps in the states of a kubelet that take as long as an evaluation with one state: about 0.4 ms."""
FEW: Final = 2
"""Number of changed rows up to which all are evaluated at once. For more rows, bounds are computed first."""


TURN_STEPS: Final = 4_000
"""Comparisons of affinity terms with kinds of placed pods in one turn of a decision, about 10 ms. Other decisions run between turns."""
MAX_TURNS: Final = 1_000
"""Number of turns of a decision after which counting pods is not limited any more."""


class NodeRanking:
    """
    Keys of all nodes for one request class.

    Preferences are normalized over the lowest and the highest raw score of the nodes that fit. Only evaluated rows are known to fit.
    Therefore a fitting row is evaluated first at each extreme (the *witness*); then raw scores are normalized and added to the keys. Rows
    that filters on other pods reject are removed before.

    Example. Keys (scores) are 90?, 80!, 70?, where ``!`` is exact. Matching pods are 0, 2, 4 under preferred anti-affinity. Rows 0 and 2
    are the extremes and are evaluated. Row 0 does not fit, so the extremes are 2 and 4. Rows 1 and 2 get 100 and 0 points, and row 1 is
    chosen.
    """

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
        self._exact: Bools = np.zeros(0, dtype=np.bool_)  # whether the row is in ``_fits``
        self._fits: dict[int, Placement] = {}  # placements of rows with an exact key
        self._refusals = RejectionTable()
        self._told: dict[str, Rejection] = {}
        self._told_rows: dict[int, str] = {}  # row of each rejection in ``_told``, with the node name
        self._described: set[int] = set()  # rows with details in ``_told``
        self._told_at: int | None = None  # journal position of ``_told``
        self._untold: set[int] = set()
        self._left: int | None = None  # nodes that this turn may still evaluate, if limited
        self._turns = 0  # turns of this decision
        self._reported = False  # whether an exception has been reported
        self._late = None if cluster is None else LateRules(ask, rules, cluster)

    def choose_some(self, limit: int, images: tuple[str, ...] = ()) -> Placement | Undecided | None:
        """
        Choose like ``choose``, with at most ``limit`` nodes evaluated individually; ``UNDECIDED`` when more are needed.

        Results are kept. The next call continues with them in the state of its time.
        """
        self._left, counts = limit * (1 + self._turns // MAX_TURNS), self._columns.pods
        # After ``MAX_TURNS`` the counts are not limited: otherwise counts that are evicted meanwhile could be restarted
        # forever.
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
        Return the placement on the best node for a pod with these images; ``None`` when no node fits (see ``explain``).

        ``only`` is a mask of the rows that may be chosen: bool[rows of the table].
        """
        self._catch_up()
        if self._cluster is not None:
            self._cluster.begin_turn(None if self._left is None else SELECTOR_LIMITS.turn)
        if self._late is not None:
            self._late.refusals.clear()
        if not len(self._columns):
            return None
        blocked = None if self._cluster is None else self._cluster.blocked()
        raws = self._preferences.raws(images)
        if self._cluster is None and not raws and only is None:  # keys are not copied, because nothing is added to them
            return self._best_alone()
        keys = self._keys.copy()
        if only is not None:
            keys[~only] = NO
        if blocked is not None:
            keys[blocked] = NO
        for preference, _, raw in raws:
            if preference.normalize is not as_given:
                self._find_witnesses(keys, raw)
        rows = np.flatnonzero(keys >= 0)  # int64[rows that may fit]: extremes are computed over these rows
        for preference, weight, raw in raws:
            keys[rows] += (weight * preference.normalize(raw[rows])) * STEP
        return self._best(keys)

    def leaders(self, count: int) -> list[str]:
        """Return the names of the nodes with the largest keys of the last ``choose``, unordered. A key may still be a bound."""
        rows = np.flatnonzero(self._keys >= 0)
        if len(rows) > count:
            rows = rows[np.argpartition(self._keys[rows], len(rows) - count)[-count:]]
        return self._columns.named(rows.tolist())

    def _best_alone(self) -> Placement | None:
        """Return the same as ``_best`` for a request without preferences and filters on other pods."""
        keys = self._keys[: len(self._columns)]
        while keys[row := int(keys.argmax())] >= 0:
            # The bound was exact, which is the usual case: the row still has the largest key.
            if row in self._fits or self._evaluate_within_limit(row, None):
                return self._fits[row]
        return None

    def _best(self, keys: Ints) -> Placement | None:
        """Return the placement with the largest key. Keys are changed where rows have to be evaluated first."""
        settled = Settled(self._count_asked)
        keys = keys[: len(self._columns)]  # rows beyond the length are unused capacity
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
                continue  # the bound was exact, which is the usual case: the row still has the largest key
            row = int(keys.argmax())
        return settled.placement

    def _refuses_early(self, row: int) -> bool:
        late = self._late
        refused, is_new = (False, False) if late is None else late.refuse_early(self._columns.candidate(row))
        self._count_asked(int(is_new))
        return refused

    def _find_witnesses(self, keys: Ints, raw: Ints) -> None:
        """Evaluate rows until a fitting row is known at the lowest and at the highest raw score. Rows that do not fit lose their key."""
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
        """Return every node's rejection in the state of the last ``choose``, which found no node."""
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
        # Within the limit of the turn, if there is a limit.
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
        """Resize the arrays to the capacity of the table."""
        missing = len(self._columns.kinds) - len(self._keys)
        self._keys = np.concatenate([self._keys, np.full(missing, NO, dtype=np.int64)])
        self._exact = np.concatenate([self._exact, np.zeros(missing, dtype=np.bool_)])
        self._refusals.resize(len(self._keys))

    def _bound(self, rows: Ints) -> None:
        # Negative where the bound is negative, because a rank is less than ``STEP``.
        self._keys[rows] = self._sweep.bounds(rows) * STEP + self._columns.ranks[rows]

    def explain_some(self, limit: int) -> bool:
        """
        Evaluate at most ``limit`` rows whose rejection is unknown. Return whether all rejections are known.

        A row with many states of a kubelet counts as several rows.
        """
        if self._position is None:
            self._catch_up()
        count = min(len(self._columns), len(self._keys))
        unknown = np.flatnonzero(~self._exact[:count] & self._refusals.unknown(count))
        asked = 0
        for row in unknown.tolist():
            record = self._columns.records[row]
            if record is None or record.node is None:
                continue
            if asked >= limit:
                return False
            before = STEP_COUNT.total
            self._evaluate(row)
            asked += max(1, (STEP_COUNT.total - before) // STEPS_OF_A_NODE)
        return True

    def _evaluate_within_limit(self, row: int, added: Ints | None) -> bool:
        """Evaluate a row and return whether its bound was exact. In ``added``, keys with preferences, the score replaces the bound."""
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
        """Replace a row's bound by its score. An exception becomes a rejection by this node and is reported once per class."""
        try:
            before = STEP_COUNT.total
            seen = self._columns.candidate(row)
            owned = seen is not None and isinstance(seen.offer, KubeletView)
            self._columns.steps += KUBELET_STEPS if owned else 1
            answer = (
                None if seen is None else self._bars(seen.node.name) or evaluate_alone(self._ask, seen, self._rules)
            )
            if self._left is not None:
                # Many possible states of one kubelet cost as much as many nodes.
                self._left -= (STEP_COUNT.total - before) // STEPS_OF_A_NODE
        except Exception as error:  # noqa: BLE001 - contained: the other nodes may take the pod
            answer = Rejection(Reason.BAD_NODE, "node(s) could not be evaluated", f"{error!r}"[:200], resolvable=False)
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
        """Return every node's rejection; only nodes that changed since the last call are evaluated."""
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
                self._untold.add(row)  # rejected because of pods on other nodes, which is not stored
                continue
            if self._refusals.get(row) is None:
                self._evaluate(row)
            if (refusal := self._refusals.get(row)) is not None:
                self._told_rows[row] = record.name
                self._told[record.name] = refusal
        if len(rows):
            self._add_details()
        return dict(self._told)

    def _add_details(self) -> None:
        """Complete the rejections that are shown: details of the representatives, and of no other rows."""
        table, told_rows = self._refusals, self._told_rows
        rows = table.representatives(self._columns.ranks)
        for row in self._described.difference(rows) & told_rows.keys():
            if (refusal := table.get(row)) is not None:
                self._told[told_rows[row]] = refusal  # without details now
        self._described = set(rows)
        for row in rows:
            if row not in told_rows:
                continue
            if not table.has_details(row):
                self._evaluate(row)
            if (refusal := table.get(row)) is not None:
                self._told[told_rows[row]] = refusal
