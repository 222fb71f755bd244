"""Devices of a node as its Device object lists them, what a pod demands of them, and what a pod holds."""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from koord_numa.core.objects.constraints import LabelSelector
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import ValueObject, value_field

GPU: Final = "gpu"
RDMA: Final = "rdma"
FPGA: Final = "fpga"

Pairs = tuple[tuple[str, str], ...]
"""Labels as sorted pairs."""

DeviceKey = tuple[str, int]
"""Type and minor number, which identify a device of a node."""


class TopologyScope(Enum):
    """Part of a node that must contain all devices of one type. The value grows as the part shrinks (Koordinator's scope levels)."""

    NODE = 1
    NUMA_NODE = 2
    PCIE = 3
    DEVICE = 4


class AllocateStrategy(Enum):
    """Number of devices for a request of at most 100."""

    ONE = ""
    APPLY_FOR_ALL = "ApplyForAll"  # every device that the selector matches
    REQUESTS_AS_COUNT = "RequestsAsCount"  # the requested amount is a number of devices


class DeviceExclusive(Enum):
    """Scope of a device that other pods may not use."""

    NONE = ""
    DEVICE = "DeviceLevel"
    PCIE = "PCIeLevel"


class PartitionPolicy(Enum):
    """The GPU partitions that a pod accepts."""

    BEST_EFFORT = "BestEffort"  # any, the highest allocation score first
    RESTRICTED = "Restricted"  # only those with the highest allocation score


class VirtualFunction(ValueObject, gc=False):
    """A virtual function of a device with the labels of its group."""

    bus_id: str
    minor: int = -1
    labels: Pairs = ()


class DeviceTopology(ValueObject, gc=False):
    """Location of a device. ``numa`` is ``None`` if the device belongs to no NUMA node; an empty ``pcie`` is unknown."""

    numa: int | None = None
    pcie: str = ""
    socket: int = -1


class NodeDevice(ValueObject, gc=False):
    """
    A device. ``resources`` are its total amounts by name, sorted. ``topology`` is ``None`` if it is not published.

    The identifier of the device is not included, so that equal machines are equal values.
    """

    type: str
    minor: int
    resources: tuple[tuple[str, int], ...] = ()
    topology: DeviceTopology | None = None
    healthy: bool = True
    labels: Pairs = ()
    functions: tuple[VirtualFunction, ...] = ()  # ascending by bus id

    @property
    def key(self) -> DeviceKey:
        """Return the type and the minor number."""
        return self.type, self.minor


class Partition(ValueObject, gc=False):
    """GPUs that may be used together, with the bandwidth of their ring bus in bytes per second, if it is known."""

    minors: tuple[int, ...]
    score: int = 1
    bandwidth: int | None = None


Partitions = tuple[tuple[int, tuple[Partition, ...]], ...]
"""Partition table: the partitions by number of GPUs, ascending."""


class DeviceInventory(ValueObject, gc=False):
    """
    The Device object of a node. ``problem`` names what is malformed: such an object is not used, and its node rejects device requests.

    ``ids`` are the identifiers of the devices. ``partitions`` is ``None`` without a table. ``honors_partitions`` and ``model`` come from
    its labels. ``injected``: the publisher of the object also gives containers the chosen devices. ``held`` are the devices that pods
    (``namespace/name``) hold by their kubelet, where a device plugin chooses.
    """

    node: str
    devices: tuple[NodeDevice, ...] = ()  # ascending by type and minor
    ids: Mapping[DeviceKey, str] = value_field(default_factory=dict)
    partitions: Partitions | None = None
    honors_partitions: bool = False
    model: str = ""
    node_uid: str = ""  # from the owner reference, if it exists
    injected: bool = True
    held: tuple[tuple[str, "DeviceGrants"], ...] = ()
    problem: str = ""
    resource_version: str = ""


class DeviceHint(ValueObject):
    """Conditions on the devices of one type, from ``device-allocate-hint``. A selector of ``None`` matches every device."""

    selector: LabelSelector | None = None
    function_selector: LabelSelector | None = None
    strategy: AllocateStrategy = AllocateStrategy.ONE
    scope: TopologyScope | None = None
    exclusive: DeviceExclusive = DeviceExclusive.NONE


class PartitionSpec(ValueObject):
    """Partitions that a pod accepts, from ``gpu-partition-spec``. ``bandwidth`` is the least of the ring bus, in bytes per second."""

    policy: PartitionPolicy = PartitionPolicy.BEST_EFFORT
    bandwidth: int | None = None


class DeviceSpec(ValueObject):
    """
    Demands of a pod on its devices, from annotations.

    ``joint`` are the device types to allocate together, the primary type first. With ``same_pcie`` they must be on the same PCIe
    switches.
    """

    hints: tuple[tuple[str, DeviceHint], ...] = ()  # by device type, sorted
    joint: tuple[str, ...] = ()
    same_pcie: bool = False
    partition: PartitionSpec | None = None

    def hint(self, kind: str) -> DeviceHint:
        """Return the hint for a device type."""
        return next((hint for name, hint in self.hints if name == kind), NO_HINT)


NO_HINT: Final = DeviceHint()
NO_DEVICE_SPEC: Final = DeviceSpec()


class DeviceGrant(ValueObject, gc=False):
    """Part of a device that a pod holds, an entry of ``device-allocated``."""

    type: str
    minor: int
    resources: ResourceList
    functions: tuple[VirtualFunction, ...] = ()
    id: str = ""

    @property
    def key(self) -> DeviceKey:
        """Return the type and the minor number of the device."""
        return self.type, self.minor


DeviceGrants = tuple[DeviceGrant, ...]


def devices_text(grants: DeviceGrants) -> str:
    """Return held devices as text: ``gpu 0,1, rdma 0``."""
    minors: dict[str, list[int]] = {}
    for grant in grants:
        minors.setdefault(grant.type, []).append(grant.minor)
    return ", ".join(f"{kind} {','.join(map(str, found))}" for kind, found in minors.items())
