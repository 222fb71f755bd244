"""The description of a simulated node: hardware, the component that selects CPUs, labels and devices; and their parser."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from koord_numa.core.cpu_topology import MAX_NUMA, MAX_NUMA_ID, CpuTopology, cpu_topology_of
from koord_numa.core.cpuset import EMPTY, MAX_CPU, CpuSet
from koord_numa.core.devices import DeviceDemand, device_demand
from koord_numa.core.objects.constraints import TaintEffect
from koord_numa.core.objects.devices import DeviceGrant, DeviceKey
from koord_numa.core.objects.node import DEFAULT_MAX_NUMA_NODES, KubeletConfig, Taint
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MEMORY, MILLI, PODS, is_native, supply
from koord_numa.core.value_objects import replace
from koord_numa.wire import names, quoted, sentence_of

# Koordinator's agent for devices by id: it publishes the Device object of a node and gives containers their devices.
#
# It checks every ``device-allocated`` by its own arithmetic: no part of a device is held twice, and the pod gets what its
# requests demand.

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


GIB = 2**30
PAGE_BYTES: Mapping[str, int] = {"2Mi": 2 * 2**20, "1Gi": GIB}


class Numbering(Enum):
    """The order of CPU ids within the cores of a machine."""

    ADJACENT = "adjacent"  # (0, 1), (2, 3), … as on POWER and many virtual machines
    SPLIT = "split"  # all first threads, then all second threads, as on most x86 servers


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """A device of a resource such as ``nvidia.com/gpu``. ``numa`` is ``None`` if its NUMA node is unknown."""

    resource: str
    id: str
    numa: int | None


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware of a node.

    ``memory`` is in bytes per NUMA node, huge pages included. ``pages`` is the number of huge pages per NUMA node by
    size (``2Mi``, ``1Gi``). A device plugin advertises ``devices``. ``claimed_devices`` are available only through
    claims.
    """

    machine: CpuTopology
    memory: Mapping[int, int]
    pages: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    devices: tuple[SimulatedDevice, ...] = ()
    claimed_devices: tuple[SimulatedDevice, ...] = ()

    def hugepage_bytes(self, numa: int) -> dict[str, int]:
        """Return the bytes of huge pages on a NUMA node, by resource name."""
        return {f"hugepages-{size}": count * PAGE_BYTES[size] for size, count in self.pages.get(numa, {}).items()}

    def plain_memory(self, numa: int) -> int:
        """Return the bytes of a NUMA node that are not reserved for huge pages."""
        return self.memory.get(numa, 0) - sum(self.hugepage_bytes(numa).values())

    def devices_on(self, numa: int) -> dict[str, int]:
        """Return the number of devices on a NUMA node, by resource."""
        counts: dict[str, int] = {}
        for device in sorted(self.devices, key=lambda device: device.resource):
            if device.numa == numa:
                counts[device.resource] = counts.get(device.resource, 0) + 1
        return counts

    def device_counts(self) -> dict[str, int]:
        """Return the number of devices, by resource."""
        counts: dict[str, int] = {}
        for device in sorted(self.devices, key=lambda device: device.resource):
            counts[device.resource] = counts.get(device.resource, 0) + 1
        return counts


