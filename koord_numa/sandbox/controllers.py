"""Controllers of kube-controller-manager, as far as a scheduler can observe them: jobs, claims and lost pods."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koord_numa.sandbox.apiserver import ApiError, DeleteOptions, DirectStore, Subscription

# The Job controller of kube-controller-manager, as far as a scheduler can observe it.
#
# It creates the pods of a Job, replaces pods that failed or were deleted, up to ``backoffLimit`` failures, and writes the
# status. Pods of an ``Indexed`` Job have a completion index. A suspended Job has no pods. The pods of a deleted Job are
# deleted. A pod template with ``schedulingGroup`` makes all pods members of one group.

Json = dict[str, Any]

JOBS: Final = "jobs.batch"
INDEX: Final = "batch.kubernetes.io/job-completion-index"
NAME: Final = "batch.kubernetes.io/job-name"
BACKOFF_LIMIT: Final = 6
"""Default of ``spec.backoffLimit``."""


@dataclass(slots=True)
class JobController:
    """Controller of all Jobs, active after ``start``."""

    store: DirectStore
    _subscriptions: list[Subscription] = field(default_factory=list)
    _due: dict[tuple[str, str], None] = field(default_factory=dict)  # namespace and name of Jobs to process
    _working: bool = False

    def start(self) -> None:
        """Subscribe to Jobs and pods. Existing objects are processed first."""
        self._subscriptions = [
            self.store.subscribe(JOBS, self._on_job),
            self.store.subscribe("pods", self._on_pod),
        ]

    def stop(self) -> None:
        """Cancel the subscriptions."""
        while self._subscriptions:
            self._subscriptions.pop().cancel()

    def _on_job(self, event: str, job: Json) -> None:
        if event == "DELETED":
            for pod in self._pods_of(job):
                self._delete(pod)
            return
        self._process(job["metadata"]["namespace"], job["metadata"]["name"])

    def _on_pod(self, event: str, pod: Json) -> None:
        if event == "ADDED":
            return
        for owner in pod["metadata"].get("ownerReferences") or ():
            if owner.get("kind") == "Job" and owner.get("controller"):
                self._process(pod["metadata"]["namespace"], owner["name"])

    def _process(self, namespace: str, name: str) -> None:
        """Process a Job. Events of its own writes are processed afterwards."""
        self._due[namespace, name] = None
        if self._working:
            return
        self._working = True
        try:
            while self._due:
                key = next(iter(self._due))
                del self._due[key]
                job = self.store.find(JOBS, key[1], key[0])
                if job is not None:
                    self._sync(job)
        finally:
            self._working = False

    def _sync(self, job: Json) -> None:
        """Create missing pods, delete surplus pods, and write the status (job_controller.go syncJob)."""
        spec = job["spec"]
        pods = self._pods_of(job)
        succeeded = [pod for pod in pods if _phase(pod) == "Succeeded"]
        failed = sum(_phase(pod) == "Failed" for pod in pods)
        # Neither finished nor terminating (``podReplacementPolicy: TerminatingOrFailed``).
        active = [
            pod
            for pod in pods
            if _phase(pod) not in ("Succeeded", "Failed") and not pod["metadata"].get("deletionTimestamp")
        ]
        parallelism = spec.get("parallelism", 1)
        completions = spec.get("completions", parallelism)
        if failed > spec.get("backoffLimit", BACKOFF_LIMIT):
            condition = "Failed"
        else:
            condition = "Complete" if len(succeeded) >= completions else ""
        wanted = 0 if condition or spec.get("suspend") else min(parallelism, completions - len(succeeded))
        for pod in active[wanted:]:
            self._delete(pod)
        taken = {str(pod["metadata"]["annotations"][INDEX]) for pod in (*succeeded, *active)}
        free = [index for index in range(completions) if str(index) not in taken]
        missing = wanted - len(active)
        for index in free[: max(0, missing)]:
            self.store.create(_pod(job, index))
        status: Json = {"active": max(wanted, 0), "succeeded": len(succeeded), "failed": failed}
        if condition:
            status["conditions"] = [{"type": condition, "status": "True"}]
        known = job.get("status") or {}
        if any(known.get(name) != value for name, value in status.items()):
            metadata = job["metadata"]
            self.store.patch(JOBS, metadata["name"], {"status": status}, metadata["namespace"], "status")

    def _pods_of(self, job: Json) -> list[Json]:
        uid = job["metadata"]["uid"]
        return [
            pod
            for pod in self.store.list("pods", job["metadata"]["namespace"])
            if any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or ())
        ]

    def _delete(self, pod: Json) -> None:
        try:
            self.store.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
        except ApiError as error:
            if error.code != 404:
                raise


def _pod(job: Json, index: int) -> Json:
    """Return the pod of an index, with labels and annotations as the Job controller writes them."""
    template, metadata = job["spec"]["template"], job["metadata"]
    own: Json = template.get("metadata") or {}
    is_indexed = job["spec"].get("completionMode") == "Indexed"
    numbered = {INDEX: str(index)}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{metadata['name']}-{index}-" if is_indexed else f"{metadata['name']}-",
            "namespace": metadata["namespace"],
            "labels": {**(own.get("labels") or {}), NAME: metadata["name"], **numbered},
            "annotations": {**(own.get("annotations") or {}), **numbered},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {"restartPolicy": "Never", **template["spec"]},
    }


def _phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def collect_pods(store: DirectStore, nodes: Container[str]) -> Subscription:
    """Remove deleted pods of nodes that are not in ``nodes``: no simulated kubelet ends them."""

    def on_pod(event: str, pod: Json) -> None:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName")
        if event != "DELETED" and metadata.get("deletionTimestamp") and node and node not in nodes:
            store.delete("pods", metadata["name"], metadata["namespace"], DeleteOptions(grace=0, uid=metadata["uid"]))

    return store.subscribe("pods", on_pod)


# The ResourceClaim controller of kube-controller-manager, as far as a scheduler can observe it.
#
# It creates claims from templates and writes their names into the pod status. It reserves allocated claims for pods with
# a node. It deallocates a claim when the last pod of its reservations is deleted or finished, and then removes the
# finalizer of a deleted claim. The claim of a template, or for extended resources, is deleted with its pod. Claims of
# PodGroups are created, reserved and deleted for the group.

CLAIMS: Final = "resourceclaims.resource.k8s.io"
TEMPLATES: Final = "resourceclaimtemplates.resource.k8s.io"
GROUPS: Final = "podgroups.scheduling.k8s.io"
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
_ENDED: Final = ("Succeeded", "Failed")
_OWNERS: Final = {"Pod": "pods", "PodGroup": GROUPS}


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
            self.store.subscribe(GROUPS, self._on_group),
            self.store.subscribe(CLAIMS, self._on_claim),
        ]

    def stop(self) -> None:
        """Cancel the subscriptions."""
        while self._subscriptions:
            self._subscriptions.pop().cancel()

    def _on_group(self, event: str, group: Json) -> None:
        """Create the claims of a new group, and release those of a deleted group."""
        self._look_at_pods(event)
        if event == "DELETED":
            for claim in self.store.list(CLAIMS, group["metadata"]["namespace"]):
                self._on_claim("MODIFIED", claim)

    # A pod that was created before its template or its group waits for them.
    def _look_at_pods(self, event: str) -> None:
        if event == "ADDED":
            for pod in self.store.list("pods"):
                self._on_pod("MODIFIED", pod)

    def _on_pod(self, event: str, pod: Json) -> None:
        # Fast path: called for every event of every pod. A deleted pod may have a claim that its status does not name yet.
        entries = pod["spec"].get("resourceClaims") or []
        if not entries and event != "DELETED" and not extended_claim_of(pod):
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
            if (group := group_of(self.store, current, entry)) is not None:
                self._make_group_claim(group, entry)
                continue
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

    def _make_group_claim(self, group: Json, entry: Json) -> None:
        """Create the claim of a PodGroup for a template, once (KEP-5729)."""
        statuses = list((group.get("status") or {}).get("resourceClaimStatuses") or ())
        template = entry.get("resourceClaimTemplateName")
        if not template or any(it["name"] == entry["name"] for it in statuses):
            return
        if (made := self._from_template(group, entry["name"], template)) is not None:
            statuses.append({"name": entry["name"], "resourceClaimName": made})
            metadata = group["metadata"]
            patch = {"status": {"resourceClaimStatuses": statuses}}
            self.store.patch(GROUPS, metadata["name"], patch, metadata["namespace"], "status")

    def _from_template(self, pod: Json, entry: str, template: str) -> str | None:
        metadata = pod["metadata"]
        found = self.store.find(TEMPLATES, template, metadata["namespace"])
        if found is None:
            return None
        owner = {
            "apiVersion": pod["apiVersion"],
            "kind": pod["kind"],
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
        for claim, group in claims_and_groups(self.store, pod):
            status = claim.get("status") or {}
            consumers = status.get("reservedFor") or []
            entry = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
            if group is not None:
                who = group["metadata"]
                entry = {
                    "apiGroup": "scheduling.k8s.io",
                    "resource": "podgroups",
                    "name": who["name"],
                    "uid": who["uid"],
                }
            if status.get("allocation") and all(it["uid"] != entry["uid"] for it in consumers):
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
        # The list of all pods is needed only for a claim in use.
        using = self._users(current) if consumers or status.get("allocation") else {}
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
        owners = [it for it in metadata.get("ownerReferences") or () if it.get("kind") in _OWNERS]
        uids = {it["uid"] for it in owners}
        found = (self.store.find(_OWNERS[it["kind"]], it["name"], metadata["namespace"]) for it in owners)
        return bool(owners) and all(pod is None or pod["metadata"]["uid"] not in uids for pod in found)

    def _users(self, claim: Json) -> dict[str, Json]:
        """Return the PodGroups of the claim's namespace and the pods that have not terminated, by uid."""
        namespace = claim["metadata"]["namespace"]
        pods = self.store.list("pods", namespace)
        using = [it for it in pods if (it.get("status") or {}).get("phase") not in _ENDED]
        return {it["metadata"]["uid"]: it for it in (*using, *self.store.list(GROUPS, namespace))}

    def _reserve_placed(self, claim: Json, pods: Mapping[str, Json]) -> bool:
        known = {it["uid"] for it in claim["status"].get("reservedFor") or ()}
        for uid, pod in pods.items():
            if uid in known or not pod["spec"].get("nodeName"):
                continue
            found = claims_and_groups(self.store, pod)
            groups = {group["metadata"]["uid"] for _, group in found if group is not None}
            names = {it["metadata"]["name"] for it, _ in found}
            if known.isdisjoint(groups) and claim["metadata"]["name"] in names:
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


