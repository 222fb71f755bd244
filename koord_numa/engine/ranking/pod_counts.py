"""
How many placed pods of some sort are on each node, in NumPy columns that every pod's coming and going keeps up to date.

Theory. Affinity, anti-affinity and spreading ask the same question: how many placed pods that *match* something are in the topology domain
of a node? Pods are alike in great numbers, so they are put into *kinds*: equal namespace, labels, terms, and whether they are being
deleted. A *count* weighs kinds and has one integer per row of the node table. When a pod comes or goes, its kind names the counts that it
matters to (worked out once for each kind and count), and each of them changes at the pod's row alone: a decision costs what changed since
the last one, whatever the number of pods. The sums over topology domains are made by ``LabelColumn.sums``.

Example: twenty replicas with ``app: web`` on three nodes are one kind. The count "selector app=web in namespace default" is ``[7, 7, 6]``;
with the nodes in zones a, a and b its sums are ``{a: 14, b: 6}``.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from cachetools import LRUCache

from koord_numa.core.claims.budget import TurnOverError
from koord_numa.core.objects.constraints import LabelSelector, PodTerm
from koord_numa.core.objects.request import Pod, PodRequest, once_per_request
from koord_numa.core.selectors import Labels, selects
from koord_numa.engine.cache.pod_index import AnchorIndex, anchors_of_pod, anchors_of_term
from koord_numa.engine.ranking.label_columns import LabelColumn, LabelColumns
from koord_numa.engine.ranking.node_numbers import Bools, Ints, longer

REMEMBERED_COUNTS: Final = 4096
"""Terms of the counts that are kept up to date. The count that was not asked for the longest time is dropped first."""

MOST_UNFINISHED: Final = 16
"""Counts that are begun and not finished, more than two decisions need. The oldest is dropped, as its decision was given up."""

HARD_WEIGHT: Final = 1
"""What a placed pod's required affinity to the new one is worth (kube-scheduler's ``hardPodAffinityWeight``)."""

Namespaces = Mapping[str, Labels]


@dataclass(frozen=True, slots=True)
class Term:
    """
    One affinity term of a placed pod. ``weight`` is what it adds to the score of pods that it picks; ``forbids``: required anti-affinity.
    """

    term: PodTerm
    weight: int
    forbids: bool = False


@once_per_request
def terms_of(request: PodRequest) -> tuple[Term, ...]:
    """Every affinity term of a pod, as it weighs on other pods."""
    demands = request.constraints
    return (
        *(Term(term, HARD_WEIGHT) for term in demands.affinity),
        *(Term(term, 0, forbids=True) for term in demands.anti_affinity),
        *(Term(preferred.term, preferred.weight) for preferred in demands.preferred_affinity),
        *(Term(preferred.term, -preferred.weight) for preferred in demands.preferred_anti_affinity),
    )


class PodKind(NamedTuple):
    """
    What placed pods have in common as far as other pods can ask about them. ``labels`` are sorted pairs.

    A tuple, which is hashed and compared without a call: every pod that comes or goes is looked up by its kind.
    """

    namespace: str
    labels: tuple[tuple[str, str], ...]
    deleting: bool
    terms: tuple[Term, ...]

    @property
    def anchors(self) -> tuple[Hashable, ...]:
        """What a weighing of this kind is found by: its namespace and labels, and its terms."""
        return (*anchors_of_pod(self.namespace, self.labels), *(each.term for each in self.terms))


@dataclass(frozen=True, slots=True)
class PodSelection:
    """
    Pods by namespace and labels: the weight is 1 for a kind that *all* of ``terms`` pick. With ``staying``, pods that are being deleted do
    not count, as in PodTopologySpread (``podtopologyspread/common.go``).
    """

    terms: tuple[tuple[tuple[str, ...], LabelSelector | None, LabelSelector | None], ...]
    staying: bool = False

    @classmethod
    def of(cls, terms: Iterable[PodTerm]) -> "PodSelection":
        """The pods that all of these affinity terms pick."""
        return cls(tuple((term.namespaces, term.namespace_selector, term.selector) for term in terms))

    @property
    def anchors(self) -> tuple[Hashable, ...]:
        """Every kind that is selected carries one of these (``term_index``)."""
        if not self.terms:
            return ((None, None, None),)
        namespaces, namespace_selector, selector = self.terms[0]
        return anchors_of_term(PodTerm("", selector, namespaces, namespace_selector))

    @property
    def by_namespace_labels(self) -> bool:
        """Return whether the selection depends on the labels of namespaces."""
        return any(selector is not None for _, selector, _ in self.terms)

    def steps(self, _kind: PodKind) -> int:
        """Terms that are compared with the kind."""
        return 1

    def weigh(self, kind: PodKind, namespaces: Namespaces) -> int:
        """1 for a kind that is selected, else 0."""
        if self.staying and kind.deleting:
            return 0
        here = namespaces.get(kind.namespace, {})
        for names, namespace_selector, _ in self.terms:
            if kind.namespace not in names and not selects(namespace_selector, here):
                return 0
        labels = dict(kind.labels)
        return int(all(selects(selector, labels) for _, _, selector in self.terms))


class TermGroup:
    """Affinity terms of one topology key that weigh together. The hash is computed once, as a pod may have thousands of terms."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Iterable[tuple[PodTerm, int]]) -> None:
        """``terms`` are terms with their weight."""
        weights: dict[PodTerm, int] = {}
        for term, weight in terms:
            weights[term] = weights.get(term, 0) + weight
        self.terms: Final = weights
        self._hash = hash(frozenset(weights.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, TermGroup) and self._hash == other._hash and self.terms == other.terms


@dataclass(frozen=True, slots=True)
class SelectedByTerms:
    """Pods that terms select: the weight is that of all terms that select a pod of the kind."""

    group: TermGroup

    @property
    def anchors(self) -> tuple[Hashable, ...]:
        """Every kind that is selected carries one of these."""
        return tuple({anchor: None for term in self.group.terms for anchor in anchors_of_term(term)})

    @property
    def by_namespace_labels(self) -> bool:
        """Return whether the selection depends on the labels of namespaces."""
        return any(term.namespace_selector is not None for term in self.group.terms)

    def steps(self, _kind: PodKind) -> int:
        """Terms that are compared with the kind."""
        return len(self.group.terms)

    def weigh(self, kind: PodKind, namespaces: Namespaces) -> int:
        """The weights of the terms that select the kind, summed."""
        here, labels, total = namespaces.get(kind.namespace, {}), dict(kind.labels), 0
        for term, weight in self.group.terms.items():
            is_there = kind.namespace in term.namespaces or selects(term.namespace_selector, here)
            if is_there and selects(term.selector, labels):
                total += weight
        return total


@dataclass(frozen=True, slots=True)
class TermCarriers:
    """Pods that have one of these terms: the weight is what the terms add to scores, or how often they forbid with ``forbids``."""

    group: TermGroup
    forbids: bool

    by_namespace_labels = False

    @property
    def anchors(self) -> tuple[Hashable, ...]:
        """The terms."""
        return tuple(self.group.terms)

    def steps(self, kind: PodKind) -> int:
        """Terms that are compared."""
        return len(kind.terms)

    def weigh(self, kind: PodKind, _namespaces: Namespaces) -> int:
        """The weights of the terms in pods of this kind, summed."""
        terms = self.group.terms
        found = [each for each in kind.terms if each.forbids is self.forbids and each.term in terms]
        return len(found) if self.forbids else sum(each.weight for each in found)


Weighing = PodSelection | SelectedByTerms | TermCarriers


@dataclass(slots=True, eq=False)
class Count:
    """
    ``rows[row]`` is the weight of all pods on the node of that row. ``version`` grows with every change. ``left`` are kinds of pods that
    are not counted yet.
    """

    weighing: Weighing
    rows: Ints
    version: int = 0
    dropped: bool = False
    left: "list[_Kind]" = field(default_factory=list)

    def add(self, row: int, amount: int) -> None:
        """Pods came to a row or went."""
        self.rows[row] += amount
        self.version += 1


@dataclass(slots=True, eq=False)
class _Kind:
    """The pods of one kind by node name, and the counts that they matter to with their weight."""

    kind: PodKind
    nodes: dict[str, int] = field(default_factory=dict)
    counts: list[tuple[Count, int]] = field(default_factory=list)


class PodCounts:
    """All kinds and all counts. ``row_of`` tells the row of a node that has one; ``namespaces`` has the labels of all namespaces."""

    def __init__(self, row_of: Callable[[str], int | None], rows: int) -> None:
        self._row_of = row_of
        self.namespaces: Namespaces = {}
        self._size = rows
        self._kinds: dict[PodKind, _Kind] = {}
        self._counted: dict[str, _Kind] = {}  # by uid of every pod that is counted
        self._counts: LRUCache[Weighing, Count] = LRUCache(maxsize=REMEMBERED_COUNTS, getsizeof=_weight_of)
        self._unfinished: dict[Weighing, Count] = {}
        self.steps: int | None = None  # comparisons of terms with kinds of pods that this turn has left
        self._kinds_by_anchor: AnchorIndex[_Kind] = AnchorIndex()
        self._counts_by_anchor: AnchorIndex[Count] = AnchorIndex()

    def add(self, node: str, pod: Pod, former: Pod | None = None) -> None:
        """A pod is counted on a node; ``former`` is what was counted for it there until now."""
        kind = _kind_of(pod)
        if former is not None:
            if self._counted[former.key.uid].kind == kind:  # a change that other pods cannot ask about
                return
            self.remove(node, former)
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = self._new_kind(kind)
        self._counted[pod.key.uid] = known
        self._move(known, node, 1)

    def remove(self, node: str, pod: Pod) -> None:
        """A pod is not counted on a node any more; it is the same as when it was counted."""
        known = self._counted.pop(pod.key.uid)
        self._move(known, node, -1)
        if not known.nodes:
            del self._kinds[known.kind]
            self._kinds_by_anchor.remove(known, known.kind.anchors)

    def count(self, weighing: Weighing) -> Count:
        """The count of this weighing, kept up to date from now on."""
        found = self._counts.get(weighing)
        if found is None:
            found = self._unfinished.get(weighing)
            if found is None:
                found = self._unfinished[weighing] = self._new_count(weighing)
                if len(self._unfinished) > MOST_UNFINISHED:
                    self._drop(self._unfinished.pop(next(iter(self._unfinished))))
                    self._purge()
            self._finish(found)
            del self._unfinished[weighing]
            self._make_room(_weight_of(found))
            self._counts[weighing] = found
        return found

    def occupy(self, node: str, row: int) -> None:
        """A node got a row: pods that are there already are counted in it."""
        for known in self._kinds.values():
            # Most kinds matter to no count, and none before the first pod that looks around.
            if known.counts and (pods := known.nodes.get(node)):
                for count, weight in known.counts:
                    count.add(row, weight * pods)

    def vacate(self, row: int) -> None:
        """The node of a row is gone."""
        for count in (*self._counts.values(), *self._unfinished.values()):
            count.add(row, -int(count.rows[row]))

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        self._size = rows
        for count in (*self._counts.values(), *self._unfinished.values()):
            count.rows = longer(count.rows, rows)

    def namespaces_changed(self) -> None:
        """Labels of namespaces changed: counts that depend on them are made again when they are asked for."""
        kept: tuple[MutableMapping[Weighing, Count], ...] = (self._counts, self._unfinished)
        for counts in kept:
            for weighing in [it for it, count in counts.items() if count.weighing.by_namespace_labels]:
                self._drop(counts.pop(weighing))
        self._purge()

    def _move(self, known: _Kind, node: str, sign: int) -> None:
        nodes = known.nodes
        if left := nodes.get(node, 0) + sign:
            nodes[node] = left
        else:
            del nodes[node]
        if known.counts and (row := self._row_of(node)) is not None:
            for count, weight in known.counts:
                count.add(row, sign * weight)

    def _new_kind(self, kind: PodKind) -> _Kind:
        known, anchors = _Kind(kind), kind.anchors
        self._kinds_by_anchor.add(known, anchors)
        for count in self._counts_by_anchor.find(anchors):
            weight = count.weighing.weigh(kind, self.namespaces)
            if weight:
                known.counts.append((count, weight))
        return known

    def _new_count(self, weighing: Weighing) -> Count:
        count = Count(weighing, np.zeros(self._size, dtype=np.int64))
        self._counts_by_anchor.add(count, weighing.anchors)
        # The last one is counted first.
        count.left = self._kinds_by_anchor.find(weighing.anchors)[::-1]
        return count

    def _finish(self, count: Count) -> None:
        """Count the kinds that are left. Raises ``TurnOverError`` when the turn has no steps left; the next turn goes on from there."""
        weighing = count.weighing
        while count.left:
            known = count.left[-1]
            if self.steps is not None:
                if self.steps <= 0:
                    raise TurnOverError
                self.steps -= weighing.steps(known.kind)
            count.left.pop()
            if not known.nodes:  # its pods have left meanwhile
                continue
            weight = weighing.weigh(known.kind, self.namespaces)
            if not weight:
                continue
            known.counts.append((count, weight))
            for node, pods in known.nodes.items():
                row = self._row_of(node)
                if row is not None:
                    count.rows[row] += weight * pods

    def _make_room(self, weight: int) -> None:
        if self._counts.currsize + weight <= self._counts.maxsize:
            return
        wanted = self._counts.maxsize - max(weight, REMEMBERED_COUNTS // 8)
        while self._counts and self._counts.currsize > wanted:
            self._drop(self._counts.popitem()[1])
        self._purge()

    def _drop(self, count: Count) -> None:
        count.dropped = True
        self._counts_by_anchor.remove(count, count.weighing.anchors)

    def _purge(self) -> None:
        for known in self._kinds.values():
            known.counts = [(count, weight) for count, weight in known.counts if not count.dropped]


def _weight_of(count: Count) -> int:
    """Terms of the count: so many are compared with every new kind of pod. Not more than all of the room."""
    weighing = count.weighing
    terms = len(weighing.group.terms) if isinstance(weighing, SelectedByTerms) else 1
    return min(terms, REMEMBERED_COUNTS)


def _kind_of(pod: Pod) -> PodKind:
    return PodKind(pod.key.namespace, pod.labels, pod.deleting, terms_of(pod.request))


REMEMBERED_SUMS: Final = 2048


class DomainSums:
    """What placed pods add up to around each node: ``counts`` by row, put together by the values of a label."""

    def __init__(self, counts: PodCounts, labels: LabelColumns) -> None:
        self.counts = counts
        self.labels = labels
        self._known: LRUCache[tuple[Weighing, str], tuple[tuple[Count, int, int, int], Ints]] = LRUCache(
            maxsize=REMEMBERED_SUMS
        )

    def of(self, weighing: Weighing, key: str) -> Ints:
        """By row, the weight of all pods in the row's domain of this topology key; 0 without the label. Not to be changed."""
        count, column = self.counts.count(weighing), self.labels.column(key)
        # Versions and not contents: comparing four integers tells whether any pod or label has changed.
        state = (count, count.version, column.version, len(column.ids))
        known = self._known.get((weighing, key))
        if known is not None and known[0] == state:
            return known[1]
        # ``column.sums`` is int64[values]; ids spread it to int64[table rows].
        summed: Ints = column.sums(count.rows)[column.ids]
        self._known[weighing, key] = (state, summed)
        return summed

    def per_domain(self, weighing: Weighing, column: LabelColumn, where: Bools) -> Ints:
        """By id of the column's values, the weight of the pods on those rows ``where`` they count."""
        # A boolean mask as factor: rows that do not count weigh 0.
        return column.sums(self.counts.count(weighing).rows * where)

    def present(self, keys: Iterable[str]) -> Bools:
        """Which rows have all of these labels. A new array."""
        found: Bools | None = None
        for key in sorted(keys):
            here = self.labels.column(key).present
            found = here if found is None else found & here
        return np.ones(self.labels.rows, dtype=np.bool_) if found is None else found
