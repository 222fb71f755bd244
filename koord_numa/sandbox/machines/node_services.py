"""The interfaces of a simulated node to local programs: sockets, ``/sys`` and ``/proc``."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import grpc
import orjson
import yaml
from grpc import aio

from koord_numa.core.cpu_topology import Cpu, CpuTopology
from koord_numa.core.cpuset import CpuSet, members
from koord_numa.core.kubelet import ContainerGrant
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.sandbox.machines.description import PAGE_BYTES, Hardware, NodeDescription, SimulatedDevice
from koord_numa.sandbox.machines.kubelet_files import cpu_file, device_file, memory_file
from koord_numa.sandbox.machines.simulated_node import SimulatedNode, container_id
from koord_numa.wire.proto import cri_pb2, podresources_pb2

# The ``/sys`` and ``/proc`` files of a simulated machine in the format of Linux 6, for programs that read them.
#
# Only files about topology and memory are written. The formats follow Documentation/ABI/stable/sysfs-devices-node and
# Documentation/admin-guide/cputopology.rst.

PCI_CLASSES: Final[Mapping[str, str]] = {
    "nvidia.com/gpu": "0x030200",
    "vendor.example/nic": "0x020000",
    "vendor.example/infiniband": "0x020700",
    "vendor.example/accelerator": "0x120000",
}
_WORD: Final = 32
_KIB: Final = 1024


def write_sysfs(folder: Path, hardware: Hardware) -> Path:
    """Write ``sys`` and ``proc`` of a machine into an empty folder and return the path of ``sys``."""
    system = folder / "sys" / "devices" / "system"
    topology = hardware.machine
    _write_cpus(system / "cpu", topology)
    _write_nodes(system / "node", hardware)
    for slot, device in enumerate((*hardware.devices, *hardware.claimed_devices)):
        _write_device(folder / "sys", slot, device)
    _put(folder / "proc", {"meminfo": f"MemTotal:       {sum(hardware.memory.values()) // _KIB} kB"})
    return folder / "sys"


def cpu_mask(cpus: CpuSet, width: int) -> str:
    """Return a mask of ``width`` CPUs in the kernel's format: words of 32 bits, the highest first."""
    words = [(cpus.bits >> shift) & 0xFFFFFFFF for shift in range(0, max(width, 1), _WORD)]
    return ",".join(f"{word:08x}" for word in reversed(words))


def _write_cpus(folder: Path, topology: CpuTopology) -> None:
    every = str(topology.all)
    _put(folder, {"online": every, "present": every, "possible": every, "isolated": "", "offline": ""})
    width = max(topology.by_id, default=0) + 1
    uncores: dict[tuple[int, int], int] = {}
    for cpu in topology.cpus:
        key = cpu.socket, cpu.uncore
        uncores[key] = uncores.get(key, 0) | 1 << cpu.id
    for cpu in topology.cpus:
        here = folder / f"cpu{cpu.id}"
        siblings, package = CpuSet(topology.core_bits[cpu.id]), CpuSet(topology.socket_bits[cpu.socket])
        _write_topology(here / "topology", cpu, siblings, package, width)
        shared = CpuSet(uncores[cpu.socket, cpu.uncore])
        cache = {"level": "3", "type": "Unified", "id": str(cpu.uncore), "shared_cpu_list": str(shared)}
        _put(here / "cache" / "index3", cache)
        (here / f"node{cpu.numa}").symlink_to(f"../../node/node{cpu.numa}")


def _write_topology(folder: Path, cpu: Cpu, siblings: CpuSet, package: CpuSet, width: int) -> None:
    files = {"core_id": str(cpu.core), "physical_package_id": str(cpu.socket), "die_id": "0"}
    for names, cpus in ((("core_cpus", "thread_siblings"), siblings), (("package_cpus", "core_siblings"), package)):
        mask, cpu_list = cpu_mask(cpus, width), str(cpus)
        for name in names:
            files |= {name: mask, f"{name}_list": cpu_list}
    _put(folder, files)


