"""PCI devices that pods may want near their CPUs: where they sit and under which root."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koord_numa.node.sysfs.files import Sysfs

DEVICES: Final = ("bus", "pci", "devices")

CLASSES: Final = ("0108", "02", "03", "0b40", "12")
"""PCI classes of interest: NVMe, network, display and 3D, co-processor, processing accelerator. Bridges and the like are left out."""

_CLASS: Final = re.compile(r"0x([0-9a-f]{6})", re.ASCII | re.IGNORECASE)
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PciDevice:
    """
    One device. ``kind`` is the PCI class and subclass (``0302``), ``numa`` is ``None`` where the firmware does not tell, ``root``
    is the host bridge (``pci0000:00``), the value of Kubernetes' ``resource.kubernetes.io/pcieRoot``, or empty.
    """

    address: str
    kind: str
    numa: int | None
    root: str


def read_pci(sysfs: Sysfs) -> tuple[PciDevice, ...]:
    """The devices of the classes of interest, by address."""
    found = []
    for address in sysfs.names(*DEVICES):
        text = sysfs.text(*DEVICES, address, "class")
        if text is None:  # unplugged between listing and reading
            continue
        match = _CLASS.fullmatch(text)
        if match is None:
            raise sysfs.error(f"{text[:40]!r} is no PCI class", *DEVICES, address, "class")
        kind = match.group(1)[:4].lower()
        if kind.startswith(CLASSES):
            # -1: the firmware has no proximity domain for the device (ACPI _PXM).
            numa = sysfs.number(*DEVICES, address, "numa_node")
            found.append(PciDevice(address, kind, None if numa is None or numa < 0 else numa, _root(sysfs, address)))
    return tuple(found)


def _root(sysfs: Sysfs, address: str) -> str:
    """The host bridge, from the path that the device's link leads to."""
    try:
        # realpath, not readlink: links of dumps and containers may be relative or go through further links.
        target = Path(os.path.realpath(sysfs.root.joinpath(*DEVICES, address)))
    except OSError:
        return ""
    return next((part for part in target.parts if _ROOT.fullmatch(part)), "")
