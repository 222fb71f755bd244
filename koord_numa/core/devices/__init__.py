"""
Devices of a node by id: ledger, allocation and NUMA hints of Koordinator's Device objects. Pure.

Other packages import these names only.
"""

from koord_numa.core.devices.allocation import (
    NO_OBJECT,
    NUMA_SCOPED,
    UNUSABLE,
    Chosen,
    DeviceOffer,
    NodeDeviceHints,
    Shortage,
    device_offer,
    fits_one_numa_node,
    node_devices,
    partition_points,
    rejection,
)
from koord_numa.core.devices.machine import (
    COUNTED_DEVICES,
    TYPE_OF,
    UNUSED,
    DeviceDemand,
    DeviceMachine,
    DeviceUse,
    TypeDemand,
    device_demand,
    device_machine,
    free_devices,
    free_partitions,
)

__all__ = [
    "COUNTED_DEVICES",
    "NO_OBJECT",
    "NUMA_SCOPED",
    "TYPE_OF",
    "UNUSABLE",
    "UNUSED",
    "Chosen",
    "DeviceDemand",
    "DeviceMachine",
    "DeviceOffer",
    "DeviceUse",
    "NodeDeviceHints",
    "Shortage",
    "TypeDemand",
    "device_demand",
    "device_machine",
    "device_offer",
    "fits_one_numa_node",
    "free_devices",
    "free_partitions",
    "node_devices",
    "partition_points",
    "rejection",
]
