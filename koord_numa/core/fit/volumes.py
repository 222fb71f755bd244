"""Filters on volumes: kube-scheduler's NodeVolumeLimits, VolumeRestrictions, VolumeZone and VolumeBinding."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import Final

from koord_numa.core.objects.constraints import (
    DiskKind,
    InlineDisk,
    NodeTerm,
    Operator,
    Requirement,
    matches_term,
    meets,
    selects,
)
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.volumes import (
    ClaimKey,
    NodeVolumes,
    PersistentVolume,
    PersistentVolumeClaim,
    Storage,
    StorageClass,
)
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field

_Place = tuple[str, str]  # label key and value; the key is empty for a node name


def _order(volume: PersistentVolume) -> tuple[bool, int, str]:
    """Sort key: volumes that are pre-bound to the claim, then the smallest, then by name."""
    return (not volume.claim, volume.capacity, volume.name)


class VolumeCandidates(MutableObject):
    """The volumes that match one claim. Lists are in the order of preference."""

    anywhere: list[PersistentVolume] = value_field(default_factory=list)
    by_place: dict[_Place, list[PersistentVolume]] = value_field(default_factory=dict)
    keys: set[str] = value_field(default_factory=set)

    def add(self, volume: PersistentVolume) -> None:
        """Add a volume. Volumes must be added in the order of preference."""
        places = _places(volume)
        if places is None:
            self.anywhere.append(volume)
            return
        for key, value in places:
            self.keys.add(key)
            self.by_place.setdefault((key, value), []).append(volume)

    def on(self, node: Node) -> Iterator[PersistentVolume]:
        """Yield the volumes that the node may reach. Their node affinity is not fully checked yet."""
        lists = [self.anywhere]
        for key in self.keys:
            value = node.labels.get(key) if key else node.name
            if value is not None and (here := self.by_place.get((key, value))):
                lists.append(here)
        return merge(*lists, key=_order)


def candidates(claim: PersistentVolumeClaim, storage: Storage) -> VolumeCandidates:
    """
    Return all volumes that match the claim, without regard to the node.

    The result is cached in ``storage``, which lives for one decision.
    """
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
    """
    Return whether the volume matches the claim, as ``FindMatchingVolume`` without the node.

    Size, mode and access modes match, and the volume is free or pre-bound to the claim.
    """
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
    """Return the label values or node names that a node may have, or None for a node affinity of another form."""
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


NO_VOLUME: Final = "node(s) didn't find available persistent volumes to bind"
WRONG_NODE: Final = "node(s) didn't match PersistentVolume's node affinity"
NO_SPACE: Final = "node(s) did not have enough free storage"


class VolumePlan(ValueObject):
    """Writes that precede the binding of the pod: volumes to bind to claims, and claims to provision for the node."""

    bindings: tuple[tuple[ClaimKey, str], ...] = ()
    provisioned: tuple[ClaimKey, ...] = ()


NOTHING_TO_BIND: Final = VolumePlan()


def fits_volume_binding(request: PodRequest, node: Node, storage: Storage) -> Rejection | None:
    """Reject a node where the pod's claims cannot get volumes. ``refuse_claims`` must have accepted the pod."""
    plan = plan_volumes(request, node, storage)
    return plan if isinstance(plan, Rejection) else None


def plan_volumes(request: PodRequest, node: Node, storage: Storage) -> VolumePlan | Rejection:
    """
    Return the volumes for the pod's claims on this node, or a rejection. ``refuse_claims`` must have accepted the pod.
    """
    unbound = []
    for name in request.constraints.claims:
        claim = storage.claims[request.namespace, name]
        if not claim.bound:
            unbound.append(claim)
        elif rejection := _reaches(claim, node, storage):
            return rejection
    return _bind(unbound, node, storage) if unbound else NOTHING_TO_BIND


