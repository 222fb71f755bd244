"""
Counts of placed pods per node in NumPy columns, updated incrementally.

Affinity, anti-affinity and topology spread count placed pods that match a condition, by topology domain. Pods with equal namespace, labels,
terms and deletion state are one *kind*. A *count* has a weight for each kind and one integer per row of the node table. When a pod is added
or removed, the counts with a weight for its kind change at the pod's row only. ``LabelColumn.sums`` computes the sums over domains.

Example: twenty replicas with ``app: web`` on three nodes are one kind. The count of "app=web in namespace default" is ``[7, 7, 6]``; with
the nodes in zones a, a and b its sums are ``{a: 14, b: 6}``.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping
from typing import Final, NamedTuple

import numpy as np
from cachetools import LRUCache

from koord_numa.core.claims import TurnOverError
from koord_numa.core.objects.constraints import Labels, LabelSelector, PodTerm, selects
from koord_numa.core.objects.request import Pod, PodRequest, once_per_request
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field
from koord_numa.engine.cache.listers import AnchorIndex, anchors_of_pod, anchors_of_term
from koord_numa.engine.ranking.label_columns import LabelColumn, LabelColumns
from koord_numa.engine.ranking.node_numbers import Bools, Ints, longer

REMEMBERED_COUNTS: Final = 4096
"""Maximum number of terms of the counts that are kept up to date. The least recently used count is dropped first."""

MOST_UNFINISHED: Final = 16
"""Maximum number of unfinished counts. Two decisions need fewer. The oldest is dropped, because its decision was abandoned."""

HARD_WEIGHT: Final = 1
"""Weight of a placed pod's required affinity for the new pod (``hardPodAffinityWeight`` of kube-scheduler)."""

Namespaces = Mapping[str, Labels]


class Term(ValueObject):
    """
    Affinity term of a placed pod.

    ``weight`` is added to the score of pods that the term selects. ``forbids`` is set for required anti-affinity.
    """

    term: PodTerm
    weight: int
    forbids: bool = False


@once_per_request
def terms_of(request: PodRequest) -> tuple[Term, ...]:
    """Return all affinity terms of a pod with their weights for other pods."""
    demands = request.constraints
    return (
        *(Term(term, HARD_WEIGHT) for term in demands.affinity),
        *(Term(term, 0, forbids=True) for term in demands.anti_affinity),
        *(Term(preferred.term, preferred.weight) for preferred in demands.preferred_affinity),
        *(Term(preferred.term, -preferred.weight) for preferred in demands.preferred_anti_affinity),
    )


class PodKind(NamedTuple):
    """
    Properties of placed pods that affinity and topology spread depend on. ``labels`` are sorted pairs.

    A tuple, because it is hashed and compared without a Python call: the kind of every added or removed pod is looked up.
    """

    namespace: str
    labels: tuple[tuple[str, str], ...]
    deleting: bool
    terms: tuple[Term, ...]

    @property
    def anchors(self) -> tuple[Hashable, ...]:
        """Index keys of this kind: its namespace and labels, and its terms."""
        return (*anchors_of_pod(self.namespace, self.labels), *(each.term for each in self.terms))


class PodSelection(ValueObject):
    """
    Selection of pods by namespace and labels. The weight is 1 for a kind that *all* ``terms`` select.

    With ``staying``, pods that are being deleted do not count, as in PodTopologySpread (``podtopologyspread/common.go``).
    """

    terms: tuple[tuple[tuple[str, ...], LabelSelector | None, LabelSelector | None], ...]
    staying: bool = False

    @classmethod
    def of(cls, terms: Iterable[PodTerm]) -> "PodSelection":
        """Return the selection of the pods that all of these affinity terms select."""
        return cls(tuple((term.namespaces, term.namespace_selector, term.selector) for term in terms))

    @property
    def anchors(self) -> tuple[Hashable, ...]:
        """Index keys. Every selected kind has at least one of them (``TermIndex``)."""
        if not self.terms:
            return ((None, None, None),)
        namespaces, namespace_selector, selector = self.terms[0]
        return anchors_of_term(PodTerm("", selector, namespaces, namespace_selector))

    @property
    def by_namespace_labels(self) -> bool:
        """True if the selection depends on the labels of namespaces."""
        return any(selector is not None for _, selector, _ in self.terms)

    def steps(self, _kind: PodKind) -> int:
        """Return the number of terms to compare with the kind."""
        return 1

    def weigh(self, kind: PodKind, namespaces: Namespaces) -> int:
        """Return 1 for a selected kind, else 0."""
        if self.staying and kind.deleting:
            return 0
        here = namespaces.get(kind.namespace, {})
        for names, namespace_selector, _ in self.terms:
            if kind.namespace not in names and not selects(namespace_selector, here):
                return 0
        labels = dict(kind.labels)
        return int(all(selects(selector, labels) for _, _, selector in self.terms))