@dataclass(frozen=True, slots=True)
class Shape:
    """A regular machine: NUMA nodes per socket, cores per NUMA node and threads per core.

    ``memory`` is in bytes per NUMA node and ``pages`` is huge pages per NUMA node. ``devices`` has the NUMA node of
    every device by resource. ``claimed_devices`` has the same for devices that no device plugin advertises. ``costs``
    are the distances to the NUMA node itself, to a NUMA node on the same socket, and to a NUMA node on another socket.
    """

    sockets: int = 2
    numa: int = 1
    cores: int = 8
    threads: int = 2
    memory: int = 64 * GIB
    numbering: Numbering = Numbering.SPLIT
    pages: Mapping[str, int] = field(default_factory=dict)
    devices: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    claimed_devices: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    costs: tuple[int, int, int] = (10, 12, 32)

    def build(self) -> Hardware:
        """Return the hardware of the shape."""
        numa_ids = range(self.sockets * self.numa)
        here, near, far = self.costs
        distances = [
            [here if a == b else near if a // self.numa == b // self.numa else far for b in numa_ids] for a in numa_ids
        ]
        return Hardware(
            machine=cpu_topology_of(self._rows(), numa_ids=numa_ids, distances=distances),
            memory=dict.fromkeys(numa_ids, self.memory),
            pages={numa: dict(self.pages) for numa in numa_ids} if self.pages else {},
            devices=tuple(devices_of(self.devices)),
            claimed_devices=tuple(devices_of(self.claimed_devices)),
        )

    def _rows(self) -> Iterator[tuple[int, int, int, int]]:
        cores = self.sockets * self.numa * self.cores
        for core in range(cores):
            numa = core // self.cores
            for thread in range(self.threads):
                split = self.numbering is Numbering.SPLIT
                cpu = thread * cores + core if split else core * self.threads + thread
                yield cpu, core, numa // self.numa, numa


def devices_of(places_of: Mapping[str, Sequence[int | None]]) -> Iterator[SimulatedDevice]:
    """Yield the devices of every resource from their NUMA nodes."""
    for resource, places in sorted(places_of.items()):
        for place, numa in enumerate(places):
            yield SimulatedDevice(resource, f"{resource.rsplit('/', 1)[-1]}-{place}", numa)


HOSTNAME_LABEL: Final = "kubernetes.io/hostname"


class Style(Enum):
    """The component that selects CPU ids on the node and the publisher of its topology."""

    KOORDINATOR = "koordinator"  # the scheduler selects; Koordinator's agent publishes and applies
    KUBELET = "kubelet"  # the kubelet selects; an exporter publishes


STATIC_KUBELET: Final = KubeletConfig(
    topology_policy=KubeletPolicy.SINGLE_NUMA_NODE,
    topology_scope=KubeletScope.CONTAINER,
    cpu_policy="static",
    memory_policy="Static",
)
"""Usual configuration of nodes for latency-sensitive pods."""

PLAIN_KUBELET: Final = KubeletConfig(topology_policy=KubeletPolicy.NONE, cpu_policy="none", memory_policy="None")
"""Defaults of the kubelet. With Koordinator's agent the kubelet should not assign CPUs."""


class CpuDriver(StrEnum):
    """The CPU attributes that dra-driver-cpu, with an external allocator, publishes."""

    AUTO = "auto"  # ``layout`` if the kubelet does not pin CPUs, else nothing
    LAYOUT = "layout"  # CPU ids and siblings, as on its main branch
    COUNT = "count"  # only the number of CPUs, as in release v0.2; the topology has the rest


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A simulated node.

    ``labels`` are added to the default labels, and include Koordinator's node labels. ``reserved`` are CPUs for the
    system, published in Koordinator's reservation annotation or reserved in the kubelet's configuration.
    ``reserved_memory`` is in bytes per NUMA node. With ``hidden`` the topology omits kubelet settings that current
    exporters do not publish. With ``agent`` a node agent on ``NodeServices`` publishes the topology, not the
    simulation. With ``kubelet_state`` the simulation publishes the kubelet's exact state like the node agent.
    ``cpu_driver`` selects the CPU attributes of dra-driver-cpu. ``devices_by_id`` are published in a Device object.
    """

    name: str
    hardware: Hardware
    style: Style = Style.KOORDINATOR
    kubelet: KubeletConfig = PLAIN_KUBELET
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    reserved: CpuSet = EMPTY
    reserved_memory: int = 0
    amplification: Mapping[str, float] = field(default_factory=dict)
    pods: int = 110
    ephemeral_storage: int = 200 * 2**30
    hidden: bool = False
    agent: bool = False
    kubelet_state: bool = False
    cpu_driver: CpuDriver = CpuDriver.AUTO
    devices_by_id: tuple[DeviceDescription, ...] = ()

    def __post_init__(self) -> None:
        if not self.reserved <= self.hardware.machine.all:
            raise ValueError(f"node {self.name} reserves CPUs {self.reserved} that the machine does not have")

    @property
    def all_labels(self) -> dict[str, str]:
        """The node's labels, including the labels that every kubelet sets."""
        usual = {HOSTNAME_LABEL: self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        return {**usual, **self.labels}

    @property
    def capacity(self) -> dict[str, int]:
        """The capacity of the machine in internal units."""
        hardware = self.hardware
        numa_ids = hardware.machine.numa_ids
        pages: dict[str, int] = {}
        for numa in numa_ids:
            for name, size in hardware.hugepage_bytes(numa).items():
                pages[name] = pages.get(name, 0) + size
        return {
            CPU: len(hardware.machine.cpus) * MILLI,
            MEMORY: sum(hardware.memory.get(numa, 0) for numa in numa_ids),
            "ephemeral-storage": self.ephemeral_storage,
            PODS: self.pods,
            **pages,
            **hardware.device_counts(),
        }

    @property
    def allocatable(self) -> dict[str, int]:
        """The allocatable amounts of the kubelet in internal units.

        Koordinator's reservation is not subtracted, because its scheduler subtracts it. Amounts are amplified as in
        Koordinator's webhook: the raw amount times the ratio, truncated to whole units.
        """
        found = dict(self.capacity)
        numa_ids = self.hardware.machine.numa_ids
        pages = sum(sum(self.hardware.hugepage_bytes(numa).values()) for numa in numa_ids)
        found[MEMORY] = max(0, found[MEMORY] - pages - self.reserved_memory * len(numa_ids))
        if self.style is Style.KUBELET:
            found[CPU] -= len(self.reserved) * MILLI
        for name, ratio in self.amplification.items():
            if name in found and ratio > 1:
                found[name] = int(found[name] * ratio)
        return found


# Parser of simulated nodes from YAML or JSON.
#
# The entries under ``machines`` have a shape in numbers or the name of a file that lists the CPUs, the number of nodes,
# the component that selects CPUs, configuration and labels.

PCI_RESOURCES: Final[Mapping[str, str]] = {
    "0302": "nvidia.com/gpu",  # 3D controller: an accelerator without a display
    "0200": "vendor.example/nic",  # Ethernet
    "0207": "vendor.example/infiniband",
    "1200": "vendor.example/accelerator",
}
"""Resource of a device plugin by PCI class. Other classes (displays, bridges) are not resources."""


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
    """Return the hardware of a machine file. Raises ``ValueError`` with the path for an unreadable or invalid file."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    return read_dump(text, str(path))


def read_dump(text: bytes, source: str) -> Hardware:
    """Return the hardware of the text of a machine file. Raises ``ValueError`` with ``source`` for invalid text."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{source} is not JSON: {error.msg}") from None
    try:
        model = DumpModel.model_validate_json(text)  # from JSON, because strict mode rejects Python lists for tuples
    except ValidationError as error:
        raise ValueError(sentence_of(error, found, (f"{source} describes no machine",))) from None
    if wrong := _wrong(model):
        raise ValueError(f"{source} describes no machine: {wrong}")
    # Some firmware reports no sockets. A single socket is assumed, which suffices for NUMA-aware decisions.
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
    """Return why the machine is invalid, or ""."""
    if not model.cpus:
        return "cpus: no CPU is listed"
    if beyond := [row[0] for row in model.cpus if not 0 <= row[0] <= MAX_CPU]:
        return f"cpus: {quoted(beyond[0])} is not an id of a CPU, which are 0 to {MAX_CPU}"
    if len(model.memory_bytes) != len(model.numa_nodes):
        return f"memory_bytes: {len(model.memory_bytes)} amounts for {len(model.numa_nodes)} numa_nodes"
    return ""


def _devices(rows: Iterable[tuple[str, str, int]]) -> Iterable[SimulatedDevice]:
    for address, pci_class, numa in sorted(rows):
        resource = PCI_RESOURCES.get(pci_class.removeprefix("0x")[:4])
        if resource is not None:
            yield SimulatedDevice(resource, address, numa if numa >= 0 else None)


MOST_NODES: Final = 50_000
"""Maximum nodes of an entry. Three times the largest cluster that Kubernetes is tested with."""

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Cost = Annotated[int, Field(ge=1, le=255)]  # a distance of the ACPI SLIT
Ratio = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]


