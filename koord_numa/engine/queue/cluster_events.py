"""
Cluster events, and the rejections that each event may resolve (``EventsToRegister`` of kube-scheduler's plugins).

Also the counters of pods entering a queue, as in ``queue_incoming_pods_total`` of kube-scheduler. Pods move by class, so most of them are
counted by class too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from koord_numa.core.objects.verdicts import Reason, Unschedulable
from koord_numa.core.scheduling.filters import EVENTS as LIFTED_BY
from koord_numa.core.scheduling.filters import ON_CAPACITY, ClusterEvent
from koord_numa.core.value_objects import ValueObject

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

# Reasons without a filter row: they come from the scheduler's own state of a node.
RESOLVED_BY: Final[Mapping[Reason, frozenset[ClusterEvent]]] = {
    **LIFTED_BY,
    Reason.COOLING_DOWN: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED, ClusterEvent.BACKOFF_ENDED}),
    Reason.BIND_QUEUE: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.BINDS_DONE}),
}
"""For every rejection, the events that may resolve it on the same node, or add another node."""

FREES_NOTHING: Final = (None, ClusterEvent.POD_BOUND)
"""Events after which the node does not have more free resources than before."""

ACROSS_NODES: Final = frozenset({Reason.SPREAD, Reason.POD_AFFINITY, Reason.VOLUME})
"""Rejections that a change of one node may resolve on another node."""


class Wakers(ValueObject):
    """Events that may help a pod: on a node with sufficient free resources (``here``), or on any node (``anywhere``)."""

    here: frozenset[ClusterEvent]
    anywhere: frozenset[ClusterEvent]


ANY_EVENT: Final = Wakers(frozenset(ClusterEvent), frozenset(ClusterEvent))
"""Wakers of a pod whose rejections are not known yet."""


def reasons_of(verdict: Unschedulable) -> frozenset[Reason]:
    """Return the reasons for which any node rejected the pod."""
    # By identity first, because hashing thousands of rejections would be the largest cost.
    distinct = dict(zip(map(id, verdict.rejections.values()), verdict.rejections.values(), strict=True))
    return frozenset(rejection.reason for rejection in distinct.values())  # thousands of nodes share few rejections


def wakers_of(reasons: Iterable[Reason]) -> Wakers:
    """
    Return every event that may help a pod rejected for these reasons.

    Freed resources on a node that admits the pod always may help: a node reports only its first reason, and an event that resolves this
    reason is ignored while the node has too few free resources (``UnschedulableClasses``). Resources freed later therefore have to count.
    """
    found = frozenset(reasons)
    # Freed resources always count, see the docstring.
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
"""Event names, those of kube-scheduler where it has the event."""
