"""
Which volumes a pod's claims get on a node (kube-scheduler's VolumeBinding; component-helpers ``FindMatchingVolume``).

Theory: a bound claim decides by its volume's node affinity. A claim of a WaitForFirstConsumer class is bound for the pod, and the
node is chosen first: an existing volume that fits the claim and is reached from the node is taken (the smallest that is large enough);
when there is none, the class must be able to make one there (allowed topologies, published capacity). Claims are served from the
smallest to the largest, so that a small claim does not take the only volume that a large one could use.

Worked example: claims of 5 Gi and 50 Gi, local volumes of 10 Gi and 100 Gi on the node. 5 Gi takes 10 Gi, 50 Gi takes 100 Gi. With
the volumes on two nodes, neither node fits: ``node(s) didn't find available persistent volumes to bind``.

The plan is made again when the pod is reserved, from the same facts and therefore with the same answer: it does not travel.
"""

from dataclasses import dataclass
from typing import Final

from koord_numa.core.fit.storage.volume_candidates import candidates
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.volumes import ClaimKey, PersistentVolumeClaim, Storage, StorageClass
from koord_numa.core.selectors import matches_term, meets, selects

NO_VOLUME: Final = "node(s) didn't find available persistent volumes to bind"
WRONG_NODE: Final = "node(s) didn't match PersistentVolume's node affinity"
NO_SPACE: Final = "node(s) did not have enough free storage"


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """What is to be written before the pod is bound: volumes given to claims by name, and claims to be provisioned for the node."""

    bindings: tuple[tuple[ClaimKey, str], ...] = ()
    provisioned: tuple[ClaimKey, ...] = ()


NOTHING_TO_BIND: Final = VolumePlan()


def fits_volume_binding(request: PodRequest, node: Node, storage: Storage) -> Rejection | None:
    """Can the pod's claims have their volumes on this node? ``refuse_claims`` must have had no objection."""
    plan = plan_volumes(request, node, storage)
    return plan if isinstance(plan, Rejection) else None


def plan_volumes(request: PodRequest, node: Node, storage: Storage) -> VolumePlan | Rejection:
    """The volumes of the pod's claims on this node. ``refuse_claims`` must have had no objection."""
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
    """The smallest volume that suits the claim and is reached from the node; empty when there is none."""
    for volume in candidates(claim, storage).on(node):
        if volume.name in taken or storage.reserved.get(volume.name, claim.key) != claim.key:
            continue
        terms = volume.node_terms
        if terms is None or any(matches_term(term, node.name, node.labels) for term in terms):
            return volume.name
        if volume.belongs_to(claim):
            return ""  # As FindMatchingVolume: a claim whose own volume is elsewhere takes no other.
    return ""


def _refuse_provision(claim: PersistentVolumeClaim, node: Node, storage: Storage) -> Rejection | None:
    """As ``checkVolumeProvisions``: can the class make this volume for the node?"""
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
    """Only drivers that publish their capacity are asked for it (CSIDriver ``storageCapacity``; ``hasEnoughCapacity``)."""
    driver = storage.drivers.get(storage_class.provisioner)
    if driver is None or not driver.publishes_capacity:
        return True
    return any(
        not capacity.problem and claim.request <= capacity.largest and selects(capacity.topology, node.labels)
        for capacity in storage.capacities.get(storage_class.name, {}).values()
    )


def _rejection(message: str, detail: str) -> Rejection:
    return Rejection(Reason.VOLUME, message, detail, resolvable=False)
