"""
What is known of claims, volumes and storage classes. Facts only; what they mean is decided in ``core.fit.volumes``.

What is known of namespaces. Facts only; which terms a namespace's labels meet is decided in ``core.fit.pod_affinity``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from koord_numa.core.fit.volumes import Storage
from koord_numa.core.namespaces import Namespace
from koord_numa.core.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from koord_numa.engine.cache.cache import DELETED
from koord_numa.engine.cache.pod_index import PodIndex


@dataclass(slots=True)
class VolumeLister:
    """
    Told by those who watch volumes, level-based as all facts. Pods with claims wait until ``known`` is set. ``on_change`` hears of
    every change.
    """

    on_change: Callable[[], None]
    claims: dict[tuple[str, str], PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)
    classes: dict[str, StorageClass] = field(default_factory=dict)
    known: bool = False

    def seen(self, in_use: Mapping[tuple[str, str], int]) -> Storage:
        """As a decision sees it; ``in_use`` says by how many placed pods a claim is used."""
        return Storage(self.claims, self.volumes, self.classes, in_use, self.known)

    def synced(self) -> None:
        """Everything that exists has been told."""
        self.known = True
        self.on_change()

    def observe_claim(self, event: str | None, claim: PersistentVolumeClaim) -> None:
        """A PersistentVolumeClaim."""
        key = (claim.namespace, claim.name)
        self.claims.pop(key, None)
        if event != DELETED:
            self.claims[key] = claim
        self.on_change()

    def observe_volume(self, event: str | None, volume: PersistentVolume) -> None:
        """A PersistentVolume."""
        self.volumes.pop(volume.name, None)
        if event != DELETED:
            self.volumes[volume.name] = volume
        self.on_change()

    def observe_class(self, event: str | None, kind: StorageClass) -> None:
        """A StorageClass."""
        self.classes.pop(kind.name, None)
        if event != DELETED:
            self.classes[kind.name] = kind
        self.on_change()

    def replace_claims(self, claims: Iterable[PersistentVolumeClaim]) -> None:
        """All claims there are."""
        self.claims = {(claim.namespace, claim.name): claim for claim in claims}
        self.on_change()

    def replace_volumes(self, volumes: Iterable[PersistentVolume]) -> None:
        """All volumes there are."""
        self.volumes = {volume.name: volume for volume in volumes}
        self.on_change()

    def replace_classes(self, classes: Iterable[StorageClass]) -> None:
        """All storage classes there are."""
        self.classes = {kind.name: kind for kind in classes}
        self.on_change()


@dataclass(slots=True)
class NamespaceLister:
    """Told by those who watch namespaces, level-based as all facts. ``on_change`` hears only of what is news."""

    placed: PodIndex
    on_change: Callable[[], None]

    def observe(self, event: str | None, namespace: Namespace) -> None:
        """A namespace came, was labelled anew, or went."""
        if self.placed.label_namespace(namespace.name, None if event == DELETED else namespace.labels):
            self.on_change()

    def replace(self, namespaces: Iterable[Namespace]) -> None:
        """These namespaces exist and no others."""
        found = {namespace.name: namespace.labels for namespace in namespaces}
        names = [*(name for name in self.placed.namespaces if name not in found), *found]
        news = [self.placed.label_namespace(name, found.get(name)) for name in names]
        if any(news):
            self.on_change()
