"""Drivers of simulated machines, which publish CPUs and the devices that no device plugin advertises.

GPUs and NICs have ``resource.kubernetes.io/numaNode`` and ``pcieRoot``, as current drivers publish them. The CPU
driver is dra-driver-cpu with ``groupBy: machine`` and an external allocator, with or (like older versions) without
``cpuIDs`` and ``smtLayout``.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.sandbox.machines.hardware.description import Hardware, NodeDescription

Json = dict[str, Any]

CPU_DRIVER: Final = "dra.cpu"
CPU_DEVICE: Final = "cpudevmachine"
LONGEST_TEXT: Final = 64
"""Maximum bytes of a string attribute (resource/v1 DeviceAttributeMaxValueLength)."""


def device_classes() -> list[Json]:
    """Return a DeviceClass per driver."""
    return [_class(driver) for driver in ("gpu.example.com", "nic.example.com", CPU_DRIVER)]


def slices_of(node: NodeDescription, *, layout: bool = True) -> list[Json]:
    """Return the ResourceSlices of a machine. With ``layout`` the CPU driver publishes CPU ids and the SMT layout."""
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
    # The API server rejects longer strings, so the driver omits the layout.
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
    """Return the SMT layout such as ``0-7>4``: the CPUs of all sibling pairs and the id distance of siblings.

    CPUs without a sibling are last.
    """
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
