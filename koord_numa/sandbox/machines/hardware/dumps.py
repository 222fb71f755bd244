"""Machines from JSON files that list every CPU of a real one: cpu, core, socket and NUMA node, memory, distances, PCI devices."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from koord_numa.core.cpu_topology import cpu_topology_of
from koord_numa.sandbox.machines.hardware.hardware import Device, Hardware

PCI_RESOURCES: Final[Mapping[str, str]] = {
    "0302": "nvidia.com/gpu",  # 3D controller: an accelerator without a display
    "0200": "vendor.example/nic",  # Ethernet
    "0207": "vendor.example/infiniband",
    "1200": "vendor.example/accelerator",
}
"""The resource that a device plugin would offer for a PCI class. Other classes (displays, bridges) are no resource."""


class DumpModel(BaseModel):
    """One file. ``distances[i][j]`` goes by the order of ``numa_nodes``; a socket or NUMA node of -1 is unknown."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str
    cpus: list[tuple[int, int, int, int]]
    numa_nodes: list[int]
    distances: list[list[int]]
    memory_bytes: list[int | None]
    pci: list[tuple[str, str, int]] = []


def load_dump(path: Path) -> Hardware:
    """The machine in a file. Raises ``ValueError`` naming the file when it is not such a file."""
    return read_dump(path.read_bytes(), str(path))


def read_dump(text: bytes, source: str) -> Hardware:
    """The machine in the text of a file."""
    try:
        model = DumpModel.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ValueError(f"{source} describes no machine: {where}: {first['msg']}") from None
    # Some firmware names no sockets; every CPU is in one then, which is all that a NUMA-aware choice needs to know.
    rows = [(cpu, core, max(0, socket), numa) for cpu, core, socket, numa in model.cpus]
    return Hardware(
        machine=cpu_topology_of(rows, numa_ids=model.numa_nodes, distances=model.distances),
        memory={numa: size or 0 for numa, size in zip(model.numa_nodes, model.memory_bytes, strict=True)},
        devices=tuple(_devices(model.pci)),
    )


def _devices(rows: Iterable[tuple[str, str, int]]) -> Iterable[Device]:
    for address, pci_class, numa in sorted(rows):
        resource = PCI_RESOURCES.get(pci_class.removeprefix("0x")[:4])
        if resource is not None:
            yield Device(resource, address, numa if numa >= 0 else None)
