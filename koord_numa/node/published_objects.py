"""
The objects of a node that the agent publishes: its NodeResourceTopology, and its Device object where koordlet has none.

*Scheduler-owned* CPUs: every CPU is listed (``node.koordinator.sh/cpu-topology``), and zones have the capacity of the
machine minus reservations, as koordlet's reporter writes them. *Kubelet-owned* CPUs: zones have the amounts of the
kubelet's managers, as NFD's topology updater and resource-topology-exporter write them. GPUs are those of device plugins,
by PCI address, and NICs the physical functions with RDMA; the kubelet chooses devices, so the object has the held devices.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import Any, Final

import orjson

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.devices import GPU, RDMA, DeviceKey
from koord_numa.core.objects.node import KubeletCheckpoint
from koord_numa.core.resources import CPU, MEMORY, MILLI, format_amount
from koord_numa.node.applier import isolation_plan
from koord_numa.node.kubelet_files import KubeletConfigError, KubeletOptions
from koord_numa.node.podresources import PodResources
from koord_numa.node.pods import DecidedPod
from koord_numa.node.sysfs import DEVICES, Host, HostNuma, PciDevice, Sysfs, SysfsError
from koord_numa.wire import names
from koord_numa.wire.kubelet_state import kubelet_state_text

Json = dict[str, Any]
Amounts = Mapping[str, int]

_PAGE_UNITS: Final = (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))
FINGERPRINT_ALL: Final = "all"


class NodeCpuOwner(Enum):
    """The component that chooses the CPUs of containers."""

    SCHEDULER = "scheduler"
    KUBELET = "kubelet"


def cpu_owner(word: str, kubelet: KubeletOptions | None, *, static: bool = False) -> NodeCpuOwner:
    """
    Return the owner by name. ``auto`` is the kubelet if one of its managers is static, else the scheduler.

    ``static``: there is evidence of a static manager, even if the configuration is unknown.
    """
    if word != "auto":
        return NodeCpuOwner(word)
    return (
        NodeCpuOwner.KUBELET if static or (kubelet is not None and kubelet.owns_placement) else NodeCpuOwner.SCHEDULER
    )


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """
    All inputs of an NRT.

    ``kubelet`` and ``resources`` are ``None`` before the first response of the kubelet. ``checkpoint`` is the kubelet's
    exact state, or the known part of it. ``decided`` are the pods of the node with their allocations, ``reservation``
    is the Node's annotation. ``pinning`` is how this agent pins containers, empty while it pins none. ``isolation``
    are the words of the Node's label.
    """

    name: str
    host: Host
    owner: NodeCpuOwner = NodeCpuOwner.SCHEDULER
    kubelet: KubeletOptions | None = None
    resources: PodResources | None = None
    checkpoint: KubeletCheckpoint | None = None
    decided: tuple[DecidedPod, ...] = ()
    reservation: str = "{}"
    reserved: CpuSet = EMPTY
    node_uid: str = ""
    pinning: Mapping[str, Any] = field(default_factory=dict)
    isolation: frozenset[str] = frozenset()


def fresh_resources(host: Host, kubelet: KubeletOptions) -> PodResources:
    """
    Return the CPUs and memory that a kubelet with these options can allocate when no pod runs. Devices are unknown.

    Follows ``NewStaticPolicy`` (cpumanager/policy_static.go) and ``getDefaultMachineState``
    (memorymanager/policy_static.go). Raises ``KubeletConfigError`` if more CPUs are reserved than there are.
    """
    cpus = EMPTY
    if kubelet.cpu_policy == "static":
        cpus = host.cpu_set - (
            _chosen_reserved(host, kubelet) if kubelet.reserved_cpus is None else kubelet.reserved_cpus
        )
    memory: dict[int, dict[str, int]] = {}
    for numa in host.numa:
        reserved = kubelet.reserved_memory.get(numa.id, {})
        pages = {page_resource(size): size * count for size, count in numa.pages.items()}
        plain = {MEMORY: (numa.memory or 0) - sum(pages.values())}
        memory[numa.id] = {name: max(0, size - reserved.get(name, 0)) for name, size in (plain | pages).items()}
    return PodResources(allocatable_cpus=cpus, allocatable_memory=memory)


def _chosen_reserved(host: Host, kubelet: KubeletOptions) -> CpuSet:
    """Return the CPUs that a static kubelet reserves if its configuration names only amounts."""
    # The running agent reads them from the kubelet: it does not load these modules, which need memory.
    from koord_numa.core.cpu_topology import cpu_topology_of  # noqa: PLC0415  (its memory)
    from koord_numa.core.cpus.kubelet_assignment import assign  # noqa: PLC0415  (its memory)
    from koord_numa.core.cpus.kubelet_options import StaticOptions  # noqa: PLC0415  (its memory)

    machine = cpu_topology_of(
        (cpu.id, cpu.core, cpu.socket, cpu.numa, cpu.socket if cpu.l3 is None else cpu.l3) for cpu in host.cpus
    )
    options = StaticOptions.of({name: value == "true" for name, value in kubelet.cpu_options.items()})
    chosen = assign(machine, host.cpu_set, kubelet.reserved_count, options)
    if not isinstance(chosen, CpuSet):
        count = len(host.cpus)
        raise KubeletConfigError(f"kubeReserved and systemReserved reserve {kubelet.reserved_count} of {count} CPUs")
    return chosen


def topology_object(facts: NodeFacts) -> Json:
    """Return the whole object, for a node without another publisher."""
    owned = facts.owner is NodeCpuOwner.SCHEDULER
    zones = [_zone(facts, numa, [*(_offered if owned else _managed)(facts, numa)]) for numa in facts.host.numa]
    metadata: Json = {
        "name": facts.name,
        "labels": {names.MANAGED_BY: names.MANAGED_BY_KOORD_NUMA},
        "annotations": annotations(facts),
    }
    if facts.node_uid:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": facts.name, "uid": facts.node_uid}]
    return {
        "apiVersion": f"{names.TOPOLOGY_GROUP}/{names.TOPOLOGY_VERSIONS[-1]}",
        "kind": names.TOPOLOGY_KIND,
        "metadata": metadata,
        "topologyPolicies": _topology_policies(facts.kubelet),
        "attributes": [{"name": name, "value": value} for name, value in attributes(facts)],
        "zones": zones,
    }


def _topology_policies(kubelet: KubeletOptions | None) -> list[str]:
    if kubelet is None:
        return ["None"]
    return [kubelet.topology_word] if kubelet.states("topologyManagerPolicy") else []


def attributes(facts: NodeFacts) -> Iterator[tuple[str, str]]:
    """Yield top-level attributes: the kubelet's options and the fingerprint of the pods that the amounts include."""
    if facts.kubelet is not None:
        yield from facts.kubelet.attributes()
        if facts.kubelet.reserved_cpus is None and (reserved := _observed_reserved(facts)) is not None:
            yield names.ATTRIBUTE_RESERVED_CPUS, str(reserved)
    if facts.resources is not None:
        # Covers all active pods of the kubelet.
        from koord_numa.core.fingerprint import fingerprint  # noqa: PLC0415  (keeps --print free of xxhash)

        yield names.ATTRIBUTE_FINGERPRINT, fingerprint(pod.key for pod in facts.resources.pods)
        yield names.ATTRIBUTE_FINGERPRINT_METHOD, FINGERPRINT_ALL
    if facts.host.isolated:
        yield names.ATTRIBUTE_ISOLATED_CPUS, str(facts.host.isolated)


