"""State of a node for decisions: the Node object, its NodeResourceTopology (NRT), its images, and the exact state of its kubelet."""

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.constraints import TaintEffect
from koord_numa.core.objects.vocabulary import (
    CpuOwner,
    KubeletPolicy,
    KubeletScope,
    NodeBindPolicy,
    NumaAllocateStrategy,
    NumaPolicy,
)
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import ValueObject, value_field, value_object


class Image(ValueObject):
    """Image on a node: all its names (tags and digests), and its size in bytes."""

    names: tuple[str, ...]
    size: int


class PodImages(ValueObject):
    """
    Images of a waiting pod.

    ``names`` has one name for each container, init container and image volume, in that order. ``nodes`` is the number of nodes with the
    image, of ``total`` nodes in the cluster.
    """

    names: tuple[str, ...]
    total: int
    nodes: Mapping[str, int] = value_field(default_factory=dict)


# Exact state of a kubelet's resource managers, which the node agent reads from the kubelet's checkpoint files and podresources.
#
# Sets of CPUs and of NUMA nodes are integers: bit i is CPU i, or NUMA node i. Amounts are bytes. Pods are identified by the
# UID of their API object, a static pod by the UID of its mirror pod.


class HeldMemory(ValueObject, gc=False):
    """Memory block of a container. Blocks of size 0 (a finished init container) are omitted."""

    numa_mask: int
    resource: str  # "memory" or "hugepages-1Gi"
    size: int  # bytes, from all NUMA nodes of the mask together


