"""
A simulated PersistentVolume controller and CSI provisioner, with the behavior that a scheduler can observe.

A claim is bound to the volume that names it. A claim whose class has a provisioner gets a new volume: at once, or with
WaitForFirstConsumer when ``volume.kubernetes.io/selected-node`` names a node. If the volume cannot be provisioned for that
node, the annotation is removed and the scheduler selects another node.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koord_numa.sandbox.apiserver import ApiError, DirectStore, Subscription

Json = dict[str, Any]

VOLUME_CLAIMS: Final = "persistentvolumeclaims"
VOLUMES: Final = "persistentvolumes"
CLASSES: Final = "storageclasses.storage.k8s.io"

SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
HOSTNAME: Final = "kubernetes.io/hostname"


@dataclass(slots=True)
class VolumeController:
    """Controller of all claims and volumes, active after ``start``. Provisioned volumes are local to their node.

    Provisioning fails for the nodes in ``failing`` and never completes for the nodes in ``silent``. Both sets may be
    changed at any time. Call ``look_again`` afterwards to process existing claims.
    """

    store: DirectStore
    failing: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    made: list[str] = field(default_factory=list)  # names of provisioned volumes, in the order of creation
    _subscriptions: list[Subscription] = field(default_factory=list)

    def start(self) -> None:
        """Subscribe to volumes and claims. Existing objects are processed first."""
        self._subscriptions = [
            self.store.subscribe(VOLUMES, self._on_volume),
            self.store.subscribe(VOLUME_CLAIMS, self._on_claim),
        ]

    def stop(self) -> None:
        """Cancel the subscriptions."""
        while self._subscriptions:
            self._subscriptions.pop().cancel()

    def look_again(self) -> None:
        """Process every claim that is not bound yet."""
        for claim in self.store.list(VOLUME_CLAIMS):
            self._on_claim("MODIFIED", claim)

    def _on_volume(self, event: str, volume: Json) -> None:
        # The claim phase Lost is not simulated, so the deletion of a volume changes no claim.
        if event == "DELETED":
            return
        reference = volume["spec"].get("claimRef")
        # Schedulers choose Available volumes only (component-helpers/storage/volume FindMatchingVolume).
        if not reference:
            self._set_phase(VOLUMES, volume, "Available")
            return
        claim = self.store.find(VOLUME_CLAIMS, reference["name"], reference["namespace"])
        if claim is not None:
            self._on_claim("MODIFIED", claim)

    def _on_claim(self, event: str, claim: Json) -> None:
        spec, annotations = claim["spec"], claim["metadata"].get("annotations") or {}
        if event == "DELETED" or BIND_COMPLETED in annotations or claim["metadata"].get("deletionTimestamp"):
            return
        # A volume that names the claim takes precedence over provisioning: the scheduler may have selected a static
        # volume.
        volume = self._own_volume(claim)
        if volume is None:
            volume = self._provision(claim, annotations.get(SELECTED_NODE, ""))
        # A claim with a volumeName is bound to that volume only.
        if volume is not None and spec.get("volumeName") in (None, "", volume["metadata"]["name"]):
            self._bind(claim, volume)

    def _own_volume(self, claim: Json) -> Json | None:
        """Return the volume whose claimRef names this claim."""
        meta = claim["metadata"]
        for volume in self.store.list(VOLUMES):
            reference = volume["spec"].get("claimRef") or {}
            same = (reference.get("namespace"), reference.get("name")) == (meta["namespace"], meta["name"])
            # A claimRef without a uid pre-binds the volume to any claim of that name.
            if same and reference.get("uid") in (None, "", meta["uid"]):
                return volume
        return None

    def _provision(self, claim: Json, node: str) -> Json | None:
        storage_class = self.store.find(CLASSES, claim["spec"].get("storageClassName") or "-")
        # Volumes of this class are not provisioned.
        if storage_class is None or storage_class.get("provisioner") == "kubernetes.io/no-provisioner":
            return None
        waits = storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
        if (waits and not node) or node in self.silent:
            return None
        meta = claim["metadata"]
        # external-provisioner, ProvisioningReschedule: removing the annotation makes the scheduler select again.
        if node in self.failing:
            self.store.patch(
                VOLUME_CLAIMS, meta["name"], {"metadata": {"annotations": {SELECTED_NODE: None}}}, meta["namespace"]
            )
            return None
        name = f"pvc-{meta['uid']}"  # naming scheme of external-provisioner
        self.made.append(name)
        return self.store.create(provisioned_volume(name, claim, storage_class, self._hosts(node)))

    def _hosts(self, node: str) -> list[str]:
        found = self.store.find("nodes", node) if node else None
        # Without a node (Immediate) the volume is accessible from all nodes.
        return [] if found is None else [(found["metadata"].get("labels") or {}).get(HOSTNAME, node)]

    def _bind(self, claim: Json, volume: Json) -> None:
        meta, name = claim["metadata"], volume["metadata"]["name"]
        reference = {
            "kind": "PersistentVolumeClaim",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        }
        # As pv_controller.go bind: volume first, then claim, so that no claim names a volume of another claim.
        try:
            self.store.patch(VOLUMES, name, {"spec": {"claimRef": reference}})
            self._set_phase(VOLUMES, volume, "Bound")
            patch = {"metadata": {"annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": name}}
            self.store.patch(VOLUME_CLAIMS, meta["name"], patch, meta["namespace"])
            self._set_phase(VOLUME_CLAIMS, claim, "Bound")
        except ApiError as error:
            if error.code not in (404, 409):  # deleted or changed concurrently: the next event of the claim retries
                raise

    def _set_phase(self, resource: str, obj: Json, phase: str) -> None:
        if (obj.get("status") or {}).get("phase") != phase:
            meta = obj["metadata"]
            self.store.patch(resource, meta["name"], {"status": {"phase": phase}}, meta.get("namespace", ""), "status")


def provisioned_volume(
    name: str, claim: Mapping[str, Any], storage_class: Mapping[str, Any], hosts: Iterable[str]
) -> Json:
    """Return the PersistentVolume that a CSI provisioner creates for a claim.

    With hosts, its node affinity restricts it to these hosts.
    """
    spec, meta = claim["spec"], claim["metadata"]
    terms = [{"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [host]}]} for host in hosts]
    volume: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "storageClassName": spec["storageClassName"],
            "csi": {"driver": storage_class["provisioner"], "volumeHandle": name},
            "claimRef": {
                "kind": "PersistentVolumeClaim",
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
        },
    }
    if terms:
        volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return volume
