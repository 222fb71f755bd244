"""What is known of claims, volumes and storage classes. Facts only; what they mean is decided in ``core.fit.volumes``."""

from dataclasses import dataclass, field

from koord_numa.core.fit.volumes import Storage
from koord_numa.core.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass


@dataclass(slots=True)
class StorageRoom:
    """Kept by those who watch volumes. Until ``known`` is set, pods with claims wait."""

    claims: dict[tuple[str, str], PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)
    classes: dict[str, StorageClass] = field(default_factory=dict)
    known: bool = False

    def seen(self, in_use: frozenset[tuple[str, str]]) -> Storage:
        """As a decision sees it; ``in_use`` are claims of placed pods."""
        return Storage(self.claims, self.volumes, self.classes, in_use, self.known)