def _reaches(claim: PersistentVolumeClaim, node: Node, storage: Storage) -> Rejection | None:
    terms = storage.volumes[claim.volume].node_terms
    if terms is None or any(matches_term(term, node.name, node.labels) for term in terms):
        return None
    return _rejection(WRONG_NODE, f"volume {claim.volume} of claim {claim.name} is not accessible from this node")


def _bind(unbound: list[PersistentVolumeClaim], node: Node, storage: Storage) -> VolumePlan | Rejection:
    bindings: list[tuple[ClaimKey, str]] = []
    provisioned: list[ClaimKey] = []
    taken: set[str] = set()
    for claim in sorted(unbound, key=lambda claim: (claim.request, claim.key)):
        chosen = storage.node_of(claim)
        if chosen and chosen != node.name:
            return _rejection(NO_VOLUME, f"the volume of claim {claim.name} is being provisioned for node {chosen}")
        if node.name in storage.failed.get(claim.key, ()):
            return _rejection(
                NO_VOLUME, f"claim {claim.name} was not bound here within the timeout; other nodes are tried first"
            )
        volume = "" if chosen else _match(claim, node, storage, taken)
        if volume:
            taken.add(volume)
            bindings.append((claim.key, volume))
        elif rejection := _refuse_provision(claim, node, storage):
            return rejection
        else:
            provisioned.append(claim.key)
    return VolumePlan(tuple(bindings), tuple(provisioned))


def _match(claim: PersistentVolumeClaim, node: Node, storage: Storage, taken: set[str]) -> str:
    """
    Return the name of the smallest volume that matches the claim and is reachable from the node, or an empty string.
    """
    for volume in candidates(claim, storage).on(node):
        if volume.name in taken or storage.reserved.get(volume.name, claim.key) != claim.key:
            continue
        terms = volume.node_terms
        if terms is None or any(matches_term(term, node.name, node.labels) for term in terms):
            return volume.name
        if volume.belongs_to(claim):
            return ""  # As FindMatchingVolume: a claim with a pre-bound volume gets no other volume.
    return ""


def _refuse_provision(claim: PersistentVolumeClaim, node: Node, storage: Storage) -> Rejection | None:
    """Reject a node for which the class cannot provision the volume, as ``checkVolumeProvisions``."""
    storage_class = storage.classes.get(claim.storage_class or "")
    if storage_class is None or not storage_class.provisioner:
        return _rejection(
            NO_VOLUME, f"no volume of class {claim.storage_class or 'none'} matches claim {claim.name} here"
        )
    if storage_class.topologies and not any(meets(node.labels, term.labels) for term in storage_class.topologies):
        return _rejection(NO_VOLUME, f"class {storage_class.name} provisions no volumes in the topology of this node")
    if not _has_space(claim, storage_class, node, storage):
        return _rejection(NO_SPACE, f"class {storage_class.name} has too little capacity here for claim {claim.name}")
    return None


def _has_space(claim: PersistentVolumeClaim, storage_class: StorageClass, node: Node, storage: Storage) -> bool:
    """
    Return whether the driver has enough capacity.

    Only drivers that publish capacity are checked (CSIDriver ``storageCapacity``; ``hasEnoughCapacity``).
    """
    driver = storage.drivers.get(storage_class.provisioner)
    if driver is None or not driver.publishes_capacity:
        return True
    return any(
        not capacity.problem and claim.request <= capacity.largest and selects(capacity.topology, node.labels)
        for capacity in storage.capacities.get(storage_class.name, {}).values()
    )


MIGRATED: Final[Mapping[DiskKind, str]] = {
    DiskKind.GCE: "pd.csi.storage.gke.io",
    DiskKind.AWS: "ebs.csi.aws.com",
}
"""CSI drivers that replace in-tree volume types."""

_Handle = tuple[str, str]  # driver and volume handle: a volume of several pods is attached once
_UNUSED = NodeVolumes()


def fits_volume_limits(request: PodRequest, node: Node, storage: Storage) -> Rejection | None:
    """Reject a node that cannot attach the additional volumes of the pod."""
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


