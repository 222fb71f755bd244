"""
``ports.EventHandler`` for kinds of object that the cache or a lister keeps: generic, and contained.

What is broken about one object costs only that object (``containment``): its node takes no pods until the object is read well, or gone.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.state.inventory import with_kubelet_reserved_cpus
from koord_numa.engine.cache.cache import DELETED, Cache
from koord_numa.engine.containment import Quarantine, Subject
from koord_numa.engine.handle import subject_of
from koord_numa.ports import EventHandler
from koord_numa.settings import KubeletReservedCpus

T = TypeVar("T")
Observe = Callable[[str | None, T], None]


@dataclass(frozen=True, slots=True)
class KindOf(Generic[T]):
    """What is needed to handle one kind: its subject in quarantine, and the objects known now by the uid of that subject."""

    subject: Callable[[T], Subject]
    known: Callable[[], Mapping[str, T]]


class ObjectHandler(Generic[T]):
    """
    An ``EventHandler``: ``apply`` takes one object. ``on_broken`` hears what is wrong with one that raised, and an empty text when it
    is well again or gone.
    """

    def __init__(
        self,
        kind: KindOf[T],
        apply: Observe[T],
        quarantine: Quarantine,
        on_synced: Callable[[], None] = lambda: None,
        on_broken: Callable[[T, str], None] = lambda _object, _why: None,
    ) -> None:
        self._kind = kind
        self._apply = apply
        self._quarantine = quarantine
        self._on_synced = on_synced
        self._on_broken = on_broken
        self._broken: dict[str, T] = {}  # objects that raised, by the uid of their subject, until they are well or gone

    # Those that are gone first, so that a new object of the same name is not taken for a change.
    def replace(self, objects: Iterable[T]) -> None:
        """These objects exist and no others."""
        found = list(objects)
        names = {self._kind.subject(each).uid for each in found}
        for uid, former in list({**self._broken, **self._kind.known()}.items()):
            if uid not in names:
                self.observe(DELETED, former)
        for each in found:
            self.observe(None, each)

    def observe(self, event: str | None, obj: T) -> None:
        """One object came, changed or went."""
        try:
            self._apply(event, obj)
        # Quarantined and closed: what the object holds is not known, so its node takes nothing.
        except Exception as error:  # noqa: BLE001 - contained: it costs this object only
            subject = self._kind.subject(obj)
            self._quarantine.put(subject, error)
            self._broken[subject.uid] = obj
            self._on_broken(obj, f"{type(error).__name__}: {error}")
            return
        # An empty quarantine is the usual case and costs nothing.
        if self._quarantine or self._broken:
            subject = self._kind.subject(obj)
            self._quarantine.release(subject)
            if self._broken.pop(subject.uid, None) is not None:
                self._on_broken(obj, "")

    def synced(self) -> None:
        """Everything that exists has been told."""
        self._on_synced()


class ListerHandler(Generic[T]):
    """An ``EventHandler`` in front of a lister that keeps objects as they are."""

    def __init__(
        self, replace: Callable[[Iterable[T]], None], observe: Observe[T], on_synced: Callable[[], None] = lambda: None
    ) -> None:
        self._replace = replace
        self._observe = observe
        self._on_synced = on_synced

    def replace(self, objects: Iterable[T]) -> None:
        """These objects exist and no others."""
        self._replace(objects)

    def observe(self, event: str | None, obj: T) -> None:
        """One object came, changed or went."""
        self._observe(event, obj)

    def synced(self) -> None:
        """Everything that exists has been told."""
        self._on_synced()


class ContainedHandler(Generic[T]):
    """An ``EventHandler`` around another one: an object that raises there is quarantined and left out, all others are told."""

    def __init__(self, kind: str, inner: EventHandler[T], quarantine: Quarantine) -> None:
        self._kind = kind
        self._inner = inner
        self._quarantine = quarantine

    def replace(self, objects: Iterable[T]) -> None:
        """These objects exist and no others."""
        found = list(objects)
        try:
            self._inner.replace(found)
        except Exception:  # noqa: BLE001 - one of them raises: told one by one, it costs that object only
            # Started over, so that what was taken in before the exception does not stay half done.
            self._inner.replace([])
            for each in found:
                self.observe(None, each)

    def observe(self, event: str | None, obj: T) -> None:
        """One object came, changed or went."""
        with self._quarantine.contained(_subject(self._kind, obj)):
            self._inner.observe(event, obj)

    def synced(self) -> None:
        """Everything that exists has been told."""
        self._inner.synced()


def _subject(kind: str, obj: object) -> Subject:
    """An object of any kind, by what it is called if it has no uid that matters here."""
    key = getattr(obj, "key", None)
    name = str(key or getattr(obj, "name", ""))
    return Subject(kind, name, str(getattr(key, "uid", "") or name), str(getattr(obj, "resource_version", "")))


def node_subject(node: Node) -> Subject:
    """A node, as quarantine knows it: by name, since facts about it may come from several objects."""
    return Subject("node", node.name, node.name)


def topology_subject(topology: NodeResourceTopology) -> Subject:
    """A NodeResourceTopology, likewise by its node's name."""
    return Subject("topology", topology.node, topology.node, topology.resource_version)


