"""
What can change in a cluster, and which refusals each change may lift. A table, nothing else.

How many pods have come to stand in each part of the queue, and why, since the start. Nothing depends on it.

As kube-scheduler's ``queue_incoming_pods_total``. Pods move by the class, so most of it is counted by the class too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from koord_numa.core.scheduling.events import ClusterEvent
from koord_numa.core.scheduling.filters import EVENTS as LIFTED_BY
from koord_numa.core.verdicts import Reason, Unschedulable

__all__ = [
    "BACKOFF_COMPLETE",
    "EVENTS",
    "FAILURE",
    "POD_ADD",
    "POD_UPDATE",
    "TIMEOUT",
    "WAKERS",
    "Arrivals",
    "ClusterEvent",
    "reasons_of",
    "wakers",
]

WAKERS: Final[Mapping[Reason, frozenset[ClusterEvent]]] = {
    **LIFTED_BY,
    Reason.COOLING_DOWN: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED, ClusterEvent.COOLED_DOWN}),
}
"""For every refusal, the changes that may lift it on the same node, or offer another node."""


def reasons_of(verdict: Unschedulable) -> frozenset[Reason]:
    """The rules that said no on some node."""
    distinct = dict(zip(map(id, verdict.rejections.values()), verdict.rejections.values(), strict=True))
    return frozenset(rejection.reason for rejection in distinct.values())  # thousands of nodes share few refusals


def wakers(reasons: Iterable[Reason]) -> frozenset[ClusterEvent]:
    """Every change that may matter to a pod that was refused for these reasons. A new node always does."""
    return frozenset({ClusterEvent.NODE_ADDED}).union(*(WAKERS[reason] for reason in reasons))


Arrivals: TypeAlias = Counter[tuple[str, str]]
"""Pods by queue (``active``, ``backoff``, ``unschedulable``) and event."""

POD_ADD: Final = "PodAdd"
POD_UPDATE: Final = "PodUpdate"
FAILURE: Final = "ScheduleAttemptFailure"
BACKOFF_COMPLETE: Final = "BackoffComplete"
TIMEOUT: Final = "UnschedulableTimeout"

EVENTS: Final[Mapping[ClusterEvent, str]] = {
    ClusterEvent.NODE_ADDED: "NodeAdd",
    ClusterEvent.NODE_CHANGED: "NodeUpdate",
    ClusterEvent.TOPOLOGY_CHANGED: "NodeResourceTopologyUpdate",
    ClusterEvent.CAPACITY_FREED: "AssignedPodDelete",
    ClusterEvent.POD_BOUND: "AssignedPodAdd",
    ClusterEvent.POD_GONE: "AssignedPodDelete",
    ClusterEvent.NAMESPACE_CHANGED: "NamespaceUpdate",
    ClusterEvent.VOLUME_CHANGED: "VolumeUpdate",
    ClusterEvent.UNLOCKED: "NodeUnlocked",
    ClusterEvent.COOLED_DOWN: "NodeCooledDown",
}
"""Where kube-scheduler knows the event, its name for it."""
