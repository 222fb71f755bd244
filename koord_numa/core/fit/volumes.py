"""
Volumes bind pods to places (kube-scheduler's VolumeBinding, VolumeZone and VolumeRestrictions).

Bound volumes decide by their node affinity and zone labels. Unbound claims are refused with a reason: asking a provisioner to
create a volume for a chosen node is a dialogue that kube-scheduler has and we do not.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from koord_numa.core.constraints import NodeTerm, Operator, Requirement
from koord_numa.core.node import Node
from koord_numa.core.request import Pod, PodRequest
from koord_numa.core.selectors import matches_term
from koord_numa.core.verdicts import Reason, Rejection
from koord_numa.core.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass

SUCCESSORS: Final[Mapping[str, str]] = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Beta labels of zones and regions, and what they are called since."""

ZONE_LABELS: Final = (*SUCCESSORS.values(), *SUCCESSORS)


@dataclass(frozen=True, slots=True)
class Storage:
    """All claims by (namespace, name), volumes and classes by name. ``known`` is false until they have been listed."""

    claims: Mapping[tuple[str, str], PersistentVolumeClaim] = field(default_factory=dict)
    volumes: Mapping[str, PersistentVolume] = field(default_factory=dict)
    classes: Mapping[str, StorageClass] = field(default_factory=dict)
    in_use: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by how many placed pods, for ReadWriteOncePod
    known: bool = True


def refuse_claims(request: PodRequest, storage: Storage) -> Rejection | None:
    """What stands against the pod on every node: a claim that is absent, going, in use, or not bound yet."""
    if request.constraints.claims and not storage.known:
        return _refusal("volumes are not known yet", "PersistentVolumeClaims have not been listed")
    for name in request.constraints.claims:
        claim = storage.claims.get((request.namespace, name))
        refusal = _absent(name) if claim is None else _refuse_claim(claim, storage)
        if refusal is not None:
            return refusal
    return None


def volume_filters(request: PodRequest, storage: Storage) -> list[tuple[tuple[NodeTerm, ...], Rejection]]:
    """
    For each of the pod's bound volumes the node terms of which a node must match one, and the refusal of the others.

    As ``volumebinding/binder.go`` (``checkBoundClaims``) and ``volumezone/volume_zone.go``. ``refuse_claims`` must have had no objection.
    """
    found: list[tuple[tuple[NodeTerm, ...], Rejection]] = []
    for name in request.constraints.claims:
        claim = storage.claims[request.namespace, name]
        volume = storage.volumes.get(claim.volume) if claim.bound else None
        if volume is None:
            continue
        detail = f"volume {volume.name} of claim {name}"
        if volume.node_terms is not None:
            why = "node(s) didn't match PersistentVolume's node affinity"
            found.append((volume.node_terms, _refusal(why, detail)))
        if volume.zones:
            found.append((zone_terms(volume.zones), _refusal("node(s) had no available volume zone", detail)))
    return found


def fits_volumes(request: PodRequest, node: Node, storage: Storage) -> Rejection | None:
    """Can every bound volume be reached from this node? ``refuse_claims`` must have had no objection."""
    for terms, refusal in volume_filters(request, storage):
        if not any(matches_term(term, node.name, node.labels) for term in terms):
            return refusal
    return None


@lru_cache(maxsize=4096)
def zone_terms(zones: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[NodeTerm, ...]:
    """
    The nodes that are in the zone and region that a volume's labels name; a node without any zone or region label is everywhere.

    A beta label of the volume is compared with the label of the same name, or with its successor on a node that has only that.
    """
    alternatives: list[tuple[Requirement, ...]] = [()]
    for key, values in zones:
        named: list[tuple[Requirement, ...]] = [(Requirement(key, Operator.IN, values),)]
        successor = SUCCESSORS.get(key)
        if successor is not None:
            named.append((Requirement(key, Operator.DOES_NOT_EXIST), Requirement(successor, Operator.IN, values)))
        alternatives = [(*former, *more) for former in alternatives for more in named]
    nowhere = tuple(Requirement(key, Operator.DOES_NOT_EXIST) for key in ZONE_LABELS)
    return (NodeTerm(labels=nowhere), *(NodeTerm(labels=each) for each in alternatives))


def storage_without(storage: Storage, request: PodRequest, gone: Iterable[Pod]) -> Storage:
    """What is known of the pod's own claims once these placed pods are gone."""
    freed = Counter((pod.key.namespace, claim) for pod in gone for claim in pod.request.constraints.claims)
    own = [(request.namespace, name) for name in request.constraints.claims]
    left = {claim: storage.in_use.get(claim, 0) - freed[claim] for claim in own}
    return replace(storage, in_use={claim: users for claim, users in left.items() if users > 0})


def _refuse_claim(claim: PersistentVolumeClaim, storage: Storage) -> Rejection | None:
    if claim.deleting:
        return _refusal(f'persistentvolumeclaim "{claim.name}" is being deleted')
    if claim.problem:
        return _refusal(f'persistentvolumeclaim "{claim.name}" is malformed', claim.problem)
    if not claim.bound:
        return _refuse_unbound(claim, storage)
    volume = storage.volumes.get(claim.volume)
    if volume is None:
        return _refusal(f'persistentvolume "{claim.volume}" not found', f"claim {claim.name} is bound to it")
    if volume.problem:
        return _refusal(f'persistentvolume "{volume.name}" is malformed', volume.problem)
    if claim.read_write_once_pod and (claim.namespace, claim.name) in storage.in_use:
        return Rejection(
            Reason.VOLUME,
            "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
            f"claim {claim.name}",
        )
    return None


def _refuse_unbound(claim: PersistentVolumeClaim, storage: Storage) -> Rejection:
    storage_class = _class_of(claim, storage)
    if storage_class is not None and storage_class.waits:
        return _refusal(
            f'persistentvolumeclaim "{claim.name}" waits for its first consumer, which koord-numa does not support',
            f"bind the claim first, or use a storage class that binds at once instead of {storage_class.name}",
        )
    return _refusal("pod has unbound immediate PersistentVolumeClaims", f"claim {claim.name} is not bound")


def _class_of(claim: PersistentVolumeClaim, storage: Storage) -> StorageClass | None:
    if claim.storage_class is None:
        return next((it for _, it in sorted(storage.classes.items()) if it.default), None)
    return storage.classes.get(claim.storage_class)


def _absent(name: str) -> Rejection:
    return _refusal(f'persistentvolumeclaim "{name}" not found')


def _refusal(message: str, detail: str = "") -> Rejection:
    return Rejection(Reason.VOLUME, message, detail, resolvable=False)