def annotations(facts: NodeFacts) -> dict[str, str]:
    """Return the annotations: Koordinator's if the scheduler owns the CPUs, else the kubelet's state. PCI devices on all nodes."""
    found: dict[str, str] = {}
    if facts.owner is NodeCpuOwner.SCHEDULER:
        held = CpuSet.of(cpu for pod in facts.decided for cpu in pod.cpus)
        closed = CpuSet.of(cpu for pod in facts.decided if pod.exclusive_to_best_effort for cpu in pod.cpus)
        # Empty siblings are applied with the cpusets.
        empty = isolation_plan(facts.host, facts.decided, facts.isolation).empty if facts.pinning else EMPTY
        by_kubelet = CpuSet.of(cpu for entry in _allocations(facts) for cpu in CpuSet.parse(entry["cpuset"])) | empty
        found = {
            names.CPU_TOPOLOGY: _json({"detail": [*_details(facts.host)]}),
            names.CPU_SHARED_POOLS: _json(_pools(facts, held | by_kubelet)),
            names.BE_CPU_SHARED_POOLS: _json(_pools(facts, closed | by_kubelet)),
            names.POD_CPU_ALLOCS: _json([*_allocations(facts)]),
            names.RESERVATION: facts.reservation,
        }
        if facts.kubelet is not None:
            found[names.CPU_MANAGER_POLICY] = _json(facts.kubelet.cpu_manager())
    elif facts.checkpoint is not None and (text := kubelet_state_text(facts.checkpoint)):
        found[names.KUBELET_STATE] = text
    if facts.pinning:
        found[names.PINNING] = _json(dict(facts.pinning))
    if facts.host.pci:
        found[names.PCI_DEVICES] = _json([*_devices(facts.host)])
    return found