class TermGroup:
    """Affinity terms of one topology key with their weights. The hash is computed once, because a pod may have thousands of terms."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Iterable[tuple[PodTerm, int]]) -> None:
        """Initialize the group. ``terms`` are pairs of term and weight; equal terms are summed."""
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


class SelectedByTerms(ValueObject):
    """Pods that terms select. The weight of a kind is the sum of the weights of the terms that select it."""

    group: TermGroup

    @property
    def anchors(self) -> tuple[Hashable, ...]:
        """Index keys. Every selected kind has at least one of them."""
        return tuple({anchor: None for term in self.group.terms for anchor in anchors_of_term(term)})

    @property
    def by_namespace_labels(self) -> bool:
        """True if the selection depends on the labels of namespaces."""
        return any(term.namespace_selector is not None for term in self.group.terms)

    def steps(self, _kind: PodKind) -> int:
        """Return the number of terms to compare with the kind."""
        return len(self.group.terms)

    def weigh(self, kind: PodKind, namespaces: Namespaces) -> int:
        """Return the sum of the weights of the terms that select the kind."""
        here, labels, total = namespaces.get(kind.namespace, {}), dict(kind.labels), 0
        for term, weight in self.group.terms.items():
            is_there = kind.namespace in term.namespaces or selects(term.namespace_selector, here)
            if is_there and selects(term.selector, labels):
                total += weight
        return total


class TermCarriers(ValueObject):
    """Pods that have one of these terms. The weight is what the terms add to scores, or with ``forbids`` the number of forbidding terms."""

    group: TermGroup
    forbids: bool

    by_namespace_labels = False

    @property
    def anchors(self) -> tuple[Hashable, ...]:
        """Index keys: the terms."""
        return tuple(self.group.terms)

    def steps(self, kind: PodKind) -> int:
        """Return the number of terms to compare."""
        return len(kind.terms)

    def weigh(self, kind: PodKind, _namespaces: Namespaces) -> int:
        """Return the number of terms of this kind of pod that are in the group if they forbid, else the sum of their weights."""
        terms = self.group.terms
        found = [each for each in kind.terms if each.forbids is self.forbids and each.term in terms]
        return len(found) if self.forbids else sum(each.weight for each in found)


Weighing = PodSelection | SelectedByTerms | TermCarriers


class Count(MutableObject, eq=False):
    """
    Weighted pod count by row.

    ``rows[row]`` is the weight of all pods on the node of the row. ``version`` is incremented with every change. ``left`` are the kinds
    that are not counted yet.
    """

    weighing: Weighing
    rows: Ints
    version: int = 0
    dropped: bool = False
    left: "list[_Kind]" = value_field(default_factory=list)

    def add(self, row: int, amount: int) -> None:
        """Add an amount to a row."""
        self.rows[row] += amount
        self.version += 1


class _Kind(MutableObject, eq=False):
    """Pods of one kind by node name, and the counts with a weight for this kind."""

    kind: PodKind
    nodes: dict[str, int] = value_field(default_factory=dict)
    counts: list[tuple[Count, int]] = value_field(default_factory=list)


class PodCounts:
    """All kinds and all counts. ``row_of`` returns the row of a node; ``namespaces`` holds the labels of all namespaces."""

    def __init__(self, row_of: Callable[[str], int | None], rows: int) -> None:
        self._row_of = row_of
        self.namespaces: Namespaces = {}
        self._size = rows
        self._kinds: dict[PodKind, _Kind] = {}
        self._counted: dict[str, _Kind] = {}  # by UID of every counted pod
        self._counts: LRUCache[Weighing, Count] = LRUCache(maxsize=REMEMBERED_COUNTS, getsizeof=_weight_of)
        self._unfinished: dict[Weighing, Count] = {}
        self.steps: int | None = (
            None  # comparisons of terms with kinds of pods left in this turn; ``None`` if unlimited
        )
        self._kinds_by_anchor: AnchorIndex[_Kind] = AnchorIndex()
        self._counts_by_anchor: AnchorIndex[Count] = AnchorIndex()

    def add(self, node: str, pod: Pod, former: Pod | None = None) -> None:
        """Count a pod on a node. ``former`` is the version of the pod that was counted there until now."""
        kind = PodKind(pod.key.namespace, pod.labels, pod.deleting, terms_of(pod.request))
        if former is not None:
            if self._counted[former.key.uid].kind == kind:  # the change does not affect other pods
                return
            self.remove(node, former)
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = self._new_kind(kind)
        self._counted[pod.key.uid] = known
        self._move(known, node, 1)

    def remove(self, node: str, pod: Pod) -> None:
        """Stop counting a pod on a node. ``pod`` is the version that was counted."""
        known = self._counted.pop(pod.key.uid)
        self._move(known, node, -1)
        if not known.nodes:
            del self._kinds[known.kind]
            self._kinds_by_anchor.remove(known, known.kind.anchors)

    def count(self, weighing: Weighing) -> Count:
        """Return the count for this weighing, which is kept up to date from now on. Raises ``TurnOverError`` if the turn ends first."""
        found = self._counts.get(weighing)
        if found is None:
            found = self._unfinished.get(weighing)
            if found is None:
                count = Count(weighing, np.zeros(self._size, dtype=np.int64))
                self._counts_by_anchor.add(count, weighing.anchors)
                # Counted from the end of the list.
                count.left = self._kinds_by_anchor.find(weighing.anchors)[::-1]
                found = self._unfinished[weighing] = count
                if len(self._unfinished) > MOST_UNFINISHED:
                    self._drop(self._unfinished.pop(next(iter(self._unfinished))))
                    self._purge()
            self._finish(found)
            del self._unfinished[weighing]
            self._make_room(_weight_of(found))
            self._counts[weighing] = found
        return found

    def occupy(self, node: str, row: int) -> None:
        """Add the pods that are already on a node to its new row."""
        for known in self._kinds.values():
            # Most kinds have no weight in any count.
            if known.counts and (pods := known.nodes.get(node)):
                for count, weight in known.counts:
                    count.add(row, weight * pods)

    def vacate(self, row: int) -> None:
        """Set the counts of a row without a node to 0."""
        for count in (*self._counts.values(), *self._unfinished.values()):
            count.add(row, -int(count.rows[row]))

    def grow(self, rows: int) -> None:
        """Add rows up to this number."""
        self._size = rows
        for count in (*self._counts.values(), *self._unfinished.values()):
            count.rows = longer(count.rows, rows)

    def namespaces_changed(self) -> None:
        """Drop the counts that depend on labels of namespaces. They are recomputed on demand."""
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

    def _finish(self, count: Count) -> None:
        """Count the kinds that are left. Raises ``TurnOverError`` when the turn has no steps left; the next turn continues."""
        weighing = count.weighing
        while count.left:
            known = count.left[-1]
            if self.steps is not None:
                if self.steps <= 0:
                    raise TurnOverError
                self.steps -= weighing.steps(known.kind)
            count.left.pop()
            if not known.nodes:  # all its pods were removed meanwhile
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
    """Return the number of terms that are compared with every new kind of pod, at most the cache size."""
    weighing = count.weighing
    terms = len(weighing.group.terms) if isinstance(weighing, SelectedByTerms) else 1
    return min(terms, REMEMBERED_COUNTS)


REMEMBERED_SUMS: Final = 2048


class DomainSums:
    """Sums of counts over topology domains. ``counts`` are by row; ``labels`` define the domains."""

    def __init__(self, counts: PodCounts, labels: LabelColumns) -> None:
        self.counts = counts
        self.labels = labels
        self._known: LRUCache[tuple[Weighing, str], tuple[tuple[Count, int, int, int], Ints]] = LRUCache(
            maxsize=REMEMBERED_SUMS
        )

    def of(self, weighing: Weighing, key: str) -> Ints:
        """
        Return by row the weight of all pods in the row's domain of this topology key; 0 without the label. The array is shared and
        read-only.
        """
        count, column = self.counts.count(weighing), self.labels.column(key)
        # Versions instead of contents: comparing four values detects any change of pods or labels.
        state = (count, count.version, column.version, len(column.ids))
        known = self._known.get((weighing, key))
        if known is not None and known[0] == state:
            return known[1]
        # ``column.sums`` is int64[values]; indexing with the ids expands it to int64[table rows].
        summed: Ints = column.sums(count.rows)[column.ids]
        self._known[weighing, key] = (state, summed)
        return summed

    def per_domain(self, weighing: Weighing, column: LabelColumn, where: Bools) -> Ints:
        """Return the weight of the pods on the rows ``where``, indexed by value id of the column."""
        # Multiplied by the mask: rows that are not counted have weight 0.
        return column.sums(self.counts.count(weighing).rows * where)

    def present(self, keys: Iterable[str]) -> Bools:
        """Return a new mask of the rows that have all of these labels."""
        found: Bools | None = None
        for key in sorted(keys):
            here = self.labels.column(key).present
            found = here if found is None else found & here
        return np.ones(self.labels.rows, dtype=np.bool_) if found is None else found
