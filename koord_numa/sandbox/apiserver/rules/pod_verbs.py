"""Binding and eviction of pods, and the status of PodDisruptionBudgets."""

from fractions import Fraction
from math import ceil
from typing import Any, Final

from koord_numa.sandbox.apiserver.errors import (
    ApiError,
    bad_request,
    conflict,
    invalid,
    too_many_requests,
    unsupported,
)
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dig, metadata_of, section, timestamp
from koord_numa.sandbox.apiserver.objects.names import metadata_type_problem
from koord_numa.sandbox.apiserver.rules.selectors import Selection, from_label_selector
from koord_numa.sandbox.apiserver.store.backend import Backend, Target, WriteMode
from koord_numa.sandbox.apiserver.store.deletion import DeleteOptions, Deleter
from koord_numa.sandbox.apiserver.store.storage import DELETED, Record, TableChange

_BUDGETS: Final = "poddisruptionbudgets.policy"
_ENDED: Final = ("Succeeded", "Failed")


class PodVerbs:
    """Binding and eviction of pods."""

    def __init__(self, backend: Backend, deleter: Deleter) -> None:
        """Create the verbs. ``deleter`` deletes evicted pods."""
        self._backend = backend
        self._deleter = deleter

    def bind(self, target: Target, binding: JsonObject, dry_run: WriteMode = WriteMode.NO) -> None:
        """Assign a pod to a node and merge the annotations and labels of the binding in the same write.

        As in pkg/registry/core/pod/storage, neither the existence of the node nor annotation keys are checked. Raises
        ``ApiError``: 400 for a malformed binding, 404 for an absent pod, 422 for an invalid target, and 409 if uid or
        resourceVersion do not match or the pod is bound, gated or being deleted.
        """
        problem = metadata_type_problem(binding.get("metadata") or {})
        if problem:
            raise bad_request(f'Binding in version "v1" cannot be handled as a Binding: {problem}')
        meta = metadata_of(binding)
        node = dig(binding, "target", "name")
        self._check_binding(target, binding)
        record = self._backend.get(target)
        for name, wanted, found in (
            ("UID", meta.get("uid"), record.uid),
            ("ResourceVersion", meta.get("resourceVersion"), str(record.revision)),
        ):
            if wanted and wanted != found:
                why = f"StorageError: invalid object, Code: 4, Key: /registry/pods/{target.namespace}/{target.name}, ResourceVersion: 0, "
                raise conflict(
                    target.kind,
                    target.name,
                    f"{why}AdditionalErrorMsg: Precondition failed: {name} in precondition: {wanted}, {name} in object meta: {found}",
                )
        pod = record.load()
        self._check_bindable(target, record, pod)
        pod["spec"]["nodeName"] = node
        for field in ("annotations", "labels"):
            if meta.get(field):
                section(pod["metadata"], field).update(meta[field])
        _set_scheduled(pod)
        # The spec changes, although a bind is not an update of the pod.
        if "generation" in pod["metadata"]:
            pod["metadata"]["generation"] += 1
        if dry_run is WriteMode.NO:
            self._backend.put(target.kind, pod)

    def _check_binding(self, target: Target, binding: JsonObject) -> None:
        name = metadata_of(binding).get("name")
        if name and target.name and name != target.name:
            raise bad_request(f"name in URL does not match name in Binding object ({name} is not {target.name})")
        # kube-apiserver returns the plain error of ValidatePodBinding here.
        if not dig(binding, "target", "name"):
            raise ApiError(500, "", "target.name: Required value")
        causes = []
        if dig(binding, "target", "kind") not in (None, "", "Node", "Minion"):
            causes.append(unsupported("target.kind", dig(binding, "target", "kind"), ("Node", "<empty>")))
        if causes:
            raise invalid(target.kind, target.name, causes)

    def _check_bindable(self, target: Target, record: Record, pod: JsonObject) -> None:
        name = target.name
        if record.deleting:
            raise conflict(target.kind, name, f"pod {name} is being deleted, cannot be assigned to a host")
        bound = pod["spec"].get("nodeName")
        if bound:
            raise conflict(target.kind, name, f'pod {name} is already assigned to node "{bound}"')
        if pod["spec"].get("schedulingGates"):
            raise conflict(target.kind, name, f"pod {name} has non-empty .spec.schedulingGates")

    def evict(self, target: Target, eviction: Any) -> None:
        """Delete a pod unless a PodDisruptionBudget forbids it.

        Raises ``ApiError`` with code 429 if the budget is exhausted and 500 if several budgets cover the pod.
        """
        if not isinstance(eviction, dict):
            raise bad_request("an Eviction must be an object")
        options = DeleteOptions.parse(eviction.get("deleteOptions") or {})
        record = self._backend.get(target)
        pod = record.load()
        # The eviction of a pod that does not run disrupts no application and no budget protects it (canIgnorePDB).
        if not record.deleting and dig(pod, "status", "phase") not in (*_ENDED, "Pending"):
            self._spend_budget(target, record, pod, options)
        self._deleter.delete(target, options)

    def _spend_budget(self, target: Target, record: Record, pod: JsonObject, options: DeleteOptions) -> None:
        budgets = [
            budget
            for budget in self._backend.storage.table(_BUDGETS).in_namespace(target.namespace)
            if covers(budget, record)
        ]
        if not budgets:
            return
        # Upstream does not define which budget is decremented. It returns 500, because clients would retry 429.
        if len(budgets) > 1:
            raise ApiError(
                500,
                "InternalError",
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            )
        budget = budgets[0].load()
        status = section(budget, "status")
        healthy, desired = status.get("currentHealthy") or 0, status.get("desiredHealthy") or 0
        if not is_healthy(pod) and (
            dig(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow" or 0 < desired <= healthy
        ):
            return
        name = budget["metadata"]["name"]
        if (status.get("disruptionsAllowed") or 0) <= 0:
            message = f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
            cause = {"reason": "DisruptionBudget", "message": message}
            raise too_many_requests(
                "Cannot evict pod as it would violate the pod's disruption budget.", 0, {"causes": [cause]}
            )
        if options.dry_run is WriteMode.NO:
            # Decremented immediately: the next eviction may come before the disruption controller recounts.
            status["disruptionsAllowed"] -= 1
            section(status, "disruptedPods")[target.name] = timestamp()
            self._backend.put(self._backend.registry.named(_BUDGETS), budget)


def covers(budget: Record, pod: Record) -> bool:
    """Report whether a budget's selector selects the pod.

    A missing selector selects no pod, an empty selector selects all pods.
    """
    selector = dig(budget.load(), "spec", "selector")
    return selector is not None and Selection(labels=from_label_selector(selector)).matches(pod)


def is_healthy(pod: JsonObject) -> bool:
    """Report whether a pod counts as healthy for its budget: it is Ready."""
    return any(
        one.get("type") == "Ready" and one.get("status") == "True" for one in dig(pod, "status", "conditions") or ()
    )


def _set_scheduled(pod: JsonObject) -> None:
    status = section(pod, "status")
    conditions = [one for one in status.get("conditions") or () if one.get("type") != "PodScheduled"]
    since = timestamp()
    status["conditions"] = [
        *conditions,
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
    ]


class BudgetController:
    """Controller of the budget status. It recomputes the budgets of a namespace when a pod or budget in it changes.

    Without budgets in the namespace a pod change costs nothing.
    """

    def __init__(self, backend: Backend) -> None:
        """Subscribe to changes of pods and budgets."""
        self._backend = backend
        backend.storage.table("pods").listeners.append(self._pod_changed)
        backend.storage.table(_BUDGETS).listeners.append(self._budget_changed)

    def _pod_changed(self, change: TableChange) -> None:
        for budget in self._backend.storage.table(_BUDGETS).in_namespace(change.record.key.namespace):
            self._refresh(budget)

    def _budget_changed(self, change: TableChange) -> None:
        """Refresh a budget whose specification changed. A status that a client wrote stays until a pod changes."""
        if change.kind == DELETED:
            return
        if change.previous is None or dig(change.previous.load(), "spec") != dig(change.record.load(), "spec"):
            self._refresh(change.record)

    def _refresh(self, budget: Record) -> None:
        shown = budget.shared(budget.api_version)
        status = self._status(shown, budget.key.namespace)
        if dig(shown, "status") != status:
            document = budget.load()
            document["status"] = status
            self._backend.put(self._backend.registry.named(_BUDGETS), document)

    def _status(self, budget: JsonObject, namespace: str) -> JsonObject:
        spec = budget.get("spec") or {}
        selection = Selection(labels=from_label_selector(spec.get("selector")))
        records = (
            self._backend.storage.table("pods").in_namespace(namespace) if spec.get("selector") is not None else []
        )
        pods = [
            record.shared(record.api_version)
            for record in records
            if selection.matches(record) and record.fields["status.phase"] not in _ENDED
        ]
        healthy = sum(is_healthy(pod) and not pod["metadata"].get("deletionTimestamp") for pod in pods)
        if spec.get("maxUnavailable") is not None:
            desired = max(0, len(pods) - _scaled(spec["maxUnavailable"], len(pods)))
        else:
            desired = _scaled(spec.get("minAvailable", 1), len(pods))
        allowed = max(0, healthy - desired)
        return {
            "observedGeneration": dig(budget, "metadata", "generation"),
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "disruptionsAllowed": allowed,
            "expectedPods": len(pods),
        }


def _scaled(amount: Any, whole: int) -> int:
    """Return an absolute number, or a percentage of ``whole`` rounded up."""
    if isinstance(amount, str) and amount.endswith("%") and amount[:-1].isdigit():
        return ceil(Fraction(int(amount[:-1]) * whole, 100))
    return amount if isinstance(amount, int) else 0
