"""
Existing volumes that suit one claim, found once a decision and then asked for node by node.

Local volumes are as many as nodes, so that asking each of them on each node would cost their product. Volumes whose node affinity
asks for certain values of one label (or for certain node names) are kept by these; a node then meets only its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge

from koord_numa.core.objects.constraints import NodeTerm, Operator, Requirement
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.volumes import PersistentVolume, PersistentVolumeClaim, Storage
from koord_numa.core.selectors import selects

_Place = tuple[str, str]  # label key and value; the key is empty for a node's name


def _order(volume: PersistentVolume) -> tuple[bool, int, str]:
    """Volumes that are the claim's own already come first, then the smallest, then by name."""
    return (not volume.claim, volume.capacity, volume.name)


@dataclass(slots=True)
class VolumeCandidates:
    """The volumes that suit one claim, each list in the order in which they are taken."""

    anywhere: list[PersistentVolume] = field(default_factory=list)
    by_place: dict[_Place, list[PersistentVolume]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)

    def add(self, volume: PersistentVolume) -> None:
        """Volumes are added in the order in which they are to be taken."""
        places = _places(volume)
        if places is None:
            self.anywhere.append(volume)
            return
        for key, value in places:
            self.keys.add(key)
            self.by_place.setdefault((key, value), []).append(volume)

    def on(self, node: Node) -> Iterator[PersistentVolume]:
        """Those that this node may reach; their node affinity is still to be asked."""
        lists = [self.anywhere]
        for key in self.keys:
            value = node.labels.get(key) if key else node.name
            if value is not None and (here := self.by_place.get((key, value))):
                lists.append(here)
        return merge(*lists, key=_order)


def candidates(claim: PersistentVolumeClaim, storage: Storage) -> VolumeCandidates:
    """All volumes that suit the claim apart from the node. Remembered in ``storage``, which is one decision's view."""
    found = storage.candidates.get(claim.key)
    if isinstance(found, VolumeCandidates):
        return found
    found = storage.candidates[claim.key] = VolumeCandidates()
    suitable = (
        volume for volume in storage.by_class.get(claim.storage_class or "", {}).values() if _suits(volume, claim)
    )
    for volume in sorted(suitable, key=_order):
        found.add(volume)
    return found


def _suits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """As ``FindMatchingVolume`` without the node: size, mode and access modes, and free or the claim's own."""
    if volume.problem or volume.deleting or volume.capacity < claim.request or volume.block is not claim.block:
        return False
    if volume.attributes_class != claim.attributes_class:
        return False
    if volume.claim:
        return volume.belongs_to(claim)
    if not volume.available or not claim.access_modes <= volume.access_modes:
        return False
    return claim.selector is None or selects(claim.selector, dict(volume.labels))


def _places(volume: PersistentVolume) -> list[_Place] | None:
    """The label values or node names of which a node must have one; ``None`` when the affinity is of another form."""
    if volume.node_terms is None:
        return None
    found: list[_Place] = []
    for term in volume.node_terms:
        narrow = _narrow(term)
        if narrow is None:
            return None
        found += narrow
    return list(dict.fromkeys(found))


def _narrow(term: NodeTerm) -> list[_Place] | None:
    def values(requirements: tuple[Requirement, ...], key: str | None) -> list[_Place] | None:
        for need in requirements:
            if need.operator is Operator.IN:
                return [(need.key if key is None else key, value) for value in need.values]
        return None

    return values(term.fields, "") or values(term.labels, None)
