"""
The ResourceClaim controller of kube-controller-manager, in what a scheduler can see of it.

Claims are made from templates and named in the pod's status; when the last pod that a claim is reserved for is gone or finished, the
claim is deallocated; a deleted claim without reservations loses its finalizer; a template's claim goes with its pod.
"""

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

    def _look_at_pods(self, event: str) -> None:
        if event == "ADDED":
            for pod in self.store.list("pods"):
                self._on_pod("MODIFIED", pod)

    def _on_pod(self, event: str, pod: Json) -> None:
        entries = pod["spec"].get("resourceClaims")
        if not entries:
            return
        metadata = pod["metadata"]
        if event == "DELETED" or pod.get("status", {}).get("phase") in _ENDED:
            self._release(metadata["namespace"], metadata["uid"], gone=event == "DELETED")
            return
        if not metadata.get("deletionTimestamp"):
            self._make_claims(pod, entries)

    def _make_claims(self, pod: Json, entries: list[Json]) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
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
            if gone and any(owner["uid"] == uid and owner.get("controller") for owner in owners):
                self._delete(claim)

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
        metadata = claim["metadata"]
        if event == "DELETED" or FINALIZER not in (metadata.get("finalizers") or ()):
            return
        current = self.store.find(CLAIMS, metadata["name"], metadata["namespace"])
        if current is None or current["metadata"]["uid"] != metadata["uid"]:
            return
        status = current.get("status") or {}
        deleting = current["metadata"].get("deletionTimestamp")
        if deleting and status.get("allocation") and not status.get("reservedFor"):
            self._unreserve(current, [])
            return
        if deleting and not status.get("allocation"):
            kept = [it for it in current["metadata"].get("finalizers") or () if it != FINALIZER]
            self.store.update({**current, "metadata": {**current["metadata"], "finalizers": kept}})
