"""
Which affinity terms select a pod, and which pods a term selects, without comparing all with all.

Theory: nearly every term names a namespace and a label with its value (``app in (web)``). Such a term is filed under *anchors*: the
triples ``(namespace, key, value)`` of which a selected pod must carry one. A pod is selected only by terms that share an anchor with it,
so a look-up costs the pod's labels, not the terms there are. Parts that a term does not fix are ``None``: a term with a namespace
selector has no namespace, one that only asks for a key no value, one with a ``NotIn`` alone neither key nor value.

Example: ``app in (web, api)`` in namespace ``shop`` is filed under ``(shop, app, web)`` and ``(shop, app, api)``; a pod of that namespace
with ``app=web, tier=1`` looks under these triples: ``(shop, app, web)``, ``(shop, app, None)``, ``(shop, tier, 1)`` ...
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from koord_numa.core.objects.constraints import LabelSelector, Operator, PodTerm

Item = TypeVar("Item", bound=Hashable)

Anchor = tuple[str | None, str | None, str | None]
"""Namespace, label key, label value; ``None`` where anything will do."""

MOST_ANCHORS: Final = 256
"""A term with more namespaces times values than these is filed under less precise anchors."""

_NEED_KEY: Final = (Operator.EXISTS, Operator.GT, Operator.LT)


def anchors_of_term(term: PodTerm) -> tuple[Anchor, ...]:
    """Every pod that the term selects carries one of these; none at all when it selects nothing."""
    # ``None`` selects nothing, an empty selector everything (LabelSelectorAsSelector).
    if term.selector is None:
        return ()
    labels = _anchor_labels(term.selector)
    namespaces: tuple[str | None, ...] = (None,) if term.namespace_selector is not None else term.namespaces
    # Less precise and still complete: look-ups test each candidate.
    if len(namespaces) * len(labels) > MOST_ANCHORS:
        namespaces, labels = (None,), ((None, None),)
    return tuple((namespace, *label) for namespace in namespaces for label in labels)


def anchors_of_pod(namespace: str, labels: Iterable[tuple[str, str]]) -> Iterator[Anchor]:
    """Every anchor that a pod carries."""
    pairs: list[tuple[str | None, str | None]] = [(None, None)]
    for key, value in labels:
        pairs += [(key, value), (key, None)]
    for place in (namespace, None):
        for key_or_none, value_or_none in pairs:
            yield place, key_or_none, value_or_none


# IN is the most precise, a required key the next; NotIn and DoesNotExist fix nothing.
def _anchor_labels(selector: LabelSelector) -> tuple[tuple[str | None, str | None], ...]:
    for need in selector.requirements:
        if need.operator is Operator.IN and need.values:
            return tuple((need.key, value) for value in need.values)
    for need in selector.requirements:
        if need.operator in _NEED_KEY:
            return ((need.key, None),)
    return ((None, None),)


class AnchorIndex(Generic[Item]):
    """Items by the anchors under which they are filed."""

    def __init__(self) -> None:
        self._by_anchor: dict[Hashable, dict[Item, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_anchor)

    def add(self, item: Item, anchors: Iterable[Hashable]) -> None:
        """File an item."""
        # A dict for its order, so that look-ups are repeatable.
        for anchor in anchors:
            self._by_anchor.setdefault(anchor, {})[item] = None

    def remove(self, item: Item, anchors: Iterable[Hashable]) -> None:
        """Take an item out that was filed under these anchors."""
        for anchor in anchors:
            items = self._by_anchor.get(anchor)
            if items is not None:
                items.pop(item, None)
                if not items:
                    del self._by_anchor[anchor]

    def find(self, anchors: Iterable[Hashable]) -> list[Item]:
        """Items filed under one of these anchors, each once."""
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
        """File a term."""
        self._terms.add(term, anchors_of_term(term))

    def remove(self, term: PodTerm) -> None:
        """Take a term out."""
        self._terms.remove(term, anchors_of_term(term))

    def candidates(self, namespace: str, labels: Iterable[tuple[str, str]]) -> list[PodTerm]:
        """Terms that may select a pod of this namespace with these labels; every one that does is among them."""
        return self._terms.find(anchors_of_pod(namespace, labels))