def _write_nodes(folder: Path, hardware: Hardware) -> None:
    topology = hardware.machine
    ids = topology.numa_ids
    lists = {
        "online": ids,
        "possible": ids,
        "has_cpu": [numa for numa in ids if topology.numa_bits[numa]],
        "has_memory": [numa for numa in ids if hardware.memory.get(numa)],
    }
    _put(folder, {name: str(CpuSet.of(nodes)) for name, nodes in lists.items()})
    width = max(topology.by_id, default=0) + 1
    for numa in ids:
        here, cpus = folder / f"node{numa}", CpuSet(topology.numa_bits[numa])
        total = hardware.memory.get(numa, 0) // _KIB
        files = {
            "cpulist": str(cpus),
            "cpumap": cpu_mask(cpus, width),
            "distance": " ".join(str(topology.distance(numa, other)) for other in ids),
            "meminfo": _lines([f"Node {numa} MemTotal:  {total:14} kB", f"Node {numa} MemFree:   {total:14} kB"]),
        }
        _put(here, files)
        for size, count in hardware.pages.get(numa, {}).items():
            _put(here / "hugepages" / f"hugepages-{PAGE_BYTES[size] // _KIB}kB", {"nr_hugepages": str(count)})
        for cpu in cpus:
            (here / f"cpu{cpu}").symlink_to(f"../../cpu/cpu{cpu}")


