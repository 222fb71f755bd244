"""What can change in a cluster so that a pod which was refused may fit (kube-scheduler's ``ClusterEvent``)."""

from enum import Enum
from typing import Final


class ClusterEvent(Enum):
    """A change that may let an unschedulable pod go somewhere."""

    NODE_ADDED = "node added"
    NODE_CHANGED = "node changed"  # labels, taints, cordon, allocatable
    TOPOLOGY_CHANGED = "topology changed"
    CAPACITY_FREED = "capacity freed"
    POD_BOUND = "pod bound"  # one more to be near to, or to spread around
    POD_GONE = "pod gone"
    NAMESPACE_CHANGED = "namespace changed"  # its labels, which affinity terms may select
    VOLUME_CHANGED = "volume changed"
    CLAIM_CHANGED = "claim changed"  # devices, their classes, or resource claims
    NODE_UNLOCKED = "node unlocked"
    BACKOFF_ENDED = "node backoff ended"  # after a kubelet's rejection
    BINDS_DONE = "binds done"  # the line of binds to a node is short again


Events = frozenset[ClusterEvent]

ON_NODE: Final[Events] = frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED})
ON_CAPACITY: Final[Events] = ON_NODE | {ClusterEvent.TOPOLOGY_CHANGED, ClusterEvent.CAPACITY_FREED}
ON_TOPOLOGY: Final[Events] = ON_NODE | {ClusterEvent.TOPOLOGY_CHANGED}
ON_PODS: Final[Events] = ON_NODE | {ClusterEvent.POD_BOUND, ClusterEvent.POD_GONE}
ON_CLAIMS: Final[Events] = ON_NODE | {ClusterEvent.CLAIM_CHANGED}
ON_VOLUMES: Final[Events] = ON_NODE | {ClusterEvent.VOLUME_CHANGED, ClusterEvent.POD_GONE}
