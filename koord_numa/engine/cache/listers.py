"""Listers of namespaces, workloads, claims and volumes, and the index of counted pods by what other pods depend on."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from cachetools import LRUCache

from koord_numa.core.fit.pod_placement import default_selector
from koord_numa.core.fit.volumes import VolumePlan
from koord_numa.core.objects.constraints import (
    Constraints,
    Labels,
    LabelSelector,
    Namespace,
    Operator,
    PodTerm,
    Workload,
    WorkloadKey,
    WorkloadKind,
    selects,
)
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodRequest, once_per_request
from koord_numa.core.objects.volumes import (
    ClaimKey,
    CsiDriver,
    CsiNode,
    NodeVolumes,
    PersistentVolume,
    PersistentVolumeClaim,
    Storage,
    StorageCapacity,
    StorageClass,
    VolumeAttachment,
)
from koord_numa.core.value_objects import MutableObject
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.ports import DELETED

if TYPE_CHECKING:
    from asyncio import Future

# Index of counted pods by the properties that other pods depend on: affinity terms and claims.
#
# A pending pod depends on other pods only if their terms select it, which is rare. Pods without terms and claims are not
# indexed.

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


class NamespaceLister(MutableObject):
    """Lister of namespaces, updated by level-based events. ``on_change`` is called for actual changes only."""

    placed: PodIndex
    on_change: Callable[[], None]

    def observe(self, event: str | None, namespace: Namespace) -> None:
        """Process an added, relabeled or deleted namespace."""
        if self.placed.label_namespace(namespace.name, None if event == DELETED else namespace.labels):
            self.on_change()

    def replace(self, namespaces: Iterable[Namespace]) -> None:
        """Replace the namespaces by this complete list."""
        found = {namespace.name: namespace.labels for namespace in namespaces}
        # Deletions first, so that a namespace of the same name is new afterwards.
        names = [*(name for name in self.placed.namespaces if name not in found), *found]
        news = [self.placed.label_namespace(name, found.get(name)) for name in names]
        if any(news):
            self.on_change()


REMEMBERED_PODS: Final = 8192
"""Maximum number of combinations of namespace, labels and owner with a cached workload selector."""

PodSort = tuple[str, tuple[tuple[str, str], ...], WorkloadKey | None]

OnChange = Callable[[tuple[PodTerm, ...]], None]
"""Called with added and removed selectors as terms: pods that a term selects may be spread differently now."""


class WorkloadLister:
    """Lister of workloads and Services, updated by level-based events."""

    def __init__(self, on_change: OnChange) -> None:
        self._on_change = on_change
        self._known: dict[WorkloadKey, Workload] = {}
        self._services: AnchorIndex[Workload] = AnchorIndex()
        self._selectors: LRUCache[PodSort, LabelSelector | None] = LRUCache(maxsize=REMEMBERED_PODS)

    def observe(self, event: str | None, workload: Workload) -> None:
        """Process an added, changed or deleted object."""
        self._tell(self._take(workload.key, None if event == DELETED else workload))

    def replace(self, kind: WorkloadKind, workloads: Iterable[Workload]) -> None:
        """Replace the objects of a kind by this complete list."""
        found = {each.key: each for each in workloads}
        # Deleted objects first, so that their terms are reported together with the new terms.
        keys = [*(key for key in self._known if key.kind is kind and key not in found), *found]
        self._tell([term for key in keys for term in self._take(key, found.get(key))])

    def selector_for(self, pod: Pod) -> LabelSelector | None:
        """Return the selector of the pod's workload; ``None`` when no workload is known."""
        if not self._known:
            return None
        sort = (pod.key.namespace, pod.labels, pod.controller)
        try:
            return self._selectors[sort]
        except KeyError:
            labels = dict(pod.labels)
            services = self._services.find(anchors_of_pod(pod.key.namespace, pod.labels))
            # By name: the order of Services with the same label does not matter, since all of them select the pod.
            own = sorted((each for each in services if selects(each.selector, labels)), key=lambda each: each.key.name)
            found = self._selectors[sort] = default_selector(
                own, None if pod.controller is None else self._known.get(pod.controller)
            )
            return found

    def _take(self, key: WorkloadKey, new: Workload | None) -> list[PodTerm]:
        former = self._known.get(key)
        if former == new:
            return []
        # Both selectors: pods that the old selector matched are spread differently too.
        terms = [_term(each) for each in (former, new) if each is not None]
        if former is not None:
            self._services.remove(former, anchors_of_term(_term(former)))
            del self._known[key]
        if new is not None:
            self._known[key] = new
            if key.kind is WorkloadKind.SERVICE:
                self._services.add(new, anchors_of_term(_term(new)))
        return terms

    def _tell(self, terms: list[PodTerm]) -> None:
        if terms:
            # The whole cache: determining the affected pods would cost more.
            self._selectors.clear()
            self._on_change(tuple(terms))