def _write_device(sys: Path, slot: int, device: SimulatedDevice) -> None:
    domain = 0 if device.numa is None else device.numa
    address = f"{domain:04x}:{slot % 31 + 1:02x}:00.0"
    real = sys / "devices" / f"pci{domain:04x}:00" / address
    numa_id = str(-1 if device.numa is None else device.numa)
    _put(real, {"class": PCI_CLASSES.get(device.resource, "0x120000"), "numa_node": numa_id})
    if device.resource == "nvidia.com/gpu":
        # The NVIDIA driver's names of a GPU, one of which its device plugin uses.
        lines = ["Model: \t\t NVIDIA A100-SXM4-80GB", f"GPU UUID: \t {device.id}", f"Device Minor: \t {slot}"]
        _put(sys.parent / "proc" / "driver" / "nvidia" / "gpus" / address, {"information": _lines(lines)})
    links = sys / "bus" / "pci" / "devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / address).symlink_to(f"../../../devices/pci{domain:04x}:00/{address}")


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _put(folder: Path, files: Mapping[str, str]) -> None:
    """Write the texts of files by name, each with a newline at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    start = str(folder)
    for name, text in files.items():
        # A large machine has tens of thousands of files, for which ``open`` takes three times as long.
        descriptor = os.open(f"{start}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, f"{text}\n".encode("ascii"))
        finally:
            os.close(descriptor)


# The interfaces of a node to local programs.
#
# These are sysfs, cgroups, the kubelet's configuration and checkpoint files, and the podresources and CRI sockets. All
# files are in a folder and follow a simulated node, so a node agent runs on it unchanged. The kubelet's files and
# podresources show the intermediate states of a kubelet 1.36: a pod is first listed without its CPUs, nothing is listed
# after a restart, and a release takes two writes.


class ContainerCgroups:
    """The ``kubepods.slice`` of a node. The effective cpuset is the part of ``cpuset.cpus`` that the machine has."""

    def __init__(self, root: Path, cpus: CpuSet, mems: CpuSet) -> None:
        self.root = root
        self.cpus = cpus
        self.mems = mems
        self._folders: dict[str, Path] = {}
        root.mkdir(parents=True, exist_ok=True)
        (root / "cgroup.controllers").write_text("cpuset cpu memory\n")

    def create(self, container: str, pod_uid: str) -> None:
        """Create the cgroup of a container that may use all CPUs and memory."""
        slice_name = f"kubepods-pod{pod_uid.replace('-', '_')}.slice"
        folder = self.root / "kubepods.slice" / slice_name / f"cri-containerd-{container}.scope"
        folder.mkdir(parents=True, exist_ok=True)
        self._folders[container] = folder
        self.set(container, self.cpus, self.mems)

    def set(self, container: str, cpus: CpuSet | None = None, mems: CpuSet | None = None) -> None:
        """Change the cpuset of a container.

        Raises ``KeyError`` when the container does not run and ``ValueError`` when the effective set would be empty.
        """
        folder = self._folders[container]
        for name, wanted, known in (("cpus", cpus, self.cpus), ("mems", mems, self.mems)):
            if wanted is None:
                continue
            if not wanted & known:
                raise ValueError(f"cpuset.{name}: none of {wanted} is online")
            (folder / f"cpuset.{name}").write_text(f"{wanted}\n")
            (folder / f"cpuset.{name}.effective").write_text(f"{wanted & known}\n")

    def effective(self, container: str) -> CpuSet:
        """Return the effective CPUs of a container."""
        return CpuSet.parse((self._folders[container] / "cpuset.cpus.effective").read_text().strip())

    def remove(self, container: str) -> None:
        """Remove the cgroup of a container."""
        if folder := self._folders.pop(container, None):
            shutil.rmtree(folder.parent if len(list(folder.parent.iterdir())) == 1 else folder)

    @property
    def containers(self) -> frozenset[str]:
        """The ids of the running containers."""
        return frozenset(self._folders)


Handler = Callable[..., Any]
Hook = Callable[["_Running", str, str], Awaitable[tuple[str, str]]]

SHORT: Final = Path("/tmp")  # noqa: S108  (a private folder is created in it)
ADMISSION_WINDOW: Final = 0.03
"""Seconds between the listing of a pod and of its CPUs in podresources. 21 to 37 ms on a real kubelet."""
WRITE_DELAY: Final = 0.015
"""Seconds between a change and its checkpoint files. 10 to 60 ms on a real kubelet. A release takes twice as long."""
RESTART_WINDOW: Final = 0.4
"""Seconds after a kubelet restart in which podresources lists nothing."""

STOP_GRACE: Final = 0.1
"""Grace period in seconds for open streams when the services stop."""


@dataclass(frozen=True, slots=True)
class _Running:
    id: str
    name: str
    pod_uid: str


class NodeServices:
    """The services of a node within a context. ``follow`` runs whenever the node's pods change."""

    def __init__(self, folder: Path, node: SimulatedNode) -> None:
        self._node = node
        self._description = node.description
        machine = node.description.hardware.machine
        folder.mkdir(parents=True, exist_ok=True)
        self.sysfs = folder / "sys"
        if not self.sysfs.exists():
            write_sysfs(folder, node.description.hardware)
        self.cgroups = ContainerCgroups(folder / "cgroup", machine.all, CpuSet.of(machine.numa_ids))
        self.kubelet_config = folder / "kubelet.yaml"
        self.kubelet_config.write_text(yaml.safe_dump(kubelet_configuration(node.description)))
        # The path of a unix socket is limited to 107 characters.
        self._sockets = TemporaryDirectory(prefix="kn-", dir=SHORT if SHORT.is_dir() else None)
        self.podresources = Path(self._sockets.name, "podresources.sock")
        self.cri = Path(self._sockets.name, "cri.sock")
        self.root_dir = folder / "kubelet"
        (self.root_dir / "device-plugins").mkdir(parents=True, exist_ok=True)
        self._servers: dict[Path, aio.Server] = {}  # by socket
        self._admitted: dict[str, float] = {}  # pod uid -> time of the first listing, by the loop's clock
        self._lists_from = 0.0
        self._written: dict[Path, Any] = {}
        self._streams: set[asyncio.Queue[str]] = set()
        # Runtime hooks like NRI: they return the CPUs and memory NUMA nodes for a container that is created or updated.
        self.on_create: Hook | None = None
        self.on_update: Hook | None = None
        self._creating: dict[str, asyncio.Task[None]] = {}
        self.started_on: dict[str, CpuSet] = {}  # by container id: effective CPUs at its start
        self.updates: list[tuple[str, str]] = []  # container id and CPUs of every UpdateContainerResources

    async def __aenter__(self) -> Self:
        await self._serve_kubelet()
        await self.start_runtime()
        self._node.listeners.append(self.follow)
        self.follow()
        self._admitted = dict.fromkeys(self._node.pods, float("-inf"))
        self._write_files()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._node.listeners.remove(self.follow)
        for task in self._creating.values():
            task.cancel()
        for server in self._servers.values():
            await server.stop(STOP_GRACE)
        self._sockets.cleanup()

    async def restart_kubelet(self) -> None:
        """Restart the kubelet: the new socket lists nothing at first. Containers keep running."""
        await self._stop(self.podresources)
        self._lists_from = asyncio.get_running_loop().time() + RESTART_WINDOW
        await self._serve_kubelet()

    async def stop_runtime(self) -> None:
        """Stop the runtime's service. Containers keep running."""
        await self._stop(self.cri)

    async def start_runtime(self) -> None:
        """Serve the runtime's calls, at first and after ``stop_runtime``."""
        stream = grpc.unary_stream_rpc_method_handler(
            self._events,
            request_deserializer=cri_pb2.GetEventsRequest.FromString,
            response_serializer=cri_pb2.ContainerEventResponse.SerializeToString,
        )
        await self._serve(
            "runtime.v1.RuntimeService",
            {
                "ListContainers": _unary(self._containers, cri_pb2.ListContainersRequest),
                "UpdateContainerResources": _unary(self._update, cri_pb2.UpdateContainerResourcesRequest),
                "GetContainerEvents": stream,
            },
            self.cri,
        )

    async def _serve_kubelet(self) -> None:
        await self._serve(
            "v1.PodResourcesLister",
            {
                "List": _unary(self._list, podresources_pb2.ListPodResourcesRequest),
                "GetAllocatableResources": _unary(self._allocatable, podresources_pb2.AllocatableResourcesRequest),
            },
            self.podresources,
        )

    async def _serve(self, service: str, methods: Any, socket: Path) -> None:
        server = self._servers[socket] = aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()

    async def _stop(self, socket: Path) -> None:
        await self._servers.pop(socket).stop(0)
        socket.unlink(missing_ok=True)  # noqa: ASYNC240  (a local file of the sandbox)

    def follow(self) -> None:
        """Start and stop containers like the node's pods. With a static kubelet they get its grants."""
        loop = asyncio.get_running_loop()
        for uid in self._node.pods:
            self._admitted.setdefault(uid, loop.time())
        loop.call_later(WRITE_DELAY, self._begin_writing)
        running = {one.id: one for one in self._running()}
        for container in self.cgroups.containers - running.keys():
            self.cgroups.remove(container)
        grants = {
            container_id(uid, grant.name): grant for uid, granted in self._node.grants.items() for grant in granted
        }
        exclusive = CpuSet.of(cpu for grant in grants.values() for cpu in grant.cpus)
        for container, one in running.items():
            if container in self._creating:
                continue
            if new := container not in self.cgroups.containers:
                if self.on_create is not None:
                    self._creating[container] = loop.create_task(self._create(one, self.on_create))
                    continue
                self.cgroups.create(container, one.pod_uid)
                self.started_on[container] = self.cgroups.effective(container)
            grant = grants.get(container)
            if grant is not None and self._description.kubelet.cpu_policy == "static":
                self.cgroups.set(container, grant.cpus or self.cgroups.cpus - exclusive or self.cgroups.cpus)
            if new:
                self._announce(container)

    async def _create(self, container: _Running, hook: Hook) -> None:
        try:
            cpus, mems = await hook(container, "", "")
            if any(one.id == container.id for one in self._running()):
                self.cgroups.create(container.id, container.pod_uid)
                self.cgroups.set(container.id, *(CpuSet.parse(text) if text else None for text in (cpus, mems)))
                self.started_on[container.id] = self.cgroups.effective(container.id)
                self._announce(container.id)
        finally:
            del self._creating[container.id]

    def _announce(self, container: str) -> None:
        for stream in self._streams:
            stream.put_nowait(container)

    def _begin_writing(self) -> None:
        """Write the checkpoint files.

        When CPUs are released, the first write removes the entries and a later write adds the CPUs to the shared pool.
        """
        memory = self._node.kubelet_memory
        path = self.root_dir / "cpu_manager_state"
        before = self._written.get(path)
        if memory is not None and before is not None:
            new = cpu_file(memory)
            if before.get("entries", {}).keys() - new.get("entries", {}).keys():
                kept = {uid: held for uid, held in before["entries"].items() if uid in new.get("entries", {})}
                self._write(path, {**before, "entries": kept})
                asyncio.get_running_loop().call_later(WRITE_DELAY, self._write_files)
                return
        self._write_files()

    def _write_files(self) -> None:
        memory = self._node.kubelet_memory
        if memory is None:
            return
        self._write(self.root_dir / "cpu_manager_state", cpu_file(memory))
        self._write(self.root_dir / "memory_manager_state", memory_file(memory))
        if memory.node.devices:
            self._write(self.root_dir / "device-plugins" / "kubelet_internal_checkpoint", device_file(memory))

    def _write(self, path: Path, content: Any) -> None:
        """Replace a file atomically, as the kubelet does, unless its content is unchanged."""
        if self._written.get(path) == content or not path.parent.is_dir():
            return
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(orjson.dumps(content))
        new.chmod(0o600)
        new.replace(path)
        self._written[path] = content

    def restart_container(self, pod_uid: str, name: str) -> None:
        """Restart a container: its new cgroup has none of the previously applied values."""
        self.cgroups.remove(container_id(pod_uid, name))
        self.follow()

    def _running(self) -> Iterator[_Running]:
        for uid, pod in self._node.pods.items():
            for container in pod.request.containers:
                if container.kind is not ContainerKind.INIT:
                    yield _Running(container_id(uid, container.name), container.name, uid)

    async def _list(self, _: Any, __: Any) -> Any:
        answer = podresources_pb2.ListPodResourcesResponse()
        now = asyncio.get_running_loop().time()
        if now < self._lists_from:
            return answer
        for uid, pod in self._node.pods.items():
            shows_cpus = now - self._admitted.get(uid, now) >= ADMISSION_WINDOW
            entry = answer.pod_resources.add(name=pod.key.name, namespace=pod.key.namespace)
            grants = {grant.name: grant for grant in self._node.grants.get(uid, ())}
            for container in pod.request.containers:
                # Terminated init containers are not listed, although the pod keeps their CPUs (kubelet, podresources
                # v1).
                if container.kind is not ContainerKind.INIT:
                    held = entry.containers.add(name=container.name)
                    if grant := grants.get(container.name):
                        _fill(held, grant, with_cpus=shows_cpus)
        return answer

    async def _allocatable(self, _: Any, __: Any) -> Any:
        answer = podresources_pb2.AllocatableResourcesResponse()
        kubelet = self._node.kubelet
        if kubelet is None:
            return answer
        if kubelet.pins_cpus:
            answer.cpu_ids.extend(members(kubelet.machine.bits & ~kubelet.reserved))
        if kubelet.pins_memory:
            for numa, amounts in kubelet.memory.items():
                for resource, amount in amounts.items():
                    block = answer.memory.add(memory_type=resource, size=amount)
                    block.topology.nodes.add(ID=numa)
        for resource, pool in kubelet.devices.items():
            for device in pool.devices:
                if device.healthy:
                    entry = answer.devices.add(resource_name=resource, device_ids=[device.id])
                    for numa in members(device.near):
                        entry.topology.nodes.add(ID=numa)
        return answer

    async def _containers(self, _: Any, __: Any) -> Any:
        answer = cri_pb2.ListContainersResponse()
        for one in self._running():
            labels = {"io.kubernetes.container.name": one.name, "io.kubernetes.pod.uid": one.pod_uid}
            answer.containers.add(id=one.id, state=cri_pb2.CONTAINER_RUNNING, labels=labels)
        return answer

    async def _update(self, request: Any, context: aio.ServicerContext) -> Any:
        cpus, mems = request.linux.cpuset_cpus, request.linux.cpuset_mems
        running = next((one for one in self._running() if one.id == request.container_id), None)
        try:
            if self.on_update is not None and running is not None:
                cpus, mems = await self.on_update(running, cpus, mems)
            self.cgroups.set(
                request.container_id, CpuSet.parse(cpus) if cpus else None, CpuSet.parse(mems) if mems else None
            )
        except KeyError:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"container {request.container_id} not found")
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self.updates.append((request.container_id, cpus))
        return cri_pb2.UpdateContainerResourcesResponse()

    async def _events(self, _: Any, __: Any) -> AsyncIterator[Any]:
        stream: asyncio.Queue[str] = asyncio.Queue()
        self._streams.add(stream)
        try:
            while True:
                container = await stream.get()
                yield cri_pb2.ContainerEventResponse(
                    container_id=container, container_event_type=cri_pb2.CONTAINER_STARTED_EVENT
                )
        finally:
            self._streams.discard(stream)


