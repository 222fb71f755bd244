"""
The exact state of a kubelet's resource managers, as the node agent reads it from the kubelet's checkpoint files and podresources.

Sets of CPUs and of NUMA nodes are integers: bit i is CPU i, or NUMA node i. Amounts are bytes. Pods are named by the uid of their API
object; a static pod by the uid of its mirror pod.
"""

from collections.abc import Mapping

from koord_numa.core.value_objects import ValueObject, value_field


class HeldMemory(ValueObject, gc=False):
    """One memory block of a container. Blocks of size 0 (a finished init container) are left out."""

    numa_mask: int
    resource: str  # "memory" or "hugepages-1Gi"
    size: int  # bytes, from all NUMA nodes of the mask together


class ContainerState(ValueObject, gc=False):
    """The CPUs, memory blocks and devices that one container holds exclusively."""

    cpus: int = 0
    memory: tuple[HeldMemory, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = value_field(default_factory=dict)  # resource -> device ids, ascending


class CpuRow(ValueObject, gc=False):
    """
    One online logical CPU.

    ``core`` is the lowest CPU of the core, as the kubelet numbers cores. Without an L3 cache ``l3`` is the socket.
    """

    cpu: int
    core: int
    socket: int
    numa: int
    l3: int


class MemoryAmounts(ValueObject, gc=False):
    """Bytes of one resource of the memory manager on one NUMA node. ``reserved`` is what the active pods hold."""

    allocatable: int
    reserved: int


class NumaMemory(ValueObject, gc=False):
    """One NUMA node in the memory manager's table. ``group`` is the mask of NUMA nodes that are allocated together (``cells``)."""

    group: int
    amounts: Mapping[str, MemoryAmounts]


class KubeletCheckpoint(ValueObject):
    """
    The state of one kubelet at ``read_at``. The agent publishes again on every change, so an old state is one that did not change.

    The kubelet releases what ended pods hold before it allocates to the next pod. Here it is released already.

    With ``state_known`` false the checkpoint files are absent or cannot be read: only CPU table, reserved CPUs, policies and devices count.
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
    """Active pods that hold something: uid -> container -> state. Init containers stay listed for the life of the pod."""
    pod_level: Mapping[str, ContainerState] = value_field(default_factory=dict)
    """What active pods hold as a whole (gate PodLevelResourceManagers): uid -> state."""
    active: frozenset[str] = frozenset()  # uids of all pods that the kubelet runs
    gone: frozenset[str] = (
        frozenset()
    )  # uids of pods that were refused or have ended, and of which a file or the API server still knows
    memory: Mapping[int, NumaMemory] = value_field(
        default_factory=dict
    )  # NUMA id -> table; empty unless the policy is Static
    state_known: bool = True
    too_large: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether ``pods``, ``active``, ``gone``, ``default_cpus`` and ``memory`` are the kubelet's own."""
        return self.state_known and not self.too_large