def extended_claim_of(pod: Json) -> str:
    """Return the name of the claim for the pod's extended resources, or ""."""
    return str(((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName") or "")


def group_of(store: DirectStore, pod: Json, entry: Json) -> Json | None:
    """Return the PodGroup whose claim an entry of the pod stands for, because the group has the same entry (KEP-5729)."""
    name = (pod.get("spec", {}).get("schedulingGroup") or {}).get("podGroupName")
    group = store.find(GROUPS, name, pod["metadata"]["namespace"]) if name else None
    return group if group is not None and entry in (group["spec"].get("resourceClaims") or ()) else None


def claim_names(store: DirectStore, pod: Json) -> list[tuple[str | None, Json | None]]:
    """Return the names of the claims of a pod, ``None`` before they are created, with the PodGroup that they belong to."""
    found: list[tuple[str | None, Json | None]] = []
    for entry in pod.get("spec", {}).get("resourceClaims") or ():
        group = group_of(store, pod, entry)
        statuses = ((group or pod).get("status") or {}).get("resourceClaimStatuses") or ()
        made = {it["name"]: it.get("resourceClaimName") for it in statuses}
        found.append((entry.get("resourceClaimName") or made.get(entry["name"]), group))
    if extended := extended_claim_of(pod):
        found.append((extended, None))
    return found


def claims_and_groups(store: DirectStore, pod: Json) -> list[tuple[Json, Json | None]]:
    """Return the existing claims of a pod in the order of its entries. The claim for extended resources is last."""
    namespace = pod["metadata"]["namespace"]
    found = ((store.find(CLAIMS, name, namespace), group) for name, group in claim_names(store, pod) if name)
    return [(claim, group) for claim, group in found if claim is not None]
