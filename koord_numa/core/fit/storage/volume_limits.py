"""A node attaches only so many volumes of a CSI driver (kube-scheduler's NodeVolumeLimits, ``nodevolumelimits/csi.go``)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koord_numa.core.objects.constraints import DiskKind, InlineDisk
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.volumes import ClaimKey, NodeVolumes, PersistentVolume, Storage

MIGRATED: Final[Mapping[DiskKind, str]] = {
    DiskKind.GCE: "pd.csi.storage.gke.io",
    DiskKind.AWS: "ebs.csi.aws.com",
}
"""CSI drivers that serve disks of kinds which were once built into Kubernetes."""

_Handle = tuple[str, str]  # driver and volume handle: a volume that several pods use is attached once
_UNUSED = NodeVolumes()


def fits_volume_limits(request: PodRequest, node: Node, storage: Storage) -> Rejection | None:
    """Can the node attach what the pod needs and what is not attached there already?"""
    csi_node = storage.csi_nodes.get(node.name)
    if csi_node is None or not csi_node.limits:
        return None
    claims = ((request.namespace, name) for name in request.constraints.claims)
    wanted = set(_handles(claims, request.constraints.disks, storage))
    if not wanted:
        return None
    used = storage.on_node.get(node.name, _UNUSED)
    attached = set(_handles(used.claims, used.disks, storage))
    attached.update(_of_volumes(storage.attached.get(node.name, ()), storage))
    new, there = Counter(driver for driver, _ in wanted - attached), Counter(driver for driver, _ in attached)
    for driver, limit in csi_node.limits:
        if new[driver] and there[driver] + new[driver] > limit:
            detail = f"{there[driver]} of {limit} volumes of {driver} are attached; needs {new[driver]} more"
            return Rejection(Reason.VOLUME_LIMIT, "node(s) exceed max volume count", detail)
    return None


def _handles(claims: Iterable[ClaimKey], disks: Iterable[InlineDisk], storage: Storage) -> Iterator[_Handle]:
    for key in claims:
        claim = storage.claims.get(key)
        if claim is None:
            continue
        volume = storage.volumes.get(claim.volume)
        if volume is not None:
            yield from _of(volume)
        elif (storage_class := storage.classes.get(claim.storage_class or "")) and storage_class.provisioner:
            yield (storage_class.provisioner, f"claim {claim.namespace}/{claim.name}")
    for disk in disks:
        if disk.kind in MIGRATED:
            yield (MIGRATED[disk.kind], disk.identity)


def _of_volumes(names: Iterable[str], storage: Storage) -> Iterator[_Handle]:
    for name in names:
        if (volume := storage.volumes.get(name)) is not None:
            yield from _of(volume)


def _of(volume: PersistentVolume) -> Iterator[_Handle]:
    if volume.driver:
        yield (volume.driver, volume.handle)
