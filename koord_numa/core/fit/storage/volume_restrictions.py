"""Disks that a pod's spec names itself and that only one pod of a node may use (kube-scheduler's VolumeRestrictions)."""

from koord_numa.core.objects.constraints import DiskKind, InlineDisk
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.volumes import NodeVolumes, Storage

_UNUSED = NodeVolumes()


def fits_volume_restrictions(request: PodRequest, node: Node, storage: Storage) -> Rejection | None:
    """Is every inline disk of the pod free on this node?"""
    for disk in request.constraints.disks:
        for used in storage.on_node.get(node.name, _UNUSED).disks:
            if _conflict(disk, used):
                return Rejection(
                    Reason.DISK_CONFLICT, "node(s) had no available disk", f"{disk.kind.value} {disk.identity}"
                )
    return None


def _conflict(disk: InlineDisk, used: InlineDisk) -> bool:
    """As volume_restrictions.go ``isVolumeConflict``: reading a disk together is allowed, except on AWS."""
    if disk.kind is not used.kind or disk.identity != used.identity:
        return False
    if disk.kind is DiskKind.RBD and disk.monitors.isdisjoint(used.monitors):
        return False
    return disk.kind is DiskKind.AWS or not (disk.read_only and used.read_only)
