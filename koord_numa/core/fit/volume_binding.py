"""Volume selection for a pod's claims on a node (kube-scheduler's VolumeBinding; component-helpers)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import Final

from koord_numa.core.objects.constraints import NodeTerm, Operator, Requirement
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.volumes import ClaimKey, PersistentVolume, PersistentVolumeClaim, Storage, StorageClass
from koord_numa.core.selectors import matches_term, meets, selects

_Place = tuple[str, str]  # label key and value; the key is empty for a node name


def _order(volume: PersistentVolume) -> tuple[bool, int, str]:
    """Sort key: volumes that are pre-bound to the claim, then the smallest, then by name."""
    return (not volume.claim, volume.capacity, volume.name)


@dataclass(slots=True)
class VolumeCandidates:
    """The volumes that match one claim. Lists are in the order of preference."""

    anywhere: list[PersistentVolume] = field(default_factory=list)
    by_place: dict[_Place, list[PersistentVolume]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)

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


@dataclass(frozen=True, slots=True)
class VolumePlan:
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
    return _rejection(WRONG_NODE, f"volume {claim.volume} of claim {claim.name} is not reached from this node")


def _bind(unbound: list[PersistentVolumeClaim], node: Node, storage: Storage) -> VolumePlan | Rejection:
    bindings: list[tuple[ClaimKey, str]] = []
    provisioned: list[ClaimKey] = []
    taken: set[str] = set()
    for claim in sorted(unbound, key=lambda claim: (claim.request, claim.key)):
        chosen = storage.node_of(claim)
        if chosen and chosen != node.name:
            return _rejection(NO_VOLUME, f"the volume of claim {claim.name} is being made for node {chosen}")
        if node.name in storage.failed.get(claim.key, ()):
            return _rejection(
                NO_VOLUME, f"claim {claim.name} was not bound here within its time; other nodes are tried first"
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
            NO_VOLUME, f"no volume of class {claim.storage_class or 'none'} suits claim {claim.name} here"
        )
    if storage_class.topologies and not any(meets(node.labels, term.labels) for term in storage_class.topologies):
        return _rejection(NO_VOLUME, f"class {storage_class.name} makes no volumes in the topology of this node")
    if not _has_space(claim, storage_class, node, storage):
        return _rejection(NO_SPACE, f"class {storage_class.name} has no room here for claim {claim.name}")
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


def _rejection(message: str, detail: str) -> Rejection:
    return Rejection(Reason.VOLUME, message, detail, resolvable=False)