def _zone(facts: NodeFacts, numa: HostNuma, resources: list[Json]) -> Json:
    zone: Json = {
        "name": f"{names.ZONE_PREFIX}{numa.id}",
        "type": names.ZONE_TYPE_NUMA,
        "costs": [{"name": f"{names.ZONE_PREFIX}{other}", "value": cost} for other, cost in numa.distances.items()],
        "resources": resources,
    }
    reserved = facts.kubelet.reserved_memory.get(numa.id, {}) if facts.kubelet else {}
    if MEMORY in reserved:
        zone["attributes"] = [{"name": names.ATTRIBUTE_RESERVED_MEMORY, "value": str(reserved[MEMORY])}]
    return zone


def _offered(facts: NodeFacts, numa: HostNuma) -> Iterator[Json]:
    """Yield the amounts that a scheduler can allocate: the capacity without kubelet reservations, memory without huge pages."""
    reserved = facts.kubelet.reserved_memory.get(numa.id, {}) if facts.kubelet else {}
    held: dict[str, int] = {}
    for pod in facts.decided:
        for name, amount in pod.amounts.get(numa.id, {}).items():
            held[name] = held.get(name, 0) + amount
    cpus = len(facts.host.cpus_of(numa.id)) * MILLI
    yield _resource(CPU, cpus, cpus, cpus - held.get(CPU, 0))
    pages = {page_resource(size): size * count for size, count in sorted(numa.pages.items())}
    if numa.memory is not None:
        # MemTotal contains the huge pages, which pods get only as separate resources.
        plain = max(0, numa.memory - sum(pages.values()) - reserved.get(MEMORY, 0))
        yield _resource(MEMORY, numa.memory, plain, plain - held.get(MEMORY, 0))
    for name, size in pages.items():
        left = max(0, size - reserved.get(name, 0))
        yield _resource(name, size, left, left - held.get(name, 0))
    if facts.resources is not None:
        yield from _device_rows(facts.resources, numa.id)


def _managed(facts: NodeFacts, numa: HostNuma) -> Iterator[Json]:
    """Yield the amounts that the kubelet's managers allocate on a NUMA node. Never empty."""
    here = facts.host.cpus_of(numa.id)
    total = len(here) * MILLI
    resources = facts.resources
    rows = []
    if resources is not None and facts.kubelet is not None:
        if facts.kubelet.cpu_policy == "static" and here:
            may = resources.allocatable_cpus & here
            rows.append(_resource(CPU, total, len(may) * MILLI, len(may - resources.held_cpus) * MILLI))
        if facts.kubelet.memory_policy != "None":
            rows.extend(_memory_rows(resources, numa))
        rows.extend(_device_rows(resources, numa.id))
    yield from rows or [_resource(CPU, total, 0, 0)]


