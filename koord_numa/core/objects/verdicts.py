"""Results of decisions. A rejection is a value with numbers; only failures raise exceptions."""

from collections.abc import Mapping
from enum import Enum

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.claims import Allocation, ClaimAmounts
from koord_numa.core.objects.devices import DeviceGrants
from koord_numa.core.objects.request import Assignment, SharedPool
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import ValueObject, value_field


class Alignment(Enum):
    """Alignment of a placement to NUMA nodes."""

    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    NOT_ATTEMPTED = "not attempted"


class Exclusivity(Enum):
    """Result for a pod's exclusivity: its CPU exclusive policy and ``singleNUMANodeExclusive: Preferred``."""

    HONOURED = "honoured"  # also if none was requested
    DOWNGRADED = "downgraded"  # NUMANodeLevel became PCPULevel
    BROKEN = "broken"


class Reason(Enum):
    """Rule that rejected the pod. The value is the short name in metrics and logs; the rejection has the message."""

    RESOURCES = "resources"
    CPUS = "cpus"
    CPU_COUNT = "cpu-count"  # CPUs are not whole, or no multiple of the threads per core
    BIND_POLICY = "bind-policy"
    NUMA_POLICY = "numa-policy"  # pod and node have different policies
    NUMA_AFFINITY = "numa-affinity"  # no acceptable set of NUMA nodes
    NUMA_SPREAD = "numa-spread"  # not where the annotation numa-spread permits it
    NO_TOPOLOGY = "no-topology"
    BAD_TOPOLOGY = "bad-topology"
    BAD_NODE = "bad-node"
    BAD_POD = "bad-pod"
    KUBELET_ALIGNMENT = "kubelet-alignment"  # the kubelet would reject with TopologyAffinityError
    KUBELET_SMT = "kubelet-smt"  # SMTAlignmentError
    KUBELET_ALLOCATION = "kubelet-allocation"  # UnexpectedAdmissionError
    UNTRUSTED = "untrusted"  # topology data is stale, or CPUs have two owners
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
    LOCKED = "locked"  # a rebind uses the node
    RESOURCE_CLAIMS = "resource-claims"  # no devices for the pod's claims
    CLAIM_ALIGNMENT = "claim-alignment"  # devices exist, but not on the pod's NUMA nodes
    DEVICES = "devices"  # no devices by id (Device object) for the pod, or their requests are invalid
    BIND_QUEUE = "bind-queue"  # many binds to the node are queued; ends within milliseconds


class NumaNumbers(ValueObject):
    """
    Total, free and needed amount of a resource on a NUMA node, in units of the core.

    ``shape`` states which part of the free amount counts, such as ``in whole cores``.
    """

    numa: int
    resource: str
    total: int
    free: int
    needed: int
    shape: str = ""


class Rejection(ValueObject, gc=False):
    """
    Rejection of a pod by a node.

    ``message`` is counted over nodes (``Insufficient cpu``); ``detail`` is about this node only, with numbers. ``resolvable`` is whether
    evictions could help. ``largest`` is the largest aligned request that would fit now. ``lack`` is the missing share of the scarcest
    resource of the whole node, from 0 to 1, for rejections without numbers per NUMA node.
    """

    reason: Reason
    message: str
    detail: str = ""
    resolvable: bool = True
    numbers: tuple[NumaNumbers, ...] = ()
    largest: ResourceList = value_field(default_factory=dict)
    lack: float = 1.0


class Placement(ValueObject, gc=False):
    """
    Node of a pod and the resources that it gets there.

    ``mask`` is the chosen set of NUMA nodes, ``None`` if none was chosen; with ``any_of_mask`` the kubelet chooses one of its NUMA nodes.
    ``bind`` is the effective CPU bind policy (``NONE`` without exclusive CPUs), and ``bind_required`` whether it was required. ``note``
    states why no alignment was attempted, or which assumption about a kubelet was made. ``claim_points`` rank nodes by the location of
    claim devices, 0 to 100; before allocation it is the maximum. ``extended`` are extended resources that the node serves by claim, with
    their class; their claim is the last of ``allocations`` unless it has devices already. ``device_counts`` has the allocated and total
    numbers of devices of the scored resources, without this pod; it is set with the allocations. ``explores`` are unknown kubelet options
    that the admission depends on. ``claim_amounts`` are the node resources that claims take in addition to the pod's request, and
    ``counted`` is what the pod counts for then. ``devices`` are chosen by id where the node has a Device object;
    ``device_points`` are the share of its free GPU partitions that remain, 0 to 100.
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
    exclusivity: Exclusivity = Exclusivity.HONOURED
    note: str = ""
    allocations: tuple[Allocation, ...] = ()  # of the pod's claims without devices, in their order
    claim_points: int = 100
    extended: tuple[tuple[str, str], ...] = ()
    device_counts: tuple[tuple[str, int, int], ...] = ()
    explores: tuple[str, ...] = ()
    claim_amounts: tuple[ClaimAmounts, ...] = ()
    counted: ResourceList | None = None
    devices: DeviceGrants = ()
    device_points: int = 100

    @property
    def numa_nodes(self) -> int:
        """Number of NUMA nodes that the pod takes; 0 if none was chosen."""
        return 1 if self.any_of_mask else (self.mask or 0).bit_count()

    @property
    def assignment(self) -> Assignment:
        """Assignment for the pod's resource-status."""
        return Assignment(cpus=self.cpus, numa=self.numa, shared_pools=self.shared_pools)


class Unschedulable(ValueObject):
    """Result if no node fits: the rejection of every node, by node name."""

    rejections: Mapping[str, Rejection]
