"""Answers. "No" is a value with numbers; only what is broken raises."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from koord_numa.core.claims.allocation import Allocation
from koord_numa.core.claims.node_allocatable import ClaimAmounts
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.request import Assignment, SharedPool
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import ValueObject, value_field


class Alignment(Enum):
    """What became of the wish to sit on few NUMA nodes."""

    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    NOT_ATTEMPTED = "not attempted"


class Exclusivity(Enum):
    """What became of a pod's exclusivity: its CPU exclusive policy and ``singleNUMANodeExclusive: Preferred``."""

    HONOURED = "honoured"  # also where nothing was asked for
    DOWNGRADED = "downgraded"  # NUMANodeLevel became PCPULevel
    BROKEN = "broken"


class Reason(Enum):
    """Which rule said no. The value is the short name used in metrics and logs; sentences live in the rejection."""

    RESOURCES = "resources"
    CPUS = "cpus"
    CPU_COUNT = "cpu-count"  # CPUs are not whole, or no multiple of the threads per core
    BIND_POLICY = "bind-policy"
    NUMA_POLICY = "numa-policy"  # pod and node want different policies
    NUMA_AFFINITY = "numa-affinity"  # no acceptable set of NUMA nodes
    NUMA_SPREAD = "numa-spread"  # not where the annotation numa-spread permits it
    NO_TOPOLOGY = "no-topology"
    BAD_TOPOLOGY = "bad-topology"
    BAD_NODE = "bad-node"
    BAD_POD = "bad-pod"
    KUBELET_ALIGNMENT = "kubelet-alignment"  # the kubelet would answer TopologyAffinityError
    KUBELET_SMT = "kubelet-smt"  # ... SMTAlignmentError
    KUBELET_ALLOCATION = "kubelet-allocation"  # ... UnexpectedAdmissionError
    UNTRUSTED = "untrusted"  # topology data is stale, or CPU owners clash
    COOLING_DOWN = "cooling-down"
    NODE_NAME = "node-name"
    UNSCHEDULABLE = "unschedulable"
    NODE_AFFINITY = "node-affinity"
    TAINT = "taint"
    HOST_PORT = "host-port"
    VOLUME = "volume"
    VOLUME_ZONE = "volume-zone"
    DISK_CONFLICT = "disk-conflict"  # another pod of the node uses the same disk
    VOLUME_LIMIT = "volume-limit"  # the node attaches no more volumes of the driver
    NODE_FEATURE = "node-feature"
    POD_AFFINITY = "pod-affinity"
    SPREAD = "spread"
    UNSUPPORTED = "unsupported"
    LOCKED = "locked"  # a rebind works on the node
    RESOURCE_CLAIMS = "resource-claims"  # no devices for the pod's claims
    CLAIM_ALIGNMENT = "claim-alignment"  # devices for them, but not on the pod's NUMA nodes
    BIND_QUEUE = "bind-queue"  # many binds to the node wait for their turn; over in milliseconds


@dataclass(frozen=True, slots=True)
class NumaNumbers:
    """
    Of one resource on one NUMA node: what there is, what is free, what was needed. In our units.

    ``shape`` says which part of what is free counts, such as ``in whole cores``.
    """

    numa: int
    resource: str
    total: int
    free: int
    needed: int
    shape: str = ""


class Rejection(ValueObject, gc=False):
    """
    Why one node cannot take one pod.

    ``message`` is the sentence that is counted over nodes (``Insufficient cpu``); ``detail`` is about this node alone, with
    numbers. ``resolvable``: could evicting pods help? ``largest`` is the largest aligned request that would fit now.
    """

    reason: Reason
    message: str
    detail: str = ""
    resolvable: bool = True
    numbers: tuple[NumaNumbers, ...] = ()
    largest: ResourceList = value_field(default_factory=dict)


class Placement(ValueObject, gc=False):
    """
    Where one pod goes and what it gets there.

    ``mask`` is the chosen set of NUMA nodes, ``None`` when none was chosen, and with ``any_of_mask`` one of its NUMA nodes,
    which the kubelet chooses. ``bind`` is the CPU bind policy in force
    (``NONE`` without own CPUs) and ``bind_required`` whether it had to hold. ``note`` says why no alignment was attempted,
    or which assumption about a kubelet decided. ``claim_points`` rank nodes by where devices of claims are, 0 to 100; before these
    are chosen it is the most that they can be. ``extended`` are extended resources that the node serves by claim, with their class; the
    claim for them is the last of ``allocations`` unless it has devices already. ``device_counts`` has of those that count in the score
    how many devices are allocated and how many there are, without this pod; it is filled in with the allocations. ``explores`` names
    options of the kubelet that are not known and on which its admission depends. ``claim_amounts`` are what claims take from the node
    beside the pod's request, and ``counted`` is what the pod counts for then.
    """

    node: str
    cpus: CpuSet = EMPTY
    numa: tuple[tuple[int, ResourceList], ...] = ()
    shared_pools: tuple[SharedPool, ...] = ()
    mask: int | None = None
    any_of_mask: bool = False
    alignment: Alignment = Alignment.NOT_ATTEMPTED
    bind: CpuBindPolicy = CpuBindPolicy.NONE
    bind_required: bool = False
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE
    exclusivity: Exclusivity = Exclusivity.HONOURED
    note: str = ""
    allocations: tuple[Allocation, ...] = ()  # of the pod's claims that have no devices yet, in their order
    claim_points: int = 100
    extended: tuple[tuple[str, str], ...] = ()
    device_counts: tuple[tuple[str, int, int], ...] = ()
    explores: tuple[str, ...] = ()
    claim_amounts: tuple[ClaimAmounts, ...] = ()
    counted: ResourceList | None = None

    @property
    def numa_nodes(self) -> int:
        """Number of NUMA nodes that the pod takes; 0 when none was chosen."""
        return 1 if self.any_of_mask else (self.mask or 0).bit_count()

    @property
    def assignment(self) -> Assignment:
        """What the pod's resource-status will say."""
        return Assignment(cpus=self.cpus, numa=self.numa, shared_pools=self.shared_pools)


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """No node takes the pod now: the rejection of every node, by node name."""

    rejections: Mapping[str, Rejection]
