"""
How many pods have come to stand in each part of the queue, and why, since the start. Nothing depends on it.

As kube-scheduler's ``queue_incoming_pods_total``. Pods move by the class, so most of it is counted by the class too.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeAlias

from koord_numa.engine.causes import Cause

Arrivals: TypeAlias = Counter[tuple[str, str]]
"""Pods by queue (``active``, ``backoff``, ``unschedulable``) and event."""

POD_ADD: Final = "PodAdd"
POD_UPDATE: Final = "PodUpdate"
FAILURE: Final = "ScheduleAttemptFailure"
BACKOFF_COMPLETE: Final = "BackoffComplete"
TIMEOUT: Final = "UnschedulableTimeout"

EVENTS: Final[Mapping[Cause, str]] = {
    Cause.NODE_ADDED: "NodeAdd",
    Cause.NODE_CHANGED: "NodeUpdate",
    Cause.TOPOLOGY_CHANGED: "NodeResourceTopologyUpdate",
    Cause.CAPACITY_FREED: "AssignedPodDelete",
    Cause.POD_BOUND: "AssignedPodAdd",
    Cause.POD_GONE: "AssignedPodDelete",
    Cause.NAMESPACE_CHANGED: "NamespaceUpdate",
    Cause.VOLUME_CHANGED: "VolumeUpdate",
    Cause.UNLOCKED: "NodeUnlocked",
    Cause.COOLED_DOWN: "NodeCooledDown",
}
"""Where kube-scheduler knows the event, its name for it."""
