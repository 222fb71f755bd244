"""
Build the Device object of a node without koordlet from sysfs, the NVIDIA driver's procfs and podresources.

GPUs are those of device plugins, by PCI address. NICs are the physical functions with RDMA. The kubelet chooses devices
when it admits a pod, so the object also has the devices that pods hold.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

import orjson

from koord_numa.core.objects.devices import GPU, RDMA, DeviceKey
from koord_numa.node.podresources import PodResources
from koord_numa.node.sysfs import DEVICES, Host, PciDevice, Sysfs, SysfsError
from koord_numa.wire import names

logger = logging.getLogger(__name__)

Json = dict[str, Any]

GPU_RESOURCES: Final = ("amd.com/gpu", "dcu.com/gpu", "nvidia.com/gpu")
"""Resources of device plugins for whole GPUs."""

RESOURCES: Final[Mapping[str, Mapping[str, int]]] = {
    GPU: {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100},
    RDMA: {"koordinator.sh/rdma": 100},
}
"""Amounts of a whole device. The memory of GPUs is not published: neither sysfs nor podresources has it."""

_FUNCTION: Final[Mapping[str, int]] = {"koordinator.sh/rdma": 1}
"""Amounts of a NIC with held virtual functions: other functions of the NIC stay free, the whole NIC does not."""

DEVICES_INTERVAL: Final = 10.0
"""Seconds between reads of port states and virtual functions. A read of a port state may query the firmware of a NIC."""

_NETWORK: Final = "02"  # PCI class
_ACTIVE: Final = "4:"  # InfiniBand port state, as in ``4: ACTIVE``
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_FIELD: Final = re.compile(r"^(Model|GPU UUID|Device Minor):\s*(.+?)\s*$", re.ASCII | re.MULTILINE)
_MINOR: Final = re.compile(r"\d{1,9}", re.ASCII)
_MODEL: Final = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
_LONGEST_LABEL: Final = 63


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    """A GPU of the NVIDIA driver: UUID, minor number and model. The UUID is empty while the driver does not know it."""

    uuid: str
    minor: int
    model: str


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC with RDMA. ``functions`` are the PCI addresses of its virtual functions, ascending."""

    pci: PciDevice
    functions: tuple[str, ...]
    healthy: bool


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Devices of a machine. ``nvidia`` are the GPUs of the NVIDIA driver by PCI address."""

    pci: Mapping[str, PciDevice]
    nics: tuple[Nic, ...]
    nvidia: Mapping[str, NvidiaGpu]


def read_devices(root: Path, pci: Iterable[PciDevice]) -> DeviceFacts:
    """Return the devices of the sysfs at ``root`` and of the procfs next to it. Raises ``SysfsError``."""
    by_address = {device.address: device for device in pci}
    sysfs, proc = Sysfs(root), Sysfs(root.parent / "proc")
    nvidia = {}
    for address in proc.names("driver", "nvidia", "gpus"):
        fields = dict(_FIELD.findall(proc.text("driver", "nvidia", "gpus", address, "information") or ""))
        uuid, minor = fields.get("GPU UUID", ""), fields.get("Device Minor", "")
        # The driver shows question marks until it has initialized the GPU.
        known = "" if "?" in uuid else uuid
        nvidia[address.lower()] = NvidiaGpu(
            known, int(minor) if _MINOR.fullmatch(minor) else -1, fields.get("Model", "")
        )
    nics = [nic for device in by_address.values() if (nic := _nic(sysfs, device)) is not None]
    return DeviceFacts(by_address, tuple(nics), nvidia)


def _nic(sysfs: Sysfs, device: PciDevice) -> Nic | None:
    if not device.kind.startswith(_NETWORK):
        return None
    here = (*DEVICES, device.address)
    entries = sysfs.names(*here)
    if "infiniband" not in entries or "physfn" in entries:
        return None
    links = (sysfs.root.joinpath(*here, entry) for entry in entries if entry.startswith("virtfn"))
    functions = sorted(link.resolve().name for link in links)
    states = [
        sysfs.text(*here, "infiniband", name, "ports", port, "state")
        for name in sysfs.names(*here, "infiniband")
        for port in sysfs.names(*here, "infiniband", name, "ports")
    ]
    known = [state for state in states if state]
    healthy = not known or any(state.startswith(_ACTIVE) for state in known)
    return Nic(device, tuple(address for address in functions if _ADDRESS.fullmatch(address)), healthy)


class DeviceSource:
    """Builds the Device object of a node from the current state of the machine and the kubelet."""

    def __init__(self, root: Path, clock: Callable[[], float] = monotonic) -> None:
        self._root = root
        self._clock = clock
        self._next = float("-inf")
        self._host: Host | None = None
        self._facts: DeviceFacts | None = None
        self._problem = ""

    def object(self, node: str, node_uid: str, host: Host, resources: PodResources) -> Json | None:
        """Return the Device object, ``None`` with a message in the log if the devices are not known. Raises nothing."""
        now = self._clock()
        try:
            if self._facts is None or host is not self._host or now >= self._next:
                self._facts = read_devices(self._root, host.pci)
                self._host, self._next = host, now + DEVICES_INTERVAL
            found = device_object(node, node_uid, self._facts, resources)
        except (SysfsError, UnknownDevicesError) as error:
            if str(error) != self._problem:
                logger.warning("no Device object is written: %s", error)
            self._problem = str(error)
            return None
        self._problem = ""
        return found


class UnknownDevicesError(Exception):
    """Devices that a device plugin offers cannot be attributed to PCI devices. The text has the reason."""


def device_object(node: str, node_uid: str, facts: DeviceFacts, resources: PodResources) -> Json:
    """
    Return the Device object of a node.

    Raises ``UnknownDevicesError`` if a GPU of a device plugin has no known PCI address, such as a MIG device or a
    shared GPU. The scheduler then counts GPUs as amounts of the Node.
    """
    gpus = _gpus(facts, resources)
    devices, addresses = [], {}
    minors = _minors(facts, sorted(gpus))
    for address, (id_, healthy) in sorted(gpus.items(), key=lambda item: minors[item[0]]):
        key = addresses[id_] = addresses[address] = GPU, minors[address]
        devices.append(_entry(key, id_, facts.pci[address], healthy=healthy))
    functions: dict[str, DeviceKey] = {}
    for minor, nic in enumerate(facts.nics):
        address = nic.pci.address
        addresses[address] = RDMA, minor
        entry = _entry((RDMA, minor), address, nic.pci, healthy=nic.healthy)
        if nic.functions:
            functions |= dict.fromkeys(nic.functions, (RDMA, minor))
            entry["vfGroups"] = [{"vfs": [{"minor": n, "busID": it} for n, it in enumerate(nic.functions)]}]
        devices.append(entry)
    held = dict(_held(resources, addresses, functions))
    metadata: Json = {
        "name": node,
        "labels": {names.MANAGED_BY: names.MANAGED_BY_KOORD_NUMA, **_model(facts, gpus)},
        "annotations": {names.HELD_DEVICES: orjson.dumps(held).decode()},
    }
    if node_uid:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}]
    return {
        "apiVersion": f"{names.SCHEDULING_GROUP}/{names.DEVICE_VERSION}",
        "kind": names.DEVICE_KIND,
        "metadata": metadata,
        "spec": {"devices": devices},
    }


def _gpus(facts: DeviceFacts, resources: PodResources) -> dict[str, tuple[str, bool]]:
    """Return the identifier of each GPU of a device plugin and whether the plugin offers it, by PCI address."""
    by_uuid = {gpu.uuid: address for address, gpu in facts.nvidia.items() if gpu.uuid}
    found = {}
    for resource in GPU_RESOURCES:
        offered = resources.devices.get(resource, {})
        for id_ in sorted({*offered, *resources.held_devices.get(resource, ())}):
            address = by_uuid.get(id_, id_.lower())
            if address not in facts.pci:
                raise UnknownDevicesError(f"the PCI address of {resource} {id_[:80]} is not known")
            found[address] = id_, id_ in offered
        # A device plugin withdraws unhealthy devices. The driver still lists them.
        if resource == "nvidia.com/gpu" and offered:
            missing = {address: gpu for address, gpu in facts.nvidia.items() if address not in found}
            found |= {address: (gpu.uuid or address, False) for address, gpu in missing.items() if address in facts.pci}
    return found


def _minors(facts: DeviceFacts, gpus: list[str]) -> dict[str, int]:
    """Return the driver's minor numbers of GPUs, or their positions in the order of addresses if the driver lacks one."""
    minors = {address: facts.nvidia[address].minor for address in gpus if address in facts.nvidia}
    if len(set(minors.values()) - {-1}) == len(gpus):
        return minors
    return {address: position for position, address in enumerate(gpus)}


