"""A pod's volumes: which claims they use, which disks they name themselves, and which kinds bind the pod to nodes in unknown ways."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ConfigDict, Field

from koord_numa.core.objects.constraints import DiskKind, InlineDisk
from koord_numa.wire.metadata import Head
from koord_numa.wire.parsing import Strict

FREE_KINDS: Final = frozenset(
    {
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "fc",
        "flexVolume",
        "flocker",
    }
    | {
        "gitRepo",
        "glusterfs",
        "hostPath",
        "image",
        "nfs",
        "photonPersistentDisk",
        "portworxVolume",
        "projected",
        "quobyte",
    }
    | {"scaleIO", "secret", "storageos", "vsphereVolume"}
)
"""Kinds that no filter of kube-scheduler looks at: as far as scheduling goes, any node can mount them."""


class ClaimSource(Strict):
    """A volume that comes from a claim."""

    claim_name: str = Field(min_length=1)


class GceDisk(Strict):
    """A disk of Google's cloud."""

    pd_name: str = ""
    read_only: bool | None = None


class AwsDisk(Strict):
    """A disk of Amazon's cloud."""

    volume_id: str = Field("", alias="volumeID")
    read_only: bool | None = None


class IscsiDisk(Strict):
    """A disk reached by iSCSI."""

    iqn: str = ""
    read_only: bool | None = None


class RbdDisk(Strict):
    """An image in a Ceph cluster."""

    monitors: list[str] = Field([])
    pool: str = ""
    image: str = ""
    read_only: bool | None = None


class VolumeModel(Strict):
    """One volume; its kind is the name of the field that is set."""

    model_config = ConfigDict(extra="allow")

    name: str
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None
    gce_persistent_disk: GceDisk | None = None
    aws_elastic_block_store: AwsDisk | None = None
    iscsi: IscsiDisk | None = None
    rbd: RbdDisk | None = None


@dataclass(frozen=True, slots=True)
class Mounts:
    """What a pod's volumes come down to. ``ephemeral``: claims made for the pod, each with the uid that must own it."""

    claims: tuple[str, ...]
    ephemeral: tuple[tuple[str, str], ...]
    disks: tuple[InlineDisk, ...]
    unsupported: tuple[str, ...]


def volumes(top: Head, models: Iterable[VolumeModel]) -> Mounts:
    """Claims by name (an ephemeral volume's is ``<pod>-<volume>``), disks, and a sentence for each kind that is not known."""
    claims: set[str] = set()
    ephemeral: set[str] = set()
    disks: set[InlineDisk] = set()
    unsupported: list[str] = []
    for model in models:
        if model.persistent_volume_claim is not None:
            claims.add(model.persistent_volume_claim.claim_name)
        elif model.ephemeral is not None:
            ephemeral.add(f"{top.name}-{model.name}")
        elif (disk := _disk(model)) is not None:
            disks.add(disk)
        else:
            kinds = [kind for kind, source in (model.model_extra or {}).items() if source is not None]
            unsupported += [f"volume {model.name} of kind {kind}" for kind in sorted(kinds) if kind not in FREE_KINDS]
    owned = tuple((name, top.uid) for name in sorted(ephemeral))
    return Mounts(tuple(sorted(claims | ephemeral)), owned, tuple(sorted(disks, key=_order)), tuple(unsupported))


def _disk(model: VolumeModel) -> InlineDisk | None:
    """The identity by which volume_restrictions.go compares two disks of a kind."""
    if (gce := model.gce_persistent_disk) is not None:
        return InlineDisk(DiskKind.GCE, gce.pd_name, bool(gce.read_only))
    if (aws := model.aws_elastic_block_store) is not None:
        return InlineDisk(DiskKind.AWS, aws.volume_id, bool(aws.read_only))
    if (iscsi := model.iscsi) is not None:
        return InlineDisk(DiskKind.ISCSI, iscsi.iqn, bool(iscsi.read_only))
    if (rbd := model.rbd) is not None:
        return InlineDisk(DiskKind.RBD, f"{rbd.pool}/{rbd.image}", bool(rbd.read_only), frozenset(rbd.monitors))
    return None


def _order(disk: InlineDisk) -> tuple[str, str, bool, list[str]]:
    return (disk.kind.value, disk.identity, disk.read_only, sorted(disk.monitors))
