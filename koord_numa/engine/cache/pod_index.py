"""
Index of counted pods by the properties that other pods depend on: affinity terms and claims.

A pending pod depends on other pods only if their terms select it, which is rare. Pods without terms and claims are not
indexed.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from koord_numa.core.objects.constraints import Constraints, Labels, LabelSelector, Operator, PodTerm, selects
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodRequest, once_per_request
from koord_numa.core.objects.volumes import ClaimKey, NodeVolumes
from koord_numa.engine.cache.node_info import NodeInfo

Item = TypeVar("Item", bound=Hashable)

Anchor = tuple[str | None, str | None, str | None]
"""Namespace, label key, label value; ``None`` matches any."""

MOST_ANCHORS: Final = 256
"""Maximum number of namespaces times values of a term. Above it less precise anchors are used."""

_NEED_KEY: Final = (Operator.EXISTS, Operator.GT, Operator.LT)


def anchors_of_term(term: PodTerm) -> tuple[Anchor, ...]:
    """Return anchors of which every selected pod has at least one; empty when the term selects nothing."""
    # ``None`` selects nothing, an empty selector everything (LabelSelectorAsSelector).
    if term.selector is None:
        return ()
    labels = _anchor_labels(term.selector)
    namespaces: tuple[str | None, ...] = (None,) if term.namespace_selector is not None else term.namespaces
    # Less precise, still complete: look-ups evaluate each candidate.
    if len(namespaces) * len(labels) > MOST_ANCHORS:
        namespaces, labels = (None,), ((None, None),)
    return tuple((namespace, *label) for namespace in namespaces for label in labels)


def anchors_of_pod(namespace: str, labels: Iterable[tuple[str, str]]) -> Iterator[Anchor]:
    """Yield every anchor of a pod."""
    pairs: list[tuple[str | None, str | None]] = [(None, None)]
    for key, value in labels:
        pairs += [(key, value), (key, None)]
    for place in (namespace, None):
        for key_or_none, value_or_none in pairs:
            yield place, key_or_none, value_or_none


# IN is the most precise operator, followed by a required key. NotIn and DoesNotExist give no anchor.
def _anchor_labels(selector: LabelSelector) -> tuple[tuple[str | None, str | None], ...]:
    for need in selector.requirements:
        if need.operator is Operator.IN and need.values:
            return tuple((need.key, value) for value in need.values)
    for need in selector.requirements:
        if need.operator in _NEED_KEY:
            return ((need.key, None),)
    return ((None, None),)


class AnchorIndex(Generic[Item]):
    """Items by anchor."""

    def __init__(self) -> None:
        self._by_anchor: dict[Hashable, dict[Item, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_anchor)

    def add(self, item: Item, anchors: Iterable[Hashable]) -> None:
        """Add an item."""
        # A dict preserves the order, so that look-ups are deterministic.
        for anchor in anchors:
            self._by_anchor.setdefault(anchor, {})[item] = None

    def remove(self, item: Item, anchors: Iterable[Hashable]) -> None:
        """Remove an item that was added with these anchors."""
        for anchor in anchors:
            items = self._by_anchor.get(anchor)
            if items is not None:
                items.pop(item, None)
                if not items:
                    del self._by_anchor[anchor]

    def find(self, anchors: Iterable[Hashable]) -> list[Item]:
        """Return the distinct items with one of these anchors."""
        found: dict[Item, None] = {}
        for anchor in anchors:
            found.update(self._by_anchor.get(anchor, {}))
        return list(found)


class TermIndex:
    """Terms by anchor. A term is added and removed once, however many pods have it."""

    def __init__(self) -> None:
        self._terms: AnchorIndex[PodTerm] = AnchorIndex()

    def __bool__(self) -> bool:
        return bool(self._terms)

    def add(self, term: PodTerm) -> None:
        """Add a term."""
        self._terms.add(term, anchors_of_term(term))

    def remove(self, term: PodTerm) -> None:
        """Remove a term."""
        self._terms.remove(term, anchors_of_term(term))

    def candidates(self, namespace: str, labels: Iterable[tuple[str, str]]) -> list[PodTerm]:
        """Return the terms that may select a pod of this namespace with these labels, including all that do."""
        return self._terms.find(anchors_of_pod(namespace, labels))


K = TypeVar("K")
Place = tuple[NodeInfo, Pod]


class PodListener(Protocol):
    """Listener for every counted pod and for namespace labels."""

    namespaces: Mapping[str, Labels]

    def add(self, node: str, pod: Pod, former: Pod | None = None) -> None:
        """Process a pod counted on a node; ``former`` is its version that was counted there until now."""

    def remove(self, node: str, pod: Pod) -> None:
        """Process a pod that is not counted on a node any more; ``pod`` is the version that was counted."""

    def namespaces_changed(self) -> None:
        """Process changed labels of namespaces."""


@dataclass(slots=True)
class PodIndex:
    """Index of counted pods. Classes of waiting pods depend on the terms that select them; ``take_news`` returns the changed terms."""

    namespaces: dict[str, Labels] = field(default_factory=dict)
    _with_terms: dict[str, Place] = field(default_factory=dict)
    _terms: Counter[PodTerm] = field(default_factory=Counter)
    _term_index: TermIndex = field(default_factory=TermIndex, compare=False)
    _news: dict[PodTerm, None] = field(default_factory=dict)  # terms that were added or removed
    _namespaces_changed: bool = False
    _claims: Counter[ClaimKey] = field(default_factory=Counter)
    _volumes: dict[str, NodeVolumes] = field(default_factory=dict)  # by node, for nodes with pods that use volumes
    _listener: PodListener | None = field(default=None, compare=False)

    def feed(self, listener: PodListener, records: Iterable[NodeInfo]) -> None:
        """Register a listener and report all pods that are counted on these nodes."""
        listener.namespaces = self.namespaces
        for record in records:
            for pod in record.pods.values():
                listener.add(record.name, pod)
        self._listener = listener

    def add(self, record: NodeInfo, pod: Pod, former: Pod | None = None) -> None:
        """Count a pod on a node; ``former`` is its version that was counted there until now."""
        if self._listener is not None:
            self._listener.add(record.name, pod, former)
        if former is None and _is_plain(pod.request):
            return
        terms = _terms_of(pod.request.constraints)
        if terms:
            self._count(
                terms, 1
            )  # before the former terms are removed, so that a term that stays is not reported as changed
        if former is not None:
            self._remove(record, former)
        if terms:
            self._with_terms[pod.key.uid] = (record, pod)
        self._count_volumes(record, pod, 1)

    def remove(self, record: NodeInfo, pod: Pod) -> None:
        """Stop counting the pod on the node; ``pod`` is the version of the last ``add``."""
        if self._listener is not None:
            self._listener.remove(record.name, pod)
        if not _is_plain(pod.request):
            self._remove(record, pod)

    def _remove(self, record: NodeInfo, pod: Pod) -> None:
        terms = _terms_of(pod.request.constraints)
        if terms:
            del self._with_terms[pod.key.uid]
            self._count(terms, -1)
        self._count_volumes(record, pod, -1)

    def label_namespace(self, name: str, labels: Labels | None) -> bool:
        """Set the labels of a namespace, ``None`` if it is deleted. Return whether they changed."""
        if self.namespaces.get(name) == labels:
            return False
        if labels is None:
            del self.namespaces[name]
        else:
            self.namespaces[name] = labels
        # Terms that name namespaces do not depend on labels.
        if any(term.namespace_selector is not None for term in self._terms):
            self._namespaces_changed = True
        if self._listener is not None:
            self._listener.namespaces_changed()
        return True

    def count_nominated(self, pod: Pod, sign: int) -> None:
        """Add (1) or remove (-1) the terms of a nominated pod: they separate classes like the terms of counted pods."""
        self._count(_terms_of(pod.request.constraints), sign)

    def pickers(self, pod: Pod) -> frozenset[PodTerm]:
        """Return the terms of counted pods that select this pod and therefore affect its placement."""
        if not self._term_index:
            return frozenset()
        labels, namespace = dict(pod.labels), pod.key.namespace
        # Candidates share an anchor with the pod; only these are evaluated.
        candidates = self._term_index.candidates(namespace, pod.labels)
        return frozenset(term for term in candidates if self._picks(term, namespace, labels))

    def take_news(self) -> tuple[PodTerm, ...] | None:
        """Return the terms added or removed since the last call; ``None`` when other terms may select any pod."""
        news, self._news = tuple(self._news), {}
        everything, self._namespaces_changed = self._namespaces_changed, False
        return None if everything else news

    def claims(self) -> Mapping[ClaimKey, int]:
        """Return the number of counted pods by claim; claims by namespace and name."""
        return self._claims

    def volumes(self) -> Mapping[str, NodeVolumes]:
        """Return the claims and disks that counted pods use, by node."""
        return self._volumes

    def near(self, demands: Constraints, namespace: str, records: Iterable[NodeInfo]) -> list[tuple[Node, Pod]]:
        """Return every counted pod that can affect these constraints, with its node. ``records`` are all nodes."""
        # Topology spread counts pods of the same namespace only.
        wanted = {namespace} if demands.spread else set()
        for term in _terms_of(demands):
            if term.namespace_selector is not None:
                # Any namespace may be selected, so that all pods are relevant.
                return list(_on_nodes((record, pod) for record in records for pod in record.pods.values()))
            wanted.update(term.namespaces)
        # Pods with terms are always relevant, because their terms may select this pod.
        found = dict(self._with_terms)
        if wanted:
            found |= {
                uid: (record, pod)
                for record in records
                for uid, pod in record.pods.items()
                if pod.key.namespace in wanted
            }
        return list(_on_nodes(found.values()))

    def _count_volumes(self, record: NodeInfo, pod: Pod, sign: int) -> None:
        demands = pod.request.constraints
        if not demands.claims and not demands.disks:
            return
        here = self._volumes.setdefault(record.name, NodeVolumes())
        keys = [(pod.key.namespace, name) for name in demands.claims]
        _add(self._claims, keys, sign)
        _add(here.claims, keys, sign)
        _add(here.disks, demands.disks, sign)
        if not here.claims and not here.disks:
            del self._volumes[record.name]

    def _picks(self, term: PodTerm, namespace: str, labels: Mapping[str, str]) -> bool:
        inside = namespace in term.namespaces or selects(term.namespace_selector, self.namespaces.get(namespace, {}))
        return inside and selects(term.selector, labels)

    def _count(self, terms: Iterable[PodTerm], sign: int) -> None:
        for term in terms:
            # Counted, because many pods have the same term and the index has it once.
            before = self._terms[term]
            self._terms[term] = before + sign
            if not before:
                self._term_index.add(term)
                self._news[term] = None
            if not self._terms[term]:
                del self._terms[term]
                self._term_index.remove(term)
                self._news[term] = None


def _add(counts: Counter[K], keys: Iterable[K], sign: int) -> None:
    """Add ``sign`` to the counts of these keys and remove zeros."""
    for key in keys:
        counts[key] += sign
        if not counts[key]:
            del counts[key]


@once_per_request
def _is_plain(request: PodRequest) -> bool:
    """Return whether a pod with this request needs no index entry, like nearly all pods."""
    demands = request.constraints
    return not (_terms_of(demands) or demands.claims or demands.disks)


def _terms_of(demands: Constraints) -> tuple[PodTerm, ...]:
    if not (demands.affinity or demands.anti_affinity or demands.preferred_affinity or demands.preferred_anti_affinity):
        return ()
    wishes = (*demands.preferred_affinity, *demands.preferred_anti_affinity)
    return (*demands.affinity, *demands.anti_affinity, *(wish.term for wish in wishes))


def _on_nodes(places: Iterable[Place]) -> Iterator[tuple[Node, Pod]]:
    for record, pod in places:
        if record.node is not None:
            yield record.node, pod