EXTENDED_RESOURCE: Final = re.compile(
    r"[a-z0-9]([-a-z0-9.]{0,200}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


class _DescribedPart(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class DescribedTaint(_DescribedPart):
    """One taint."""

    key: str
    value: str = ""
    effect: TaintEffect = TaintEffect.NO_SCHEDULE


class KubeletModel(_DescribedPart):
    """The kubelet's configuration, in the kubelet's own words. What is left out depends on the style of the node."""

    topology_policy: KubeletPolicy | None = None
    topology_scope: KubeletScope | None = None
    topology_options: dict[str, bool] = {}
    max_numa_nodes: Positive | None = None
    cpu_policy: str | None = Field(None, pattern="^(none|static)$")
    cpu_options: dict[str, bool] = {}
    memory_policy: str | None = Field(None, pattern="^(None|Static)$")


class NumaNodeModel(_DescribedPart):
    """
    One NUMA node of a machine whose NUMA nodes differ. ``cpus`` is a list of ids; a NUMA node without CPUs has memory alone, such as CXL
    memory, HBM in flat mode or memory of a GPU. Threads of a core are found in the list by the machine's ``threads`` and ``numbering``.
    """

    id: Annotated[int, Field(ge=0, le=MAX_NUMA_ID)]
    socket: Annotated[int, Field(ge=0)] = 0
    cpus: str = ""
    memory: str | int = 0
    hugepages: dict[str, Annotated[int, Field(ge=0)]] = {}


class MachineModel(_DescribedPart):
    """One entry: ``count`` nodes named ``name-0``, ``name-1``, … (just ``name`` when ``count`` is left out)."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?$")
    count: Annotated[int, Field(ge=1, le=MOST_NODES)] | None = None
    style: Style = Style.KOORDINATOR
    file: str | None = None
    sockets: Positive = 2
    numa: Positive = 1
    cores: Positive = 8
    threads: Positive = 2
    numbering: Numbering = Numbering.SPLIT
    memory: str | int = "64Gi"
    costs: tuple[Cost, Cost, Cost] = (10, 12, 32)
    numa_nodes: list[NumaNodeModel] = []
    """Instead of ``sockets``, ``numa``, ``cores``, ``memory`` and ``hugepages`` where NUMA nodes differ."""
    distances: list[list[Cost]] = []
    """With ``numaNodes``, by their order; instead of ``costs``."""
    hugepages: dict[str, Annotated[int, Field(ge=0)]] = {}
    devices: dict[str, list[int | None]] = {}
    claimed_devices: dict[str, list[int | None]] = {}
    devices_by_id: dict[str, list[str]] = {}
    """Devices of a Device object by type, each as NUMA node and PCIe switch: ``{gpu: [0a, 0a, 1b, 1b], rdma: [0a, 1b]}``."""
    numa_policy: str = ""
    bind_policy: str = ""
    strategy: str = ""
    amplification: dict[str, Ratio] = {}
    reserved_cpus: str = Field("", alias="reservedCPUs")
    reserved_memory: str | int = 0
    labels: dict[str, str] = {}
    taints: list[DescribedTaint] = []
    pods: Positive = 110
    kubelet: KubeletModel = KubeletModel()
    hidden: bool = False
    agent: bool | Literal["koord-numa"] = False
    """``true``: a node agent runs on the machine. ``koord-numa``: the simulation itself publishes the kubelet's exact state too."""
    cpu_driver: CpuDriver = CpuDriver.AUTO


class FileModel(_DescribedPart):
    """A whole file."""

    machines: list[MachineModel]


LABELS: Final = {
    "numa_policy": names.NODE_NUMA_POLICY,
    "bind_policy": names.NODE_BIND_POLICY,
    "strategy": names.NODE_NUMA_STRATEGY,
}

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C implementation if available: a machine of 256 CPUs is read in a tenth of the time."""

_NESTING: Final = "maximum nesting depth"
"""Text of libyaml's error for deeper nesting."""


def load_descriptions(path: Path) -> list[NodeDescription]:
    """Return the nodes of a file: a list of machines, or a single machine that lists its CPUs (with style Koordinator).

    Raises ``ValueError`` with the path and the error.
    """
    try:
        found = yaml.load(path.read_text(), _LOADER)  # noqa: S506  (the safe loader in C)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        if _NESTING in str(error):
            raise ValueError(f"{path} is nested too deeply") from None
        raise ValueError(f"{path} is neither YAML nor JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    if isinstance(found, dict) and "cpus" in found:
        return [NodeDescription(name=node_name(path.stem), hardware=load_dump(path))]
    return read_descriptions(found, path.parent, str(path))


def read_descriptions(found: Any, folder: Path, source: str = "description") -> list[NodeDescription]:
    """Return the nodes of a parsed JSON or YAML value.

    Machine files are relative to ``folder``. Raises ``ValueError``.
    """
    try:
        model = FileModel.model_validate(found)
    except ValidationError as error:
        raise ValueError(sentence_of(error, found, (source,))) from None
    nodes: list[NodeDescription] = []
    for at, machine in enumerate(model.machines):
        try:
            nodes += _nodes(machine, folder)
        except ValueError as error:
            raise ValueError(f"{source}: machines[{at}] ({machine.name}): {error}") from None
    return nodes


def node_name(text: str) -> str:
    """Convert a text to a node name of lowercase letters, digits, dashes and dots."""
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-.") else "-" for letter in text)
    return kept.lower().strip("-.")[:200] or "node"


def _nodes(model: MachineModel, folder: Path) -> Iterator[NodeDescription]:
    first = _node(model, folder)
    if model.count is None:
        yield first
    else:
        yield from (replace(first, name=f"{model.name}-{index}") for index in range(model.count))


def _node(model: MachineModel, folder: Path) -> NodeDescription:
    reserved = CpuSet.parse(model.reserved_cpus)
    if model.file:
        hardware = load_dump(folder / model.file)
    else:
        hardware = _listed(model) if model.numa_nodes else _shaped(model)
    reserved_memory = _bytes("reservedMemory", model.reserved_memory)
    # NUMA nodes without memory have nothing to reserve.
    if reserved_memory > min((size for size in hardware.memory.values() if size), default=reserved_memory):
        raise ValueError(f"reservedMemory: {model.reserved_memory} is more than a NUMA node has")
    policies = {label: getattr(model, field) for field, label in LABELS.items() if getattr(model, field)}
    return NodeDescription(
        name=model.name,
        hardware=hardware,
        style=model.style,
        kubelet=_kubelet(model, reserved),
        labels={**model.labels, **policies},
        taints=tuple(Taint(taint.key, taint.effect, taint.value) for taint in model.taints),
        reserved=reserved,
        reserved_memory=reserved_memory,
        amplification=model.amplification,
        pods=model.pods,
        hidden=model.hidden,
        agent=model.agent is True,
        kubelet_state=model.agent == "koord-numa",
        cpu_driver=model.cpu_driver,
        devices_by_id=described_devices(model.devices_by_id),
    )


def _bytes(key: str, text: str | int) -> int:
    try:
        amount = supply("memory", text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if amount < 0:
        raise ValueError(f"{key}: {text} is negative")
    return amount


def _shaped(model: MachineModel) -> Hardware:
    # Checked before the machine is built: a typing error must not exhaust memory.
    numa, cpus = model.sockets * model.numa, model.sockets * model.numa * model.cores * model.threads
    if numa > MAX_NUMA or cpus > MAX_CPU:
        raise ValueError(f"{numa} NUMA nodes and {cpus} CPUs are too many, at most {MAX_NUMA} and {MAX_CPU} are read")
    memory, pages = _bytes("memory", model.memory), model.hugepages
    _known(model.hugepages, PAGE_BYTES, "huge pages of size")
    _check_resources((*model.devices, *model.claimed_devices))
    if sum(PAGE_BYTES[size] * number for size, number in pages.items()) > memory:
        raise ValueError(f"hugepages: they take more than the {model.memory} of memory that a NUMA node has")
    _known(
        {
            numa
            for each in (model.devices, model.claimed_devices)
            for places in each.values()
            for numa in places
            if numa is not None
        },
        range(model.sockets * model.numa),
        "a device on NUMA node",
    )
    shape = Shape(
        sockets=model.sockets,
        numa=model.numa,
        cores=model.cores,
        threads=model.threads,
        memory=memory,
        numbering=model.numbering,
        pages=pages,
        devices={resource: tuple(places) for resource, places in model.devices.items()},
        claimed_devices={resource: tuple(places) for resource, places in model.claimed_devices.items()},
        costs=model.costs,
    )
    return shape.build()


def _listed(model: MachineModel) -> Hardware:
    """Return the hardware of a machine that is described by its NUMA nodes."""
    if odd := sorted({"sockets", "numa", "cores", "memory", "hugepages"} & model.model_fields_set):
        raise ValueError(f"{odd[0]}: the machine is described by its numaNodes")
    ids = [node.id for node in model.numa_nodes]
    if len(set(ids)) < len(ids) or len(ids) > MAX_NUMA:
        raise ValueError(f"numaNodes: ids must be distinct, and at most {MAX_NUMA}")
    _check_resources((*model.devices, *model.claimed_devices))
    places = {numa for each in (model.devices, model.claimed_devices) for numas in each.values() for numa in numas}
    _known(places - {None}, ids, "a device on NUMA node")
    rows: list[tuple[int, int, int, int]] = []
    for node in model.numa_nodes:
        _known(node.hugepages, PAGE_BYTES, "huge pages of size")
        rows += _rows(node, model.threads, model.numbering)
    nodes = sorted(model.numa_nodes, key=lambda node: node.id)
    here, near, far = model.costs
    distances = [[here if a is b else near if a.socket == b.socket else far for b in nodes] for a in nodes]
    if model.distances:
        if any(len(row) != len(ids) for row in model.distances) or len(model.distances) != len(ids):
            raise ValueError(f"distances: {len(ids)} rows of {len(ids)} are needed")
        order = sorted(range(len(ids)), key=ids.__getitem__)
        distances = [[model.distances[a][b] for b in order] for a in order]
    memory = {node.id: _bytes("memory", node.memory) for node in nodes}
    hardware = Hardware(
        machine=cpu_topology_of(rows, numa_ids=ids, distances=distances),
        memory=memory,
        pages={node.id: dict(node.hugepages) for node in nodes if node.hugepages},
        devices=tuple(devices_of(model.devices)),
        claimed_devices=tuple(devices_of(model.claimed_devices)),
    )
    if short := [numa for numa in ids if hardware.plain_memory(numa) < 0]:
        raise ValueError(f"hugepages: they take more than the memory of NUMA node {short[0]}")
    return hardware


def _rows(node: NumaNodeModel, threads: int, numbering: Numbering) -> Iterator[tuple[int, int, int, int]]:
    """Yield ``(cpu, core, socket, numa)``. The id of a core is its lowest CPU."""
    cpus = list(CpuSet.parse(node.cpus))
    if len(cpus) % threads:
        raise ValueError(f"numaNodes: NUMA node {node.id} has {len(cpus)} CPUs, no multiple of {threads} threads")
    cores = len(cpus) // threads
    for at, cpu in enumerate(cpus):
        yield cpu, cpus[at % cores if numbering is Numbering.SPLIT else at // threads * threads], node.socket, node.id


def _check_resources(resources: Iterable[str]) -> None:
    for resource in resources:
        # Native resources are not devices: they would replace the resources of the machine.
        if is_native(resource) or not EXTENDED_RESOURCE.fullmatch(resource):
            raise ValueError(f"devices: {quoted(resource)} is not a resource of devices, such as example.com/gpu")


def _known(found: Iterable[object], known: Iterable[object], what: str) -> None:
    if unknown := sorted(map(str, set(found) - set(known))):
        raise ValueError(f"{what} {unknown[0]} cannot be")


def _kubelet(model: MachineModel, reserved: CpuSet) -> KubeletConfig:
    usual = STATIC_KUBELET if model.style is Style.KUBELET else PLAIN_KUBELET
    asked = model.kubelet
    return KubeletConfig(
        topology_policy=asked.topology_policy or usual.topology_policy,
        topology_scope=asked.topology_scope or usual.topology_scope,
        topology_options=asked.topology_options,
        max_numa_nodes=asked.max_numa_nodes or DEFAULT_MAX_NUMA_NODES,
        cpu_policy=asked.cpu_policy or usual.cpu_policy,
        cpu_options=asked.cpu_options,
        memory_policy=asked.memory_policy or usual.memory_policy,
        reserved_cpus=reserved if model.style is Style.KUBELET else CpuSet(),
    )