def _term(workload: Workload) -> PodTerm:
    return PodTerm("", workload.selector, (workload.key.namespace,))


T = TypeVar("T")


class Lister(Generic[K, T]):
    """All objects of one kind by key and by group. Implements ``ports.EventHandler``."""

    def __init__(
        self, key: Callable[[T], K], on_change: Callable[[], None], group: Callable[[T], str] | None = None
    ) -> None:
        self.items: dict[K, T] = {}
        self.groups: dict[str, dict[K, T]] = {}
        self.complete = False
        self._key = key
        self._group = group
        self._on_change = on_change

    def replace(self, objects: Iterable[T]) -> None:
        """Replace the objects by this complete list."""
        self.items, self.groups = {}, {}
        for obj in objects:
            self._put(obj)
        self._on_change()

    def observe(self, event: str | None, obj: T) -> None:
        """Process an added, changed or deleted object."""
        # Removed first, because the object may have moved to another group.
        self._drop(self._key(obj))
        if event != DELETED:
            self._put(obj)
        self._on_change()

    def synced(self) -> None:
        """Mark the first list as complete."""
        self.complete = True
        self._on_change()

    def _put(self, obj: T) -> None:
        key = self._key(obj)
        self.items[key] = obj
        if self._group is not None:
            self.groups.setdefault(self._group(obj), {})[key] = obj

    def _drop(self, key: K) -> None:
        old = self.items.pop(key, None)
        if old is None or self._group is None:
            return
        name = self._group(old)
        group = self.groups[name]
        del group[key]
        if not group:
            del self.groups[name]


@dataclass(frozen=True, slots=True, eq=False)
class AttachedVolumes(Mapping[str, frozenset[str]]):
    """
    Names of attached volumes by node, as a view of the attachments.

    A decision reads few nodes. Building the sets of all nodes for every decision would iterate over all attachments.
    """

    groups: Mapping[str, Mapping[str, VolumeAttachment]]

    def __getitem__(self, node: str) -> frozenset[str]:
        return frozenset(each.volume for each in self.groups[node].values())

    def __iter__(self) -> Iterator[str]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)


