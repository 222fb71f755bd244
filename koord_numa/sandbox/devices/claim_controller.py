"""
The ResourceClaim controller of kube-controller-manager, in what a scheduler can see of it.

Claims are made from templates and named in the pod's status; a pod that has a node is reserved its allocated claims. When the last pod
that a claim is reserved for is gone or finished, the claim is deallocated; a deleted claim without reservations loses its finalizer; a
template's claim, and one that a scheduler made for extended resources, goes with its pod.
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
    """Acts on every pod and claim from ``start`` on."""

    store: DirectStore
    _subscriptions: list[Subscription] = field(default_factory=list)

    def start(self) -> None:
        """Act from now on, on what is there already first."""
        self._subscriptions = [
            self.store.subscribe("pods", self._on_pod),
            self.store.subscribe(TEMPLATES, lambda event, _: self._look_at_pods(event)),
            self.store.subscribe(CLAIMS, self._on_claim),
        ]

    def stop(self) -> None:
        """Act no more."""
        while self._subscriptions:
            self._subscriptions.pop().cancel()

    # A pod that was created before its template waits for it.
    def _look_at_pods(self, event: str) -> None:
        if event == "ADDED":
            for pod in self.store.list("pods"):
                self._on_pod("MODIFIED", pod)

    def _on_pod(self, event: str, pod: Json) -> None:
        # The usual case, and this is called for every event of every pod.
        entries = pod["spec"].get("resourceClaims") or []
        if not entries and not extended_claim_of(pod):
            return
        metadata = pod["metadata"]
        if event == "DELETED" or pod.get("status", {}).get("phase") in _ENDED:
            self._release(metadata["namespace"], metadata["uid"], gone=event == "DELETED")
            return
        # A pod that is being deleted gets no new claims, and keeps those that it has until its containers have ended.
        if entries and not metadata.get("deletionTimestamp"):
            self._make_claims(pod, entries)
        if pod["spec"].get("nodeName"):
            self._reserve(pod)

    def _make_claims(self, pod: Json, entries: list[Json]) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        # The event is older than the store: a pod of the same name may have come since.
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
        # One write for all entries, as resourceclaim/controller.go syncPod does with its apply configuration.
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
            # Only claims that the pod controls, which are those of templates: a claim that users made outlives its pods.
            if gone and any(owner["uid"] == uid and owner.get("controller") for owner in owners):
                self._delete(claim)

    def _reserve(self, pod: Json) -> None:
        """A pod with a node uses its claims, by whichever scheduler it was bound (``syncPod`` and ``reserveForPod``)."""
        metadata = pod["metadata"]
        for claim in claims_of(self.store, pod):
            status = claim.get("status") or {}
            consumers = status.get("reservedFor") or []
            if status.get("allocation") and all(it["uid"] != metadata["uid"] for it in consumers):
                entry = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
                self.store.update({**claim, "status": {**status, "reservedFor": [*consumers, entry]}}, "status")

    # The scheduler's allocation goes with the last consumer (`syncClaim`): from here on the devices are free.
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
        """``syncClaim``: reservations of pods that are gone or finished go, those of pods with a node come."""
        metadata = claim["metadata"]
        # What is in the store counts: several changes may have happened since this event was queued.
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
        # One write a call: it causes an event, and that one brings the next step.
        elif status.get("allocation") and self._reserve_placed(current, using):
            return
        else:
            self._finalize(current)

    def _is_orphan(self, claim: Json) -> bool:
        """Was it made for a pod that was gone by then? Such claims are the garbage collector's."""
        metadata = claim["metadata"]
        if metadata.get("deletionTimestamp"):
            return False
        owners = [it for it in metadata.get("ownerReferences") or () if it.get("kind") == "Pod"]
        found = (self.store.find("pods", it["name"], metadata["namespace"]) for it in owners)
        return bool(owners) and all(pod is None or pod["metadata"]["uid"] not in _uids(owners) for pod in found)

    def _users(self, claim: Json) -> dict[str, Json]:
        """Pods of the claim's namespace that have not ended, by uid."""
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
        """A claim that is being deleted is deallocated, and goes."""
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
    """The claim that has devices for the pod's extended resources, by name; empty without."""
    return str(((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName") or "")


def claims_of(store: DirectStore, pod: Json) -> list[Json]:
    """The claims of a pod that exist, in its order; the one for extended resources comes last."""
    made = {
        it["name"]: it.get("resourceClaimName") for it in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    entries = pod["spec"].get("resourceClaims") or ()
    names = [it.get("resourceClaimName") or made.get(it["name"]) for it in entries]
    names.append(extended_claim_of(pod))
    found = (store.find(CLAIMS, name, pod["metadata"]["namespace"]) for name in names if name)
    return [claim for claim in found if claim is not None]
