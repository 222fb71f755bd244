"""
What can change in a cluster, and which refusals each change may lift. A table, nothing else.

How many pods have come to stand in each part of the queue, and why, since the start. Nothing depends on it.

As kube-scheduler's ``queue_incoming_pods_total``. Pods move by the class, so most of it is counted by the class too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, TypeAlias

from koord_numa.core.verdicts import Reason, Unschedulable


class ClusterEvent(Enum):
    """A change that may let a parked pod go somewhere."""

    NODE_ADDED = "node added"
    NODE_CHANGED = "node changed"  # labels, taints, cordon, allocatable
    TOPOLOGY_CHANGED = "topology changed"
    CAPACITY_FREED = "capacity freed"
    POD_BOUND = "pod bound"  # somebody to be near to, or to spread around
    POD_GONE = "pod gone"
    NAMESPACE_CHANGED = "namespace changed"  # its labels, which affinity terms may select
    VOLUME_CHANGED = "volume changed"
    UNLOCKED = "node unlocked"
    COOLED_DOWN = "node cooled down"


_NODE: Final = frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED})
_ROOM: Final = _NODE | {ClusterEvent.TOPOLOGY_CHANGED, ClusterEvent.CAPACITY_FREED}
_TOPOLOGY: Final = _NODE | {ClusterEvent.TOPOLOGY_CHANGED}
_PODS: Final = _NODE | {ClusterEvent.POD_BOUND, ClusterEvent.POD_GONE}

WAKERS: Final[Mapping[Reason, frozenset[ClusterEvent]]] = {
    Reason.RESOURCES: _ROOM,
    Reason.CPUS: _ROOM,
    Reason.CPU_COUNT: _TOPOLOGY,
    Reason.BIND_POLICY: _TOPOLOGY,
    Reason.NUMA_POLICY: _TOPOLOGY,
    Reason.NUMA_AFFINITY: _ROOM,
    Reason.NO_TOPOLOGY: _TOPOLOGY,
    Reason.BAD_TOPOLOGY: _TOPOLOGY,
    Reason.BAD_NODE: _NODE,
    Reason.BAD_POD: _NODE,
    Reason.KUBELET_ALIGNMENT: _ROOM,
    Reason.KUBELET_SMT: _TOPOLOGY,
    Reason.KUBELET_ALLOCATION: _ROOM,
    Reason.UNTRUSTED: _ROOM,
    Reason.COOLING_DOWN: _NODE | {ClusterEvent.COOLED_DOWN},
    Reason.NODE_NAME: frozenset({ClusterEvent.NODE_ADDED}),
    Reason.UNSCHEDULABLE: _NODE,
    Reason.NODE_AFFINITY: _NODE,
    Reason.TAINT: _NODE,
    Reason.HOST_PORT: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.CAPACITY_FREED}),
    Reason.VOLUME: _NODE | {ClusterEvent.VOLUME_CHANGED, ClusterEvent.POD_GONE},
    Reason.POD_AFFINITY: _PODS | {ClusterEvent.NAMESPACE_CHANGED},
    Reason.SPREAD: _PODS,
    Reason.UNSUPPORTED: frozenset({ClusterEvent.NODE_ADDED}),
    Reason.LOCKED: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.UNLOCKED}),
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
