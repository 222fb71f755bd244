"""The Job controller of kube-controller-manager, as far as a scheduler can observe it.

It creates the pods of a Job, replaces pods that failed or were deleted, up to ``backoffLimit`` failures, and writes the
status. Pods of an ``Indexed`` Job have a completion index. A suspended Job has no pods. The pods of a deleted Job are
deleted. A pod template with ``schedulingGroup`` makes all pods members of one group.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koord_numa.sandbox.apiserver import ApiError, DirectStore, Subscription

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
        active = [pod for pod in pods if _is_active(pod)]
        parallelism = spec.get("parallelism", 1)
        completions = spec.get("completions", parallelism)
        if failed > spec.get("backoffLimit", BACKOFF_LIMIT):
            condition = "Failed"
        else:
            condition = "Complete" if len(succeeded) >= completions else ""
        wanted = 0 if condition or spec.get("suspend") else min(parallelism, completions - len(succeeded))
        for pod in active[wanted:]:
            self._delete(pod)
        taken = {_index(pod) for pod in (*succeeded, *active)}
        free = [index for index in range(completions) if str(index) not in taken]
        missing = wanted - len(active)
        for index in free[: max(0, missing)]:
            self.store.create(_pod(job, index))
        self._write_status(job, max(wanted, 0), len(succeeded), failed, condition)

    def _write_status(self, job: Json, active: int, succeeded: int, failed: int, condition: str) -> None:
        status: Json = {"active": active, "succeeded": succeeded, "failed": failed}
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


def _index(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["annotations"][INDEX])


def _is_active(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod is neither finished nor terminating (``podReplacementPolicy: TerminatingOrFailed``)."""
    return _phase(pod) not in ("Succeeded", "Failed") and not pod["metadata"].get("deletionTimestamp")
