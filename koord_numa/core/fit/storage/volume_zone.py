"""A volume that is labelled with zones or regions is reached from nodes of these only (kube-scheduler's VolumeZone)."""

from collections.abc import Mapping
from typing import Final

from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.volumes import PersistentVolume, Storage

SUCCESSORS: Final[Mapping[str, str]] = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Beta labels of zones and regions, and what they are called since."""

TOPOLOGY_LABELS: Final = (*SUCCESSORS.values(), *SUCCESSORS)
NO_ZONE: Final = "node(s) had no available volume zone"


def fits_volume_zone(request: PodRequest, node: Node, storage: Storage) -> Rejection | None:
    """
    Is the node in a zone of every bound volume?

    As volume_zone.go: a node with none of the four labels is in every zone; one with any of them must have each label of the volume,
    where a beta label of the volume is also met by the label that replaced it.
    """
    if not any(label in node.labels for label in TOPOLOGY_LABELS):
        return None
    for name in request.constraints.claims:
        claim = storage.claims[request.namespace, name]
        volume = storage.volumes.get(claim.volume) if claim.bound else None
        if volume is not None and not _in_zone(volume, node.labels):
            detail = f"volume {volume.name} of claim {name}"
            return Rejection(Reason.VOLUME_ZONE, NO_ZONE, detail, resolvable=False)
    return None


def _in_zone(volume: PersistentVolume, labels: Mapping[str, str]) -> bool:
    return all(labels.get(label, labels.get(SUCCESSORS.get(label, ""))) in values for label, values in volume.zones)
