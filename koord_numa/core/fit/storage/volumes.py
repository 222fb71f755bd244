"""
A pod's volumes: what stands against the pod everywhere, and what one node says.

The rules are kube-scheduler's VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits, each in its own module.
"""

from collections import Counter
from collections.abc import Iterable

from koord_numa.core.fit.storage.volume_binding import fits_volume_binding
from koord_numa.core.fit.storage.volume_limits import fits_volume_limits
from koord_numa.core.fit.storage.volume_restrictions import fits_volume_restrictions
from koord_numa.core.fit.storage.volume_zone import fits_volume_zone
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.volumes import NodeVolumes, PersistentVolumeClaim, Storage
from koord_numa.core.value_objects import replace


def uses_volumes(request: PodRequest) -> bool:
    """Does the answer of a node depend on volumes?"""
    return bool(request.constraints.claims or request.constraints.disks)


def refuse_claims(request: PodRequest, storage: Storage) -> Rejection | None:
    """What stands against the pod on every node: a claim that is absent, not its own, lost, going, in use, or to be bound first."""
    demands = request.constraints
    if demands.claims and not storage.known:
        return _rejection("volumes are not known yet", "PersistentVolumeClaims have not been listed")
    owners = dict(demands.ephemeral)
    for name in demands.claims:
        claim = storage.claims.get((request.namespace, name))
        rejection = _refuse_owner(name, claim, owners) or (None if claim is None else _refuse_claim(claim, storage))
        if rejection is not None:
            return rejection
    return None


def fits_volumes(request: PodRequest, node: Node, storage: Storage) -> Rejection | None:
    """Can the pod have its volumes on this node? ``refuse_claims`` must have had no objection."""
    return (
        fits_volume_restrictions(request, node, storage)
        or fits_volume_limits(request, node, storage)
        or fits_volume_binding(request, node, storage)
        or fits_volume_zone(request, node, storage)
    )


def storage_without(storage: Storage, node: str, gone: Iterable[Pod]) -> Storage:
    """What is known of volumes once these pods are gone from the node."""
    used = NodeVolumes()
    for pod in gone:
        used.claims.update((pod.key.namespace, claim) for claim in pod.request.constraints.claims)
        used.disks.update(pod.request.constraints.disks)
    if not used.claims and not used.disks:
        return storage
    here = storage.on_node.get(node, NodeVolumes())
    # A difference of Counters drops what is zero.
    left = NodeVolumes(here.claims - used.claims, here.disks - used.disks)
    in_use = Counter(storage.in_use) - used.claims
    return replace(storage, in_use=in_use, on_node={**storage.on_node, node: left})


def _refuse_owner(name: str, claim: PersistentVolumeClaim | None, owners: dict[str, str]) -> Rejection | None:
    if claim is None:
        if name in owners:
            return _rejection(f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"')
        return _rejection(f'persistentvolumeclaim "{name}" not found')
    if name in owners and claim.owner != owners[name]:
        return _rejection(
            f'persistentvolumeclaim "{name}" was not created for the pod',
            "an ephemeral volume needs a claim that its pod owns; delete the claim, or rename the volume",
        )
    return None


def _refuse_claim(claim: PersistentVolumeClaim, storage: Storage) -> Rejection | None:
    if claim.deleting:
        return _rejection(f'persistentvolumeclaim "{claim.name}" is being deleted')
    if claim.problem:
        return _rejection(f'persistentvolumeclaim "{claim.name}" is malformed', claim.problem)
    if claim.lost:
        return _rejection(
            f'persistentvolumeclaim "{claim.name}" bound to non-existent persistentvolume "{claim.volume}"'
        )
    rejection = _refuse_bound(claim, storage) if claim.bound else _refuse_unbound(claim, storage)
    if rejection is None and claim.read_write_once_pod and claim.key in storage.in_use:
        return Rejection(
            Reason.VOLUME,
            "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
            f"claim {claim.name}",
        )
    return rejection


def _refuse_bound(claim: PersistentVolumeClaim, storage: Storage) -> Rejection | None:
    volume = storage.volumes.get(claim.volume)
    if volume is None:
        return _rejection(f'persistentvolume "{claim.volume}" not found', f"claim {claim.name} is bound to it")
    if volume.problem:
        return _rejection(f'persistentvolume "{volume.name}" is malformed', volume.problem)
    return None


def _refuse_unbound(claim: PersistentVolumeClaim, storage: Storage) -> Rejection | None:
    """Only a claim of a WaitForFirstConsumer class that names no volume is bound for the pod (``GetPodVolumeClaims``)."""
    storage_class = storage.classes.get(claim.storage_class or "")
    if storage_class is not None and storage_class.problem:
        return _rejection(f'storageclass "{storage_class.name}" is malformed', storage_class.problem)
    if storage_class is None or not storage_class.waits or claim.volume:
        return _rejection("pod has unbound immediate PersistentVolumeClaims", f"claim {claim.name} is not bound")
    return None


def _rejection(message: str, detail: str = "") -> Rejection:
    return Rejection(Reason.VOLUME, message, detail, resolvable=False)