def _entry(key: DeviceKey, id_: str, pci: PciDevice, *, healthy: bool) -> Json:
    kind, minor = key
    return {
        "type": kind,
        "id": id_,
        "minor": minor,
        "health": healthy,
        "resources": _amounts(RESOURCES[kind]),
        "topology": {
            "socketID": -1,
            "nodeID": -1 if pci.numa is None else pci.numa,
            "pcieID": pci.root,
            "busID": pci.address,
        },
    }


def _held(
    resources: PodResources, addresses: Mapping[str, DeviceKey], functions: Mapping[str, DeviceKey]
) -> Iterator[tuple[str, Json]]:
    """Yield the devices of each pod with devices, as in ``device-allocated``. Devices that are not published are left out."""
    for pod in sorted(resources.pods, key=lambda pod: pod.key):
        ids = {id_ for container in pod.containers for held in container.devices.values() for id_ in held}
        parts: dict[DeviceKey, list[str]] = {}
        for id_ in sorted(ids & functions.keys()):
            parts.setdefault(functions[id_], []).append(id_)
        found: Json = {}
        for kind, minor in sorted({addresses[id_] for id_ in ids & addresses.keys()}):
            found.setdefault(kind, []).append({"minor": minor, "resources": _amounts(RESOURCES[kind])})
        for (kind, minor), held in sorted(parts.items()):
            entry = {
                "minor": minor,
                "resources": _amounts(_FUNCTION),
                "extension": {"vfs": [{"busID": it} for it in held]},
            }
            found.setdefault(kind, []).append(entry)
        if found:
            yield f"{pod.namespace}/{pod.name}", found


def _amounts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _model(facts: DeviceFacts, gpus: Iterable[str]) -> dict[str, str]:
    """Return the label with the model if all GPUs have the same, as koordlet writes it."""
    models = {facts.nvidia[address].model if address in facts.nvidia else "" for address in gpus}
    if len(models) != 1 or not (model := models.pop()):
        return {}
    return {names.GPU_MODEL: _MODEL.sub("-", model)[:_LONGEST_LABEL].strip("-_.")}
