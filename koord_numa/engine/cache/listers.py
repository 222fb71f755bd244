"""Listers of namespaces, workloads, claims, volumes and CSI drivers."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from cachetools import LRUCache

from koord_numa.core.fit.spread import default_selector
from koord_numa.core.fit.volumes import VolumePlan
from koord_numa.core.objects.constraints import (
    LabelSelector,
    Namespace,
    PodTerm,
    Workload,
    WorkloadKey,
    WorkloadKind,
    selects,
)
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.volumes import (
    ClaimKey,
    CsiDriver,
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    Storage,
    StorageCapacity,
    StorageClass,
    VolumeAttachment,
)
from koord_numa.core.value_objects import MutableObject
from koord_numa.engine.cache.pod_index import AnchorIndex, PodIndex, anchors_of_pod, anchors_of_term
from koord_numa.ports import DELETED


class NamespaceLister(MutableObject):
    """Level-based event handler of namespaces. ``on_change`` is called for actual changes only."""

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
    """Level-based event handler of workloads and Services."""

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
            found = self._selectors[sort] = self._look_up(pod)
            return found

    def _look_up(self, pod: Pod) -> LabelSelector | None:
        labels = dict(pod.labels)
        services = self._services.find(anchors_of_pod(pod.key.namespace, pod.labels))
        # By name: the order of Services with the same label does not matter, since all of them select the pod.
        own = sorted((each for each in services if selects(each.selector, labels)), key=lambda each: each.key.name)
        return default_selector(own, None if pod.controller is None else self._known.get(pod.controller))

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


K = TypeVar("K")
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
    _waiters: set[asyncio.Future[None]] = field(default_factory=set)

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
        """Whether claims, volumes and classes have been listed. Pods with claims wait for that. CSI objects are optional."""
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