def fits_volume_restrictions(request: PodRequest, node: Node, storage: Storage) -> Rejection | None:
    """Reject a node where an inline disk of the pod conflicts with a disk in use."""
    for disk in request.constraints.disks:
        for used in storage.on_node.get(node.name, _UNUSED).disks:
            if _conflict(disk, used):
                return Rejection(
                    Reason.DISK_CONFLICT, "node(s) had no available disk", f"{disk.kind.value} {disk.identity}"
                )
    return None


def _conflict(disk: InlineDisk, used: InlineDisk) -> bool:
    """
    Return whether two disks conflict, as ``isVolumeConflict`` in volume_restrictions.go.

    Read-only sharing is allowed, except on AWS.
    """
    if disk.kind is not used.kind or disk.identity != used.identity:
        return False
    if disk.kind is DiskKind.RBD and disk.monitors.isdisjoint(used.monitors):
        return False
    return disk.kind is DiskKind.AWS or not (disk.read_only and used.read_only)


SUCCESSORS: Final[Mapping[str, str]] = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Beta labels of zones and regions, and the labels that replaced them."""

TOPOLOGY_LABELS: Final = (*SUCCESSORS.values(), *SUCCESSORS)
NO_ZONE: Final = "node(s) had no available volume zone"


def fits_volume_zone(request: PodRequest, node: Node, storage: Storage) -> Rejection | None:
    """
    Reject a node that is outside the zone of a bound volume.

    As volume_zone.go: a node without the four labels is in every zone. A node with any of them must match every label
    of the volume. A beta label of the volume is also matched by the label that replaced it.
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


def uses_volumes(request: PodRequest) -> bool:
    """Return whether the filters of a pod depend on volumes."""
    return bool(request.constraints.claims or request.constraints.disks)


def refuse_claims(request: PodRequest, storage: Storage) -> Rejection | None:
    """
    Reject a pod on every node because of its claims.

    Reasons: a claim is missing, belongs to another pod, is lost, is being deleted, is in use, or must be bound first.
    """
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


def storage_without(storage: Storage, node: str, gone: Iterable[Pod]) -> Storage:
    """Return the storage state after the removal of pods from the node."""
    used = _used_by(gone)
    if not used.claims and not used.disks:
        return storage
    here = storage.on_node.get(node, NodeVolumes())
    # The difference of Counters drops zero counts.
    left = NodeVolumes(here.claims - used.claims, here.disks - used.disks)
    in_use = Counter(storage.in_use) - used.claims
    return replace(storage, in_use=in_use, on_node={**storage.on_node, node: left})


def storage_with(storage: Storage, node: str, come: Iterable[Pod]) -> Storage:
    """Return the storage state after pods were added to the node."""
    used = _used_by(come)
    if not used.claims and not used.disks:
        return storage
    here = storage.on_node.get(node, NodeVolumes())
    more = NodeVolumes(here.claims + used.claims, here.disks + used.disks)
    return replace(storage, in_use=Counter(storage.in_use) + used.claims, on_node={**storage.on_node, node: more})


def _used_by(pods: Iterable[Pod]) -> NodeVolumes:
    used = NodeVolumes()
    for pod in pods:
        used.claims.update((pod.key.namespace, claim) for claim in pod.request.constraints.claims)
        used.disks.update(pod.request.constraints.disks)
    return used


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
    """
    Reject an unbound claim, except a claim of a WaitForFirstConsumer class that names no volume
    (``GetPodVolumeClaims``).
    """
    storage_class = storage.classes.get(claim.storage_class or "")
    if storage_class is not None and storage_class.problem:
        return _rejection(f'storageclass "{storage_class.name}" is malformed', storage_class.problem)
    if storage_class is None or not storage_class.waits or claim.volume:
        return _rejection("pod has unbound immediate PersistentVolumeClaims", f"claim {claim.name} is not bound")
    return None


def _rejection(message: str, detail: str = "") -> Rejection:
    return Rejection(Reason.VOLUME, message, detail, resolvable=False)
