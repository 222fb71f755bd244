"""Enumerations of the domain. ``wire/`` converts the spellings of the API."""

import re
from enum import Enum, StrEnum
from typing import Final


class QosClass(StrEnum):
    """QoS class of Koordinator, from the label ``koordinator.sh/qosClass``; ``NONE`` if absent or unknown."""

    NONE = ""
    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"


class PriorityClass(StrEnum):
    """Priority bands of Koordinator, from ``koordinator.sh/priority-class`` or the numeric priority."""

    NONE = ""
    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"


class KubeQos(StrEnum):
    """QoS class that Kubernetes derives from requests and limits."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class CpuBindPolicy(StrEnum):
    """Relation of a pod's CPUs to physical cores. ``NONE``: not set; ``DEFAULT``: use the configured default."""

    NONE = ""
    DEFAULT = "Default"
    FULL_PCPUS = "FullPCPUs"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"


class CpuExclusivePolicy(StrEnum):
    """Pods that a pod's CPUs exclude: pods of the same policy on the same core, or on the same NUMA node."""

    NONE = ""
    PCPU_LEVEL = "PCPULevel"
    NUMA_NODE_LEVEL = "NUMANodeLevel"


class NodeBindPolicy(StrEnum):
    """Bind policy that a node enforces for every pod with whole CPUs."""

    NONE = ""
    FULL_PCPUS_ONLY = "FullPCPUsOnly"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"


class NumaPolicy(StrEnum):
    """Strictness of NUMA alignment; ``NONE`` requires nothing."""

    NONE = ""
    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"
    SINGLE_NUMA_NODE = "SingleNUMANode"


class NumaSpreadScope(StrEnum):
    """Domains over which ``numa-spread`` distributes the pods of a workload."""

    NUMA = "numa"
    SOCKET = "socket"
    PCIE = "pcie"


class NumaSpreadMode(StrEnum):
    """Spreading or packing of the pods of a workload inside a node."""

    SPREAD = "Spread"
    PACK = "Pack"


class NumaExclusive(StrEnum):
    """Exclusion between pods that span NUMA nodes and pods on a single NUMA node."""

    NONE = ""
    PREFERRED = "Preferred"
    REQUIRED = "Required"


class RestrictedRule(StrEnum):
    """Sets of NUMA nodes that Restricted prefers on a node whose CPUs the scheduler allocates."""

    EMPTY_NODE = "EmptyNode"  # as many NUMA nodes as the pod would need if the node were empty (KEP-693)
    KOORDINATOR = "Koordinator"  # every set that fits the pod


class NumaAllocateStrategy(StrEnum):
    """Order in which NUMA nodes are filled."""

    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
    DISTRIBUTE_EVENLY = "DistributeEvenly"


class ScoringType(StrEnum):
    """Method that converts amounts to a score of a node or of a set of NUMA nodes."""

    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
    BALANCED_ALLOCATION = "BalancedAllocation"
    LEAST_NUMA_NODES = "LeastNUMANodes"


class NodeScoring(StrEnum):
    """Method of the ``numa`` part of a node's score, which rates the NUMA nodes of a placement."""

    FEWEST_NUMA_NODES = "FewestNUMANodes"
    CPU_ORCHESTRATION = "CPUOrchestration"  # A + B of the fine-grained CPU orchestration proposal
    KOORDINATOR = "Koordinator"
    POD_LEVEL_POLICY = "PodLevelPolicy"
    LEAST_NUMA_NODES = "LeastNUMANodes"


class CpuIsolation(StrEnum):
    """Isolation that a pod requests beyond exclusive CPUs, by the annotation ``cpu-isolation``."""

    INTERRUPTS = "interrupts"  # no interrupts on its CPUs
    SIBLINGS = "siblings"  # empty sibling threads
    ISOLCPUS = "isolcpus"  # preferably CPUs of the kernel's isolcpus


def isolation_words(text: str) -> frozenset[str]:
    """Return the words of an annotation or label, known or not. A label separates them by dots, as it permits no commas."""
    return frozenset(word.lower() for word in re.split(r"[,.\s]+", text[:1000]) if word)


class CpuOwner(Enum):
    """Allocator of the CPU ids on a node: the scheduler (an agent applies the cpuset), or the kubelet."""

    SCHEDULER = "scheduler"
    KUBELET = "kubelet"


class KubeletPolicy(StrEnum):
    """Topology manager policy of the kubelet."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class KubeletScope(StrEnum):
    """Unit that the topology manager of the kubelet aligns."""

    CONTAINER = "container"
    POD = "pod"


class ContainerKind(Enum):
    """Kinds of containers. Init containers end before the next starts; sidecars are init containers that keep running."""

    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"


class UnknownKubeletOptions(StrEnum):
    """Handling of pods whose admission depends on unpublished kubelet options."""

    EXPLORE = "Explore"  # one pod at a time tests the options
    STRICT = "Strict"  # the pod is placed elsewhere or waits
    ASSUME = "Assume"  # use the options configured for the node; without configuration as Strict


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
"""
Aliases of members that every decision reads, some of them several times: attribute access on the class takes three times as long in Python
3.11.
"""
