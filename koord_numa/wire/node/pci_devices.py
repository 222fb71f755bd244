"""``koord-numa/pci-devices`` of a topology: on which NUMA node each PCIe root is, for devices whose drivers publish only their root."""

from collections.abc import Mapping
from typing import Final

from pydantic import TypeAdapter

from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, WireError
from koord_numa.wire.parsing import GoJson, load_json, read_as


class PciDeviceModel(GoJson):
    """One device, as the node agent writes it."""

    node: int | None = None
    root: str = ""


def numa_by_root(annotations: Mapping[str, str], path: FieldPath) -> dict[str, int]:
    """
    The NUMA node by PCIe root; roots whose devices disagree, or that none tells of, are left out.

    A malformed annotation tells of none and spoils nothing: devices then count as of unknown place.
    """
    text = annotations.get(names.PCI_DEVICES)
    if text is None:
        return {}
    path = path.annotation(names.PCI_DEVICES)
    try:
        devices = read_as(_DEVICES, load_json(text, path), path) or []
    except WireError:
        return {}
    found: dict[str, set[int]] = {}
    for device in devices:
        # -1 is sysfs's "no NUMA node".
        if device.root and device.node is not None and 0 <= device.node <= MAX_NUMA_ID:
            found.setdefault(device.root, set()).add(device.node)
    # One NUMA node a root: devices that disagree tell nothing certain.
    return {root: numa for root, (numa, *others) in sorted(found.items()) if not others}


_DEVICES: Final = TypeAdapter(list[PciDeviceModel] | None)
