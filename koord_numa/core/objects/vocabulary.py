"""The words of the field as closed enumerations. Spellings on the wire are translated in ``wire/`` and nowhere else."""

from enum import Enum, StrEnum
from typing import Final


class QosClass(StrEnum):
    """Koordinator's quality of service, from the label ``koordinator.sh/qosClass``; ``NONE`` when absent or unknown."""

    NONE = ""
    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"


class PriorityClass(StrEnum):
    """Koordinator's priority bands, from ``koordinator.sh/priority-class`` or the numeric priority."""

    NONE = ""
    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"


class KubeQos(StrEnum):
    """The quality of service that Kubernetes itself derives from requests and limits."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class CpuBindPolicy(StrEnum):
    """How a pod's CPUs relate to physical cores. ``NONE``: the pod says nothing; ``DEFAULT``: use the configured default."""

    NONE = ""
    DEFAULT = "Default"
    FULL_PCPUS = "FullPCPUs"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"


class CpuExclusivePolicy(StrEnum):
    """Whom a pod's CPUs keep away: pods of the same policy on the same core, or on the same NUMA node."""

    NONE = ""
    PCPU_LEVEL = "PCPULevel"
    NUMA_NODE_LEVEL = "NUMANodeLevel"


class NodeBindPolicy(StrEnum):
    """A bind policy that a node imposes on every pod with whole CPUs."""

    NONE = ""
    FULL_PCPUS_ONLY = "FullPCPUsOnly"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"


class NumaPolicy(StrEnum):
    """How strictly a pod must be aligned to NUMA nodes; ``NONE`` demands nothing."""

    NONE = ""
    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"
    SINGLE_NUMA_NODE = "SingleNUMANode"


class NumaSpreadScope(StrEnum):
    """The domains over which ``numa-spread`` distributes the pods of a workload."""

    NUMA = "numa"
    SOCKET = "socket"
    PCIE = "pcie"


class NumaSpreadMode(StrEnum):
    """Whether the pods of a workload keep apart or together inside a node."""

    SPREAD = "Spread"
    PACK = "Pack"


class NumaExclusive(StrEnum):
    """May a pod that spans NUMA nodes share one with a pod that sits on a single one?"""

    NONE = ""
    PREFERRED = "Preferred"
    REQUIRED = "Required"


class RestrictedRule(StrEnum):
    """Which sets of NUMA nodes Restricted prefers on a node whose CPUs the scheduler owns."""

    EMPTY_NODE = "EmptyNode"  # as many NUMA nodes as the pod would need if the node were empty (KEP-693)
    KOORDINATOR = "Koordinator"  # every set that holds the pod


class NumaAllocateStrategy(StrEnum):
    """Which NUMA node is filled first."""

    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
    DISTRIBUTE_EVENLY = "DistributeEvenly"


class ScoringType(StrEnum):
    """How amounts turn into a score of a node or of a set of NUMA nodes."""

    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
    BALANCED_ALLOCATION = "BalancedAllocation"
    LEAST_NUMA_NODES = "LeastNUMANodes"


class NodeScoring(StrEnum):
    """How well a placement sits on a node's NUMA nodes: the method of the ``numa`` part of a node's score."""

    FEWEST_NUMA_NODES = "FewestNUMANodes"
    CPU_ORCHESTRATION = "CPUOrchestration"  # A + B of the fine-grained CPU orchestration proposal
    KOORDINATOR = "Koordinator"
    POD_LEVEL_POLICY = "PodLevelPolicy"
    LEAST_NUMA_NODES = "LeastNUMANodes"


class CpuOwner(Enum):
    """Who chooses CPU ids on a node: we (an agent applies our cpuset), or the kubelet itself."""

    SCHEDULER = "scheduler"
    KUBELET = "kubelet"


class KubeletPolicy(StrEnum):
    """The kubelet's topology manager policy."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class KubeletScope(StrEnum):
    """The unit that the kubelet's topology manager aligns."""

    CONTAINER = "container"
    POD = "pod"


class ContainerKind(Enum):
    """Regular init containers end before the next one starts; sidecars are init containers that stay."""

    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"


class UnknownKubeletOptions(StrEnum):
    """What happens where a pod's admission depends on kubelet options that are not published."""

    EXPLORE = "Explore"  # one pod at a time finds out
    STRICT = "Strict"  # the pod goes elsewhere or waits
    ASSUME = "Assume"  # they are as the configuration states for the node; without a statement as under Strict


NO_NUMA_POLICY: Final = NumaPolicy.NONE
SINGLE_NUMA_NODE: Final = NumaPolicy.SINGLE_NUMA_NODE
NO_BIND_POLICY: Final = CpuBindPolicy.NONE
FULL_PCPUS: Final = CpuBindPolicy.FULL_PCPUS
SPREAD_BY_PCPUS: Final = CpuBindPolicy.SPREAD_BY_PCPUS
NOT_EXCLUSIVE: Final = CpuExclusivePolicy.NONE
PCPU_LEVEL: Final = CpuExclusivePolicy.PCPU_LEVEL
NUMA_NODE_LEVEL: Final = CpuExclusivePolicy.NUMA_NODE_LEVEL
NUMA_PREFERRED: Final = NumaExclusive.PREFERRED
NUMA_REQUIRED: Final = NumaExclusive.REQUIRED
INIT: Final = ContainerKind.INIT
APP: Final = ContainerKind.APP
"""Members that every decision asks for, some of them several times: Python 3.11 takes three times as long to find one in its class."""
