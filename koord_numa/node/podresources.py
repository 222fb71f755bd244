"""Calls to the kubelet's podresources socket and to the container runtime, and the allocations that podresources lists."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import grpc
from grpc import aio

from koord_numa.core.cpuset import EMPTY, MAX_CPU, CpuSet
from koord_numa.core.objects.node import HeldMemory
from koord_numa.wire.proto import cri_pb2, podresources_pb2

# Calls to the kubelet's podresources socket and to the container runtime's socket.
#
# Both use gRPC over unix sockets of the node. A failed call raises ``RpcError`` with the socket in its text. Responses
# may be large.

LARGEST_ANSWER: Final = 16 << 20
"""Maximum bytes of a response. Limit of the kubelet for podresources (``pkg/kubelet/apis/podresources/constants.go``)."""

TIMEOUT: Final = 10.0
"""Seconds per call."""

_POD_RESOURCES: Final = "/v1.PodResourcesLister/"
_RUNTIME: Final = "/runtime.v1.RuntimeService/"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", LARGEST_ANSWER),
    ("grpc.enable_http_proxy", 0),  # a proxy in the environment is irrelevant for a local socket
    # One polling thread is enough: the agent makes one call at a time.
    ("grpc.use_local_subchannel_pool", 1),
)


class RpcError(Exception):
    """A failed call. ``unimplemented``: the server is too old for the call."""

    def __init__(self, text: str, *, unimplemented: bool = False) -> None:
        super().__init__(text)
        self.unimplemented = unimplemented


class _Client:
    """A channel to a socket."""

    def __init__(self, path: Path, prefix: str) -> None:
        self.path = path
        self._prefix = prefix
        # The channel connects at the first call: the agent may start before the kubelet or the runtime.
        self._channel = aio.insecure_channel(f"unix:{path}", options=_OPTIONS)
        self._calls: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def _call(self, method: str, request: Any, answer: Any) -> Any:
        call = self._calls.get(method)
        if call is None:
            call = self._calls[method] = self._channel.unary_unary(
                self._prefix + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
        try:
            return await call(request, timeout=TIMEOUT)
        except aio.AioRpcError as error:
            raise self._error(method, error) from None

    def _error(self, method: str, error: aio.AioRpcError) -> RpcError:
        unknown = error.code() is grpc.StatusCode.UNIMPLEMENTED
        return RpcError(f"{self.path}: {method}: {error.code().name}: {error.details()}", unimplemented=unknown)


class PodResourcesClient(_Client):
    """The kubelet's podresources API v1."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _POD_RESOURCES)

    async def list(self) -> Any:
        """Return ``ListPodResourcesResponse``: the resources of the active pods."""
        request = podresources_pb2.ListPodResourcesRequest()
        return await self._call("List", request, podresources_pb2.ListPodResourcesResponse)

    async def allocatable(self) -> Any:
        """Return ``AllocatableResourcesResponse``: the resources that the kubelet can allocate."""
        request = podresources_pb2.AllocatableResourcesRequest()
        return await self._call("GetAllocatableResources", request, podresources_pb2.AllocatableResourcesResponse)


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A running container of the runtime. ``pod_uid`` is empty for containers outside Kubernetes."""

    id: str
    name: str
    pod_uid: str


class RuntimeClient(_Client):
    """The container runtime through CRI v1."""

    LABEL_NAME: Final = "io.kubernetes.container.name"
    LABEL_UID: Final = "io.kubernetes.pod.uid"

    def __init__(self, path: Path) -> None:
        super().__init__(path, _RUNTIME)

    async def containers(self) -> list[RunningContainer]:
        """Return the running containers."""
        state = cri_pb2.ContainerStateValue(state=cri_pb2.CONTAINER_RUNNING)
        # Only running containers: a created container has no processes to compare.
        request = cri_pb2.ListContainersRequest(filter=cri_pb2.ContainerFilter(state=state))
        answer = await self._call("ListContainers", request, cri_pb2.ListContainersResponse)
        return [_container(found.id, found.labels) for found in answer.containers]

    async def update(self, container: str, cpus: CpuSet, mems: str = "") -> None:
        """Set the CPUs of a running container, and its memory nodes unless empty. Other resources stay unchanged."""
        resources = cri_pb2.LinuxContainerResources(cpuset_cpus=str(cpus), cpuset_mems=mems)
        request = cri_pb2.UpdateContainerResourcesRequest(container_id=container, linux=resources)
        await self._call("UpdateContainerResources", request, cri_pb2.UpdateContainerResourcesResponse)

    async def started(self) -> AsyncIterator[str]:
        """Yield the ids of started containers. Raises ``RpcError`` if the stream breaks or the runtime does not support it."""
        call = self._channel.unary_stream(
            self._prefix + "GetContainerEvents",
            request_serializer=cri_pb2.GetEventsRequest.SerializeToString,
            response_deserializer=cri_pb2.ContainerEventResponse.FromString,
        )(cri_pb2.GetEventsRequest())
        try:
            async for event in call:
                if event.container_event_type == cri_pb2.CONTAINER_STARTED_EVENT:
                    yield event.container_id
        except aio.AioRpcError as error:
            raise self._error("GetContainerEvents", error) from None
        finally:
            call.cancel()  # also if the caller stops early: the runtime would keep the stream open


def _container(container: str, labels: Mapping[str, str]) -> RunningContainer:
    return RunningContainer(
        container, labels.get(RuntimeClient.LABEL_NAME, ""), labels.get(RuntimeClient.LABEL_UID, "")
    )


# Allocations of the kubelet from the ``podresources`` API v1, reduced to the needs of a topology.
#
# ``read_resources`` converts the responses of ``List`` and ``GetAllocatableResources``. Sizes and ids are validated: an
# inconsistent response raises ``PodResourcesError``, and the last topology stays published.

MOST_NUMA_NODES: Final = 1024
LARGEST: Final = 2**60
"""Maximum bytes of memory. Larger values are errors."""


class PodResourcesError(Exception):
    """The kubelet's response is unusable. The text names the pod or resource, and the reason."""


