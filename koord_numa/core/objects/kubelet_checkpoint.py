"""
Exact state of a kubelet's resource managers, which the node agent reads from the kubelet's checkpoint files and podresources.

Sets of CPUs and of NUMA nodes are integers: bit i is CPU i, or NUMA node i. Amounts are bytes. Pods are identified by the UID of their API
object, a static pod by the UID of its mirror pod.
"""

from collections.abc import Mapping

from koord_numa.core.value_objects import ValueObject, value_field


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
    State of a kubelet at ``read_at``. The agent publishes on every change, so that an old state is unchanged.

    The kubelet releases the resources of ended pods before it allocates to the next pod. Here they are released already.

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
        """Whether ``pods``, ``active``, ``gone``, ``default_cpus`` and ``memory`` are the kubelet's own."""
        return self.state_known and not self.too_large