@dataclass(slots=True)
class VolumeLister:
    """Listers of storage objects. ``on_change`` is called after every change; ``node_exists`` returns whether a node exists."""

    on_change: Callable[[], None]
    index: PodIndex
    node_exists: Callable[[str], bool]
    clock: Callable[[], float]
    claims: Lister[ClaimKey, PersistentVolumeClaim] = field(init=False)
    volumes: Lister[str, PersistentVolume] = field(init=False)
    classes: Lister[str, StorageClass] = field(init=False)
    csi_nodes: Lister[str, CsiNode] = field(init=False)
    drivers: Lister[str, CsiDriver] = field(init=False)
    capacities: Lister[str, StorageCapacity] = field(init=False)
    attachments: Lister[str, VolumeAttachment] = field(init=False)
    _reserved: dict[str, ClaimKey] = field(default_factory=dict)
    _selected: dict[ClaimKey, list[str]] = field(default_factory=dict)  # a node per pod that shares the claim
    _failed: dict[ClaimKey, dict[str, float]] = field(
        default_factory=dict
    )  # by node, end of the pause in monotonic seconds
    _waiters: set["Future[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.claims = Lister(lambda claim: claim.key, self._changed)
        self.volumes = Lister(lambda volume: volume.name, self._changed, lambda volume: volume.storage_class)
        self.classes = Lister(lambda each: each.name, self._changed)
        self.csi_nodes = Lister(lambda node: node.name, self._changed)
        self.drivers = Lister(lambda driver: driver.name, self._changed)
        self.capacities = Lister(lambda capacity: capacity.name, self._changed, lambda each: each.storage_class)
        self.attachments = Lister(lambda attachment: attachment.name, self._changed, lambda each: each.node)

    @property
    def known(self) -> bool:
        """True if claims, volumes and classes have been listed, for which pods with claims wait. CSI objects are optional."""
        return self.claims.complete and self.volumes.complete and self.classes.complete

    def synced(self) -> None:
        """Mark all required kinds as complete."""
        # CSI objects are not required; a cluster may have none.
        for lister in (self.claims, self.volumes, self.classes):
            lister.complete = True
        self._changed()

    def storage(self) -> Storage:
        """Return the current storage state for a decision."""
        return Storage(
            claims=self.claims.items,
            volumes=self.volumes.items,
            classes=self.classes.items,
            by_class=self.volumes.groups,
            csi_nodes=self.csi_nodes.items,
            drivers=self.drivers.items,
            capacities=self.capacities.groups,
            attached=AttachedVolumes(self.attachments.groups),
            in_use=self.index.claims(),
            on_node=self.index.volumes(),
            reserved=self._reserved,
            selected={claim: nodes[0] for claim, nodes in self._selected.items()},
            failed=self._failed_now(),
            node_exists=self.node_exists,
            known=self.known,
        )

    def reserve(self, plan: VolumePlan, node: str) -> None:
        """Reserve the volumes and claims that a pod will use on this node."""
        for claim, volume in plan.bindings:
            self._reserved[volume] = claim
        # A list with duplicates, because pods that share a claim reserve and release it separately.
        for claim in (*plan.provisioned, *(claim for claim, _ in plan.bindings)):
            self._selected.setdefault(claim, []).append(node)

    def unreserve(self, plan: VolumePlan, node: str) -> None:
        """Release the reservation. A volume stays reserved while another pod that shares the claim is in flight."""
        for claim in (*plan.provisioned, *(claim for claim, _ in plan.bindings)):
            # Already released, or released after a restart.
            nodes = self._selected.get(claim, [])
            if node in nodes:
                nodes.remove(node)
            if not nodes:
                self._selected.pop(claim, None)
        for claim, volume in plan.bindings:
            if claim not in self._selected:
                self._reserved.pop(volume, None)
        self._changed()

    def in_flight(self, claim: ClaimKey) -> bool:
        """Return whether a decision in progress binds this claim."""
        return claim in self._selected

    def fail(self, claims: Iterable[ClaimKey], node: str, seconds: float) -> None:
        """Exclude the node from decisions about these claims for ``seconds``, because they could not be bound for it."""
        until = self.clock() + seconds
        for claim in claims:
            self._failed.setdefault(claim, {})[node] = until

    async def change(self, seconds: float) -> None:
        """Return after the next change of any object, or after ``seconds``."""
        # One future per waiter instead of an Event: no change between two waits may be lost or be seen twice.
        import asyncio  # noqa: PLC0415  (loaded by everything that runs a scheduler, and by no other command)

        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=seconds)
        finally:
            self._waiters.discard(waiter)

    def _changed(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.on_change()

    def _failed_now(self) -> dict[ClaimKey, frozenset[str]]:
        if not self._failed:
            return {}
        now = self.clock()
        # Cleaned up on read, because no event occurs when a pause ends.
        for claim, nodes in list(self._failed.items()):
            left = {node: until for node, until in nodes.items() if until > now}
            if left and claim in self.claims.items:
                self._failed[claim] = left
            else:
                del self._failed[claim]
        return {claim: frozenset(nodes) for claim, nodes in self._failed.items()}
