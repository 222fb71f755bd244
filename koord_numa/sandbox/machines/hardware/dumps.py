"""Machines from JSON files that list every CPU of a real one: cpu, core, socket and NUMA node, memory, distances, PCI devices."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from koord_numa.core.cpu_topology import cpu_topology_of
from koord_numa.core.cpuset import MAX_CPU
from koord_numa.sandbox.machines.hardware.hardware import Device, Hardware
from koord_numa.wire.errors import quoted
from koord_numa.wire.validation_messages import sentence_of

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
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    return read_dump(text, str(path))


def read_dump(text: bytes, source: str) -> Hardware:
    """The machine in the text of a file."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{source} is not JSON: {error.msg}") from None
    try:
        model = DumpModel.model_validate_json(text)  # of JSON, as a strict tuple is no list in Python
    except ValidationError as error:
        raise ValueError(sentence_of(error, found, (f"{source} describes no machine",))) from None
    if wrong := _wrong(model):
        raise ValueError(f"{source} describes no machine: {wrong}")
    # Some firmware names no sockets; every CPU is in one then, which is all that a NUMA-aware choice needs to know.
    rows = [(cpu, core, max(0, socket), numa) for cpu, core, socket, numa in model.cpus]
    try:
        machine = cpu_topology_of(rows, numa_ids=model.numa_nodes, distances=model.distances)
    except ValueError as error:
        raise ValueError(f"{source} describes no machine: {error}") from None
    return Hardware(
        machine=machine,
        memory={numa: size or 0 for numa, size in zip(model.numa_nodes, model.memory_bytes, strict=True)},
        devices=tuple(_devices(model.pci)),
    )


def _wrong(model: DumpModel) -> str:
    """Why there can be no such machine; empty when there can."""
    if not model.cpus:
        return "cpus: no CPU is listed"
    if beyond := [row[0] for row in model.cpus if not 0 <= row[0] <= MAX_CPU]:
        return f"cpus: {quoted(beyond[0])} is no id of a CPU, which are 0 to {MAX_CPU}"
    if len(model.memory_bytes) != len(model.numa_nodes):
        return f"memory_bytes: {len(model.memory_bytes)} amounts for {len(model.numa_nodes)} numa_nodes"
    return ""


def _devices(rows: Iterable[tuple[str, str, int]]) -> Iterable[Device]:
    for address, pci_class, numa in sorted(rows):
        resource = PCI_RESOURCES.get(pci_class.removeprefix("0x")[:4])
        if resource is not None:
            yield Device(resource, address, numa if numa >= 0 else None)