def _memory_rows(resources: PodResources, numa: HostNuma) -> Iterator[Json]:
    capacity = {MEMORY: numa.memory or 0} | {page_resource(size): size * n for size, n in numa.pages.items()}
    for name, amount in sorted(resources.allocatable_memory.get(numa.id, {}).items()):
        # A block on several NUMA nodes counts in full on each, as in other exporters: its distribution is unknown.
        held = resources.held_memory.get(numa.id, {}).get(name, 0)
        # Sysfs and the kubelet are read at different times: a page pool that grew meanwhile must not exceed its
        # capacity.
        yield _resource(name, max(capacity.get(name, 0), amount), amount, amount - held)


def _device_rows(resources: PodResources, numa: int) -> Iterator[Json]:
    for name, devices in sorted(resources.devices.items()):
        near = {device for device, places in devices.items() if numa in places}
        if near:
            free = near - resources.held_devices.get(name, frozenset())
            yield _resource(name, len(near), len(near), len(free))


def _resource(name: str, capacity: int, allocatable: int, available: int) -> Json:
    # More may be held than is allocatable, after a reservation grew.
    amounts = {"capacity": capacity, "allocatable": allocatable, "available": max(0, available)}
    return {"name": name} | {key: format_amount(name, amount) for key, amount in amounts.items()}


def page_resource(size: int) -> str:
    """Return the resource name of huge pages of a size in bytes: ``hugepages-2Mi``."""
    for suffix, unit in _PAGE_UNITS:
        if size % unit == 0:
            return f"hugepages-{size // unit}{suffix}"
    return f"hugepages-{size}"


def _details(host: Host) -> Iterator[Json]:
    for cpu in host.cpus:
        detail = {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.numa}
        # Koordinator's readers ignore unknown keys.
        yield detail if cpu.l3 is None else detail | {"uncore": cpu.l3}


def _pools(facts: NodeFacts, taken: CpuSet) -> list[Json]:
    """Return the shared pools by NUMA node, sorted by socket and NUMA node, as koordlet. Excludes reserved CPUs."""
    free = facts.host.cpu_set - taken - facts.reserved
    sockets: dict[int, int] = {}
    for cpu in facts.host.cpus:
        sockets.setdefault(cpu.numa, cpu.socket)
    pools = [
        {"socket": socket, "node": numa, "cpuset": str(facts.host.cpus_of(numa) & free)}
        for numa, socket in sockets.items()
    ]
    return sorted(pools, key=lambda pool: (pool["socket"], pool["node"]))


def _allocations(facts: NodeFacts) -> Iterator[Json]:
    """Yield the CPUs that a static CPU manager allocated. Excludes pods with a cpuset allocated by the scheduler."""
    if facts.resources is None or facts.kubelet is None or facts.kubelet.cpu_policy != "static":
        return
    decided = {(pod.namespace, pod.name): pod for pod in facts.decided}
    for pod in sorted(facts.resources.pods, key=lambda pod: pod.key):
        known = decided.get(pod.key)
        if pod.cpus and not (known and known.cpus):
            yield {
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": known.uid if known else "",
                "cpuset": str(pod.cpus),
                "managedByKubelet": True,
            }


def _observed_reserved(facts: NodeFacts) -> CpuSet | None:
    """Return the CPUs that a static CPU manager never allocates, by its allocatable CPUs. ``None`` if unknown."""
    if facts.kubelet is None or facts.kubelet.cpu_policy != "static" or facts.resources is None:
        return None
    return facts.host.cpu_set - facts.resources.allocatable_cpus if facts.resources.allocatable_cpus else None


def _devices(host: Host) -> Iterable[Json]:
    for device in host.pci:
        found: Json = {"address": device.address, "class": device.kind}
        if device.numa is not None:
            found["node"] = device.numa
        if device.root:
            found["root"] = device.root
        yield found


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


logger = logging.getLogger(__name__)

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
