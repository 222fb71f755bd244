"""What can change in a cluster, and which refusals each change may lift. A table, nothing else."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from koord_numa.core.verdicts import Reason, Unschedulable


class Cause(Enum):
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


_NODE: Final = frozenset({Cause.NODE_ADDED, Cause.NODE_CHANGED})
_ROOM: Final = _NODE | {Cause.TOPOLOGY_CHANGED, Cause.CAPACITY_FREED}
_TOPOLOGY: Final = _NODE | {Cause.TOPOLOGY_CHANGED}
_PODS: Final = _NODE | {Cause.POD_BOUND, Cause.POD_GONE}

WAKERS: Final[Mapping[Reason, frozenset[Cause]]] = {
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
    Reason.COOLING_DOWN: _NODE | {Cause.COOLED_DOWN},
    Reason.NODE_NAME: frozenset({Cause.NODE_ADDED}),
    Reason.UNSCHEDULABLE: _NODE,
    Reason.NODE_AFFINITY: _NODE,
    Reason.TAINT: _NODE,
    Reason.HOST_PORT: frozenset({Cause.NODE_ADDED, Cause.CAPACITY_FREED}),
    Reason.VOLUME: _NODE | {Cause.VOLUME_CHANGED, Cause.POD_GONE},
    Reason.POD_AFFINITY: _PODS | {Cause.NAMESPACE_CHANGED},
    Reason.SPREAD: _PODS,
    Reason.UNSUPPORTED: frozenset({Cause.NODE_ADDED}),
    Reason.LOCKED: frozenset({Cause.NODE_ADDED, Cause.UNLOCKED}),
}
"""For every refusal, the changes that may lift it on the same node, or offer another node."""


def reasons_of(verdict: Unschedulable) -> frozenset[Reason]:
    """The rules that said no on some node."""
    distinct = dict(zip(map(id, verdict.rejections.values()), verdict.rejections.values(), strict=True))
    return frozenset(rejection.reason for rejection in distinct.values())  # thousands of nodes share few refusals


def wakers(reasons: Iterable[Reason]) -> frozenset[Cause]:
    """Every change that may matter to a pod that was refused for these reasons. A new node always does."""
    return frozenset({Cause.NODE_ADDED}).union(*(WAKERS[reason] for reason in reasons))
