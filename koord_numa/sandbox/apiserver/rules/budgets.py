"""Keeps the status of PodDisruptionBudgets true, as the disruption controller of a real cluster does."""

from fractions import Fraction
from math import ceil
from typing import Any, Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dig
from koord_numa.sandbox.apiserver.rules.pod_verbs import is_healthy
from koord_numa.sandbox.apiserver.rules.selectors import Selection, from_label_selector
from koord_numa.sandbox.apiserver.store.backend import Backend
from koord_numa.sandbox.apiserver.store.records import DELETED, Change, Record

_BUDGETS: Final = "poddisruptionbudgets.policy"
_ENDED: Final = ("Succeeded", "Failed")


class Budgets:
    """Recomputes a namespace's budgets when one of its pods or budgets changes; costs nothing where there are none."""

    def __init__(self, backend: Backend) -> None:
        """Follows pods and budgets from now on."""
        self._backend = backend
        backend.storage.table("pods").listeners.append(self._pod_changed)
        backend.storage.table(_BUDGETS).listeners.append(self._budget_changed)

    def _pod_changed(self, change: Change) -> None:
        for budget in self._backend.storage.table(_BUDGETS).in_namespace(change.record.key.namespace):
            self._refresh(budget)

    def _budget_changed(self, change: Change) -> None:
        """Only a changed specification: a status that was written stays until a pod changes."""
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
    """A number, or a percentage of ``whole`` rounded up."""
    if isinstance(amount, str) and amount.endswith("%") and amount[:-1].isdigit():
        return ceil(Fraction(int(amount[:-1]) * whole, 100))
    return amount if isinstance(amount, int) else 0
