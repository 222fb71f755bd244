"""
What can change in a cluster, and which rejections each change may lift (``EventsToRegister`` of kube-scheduler's plugins).

Beside it, how pods come to stand in each part of the queue, as kube-scheduler's ``queue_incoming_pods_total`` counts them. Pods move by
the class, so most of it is counted by the class too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from koord_numa.core.objects.verdicts import Reason, Unschedulable
from koord_numa.core.scheduling.filters import EVENTS as LIFTED_BY
from koord_numa.core.scheduling.filters import ON_CAPACITY, ClusterEvent

__all__ = [
    "ANY_EVENT",
    "BACKOFF_COMPLETE",
    "EVENTS",
    "FAILURE",
    "FREES_NOTHING",
    "POD_ADD",
    "POD_UPDATE",
    "RESOLVED_BY",
    "TIMEOUT",
    "Arrivals",
    "ClusterEvent",
    "Wakers",
    "reasons_of",
    "wakers_of",
]

# Reasons that no filter row gives: they come from the scheduler's own state of a node.
RESOLVED_BY: Final[Mapping[Reason, frozenset[ClusterEvent]]] = {
    **LIFTED_BY,
    Reason.COOLING_DOWN: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED, ClusterEvent.BACKOFF_ENDED}),
    Reason.BIND_QUEUE: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.BINDS_DONE}),
}
"""For every rejection, the events that may lift it on the same node, or offer another node."""

FREES_NOTHING: Final = (None, ClusterEvent.POD_BOUND)
"""After these there is no more room on the node than before."""

ACROSS_NODES: Final = frozenset({Reason.SPREAD, Reason.POD_AFFINITY, Reason.VOLUME})
"""Rejections that a change of one node may lift on another one."""


@dataclass(frozen=True, slots=True)
class Wakers:
    """The events that may help a pod: by what happens on a node that has room for it (``here``), or wherever (``anywhere``)."""

    here: frozenset[ClusterEvent]
    anywhere: frozenset[ClusterEvent]


ANY_EVENT: Final = Wakers(frozenset(ClusterEvent), frozenset(ClusterEvent))
"""For a pod whose rejections are not known yet."""


def reasons_of(verdict: Unschedulable) -> frozenset[Reason]:
    """The filters that rejected the pod on some node."""
    # By identity first, since hashing thousands of rejections would cost more than all the rest.
    distinct = dict(zip(map(id, verdict.rejections.values()), verdict.rejections.values(), strict=True))
    return frozenset(rejection.reason for rejection in distinct.values())  # thousands of nodes share few rejections


def wakers_of(reasons: Iterable[Reason]) -> Wakers:
    """
    Every event that may help a pod that was rejected for these reasons.

    More room on a node that admits the pod always may: a node names only the first of its reasons, and an event that lifts it is ignored
    while the node has no room (``UnschedulableClasses``), so the room that comes later has to count.
    """
    found = frozenset(reasons)
    # Whole-node room always counts, see the docstring.
    here = ON_CAPACITY.union(*(RESOLVED_BY[reason] for reason in found))
    return Wakers(here, frozenset[ClusterEvent]().union(*(RESOLVED_BY[reason] for reason in found & ACROSS_NODES)))


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
    ClusterEvent.CLAIM_CHANGED: "ResourceClaimUpdate",
    ClusterEvent.NODE_UNLOCKED: "NodeUnlocked",
    ClusterEvent.BACKOFF_ENDED: "NodeBackoffEnded",
    ClusterEvent.BINDS_DONE: "NodeBindsDone",
}
"""Where kube-scheduler knows the event, its name for it."""
