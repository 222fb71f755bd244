"""
Drivers of simulated machines: what they publish of the machines' CPUs and of those devices that no device plugin advertises.

GPUs and NICs come with ``resource.kubernetes.io/numaNode`` and ``pcieRoot`` as today's drivers publish them. The CPU driver is
dra-driver-cpu with ``groupBy: machine`` and an external allocator, either with ``cpuIDs`` and ``smtLayout`` or, as before them, without.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.sandbox.machines.hardware.description import Hardware, NodeDescription

Json = dict[str, Any]

CPU_DRIVER: Final = "dra.cpu"
CPU_DEVICE: Final = "cpudevmachine"
LONGEST_TEXT: Final = 64
"""Bytes of a text attribute, as resource/v1 DeviceAttributeMaxValueLength."""


def device_classes() -> list[Json]:
    """A class for each driver."""
    return [_class(driver) for driver in ("gpu.example.com", "nic.example.com", CPU_DRIVER)]


def slices_of(node: NodeDescription, *, layout: bool = True) -> list[Json]:
    """The slices of one machine. ``layout`` is whether the CPU driver publishes CPU ids and siblings."""
    made = [_cpu_slice(node, layout)]
    for driver, word in (("gpu.example.com", "gpu"), ("nic.example.com", "nic")):
        devices = [_device(driver, number, it.numa) for number, it in enumerate(_of_kind(node.hardware, word))]
        if devices:
            made.append(_slice(node.name, driver, devices))
    return made


def _of_kind(hardware: Hardware, word: str) -> Iterator[Any]:
    for device in hardware.claimed_devices:
        if word in device.resource or (word == "nic" and "rdma" in device.resource):
            yield device


def _device(driver: str, number: int, numa: int | None) -> Json:
    attributes: Json = {"index": {"int": number}, "model": {"string": "A100" if "gpu" in driver else "CX7"}}
    if numa is not None:
        attributes["resource.kubernetes.io/numaNode"] = {"int": numa}
        attributes["resource.kubernetes.io/pcieRoot"] = {"string": f"pci0000:{numa:02x}"}
    return {"name": f"{driver.partition('.')[0]}-{number}", "attributes": attributes}


def _cpu_slice(node: NodeDescription, layout: bool) -> Json:
    cpus = node.hardware.machine.all - node.reserved
    layout_text = smt_layout(CpuSet(core.bits) for core in node.hardware.machine.cores)
    attributes: Json = {
        "dra.cpu/numCPUs": {"int": len(cpus)},
        "dra.cpu/smtEnabled": {"bool": len(cpus) > 0 and layout_text.find(">") > 0},
    }
    texts = {"dra.cpu/cpuIDs": str(cpus), "dra.cpu/smtLayout": layout_text}
    # A longer text would be refused by the API server; the driver then leaves the layout out.
    if layout and all(len(text) <= LONGEST_TEXT for text in texts.values()):
        attributes |= {name: {"string": text} for name, text in texts.items()}
    device = {
        "name": CPU_DEVICE,
        "allowMultipleAllocations": True,
        "attributes": attributes,
        "capacity": {"dra.cpu/cpu": {"value": str(len(cpus))}},
    }
    return _slice(node.name, CPU_DRIVER, [device])


def smt_layout(cores: Iterable[CpuSet]) -> str:
    """``0-7>4``: both members of all pairs, and how far siblings are apart; CPUs without a sibling come last."""
    pairs: dict[int, list[int]] = {}
    single: list[int] = []
    for core in cores:
        cpus = sorted(core)
        if len(cpus) == 2:
            pairs.setdefault(cpus[1] - cpus[0], []).extend(cpus)
        else:
            single.extend(cpus)
    entries = [f"{CpuSet.of(cpus)}>{stride}" for stride, cpus in sorted(pairs.items())]
    return ";".join(entries + ([str(CpuSet.of(single))] if single else []))


def _slice(node: str, driver: str, devices: list[Json]) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def _class(driver: str) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
    }
