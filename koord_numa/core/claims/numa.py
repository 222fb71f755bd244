"""The NUMA node of a device, from the attributes by which drivers publish it."""

from koord_numa.core.claims.search.inventory import Device

NUMA_ATTRIBUTES = ("resource.kubernetes.io/numaNode", "dra.cpu/numaNodeID", "dra.net/numaNode")
"""The standard attribute first, then the names that drivers used before it."""

BARE_ATTRIBUTES = ("numaNode", "numaNodeID", "numa")
"""Names in the driver's own domain."""


def numa_of(device: Device) -> int | None:
    """The NUMA node, None when the driver does not say or says that there is none (-1)."""
    for name in (*NUMA_ATTRIBUTES, *(f"{device.id.driver}/{bare}" for bare in BARE_ATTRIBUTES)):
        value = device.attribute(name)
        if value is not None and value.kind == "int" and isinstance(value.value, int):
            return value.value if value.value >= 0 else None
    return None
