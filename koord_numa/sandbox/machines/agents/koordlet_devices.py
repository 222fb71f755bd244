"""Koordinator's agent for devices by id: it publishes the Device object of a node and gives containers their devices.

It checks every ``device-allocated`` by its own arithmetic: no part of a device is held twice, and the pod gets what its
requests demand.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koord_numa.core.devices import DeviceDemand, device_demand
from koord_numa.core.objects.devices import DeviceGrant, DeviceKey
from koord_numa.core.objects.request import Pod

Json = dict[str, Any]

GPU_MEMORY: Final = 80 << 30
_AMOUNTS: Final[Mapping[str, Mapping[str, int]]] = {
    "gpu": {
        "koordinator.sh/gpu-core": 100,
        "koordinator.sh/gpu-memory": GPU_MEMORY,
        "koordinator.sh/gpu-memory-ratio": 100,
    },
    "rdma": {"koordinator.sh/rdma": 100},
    "fpga": {"koordinator.sh/fpga": 100},
}
_FUNCTIONS: Final = 4
"""Virtual functions of each NIC."""


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """A device of a simulated machine: its type and minor number, NUMA node and PCIe switch."""

    type: str
    minor: int
    numa: int
    pcie: str

    @property
    def functions(self) -> tuple[str, ...]:
        """The bus ids of its virtual functions."""
        count = _FUNCTIONS if self.type == "rdma" else 0
        return tuple(f"0000:{self.minor:02x}:00.{number}" for number in range(1, count + 1))


def described_devices(places: Mapping[str, Sequence[str]]) -> tuple[DeviceDescription, ...]:
    """Return the devices by type, each as ``<NUMA node><PCIe switch>``: ``0a``. Raises ``ValueError``."""
    found = []
    for kind, words in sorted(places.items()):
        if kind not in _AMOUNTS:
            raise ValueError(f"devicesById: {kind} is none of {', '.join(sorted(_AMOUNTS))}")
        for minor, word in enumerate(words):
            numa = word.rstrip("abcdefghijklmnopqrstuvwxyz")
            if not numa.isdecimal() or len(numa) > 2 or numa == word:
                raise ValueError(f"devicesById: {word} is not a place such as 0a: a NUMA node and a PCIe switch")
            found.append(DeviceDescription(kind, minor, int(numa), word[len(numa) :]))
    return tuple(found)


class KoordletDevices:
    """The devices of one node and what its pods hold. ``unhealthy`` devices are published as such."""

    def __init__(self, node: str, devices: Sequence[DeviceDescription]) -> None:
        self._node = node
        self._devices: dict[DeviceKey, DeviceDescription] = {(each.type, each.minor): each for each in devices}
        self.unhealthy: set[DeviceKey] = set()
        self.held: dict[str, tuple[DeviceGrant, ...]] = {}  # by uid

    def __bool__(self) -> bool:
        """Return whether the node has devices by id."""
        return bool(self._devices)

    def object(self, node_uid: str) -> Json:
        """Return the Device object."""
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node_uid, "controller": True}
        return {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": self._node, "ownerReferences": [owner]},
            "spec": {"devices": [self._entry(device) for device in self._devices.values()]},
        }

    def _entry(self, device: DeviceDescription) -> Json:
        entry = {
            "type": device.type,
            "id": f"{device.type}-{self._node}-{device.minor}",
            "minor": device.minor,
            "health": (device.type, device.minor) not in self.unhealthy,
            "resources": {name: str(amount) for name, amount in _AMOUNTS[device.type].items()},
            "topology": {"socketID": -1, "nodeID": device.numa, "pcieID": f"pci0000:{device.pcie}"},
        }
        functions = [{"minor": number, "busID": bus} for number, bus in enumerate(device.functions, 1)]
        return {**entry, "vfGroups": [{"labels": {"type": "general"}, "vfs": functions}]} if functions else entry

    def admit(self, pod: Pod) -> str:
        """Give the pod its devices. Return which rule its annotation violates, empty if none."""
        if not self:
            return ""
        wrong = "; ".join(self._complaints(pod))
        if not wrong:
            self.held[pod.key.uid] = pod.devices
        return wrong

    def remove(self, uid: str) -> None:
        """Take back the devices of a pod."""
        self.held.pop(uid, None)

    def _complaints(self, pod: Pod) -> Iterator[str]:
        if pod.unknown_devices:
            yield pod.unknown_devices
            return
        if self.held.get(pod.key.uid, pod.devices) != pod.devices:
            yield "the devices of a running pod changed"
        others = [grant for uid, grants in self.held.items() if uid != pod.key.uid for grant in grants]
        if len({grant.key for grant in pod.devices}) < len(pod.devices):
            yield "a device is listed twice"
        for grant in pod.devices:
            device = self._devices.get(grant.key)
            if device is None:
                yield f"there is no {grant.type} {grant.minor}"
                continue
            for name, total in _AMOUNTS[grant.type].items():
                held = sum(other.resources.get(name, 0) for other in others if other.key == grant.key)
                if held + grant.resources.get(name, 0) > total:
                    yield f"{held} of {total} {name} of {grant.type} {grant.minor} are held by other pods"
            taken = {function.bus_id for other in others if other.key == grant.key for function in other.functions}
            for function in grant.functions:
                if function.bus_id not in device.functions or function.bus_id in taken:
                    yield f"virtual function {function.bus_id} is not free"
        yield from self._unmet(pod)

    def _unmet(self, pod: Pod) -> Iterator[str]:
        """Yield the demands of the pod that its devices do not meet."""
        demand = device_demand(pod.request)
        if not isinstance(demand, DeviceDemand):
            if pod.devices:
                yield "the pod requests no devices"
            return
        for wanted in demand.types:
            granted = [grant for grant in pod.devices if grant.type == wanted.type]
            if len(granted) < max(1, wanted.count):
                yield f"{len(granted)} of {wanted.count} {wanted.type} are allocated"
            for grant in granted:
                if any(grant.resources.get(name, 0) != amount for name, amount in wanted.amounts):
                    yield f"{grant.type} {grant.minor} is allocated with {dict(grant.resources)}"
        if demand.same_pcie:
            switches = {
                kind: {self._switch(grant) for grant in pod.devices if grant.type == kind} for kind in demand.joint
            }
            if len({frozenset(found) for found in switches.values()}) > 1:
                yield f"the devices are on different PCIe switches: {switches}"

    def _switch(self, grant: DeviceGrant) -> tuple[int, str] | None:
        device = self._devices.get(grant.key)
        return None if device is None else (device.numa, device.pcie)
