"""Events for pods that run on other CPUs than allocated, for the end of that state, for conflicts and refused isolation."""

from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from koord_numa.node.decided import DecidedPod

CONTROLLER: Final = "koord-numa-node-agent"
MISMATCH: Final = "CpusetMismatch"
MATCH: Final = "CpusetMatch"
CONFLICT: Final = "CpusetConflict"
ISOLATION: Final = "CpuIsolationRefused"
_LONGEST_NOTE: Final = 1000  # events.k8s.io/v1 validation: note below 1 KiB


def mismatch_event(pod: DecidedPod, text: str, node: str) -> dict[str, Any]:
    """Return an ``events.k8s.io/v1`` event: a warning with the text, or, without text, that the pod runs on its allocated CPUs."""
    return {
        **_event(pod, text or f"runs on the decided CPUs {pod.cpus}", node),
        "type": "Warning" if text else "Normal",
        "reason": MISMATCH if text else MATCH,
        "reportingController": CONTROLLER,
    }


def conflict_event(pod: DecidedPod, text: str, node: str) -> dict[str, Any]:
    """Return a warning that two writers set different values for a cpuset."""
    return {**_event(pod, text, node), "type": "Warning", "reason": CONFLICT, "reportingController": CONTROLLER}


def isolation_event(pod: DecidedPod, text: str, node: str) -> dict[str, Any]:
    """Return a warning that the requested isolation of CPUs is not honored."""
    return {**_event(pod, text, node), "type": "Warning", "reason": ISOLATION, "reportingController": CONTROLLER}


def _event(pod: DecidedPod, text: str, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        # The API server rejects names above 253 characters. The pod name is truncated, and the random part kept.
        "metadata": {"name": f"{pod.name[:200]}.{uuid4().hex[:16]}", "namespace": pod.namespace},
        "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "note": text[:_LONGEST_NOTE],
        "action": "Observing",
        "reportingInstance": f"{CONTROLLER}-{node}"[:128],  # the longest valid instance name
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
    }