@dataclass(frozen=True, slots=True)
class HeldResources:
    """The exclusive resources of a container: CPUs, devices by resource name, and memory blocks."""

    name: str
    cpus: CpuSet = EMPTY
    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    memory: tuple[HeldMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class PodHoldings:
    """An active pod of the kubelet."""

    namespace: str
    name: str
    containers: tuple[HeldResources, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Return namespace and name, as used in fingerprints."""
        return self.namespace, self.name

    @property
    def cpus(self) -> CpuSet:
        """Return all exclusive CPUs of its containers."""
        return CpuSet.of(cpu for container in self.containers for cpu in container.cpus)


@dataclass(frozen=True, slots=True)
class PodResources:
    """
    Allocatable and allocated resources of the kubelet.

    Memory is in bytes by NUMA node and resource name. Devices are sets of NUMA nodes by resource name and id, empty for
    a device without NUMA affinity.
    """

    pods: tuple[PodHoldings, ...] = ()
    allocatable_cpus: CpuSet = EMPTY
    allocatable_memory: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    held_memory: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    devices: Mapping[str, Mapping[str, frozenset[int]]] = field(default_factory=dict)
    held_cpus: CpuSet = EMPTY
    held_devices: Mapping[str, frozenset[str]] = field(default_factory=dict)


def read_resources(listed: Any, allocatable: Any) -> PodResources:
    """
    Combine ``ListPodResourcesResponse`` and ``AllocatableResourcesResponse``.

    Raises ``PodResourcesError`` for ids out of range, a CPU given twice, a pod listed twice, or allocated CPUs that the
    kubelet does not have: such responses are from different times, and a retry helps.
    """
    pods = tuple(_pod(pod) for pod in listed.pod_resources)
    # A pod may terminate while a pod of the same name is admitted. Fingerprints use names and cannot distinguish them.
    if len({pod.key for pod in pods}) != len(pods):
        raise PodResourcesError("a pod is listed twice")
    can = _cpus(allocatable.cpu_ids, "the allocatable resources")
    devices: dict[str, dict[str, frozenset[int]]] = {}
    for entry in allocatable.devices:
        places = _numa(entry.topology.nodes, f"device {entry.resource_name}")
        known = devices.setdefault(entry.resource_name, {})
        # A device may have several entries, and is local to the NUMA nodes of all of them.
        for device in entry.device_ids:
            known[device] = known.get(device, frozenset()) | places
    held_cpus, held_devices = _held(pods)
    # Under the none policy no CPU is allocatable (cpumanager/policy_none.go), so there is nothing to compare.
    if can and not held_cpus <= can:
        raise PodResourcesError(f"containers hold CPUs {held_cpus - can} that are not allocatable")
    held_memory: dict[int, dict[str, int]] = {}
    for pod in listed.pod_resources:
        for container in pod.containers:
            _add_memory(held_memory, container.memory, f"pod {pod.namespace}/{pod.name}")
    allocatable_memory: dict[int, dict[str, int]] = {}
    _add_memory(allocatable_memory, allocatable.memory, "the allocatable resources")
    return PodResources(
        pods=pods,
        allocatable_cpus=can,
        allocatable_memory=allocatable_memory,
        held_memory=held_memory,
        devices=devices,
        held_cpus=held_cpus,
        held_devices=held_devices,
    )


def _pod(pod: Any) -> PodHoldings:
    who = f"pod {pod.namespace}/{pod.name}"
    containers = []
    for container in pod.containers:
        devices: dict[str, frozenset[str]] = {}
        for entry in container.devices:
            # A resource may have several entries, such as one per device or NUMA node.
            devices[entry.resource_name] = devices.get(entry.resource_name, frozenset()) | set(entry.device_ids)
        memory = sorted(_blocks(container.memory, who), key=lambda block: (block.resource, block.numa_mask, block.size))
        containers.append(HeldResources(container.name, _cpus(container.cpu_ids, who), devices, tuple(memory)))
    return PodHoldings(pod.namespace, pod.name, tuple(containers))


def _blocks(blocks: Iterable[Any], who: str) -> Iterator[HeldMemory]:
    for block in blocks:
        if not 0 <= block.size <= LARGEST:
            raise PodResourcesError(f"{who}: {block.size} bytes of {block.memory_type}")
        # A block of size 0 belongs to an init container whose memory the app container reuses.
        if block.size:
            mask = sum(1 << numa for numa in _numa(block.topology.nodes, who))
            yield HeldMemory(mask, block.memory_type, block.size)


def _held(pods: Iterable[PodHoldings]) -> tuple[CpuSet, dict[str, frozenset[str]]]:
    cpus = EMPTY
    devices: dict[str, frozenset[str]] = {}
    for pod in pods:
        # Containers of a pod may share CPUs (restarted sidecars, pod-level managers). Two pods never do.
        if both := cpus & pod.cpus:
            raise PodResourcesError(f"CPUs {both} are held by pod {pod.namespace}/{pod.name} and by another one")
        cpus |= pod.cpus
        for container in pod.containers:
            for name, ids in container.devices.items():
                devices[name] = devices.get(name, frozenset()) | ids
    return cpus, devices


def _cpus(ids: Iterable[int], who: str) -> CpuSet:
    bits = 0
    for cpu in ids:
        if not 0 <= cpu <= MAX_CPU:
            raise PodResourcesError(f"{who}: {cpu} is not a CPU id")
        bits |= 1 << cpu
    return CpuSet(bits)


def _numa(nodes: Iterable[Any], who: str) -> frozenset[int]:
    found = frozenset(node.ID for node in nodes)
    for numa in found:
        if not 0 <= numa < MOST_NUMA_NODES:
            raise PodResourcesError(f"{who}: {numa} is not a NUMA node")
    return found


def _add_memory(found: dict[int, dict[str, int]], blocks: Iterable[Any], who: str) -> None:
    for block in blocks:
        if not 0 <= block.size <= LARGEST:
            raise PodResourcesError(f"{who}: {block.size} bytes of {block.memory_type}")
        # In full on each NUMA node: the kubelet does not report how a block is distributed.
        for numa in _numa(block.topology.nodes, who):
            here = found.setdefault(numa, {})
            here[block.memory_type] = here.get(block.memory_type, 0) + block.size