def kubelet_configuration(node: NodeDescription) -> dict[str, Any]:
    """Return the ``KubeletConfiguration`` of a simulated node."""
    config = node.kubelet
    found: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": config.cpu_policy or "none",
        "cpuManagerPolicyOptions": {name: str(value).lower() for name, value in config.cpu_options.items()},
        "memoryManagerPolicy": config.memory_policy or "None",
        "topologyManagerScope": config.topology_scope.value,
        "topologyManagerPolicyOptions": {
            "max-allowable-numa-nodes": str(config.max_numa_nodes),
            **{name: str(value).lower() for name, value in config.topology_options.items()},
        },
    }
    if config.topology_policy is not None:
        found["topologyManagerPolicy"] = config.topology_policy.value
    if config.reserved_cpus:
        found["reservedSystemCPUs"] = str(config.reserved_cpus)
    if node.reserved_memory:
        limits = {"memory": str(node.reserved_memory)}
        numa_ids = node.hardware.machine.numa_ids
        found["reservedMemory"] = [{"numaNode": numa, "limits": limits} for numa in numa_ids]
    return found


def _fill(held: Any, grant: ContainerGrant, *, with_cpus: bool) -> None:
    if with_cpus:
        held.cpu_ids.extend(grant.cpus)
    for block in grant.memory:
        entry = held.memory.add(memory_type=block.resource, size=block.amount)
        for numa in members(block.mask):
            entry.topology.nodes.add(ID=numa)
    for resource, devices in grant.devices.items():
        held.devices.add(resource_name=resource, device_ids=devices)


def _unary(method: Handler, request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        method, request_deserializer=request.FromString, response_serializer=lambda answer: answer.SerializeToString()
    )