class BoundPodObjects(ObjectHandler[Pod]):
    """
    Pods with a node in front of the cache. One that cannot be counted closes its node, because what it holds is not known.

    A list may be older than a bind: pods that are assumed stay, and what is known already is not read again.
    """

    def __init__(
        self, cache: Cache, quarantine: Quarantine, apply: Observe[Pod], on_synced: Callable[[], None] = lambda: None
    ) -> None:
        kind: KindOf[Pod] = KindOf(subject_of, dict)
        super().__init__(
            kind, apply, quarantine, on_synced, lambda pod, why: cache.set_broken(pod.node, pod.key.uid, why)
        )
        self._cache = cache

    def replace(self, objects: Iterable[Pod]) -> None:
        """These pods have a node and no others, apart from those that are assumed."""
        cache, found = self._cache, {pod.key.uid: pod for pod in objects}
        # Assumed pods are newer than the list.
        for uid in [uid for uid in (*cache.node_of, *self._broken) if uid not in found and uid not in cache.assumed]:
            former = cache.pod(uid) or self._broken.get(uid)
            if former is not None:
                self.observe(DELETED, former)
        for uid, pod in found.items():
            # The very object that is known: a relist of thousands of pods costs a comparison each.
            if uid in cache.assumed or cache.pod(uid) is not pod:
                self.observe(None, pod)
        cache.judge_found_pods()


def node_handler(cache: Cache, quarantine: Quarantine, on_synced: Callable[[], None]) -> ObjectHandler[Node]:
    """Nodes."""
    kind = KindOf(node_subject, lambda: {it.name: it.node for it in cache.nodes.values() if it.node is not None})
    return ObjectHandler(
        kind, cache.observe_node, quarantine, on_synced, lambda node, why: cache.set_broken(node.name, "node", why)
    )


def topology_handler(
    cache: Cache,
    quarantine: Quarantine,
    on_synced: Callable[[], None],
    reserved: KubeletReservedCpus = KubeletReservedCpus.KEPT,
) -> ObjectHandler[NodeResourceTopology]:
    """NodeResourceTopologies, which may come before their nodes, after them, or never."""

    def observe(event: str | None, topology: NodeResourceTopology) -> None:
        is_released = reserved is KubeletReservedCpus.ALLOCATABLE and bool(topology.kubelet_reserved)
        cache.observe_topology(event, with_kubelet_reserved_cpus(topology) if is_released else topology)

    kind = KindOf(
        topology_subject, lambda: {it.name: it.published for it in cache.nodes.values() if it.published is not None}
    )
    return ObjectHandler(
        kind,
        observe,
        quarantine,
        on_synced,
        lambda topology, why: cache.set_broken(topology.node, "topology", why),
    )
