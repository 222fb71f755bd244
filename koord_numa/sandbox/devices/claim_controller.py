"""The ResourceClaim controller of kube-controller-manager, as far as a scheduler can observe it.

It creates claims from templates and writes their names into the pod status. It reserves allocated claims for pods with
a node. It deallocates a claim when the last pod of its reservations is deleted or finished, and then removes the
finalizer of a deleted claim. The claim of a template, or for extended resources, is deleted with its pod.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koord_numa.sandbox.apiserver import ApiError, DirectStore, Subscription

Json = dict[str, Any]

CLAIMS: Final = "resourceclaims.resource.k8s.io"
TEMPLATES: Final = "resourceclaimtemplates.resource.k8s.io"
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
_ENDED: Final = ("Succeeded", "Failed")


@dataclass(slots=True)
class ClaimController:
    """Controller of all pods and claims, active after ``start``."""

    store: DirectStore
    _subscriptions: list[Subscription] = field(default_factory=list)

    def start(self) -> None:
        """Subscribe to pods, templates and claims. Existing objects are processed first."""
        self._subscriptions = [
            self.store.subscribe("pods", self._on_pod),
            self.store.subscribe(TEMPLATES, lambda event, _: self._look_at_pods(event)),
            self.store.subscribe(CLAIMS, self._on_claim),
        ]

    def stop(self) -> None:
        """Cancel the subscriptions."""
        while self._subscriptions:
            self._subscriptions.pop().cancel()

    # A pod that was created before its template waits for the template.
    def _look_at_pods(self, event: str) -> None:
        if event == "ADDED":
            for pod in self.store.list("pods"):
                self._on_pod("MODIFIED", pod)

    def _on_pod(self, event: str, pod: Json) -> None:
        # Fast path: called for every event of every pod.
        entries = pod["spec"].get("resourceClaims") or []
        if not entries and not extended_claim_of(pod):
            return
        metadata = pod["metadata"]
        if event == "DELETED" or pod.get("status", {}).get("phase") in _ENDED:
            self._release(metadata["namespace"], metadata["uid"], gone=event == "DELETED")
            return
        # A pod that is being deleted gets no new claims. It keeps its claims until its containers have terminated.
        if entries and not metadata.get("deletionTimestamp"):
            self._make_claims(pod, entries)
        if pod["spec"].get("nodeName"):
            self._reserve(pod)

    def _make_claims(self, pod: Json, entries: list[Json]) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        # The event may be outdated: another pod of the same name may exist now.
        current = self.store.find("pods", name, namespace)
        if current is None or current["metadata"]["uid"] != pod["metadata"]["uid"]:
            return
        statuses = list((current.get("status") or {}).get("resourceClaimStatuses") or ())
        known = {status["name"] for status in statuses}
        for entry in entries:
            template = entry.get("resourceClaimTemplateName")
            made = (
                self._from_template(current, entry["name"], template)
                if template and entry["name"] not in known
                else None
            )
            if made is not None:
                statuses.append({"name": entry["name"], "resourceClaimName": made})
        # Single write for all entries, like the apply configuration in resourceclaim/controller.go syncPod.
        if len(statuses) > len(known):
            self.store.patch("pods", name, {"status": {"resourceClaimStatuses": statuses}}, namespace, "status")

    def _from_template(self, pod: Json, entry: str, template: str) -> str | None:
        metadata = pod["metadata"]
        found = self.store.find(TEMPLATES, template, metadata["namespace"])
        if found is None:
            return None
        owner = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": f"{metadata['name']}-{entry}-",
                "namespace": metadata["namespace"],
                "ownerReferences": [owner],
                "annotations": {"resource.kubernetes.io/pod-claim-name": entry},
            },
            "spec": found["spec"]["spec"],
        }
        return str(self.store.create(claim)["metadata"]["name"])

    def _release(self, namespace: str, uid: str, gone: bool) -> None:
        for claim in self.store.list(CLAIMS, namespace):
            consumers = (claim.get("status") or {}).get("reservedFor") or []
            owners = claim["metadata"].get("ownerReferences") or ()
            if any(it["uid"] == uid for it in consumers):
                self._unreserve(claim, [it for it in consumers if it["uid"] != uid])
            # Only claims that the pod controls, which come from templates. Claims that users create outlive their pods.
            if gone and any(owner["uid"] == uid and owner.get("controller") for owner in owners):
                self._delete(claim)

    def _reserve(self, pod: Json) -> None:
        """Reserve the claims of a pod with a node, whichever scheduler bound it (``syncPod`` and ``reserveForPod``)."""
        metadata = pod["metadata"]
        for claim in claims_of(self.store, pod):
            status = claim.get("status") or {}
            consumers = status.get("reservedFor") or []
            if status.get("allocation") and all(it["uid"] != metadata["uid"] for it in consumers):
                entry = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
                self.store.update({**claim, "status": {**status, "reservedFor": [*consumers, entry]}}, "status")

    # The allocation is removed with the last consumer (`syncClaim`), which frees the devices.
    def _unreserve(self, claim: Json, left: list[Json]) -> None:
        status = dict(claim["status"])
        status["reservedFor"] = left
        if not left:
            for part in ("allocation", "reservedFor", "devices"):
                status.pop(part, None)
        self.store.update({**claim, "status": status}, "status")

    def _delete(self, claim: Json) -> None:
        try:
            self.store.delete(CLAIMS, claim["metadata"]["name"], claim["metadata"]["namespace"])
        except ApiError as problem:
            if problem.code != 404:
                raise

    def _on_claim(self, event: str, claim: Json) -> None:
        """Sync the reservations of a claim (``syncClaim``).

        Reservations of deleted or finished pods are removed, reservations of pods with a node are added.
        """
        metadata = claim["metadata"]
        # Reads the current object: several changes may have happened since this event was queued.
        current = None if event == "DELETED" else self.store.find(CLAIMS, metadata["name"], metadata["namespace"])
        if current is None or current["metadata"]["uid"] != metadata["uid"]:
            return
        if self._is_orphan(current):
            self._delete(current)
            return
        status = current.get("status") or {}
        consumers = status.get("reservedFor") or []
        using = self._users(current)
        left = [it for it in consumers if it["uid"] in using]
        if len(left) < len(consumers):
            self._unreserve(current, left)
        # Single write per call: its event triggers the next step.
        elif status.get("allocation") and self._reserve_placed(current, using):
            return
        else:
            self._finalize(current)

    def _is_orphan(self, claim: Json) -> bool:
        """Report whether the owning pod of a claim no longer exists. The garbage collector deletes such claims."""
        metadata = claim["metadata"]
        if metadata.get("deletionTimestamp"):
            return False
        owners = [it for it in metadata.get("ownerReferences") or () if it.get("kind") == "Pod"]
        found = (self.store.find("pods", it["name"], metadata["namespace"]) for it in owners)
        return bool(owners) and all(pod is None or pod["metadata"]["uid"] not in _uids(owners) for pod in found)

    def _users(self, claim: Json) -> dict[str, Json]:
        """Return the pods of the claim's namespace that have not terminated, by uid."""
        pods = self.store.list("pods", claim["metadata"]["namespace"])
        return {it["metadata"]["uid"]: it for it in pods if (it.get("status") or {}).get("phase") not in _ENDED}

    def _reserve_placed(self, claim: Json, pods: Mapping[str, Json]) -> bool:
        known = {it["uid"] for it in claim["status"].get("reservedFor") or ()}
        for uid, pod in pods.items():
            if uid not in known and pod["spec"].get("nodeName"):
                names = {it["metadata"]["name"] for it in claims_of(self.store, pod)}
                if claim["metadata"]["name"] in names:
                    self._reserve(pod)
                    return True
        return False

    def _finalize(self, current: Json) -> None:
        """Deallocate a claim that is being deleted, then remove its finalizer."""
        metadata, status = current["metadata"], current.get("status") or {}
        if not metadata.get("deletionTimestamp") or FINALIZER not in (metadata.get("finalizers") or ()):
            return
        if status.get("allocation"):
            if not status.get("reservedFor"):
                self._unreserve(current, [])
            return
        kept = [it for it in metadata["finalizers"] if it != FINALIZER]
        self.store.update({**current, "metadata": {**metadata, "finalizers": kept}})


def _uids(owners: list[Json]) -> set[str]:
    return {it["uid"] for it in owners}


def extended_claim_of(pod: Json) -> str:
    """Return the name of the claim for the pod's extended resources, or ""."""
    return str(((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName") or "")


def claims_of(store: DirectStore, pod: Json) -> list[Json]:
    """Return the existing claims of a pod in the order of its entries. The claim for extended resources is last."""
    made = {
        it["name"]: it.get("resourceClaimName") for it in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    entries = pod["spec"].get("resourceClaims") or ()
    names = [it.get("resourceClaimName") or made.get(it["name"]) for it in entries]
    names.append(extended_claim_of(pod))
    found = (store.find(CLAIMS, name, pod["metadata"]["namespace"]) for name in names if name)
    return [claim for claim in found if claim is not None]