class ContainerState(ValueObject, gc=False):
    """CPUs, memory blocks and devices that a container holds exclusively."""

    cpus: int = 0
    memory: tuple[HeldMemory, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = value_field(default_factory=dict)  # resource -> device ids, ascending


class CpuRow(ValueObject, gc=False):
    """
    Online logical CPU.

    ``core`` is the lowest CPU of the core, as the kubelet numbers cores. Without an L3 cache ``l3`` is the socket.
    """

    cpu: int
    core: int
    socket: int
    numa: int
    l3: int


class MemoryAmounts(ValueObject, gc=False):
    """Bytes of a resource of the memory manager on a NUMA node. ``reserved`` is the amount held by active pods."""

    allocatable: int
    reserved: int


class NumaMemory(ValueObject, gc=False):
    """NUMA node in the memory manager's table. ``group`` is the mask of NUMA nodes that are allocated together (``cells``)."""

    group: int
    amounts: Mapping[str, MemoryAmounts]


class KubeletCheckpoint(ValueObject):
    """
    State of a kubelet at ``read_at``. The agent publishes every change, so a state with an old time is still current.

    The kubelet releases the resources of ended pods before it allocates to the next pod. In this state they are released already.

    With ``state_known`` false the checkpoint files are absent or unreadable: only CPU table, reserved CPUs, policies and devices are valid.
    ``too_large`` means the same, because the state does not fit into the annotation.
    """

    read_at: float  # seconds since the epoch
    cpus: tuple[CpuRow, ...] = ()  # ascending by CPU
    reserved_cpus: int = 0
    cpu_policy: str | None = None  # "none" or "static", of the running kubelet; None: not known
    memory_policy: str | None = None  # "None" or "Static"
    cpu_options: Mapping[str, bool] | None = None  # None: the kubelet's configuration is not known
    device_numa: Mapping[str, Mapping[str, int]] = value_field(default_factory=dict)
    """Every allocatable device: resource -> device id -> mask of NUMA nodes, 0 for a device without one."""
    default_cpus: int = 0  # the shared pool; reserved CPUs are in it unless strict-cpu-reservation is on
    pods: Mapping[str, Mapping[str, ContainerState]] = value_field(default_factory=dict)
    """Active pods that hold resources: UID -> container -> state. Init containers stay listed for the lifetime of the pod."""
    pod_level: Mapping[str, ContainerState] = value_field(default_factory=dict)
    """Resources held by active pods as a whole (gate PodLevelResourceManagers): UID -> state."""
    active: frozenset[str] = frozenset()  # UIDs of all pods that the kubelet runs
    gone: frozenset[str] = frozenset()  # UIDs of rejected or ended pods that a file or the API server still contains
    memory: Mapping[int, NumaMemory] = value_field(
        default_factory=dict
    )  # NUMA id -> table; empty unless the policy is Static
    state_known: bool = True
    too_large: bool = False

    @property
    def is_exact(self) -> bool:
        """True if ``pods``, ``active``, ``gone``, ``default_cpus`` and ``memory`` are the kubelet's own."""
        return self.state_known and not self.too_large

    def knows(self, uid: str) -> bool:
        """Return whether the kubelet had decided on this pod when the state was read."""
        return uid in self.active or uid in self.pods or uid in self.gone


DEFAULT_MAX_NUMA_NODES: Final = 8
"""Default of the kubelet for ``max-allowable-numa-nodes``, and divisor of LeastNUMANodes if none is published."""


class Taint(ValueObject):
    """Taint that keeps away pods which do not tolerate it."""

    key: str
    effect: TaintEffect
    value: str = ""


class NodeReservation(ValueObject):
    """CPUs and amounts reserved by the node (``node.koordinator.sh/reservation``)."""

    cpus: CpuSet = EMPTY
    amounts: ResourceList = value_field(default_factory=dict)
    reserved_cpus_only: bool = False  # applyPolicy ReservedCPUsOnly: allocatable is not lowered


@value_object
class Node:
    """
    Node object. ``problem`` names what is malformed (object, key, value): such a node takes no pods.

    ``numa_policy``, ``bind_policy`` and ``strategy`` are the values of labels, ``None`` without a label. A label with the value ``None`` is
    different: it overrides the kubelet's settings and the configured defaults. ``allocatable`` is as published, in units of the core;
    ``core/state/inventory.py`` subtracts the reservation.
    """

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: ResourceList = field(default_factory=dict)
    numa_policy: NumaPolicy | None = None
    bind_policy: NodeBindPolicy | None = None
    strategy: NumaAllocateStrategy | None = None
    amplification: Mapping[str, float] = field(default_factory=dict)
    reservation: NodeReservation = NodeReservation()
    features: frozenset[str] | None = None  # status.declaredFeatures; None if the node declares none
    problem: str = ""
    unread: tuple[str, ...] = field(default=(), compare=False)  # a sentence for each key that is similar to a known key
    # Not compared: a pulled image does not change the node for waiting pods.
    kubelet: str = ""  # boot id of the machine and version of its kubelet
    kubelet_since: float = 0.0  # when the node became Ready, seconds since the epoch; 0: not Ready or unknown
    images: frozenset[Image] = field(default=frozenset(), compare=False, repr=False)


class Zone(ValueObject, gc=False):
    """
    NUMA node as reported by an NRT. Amounts in units of the core; ``cpu`` is milli-CPU.

    ``available`` is never below 0. ``overdrawn`` is how much lower the published amount was: NFD counts a device near several NUMA nodes
    once per NUMA node, all on the last.
    """

    numa: int
    capacity: ResourceList
    allocatable: ResourceList
    available: ResourceList
    overdrawn: ResourceList = value_field(default_factory=dict)


class KubeletConfig(ValueObject, gc=False):
    """
    Known configuration of a kubelet's resource managers. ``None`` means not published, and is handled conservatively.

    ``cpu_options`` and ``topology_options`` map the kubelet's option names to boolean values.
    """

    topology_policy: KubeletPolicy | None = None
    topology_scope: KubeletScope = KubeletScope.CONTAINER
    topology_options: Mapping[str, bool] = value_field(default_factory=dict)
    max_numa_nodes: int = DEFAULT_MAX_NUMA_NODES
    cpu_policy: str | None = None  # "none" or "static"
    cpu_options: Mapping[str, bool] = value_field(default_factory=dict)
    memory_policy: str | None = None  # "None" or "Static"
    reserved_cpus: CpuSet | None = None


class KubeletAllocation(ValueObject):
    """CPUs that a static kubelet allocated to a pod (``node.koordinator.sh/pod-cpu-allocs``)."""

    namespace: str
    name: str
    uid: str
    cpus: CpuSet
    managed_by_kubelet: bool


class CpusetDifference(ValueObject):
    """Pod that runs on other CPUs than decided, as observed by the node agent; ``why`` is the agent's explanation."""

    decided: CpuSet
    observed: CpuSet
    why: str = ""

    def __str__(self) -> str:
        """Return ``decided 1-2, runs on 0-15: no agent applies cpusets on this node``."""
        if not self.observed:
            return f"decided {self.decided}{': ' if self.why else ''}{self.why}"
        return f"decided {self.decided}, runs on {self.observed}{': ' if self.why else ''}{self.why}"


class Pinning(ValueObject):
    """
    Report of the node agent on how it pins containers (``NRI``, ``CRI``, ``cgroups``).

    ``containers`` were pinned since the agent started; ``seconds`` is the longest time that one of them ran on other CPUs before.
    """

    through: str
    containers: int
    seconds: float

    def __str__(self) -> str:
        """Return ``12 containers pinned through NRI, at most 0 s unpinned``."""
        what = "container" if self.containers == 1 else "containers"
        return f"{self.containers} {what} pinned through {self.through}, at most {self.seconds:g} s unpinned"


class NodeResourceTopology(ValueObject):
    """
    NodeResourceTopology of a node. ``problem`` names what is malformed: such a topology counts as missing and is reported.

    ``machine`` is set if the NRT has ``node.koordinator.sh/cpu-topology``, which also makes the CPUs scheduler-owned. ``reserved`` is the
    union of kubelet-reserved CPUs, reservation CPUs, exclusive system-QoS CPUs and CPUs of kubelet-managed pods; ``kubelet_reserved`` are
    those that only the kubelet's configuration reserves. ``differences`` are by ``namespace/name`` of the pod; ``pinning`` is ``None``
    where no agent applies CPUs. ``numa_by_root`` is the NUMA node of each PCIe root (``pci0000:00``) whose devices have the same NUMA node.
    ``amplification`` is ``None`` if the NRT has no ratios; otherwise zones are amplified already.

    ``gap`` names the missing part of a readable topology, with its publisher. ``describes_nodes`` is false if the topology is then
    unusable: the node counts as a node without topology. ``unread`` has a sentence for each key that is similar to a known key.
    """

    node: str
    owner: CpuOwner
    zones: tuple[Zone, ...] = ()  # ascending by NUMA id
    machine: CpuTopology | None = None
    kubelet: KubeletConfig = KubeletConfig()
    numa_policy: NumaPolicy = NumaPolicy.NONE  # of a scheduler-owned node, from topologyPolicies
    reserved: CpuSet = EMPTY
    kubelet_reserved: CpuSet = EMPTY
    isolated: CpuSet = EMPTY  # the kernel's isolcpus
    kubelet_pods: tuple[KubeletAllocation, ...] = ()
    differences: Mapping[str, CpusetDifference] = value_field(default_factory=dict)
    pinning: Pinning | None = None
    amplification: Mapping[str, float] | None = None
    distances: Mapping[tuple[int, int], int] = value_field(default_factory=dict)
    numa_by_root: Mapping[str, int] = value_field(default_factory=dict)
    fingerprint: str = ""
    fingerprint_method: str = ""
    node_uid: str = ""  # from the owner reference, if it exists
    problem: str = ""
    gap: str = ""
    unread: tuple[str, ...] = ()
    describes_nodes: bool = True
    resource_version: str = ""
    checkpoint: KubeletCheckpoint | None = None  # the kubelet's exact state, where the node agent publishes it

    @property
    def in_use(self) -> bool:
        """True if any allocatable amount is not fully available: pods ran on the node when the exporter read its state."""
        return any(
            zone.allocatable.get(name, 0) != amount for zone in self.zones for name, amount in zone.available.items()
        )
