"""
An NRI plugin that sets the CPUs of containers before their first process runs.

The scheduler binds and annotates a pod in one call, and the runtime sends the annotation with every request. Requests
are therefore answered from memory: no API server and no file is read. Running containers are updated by the applier,
which shares its rules with the plugin. The plugin applies them when it connects and when another client updates a
container.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Any, Final

from google.protobuf.message import DecodeError

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.node.applier import BEST_EFFORT, ContainerTarget, Pools
from koord_numa.node.podresources import RunningContainer
from koord_numa.node.pods import DecidedPod, NodePods, decided_pod
from koord_numa.node.sysfs import Host
from koord_numa.wire.proto import nri_pb2

# ttrpc over the multiplexed socket of the Node Resource Interface (NRI).
#
# A frame of the multiplexer is ``connection u32 | length u32 | bytes``; connection 1 carries the calls of the runtime to the plugin,
# and connection 2 those of the plugin to the runtime. In a connection, a message is ``length u32 | stream u32 | type u8 | flags u8 |
# protobuf``. All numbers are big-endian. Frames and messages have independent bounds.

logger = logging.getLogger(__name__)

PLUGIN: Final = 1
"""Connection of the service that the plugin serves."""
RUNTIME: Final = 2
"""Connection of the service that the runtime serves."""
MAX_MESSAGE: Final = 4 << 20
"""Bytes; the limit of ttrpc (``channel.go``)."""
MAX_FRAME: Final = 4096
"""Bytes in a frame that is sent. The reader in Go fails if a frame is larger than its buffer, which has at least this size."""

_FRAME: Final = Struct(">II")
_MESSAGE: Final = Struct(">IIBB")
_REQUEST: Final = 1
_RESPONSE: Final = 2
_UNKNOWN: Final = 2  # status codes of gRPC
_UNIMPLEMENTED: Final = 12

Method = tuple[Any, Callable[[Any], Any]]
"""Type of the request, and a non-blocking function that returns the response."""


class TtrpcError(Exception):
    """A rejected call, or a violation of the protocol by the other side."""


class TtrpcLink:
    """
    A multiplexed socket: serves ``methods`` by ``service/method`` on one connection and calls the other side on the other one.

    ``run`` reads until the socket is closed. It must run while calls wait for their responses.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        methods: Mapping[str, Method],
        serves: int = PLUGIN,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._methods = methods
        self._serves = serves
        self._calls = RUNTIME if serves == PLUGIN else PLUGIN
        self._received = {self._serves: bytearray(), self._calls: bytearray()}
        self._streams = count(1, 2)  # streams of a client are odd
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def run(self) -> None:
        """Read and respond until the other side closes the socket. Raises ``TtrpcError`` and ``OSError``."""
        try:
            while True:
                connection, length = _FRAME.unpack(await self._reader.readexactly(_FRAME.size))
                if length > MAX_MESSAGE + _MESSAGE.size:
                    raise TtrpcError(f"a frame of {length} bytes")
                data = await self._reader.readexactly(length)
                # Frames of other connections are skipped, as the runtime does.
                if connection in self._received:
                    self._received[connection] += data
                    self._take_messages(connection)
                    await self._writer.drain()
        except asyncio.IncompleteReadError:
            return
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(TtrpcError("the connection was closed"))
            self._writer.close()

    async def call(self, method: str, request: Any, answer: Any, timeout: float) -> Any:  # noqa: ASYNC109  (it is sent too)
        """Call ``service/method`` and return the response. Raises ``TtrpcError`` and ``TimeoutError``."""
        service, _, name = method.rpartition("/")
        envelope = nri_pb2.TtrpcRequest(
            service=service, method=name, payload=request.SerializeToString(), timeout_nano=int(timeout * 1e9)
        )
        stream = next(self._streams)
        waiting = self._waiting[stream] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                self._send(self._calls, stream, _REQUEST, envelope.SerializeToString())
                await self._writer.drain()
                response = await waiting
        except OSError as error:
            raise TtrpcError(f"{method}: {error}") from None
        finally:
            del self._waiting[stream]
            if not waiting.cancel() and not waiting.cancelled():
                waiting.exception()  # marks the error as read: asyncio would log it
        if response.status.code:
            raise TtrpcError(f"{method}: {response.status.message}")
        return answer.FromString(response.payload)

    def _take_messages(self, connection: int) -> None:
        """Handle every completely received message. Raises ``TtrpcError``."""
        received = self._received[connection]
        while len(received) >= _MESSAGE.size:
            length, stream, kind, _ = _MESSAGE.unpack_from(received)
            if length > MAX_MESSAGE:
                raise TtrpcError(f"a message of {length} bytes")
            end = _MESSAGE.size + length
            if len(received) < end:
                return
            body = bytes(received[_MESSAGE.size : end])
            del received[:end]
            try:
                if kind == _REQUEST and connection == self._serves:
                    self._send(connection, stream, _RESPONSE, self._answer(body).SerializeToString())
                elif kind == _RESPONSE and connection == self._calls:
                    waiting = self._waiting.get(stream)  # absent after a timeout
                    if waiting is not None and not waiting.done():
                        waiting.set_result(nri_pb2.TtrpcResponse.FromString(body))
            except DecodeError as error:
                raise TtrpcError(f"a message that is not understood: {error}") from None

    def _answer(self, body: bytes) -> Any:
        request = nri_pb2.TtrpcRequest.FromString(body)
        name = f"{request.service}/{request.method}"
        if name not in self._methods:
            return _failed(_UNIMPLEMENTED, f"{name} is not implemented")
        kind, method = self._methods[name]
        message = kind.FromString(request.payload)
        try:
            return nri_pb2.TtrpcResponse(payload=method(message).SerializeToString())
        except (
            Exception
        ) as error:  # a failed request must not close the connection: all containers of the node depend on it
            logger.exception("%s failed", name)
            return _failed(_UNKNOWN, f"{name}: {error!r}")

    def _send(self, connection: int, stream: int, kind: int, body: bytes) -> None:
        message = _MESSAGE.pack(len(body), stream, kind, 0) + body
        frames = [message[start : start + MAX_FRAME] for start in range(0, len(message), MAX_FRAME)]
        self._writer.write(b"".join(_FRAME.pack(connection, len(frame)) + frame for frame in frames))


def _failed(code: int, text: str) -> Any:
    return nri_pb2.TtrpcResponse(status=nri_pb2.TtrpcStatus(code=code, message=text))


NAME: Final = "koord-numa"
INDEX: Final = "90"
"""Plugins are called in ascending order. A late plugin sees what earlier plugins have set, and does not set it again."""
RETRY: Final = 1.0
"""Seconds until the next attempt to connect."""
TIMEOUT: Final = 5.0
"""Seconds for the registration, as in the runtimes' default configuration."""
MAX_SYNCHRONIZED: Final = 10_000
"""Containers of one synchronization, which a runtime may send in several parts. The kubelet's default is 110 pods on a node."""
MAX_CREATED: Final = 1_000
"""Containers that were created and not yet seen running. Bounds memory where containers fail before they run."""

_RUNTIME: Final = "nri.pkg.api.v1alpha1.Runtime"
_PLUGIN: Final = "nri.pkg.api.v1alpha1.Plugin"
_EVENTS: Final = (nri_pb2.CREATE_CONTAINER, nri_pb2.POST_START_CONTAINER, nri_pb2.UPDATE_CONTAINER)
_VALIDATES: Final = (0, 10)
"""Minimum NRI version whose runtimes report the plugin that has set a field. Older runtimes reject plugins that request it."""
_CONFIG_SOURCE: Final = "kubernetes.io/config.source"  # set by the kubelet: "api", or "file" and "http" for static pods
_LIVE: Final = (nri_pb2.CONTAINER_CREATED, nri_pb2.CONTAINER_PAUSED, nri_pb2.CONTAINER_RUNNING)


@dataclass(frozen=True, slots=True)
class PinningPlan:
    """The input of the plugin's decisions: the machine, its reserved CPUs, the Node's isolation, whether memory is applied."""

    host: Host
    reserved: CpuSet = EMPTY
    mems: bool = False
    isolation: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CpusetConflict:
    """Another writer has set different CPUs or memory NUMA nodes for a container."""

    pod: DecidedPod
    container: str
    field: str
    set_to: str
    decided: str
    by: str = ""

    def __str__(self) -> str:
        """Return the conflict with the names of both writers."""
        other = f"NRI plugin {self.by}" if self.by else "another NRI plugin or the kubelet"
        return (
            f"container {self.container}: {other} sets {self.field} to {self.set_to},"
            f" NRI plugin {NAME} decided {self.decided}"
        )


class NriPlugin:
    """
    The NRI plugin of an agent.

    ``plan`` returns ``None`` while no cpuset may be applied: all requests are then left unchanged. ``started`` is
    called whenever a container has started.
    """

    def __init__(
        self, socket: Path, pods: NodePods, plan: Callable[[], PinningPlan | None], started: Callable[[], None]
    ) -> None:
        self._socket = socket
        self._pods = pods
        self._plan = plan
        self._started = started
        self._problem = ""
        self._synchronized: list[tuple[Any, Any]] = []
        self._sandboxes: dict[str, Any] = {}
        self.connected = False
        # Ids of containers that were created on their CPUs and have not been seen running.
        self.created: dict[str, None] = {}
        self.conflicts: dict[str, CpusetConflict] = {}  # by container id and field; the agent reports and removes them

    async def run(self) -> None:
        """Keep the plugin connected until cancelled."""
        while True:
            if self._socket.exists():
                try:
                    await self._session()
                    self._report("the runtime has closed the connection")
                except (TtrpcError, OSError, TimeoutError) as error:
                    self._report(str(error) or repr(error))
                finally:
                    self.connected = False
            await asyncio.sleep(RETRY)

    async def _session(self) -> None:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        self._synchronized, self._sandboxes = [], {}
        link = TtrpcLink(reader, writer, self._methods())
        reading = asyncio.create_task(link.run())
        try:
            request = nri_pb2.RegisterPluginRequest(plugin_name=NAME, plugin_idx=INDEX)
            await link.call(f"{_RUNTIME}/RegisterPlugin", request, nri_pb2.Empty, TIMEOUT)
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _report(self, problem: str) -> None:
        """Log a problem once. The CRI loop does the work until the plugin is connected again."""
        if problem != self._problem or self.connected:
            logger.warning("NRI: %s: %s; containers are pinned after their start", self._socket, problem)
        self._problem = problem

    def _methods(self) -> dict[str, Method]:
        methods: dict[str, Method] = {
            "Configure": (nri_pb2.ConfigureRequest, self._configure),
            "Synchronize": (nri_pb2.SynchronizeRequest, self._synchronize),
            "CreateContainer": (nri_pb2.CreateContainerRequest, self._create),
            "UpdateContainer": (nri_pb2.UpdateContainerRequest, self._update),
            "StopContainer": (nri_pb2.StopContainerRequest, lambda _: nri_pb2.StopContainerResponse()),
            "StateChange": (nri_pb2.StateChangeEvent, self._state_change),
            # A separate call in newer versions of NRI, with the fields of CreateContainer.
            "PostStartContainer": (nri_pb2.CreateContainerRequest, self._post_start),
            "ValidateContainerAdjustment": (nri_pb2.ValidateContainerAdjustmentRequest, self._validate),
            "Shutdown": (nri_pb2.Empty, lambda request: request),
        }
        return {f"{_PLUGIN}/{name}": method for name, method in methods.items()}

    def _configure(self, request: Any) -> Any:
        logger.info("NRI: connected to %s %s", request.runtime_name, request.runtime_version)
        version = tuple(int(part) for part in re.findall(r"\d+", request.nri_version)[:2])
        events = (*_EVENTS, nri_pb2.VALIDATE_CONTAINER_ADJUSTMENT) if version >= _VALIDATES else _EVENTS
        return nri_pb2.ConfigureResponse(events=sum(1 << (event - 1) for event in events))

    def _synchronize(self, request: Any) -> Any:
        """Record the running containers, and correct those whose CPUs were allocated while no agent was connected."""
        self._sandboxes |= {sandbox.id: sandbox for sandbox in request.pods}
        self._synchronized += [
            (self._sandboxes[container.pod_sandbox_id], container)
            for container in request.containers
            if container.pod_sandbox_id in self._sandboxes and container.state in _LIVE
        ]
        if len(self._synchronized) > MAX_SYNCHRONIZED:
            raise TtrpcError(f"more than {MAX_SYNCHRONIZED} containers")
        if request.more:
            return nri_pb2.SynchronizeResponse(more=True)
        found, self._synchronized, self._sandboxes = self._synchronized, [], {}
        self.connected, self._problem = True, ""
        answer = nri_pb2.SynchronizeResponse()
        plan = self._plan()
        if plan is None:
            return answer
        pods = [self._pod(sandbox) for sandbox, _ in found]
        running = [container.state == nri_pb2.CONTAINER_RUNNING for _, container in found]
        self._see_started(
            (pod, container) for pod, (_, container), runs in zip(pods, found, running, strict=True) if runs
        )
        pools = self._pools(plan, pods)
        for pod, (_, container) in zip(pods, found, strict=True):
            target = pools.target(pod, container.id)
            if target is not None and _differs(target, container.linux.resources.cpu):
                answer.update.append(_update(target, ignore_failure=True))
        return answer

    def _create(self, request: Any) -> Any:
        answer = nri_pb2.CreateContainerResponse()
        plan = self._plan()
        if plan is None:
            return answer
        pod, container = self._pod(request.pod), request.container
        target = self._pools(plan, [pod]).target(pod, container.id)
        if target is None:
            return answer
        requested = container.linux.resources.cpu
        wanted = {"cpus": str(target.cpus), "mems": target.mems}
        conflict = False
        for field, value in wanted.items():
            current = getattr(requested, field)
            if not value or _same(current, value):
                continue
            # If two plugins set different values for a field, the runtime rejects the container.
            if current:
                conflict = True
                self._conflict(CpusetConflict(pod, container.name, f"cpuset.{field}", current, value), container.id)
                continue
            setattr(answer.adjust.linux.resources.cpu, field, value)
        if target.pinned and not conflict:
            self.created[container.id] = None
            while len(self.created) > MAX_CREATED:
                del self.created[next(iter(self.created))]
        return answer

    def _update(self, request: Any) -> Any:
        """Answer with the allocated CPUs if another client would change them."""
        answer = nri_pb2.UpdateContainerResponse()
        plan = self._plan()
        if plan is None:
            return answer
        pod = self._pod(request.pod)
        target = self._pools(plan, [pod]).target(pod, request.container.id)
        requested = request.linux_resources.cpu
        if target is not None and (requested.cpus or requested.mems) and _differs(target, requested):
            answer.update.append(_update(target))
        return answer

    def _state_change(self, request: Any) -> Any:
        if request.event == nri_pb2.POST_START_CONTAINER:
            self._post_start(request)
        return nri_pb2.Empty()

    def _post_start(self, request: Any) -> Any:
        if self._plan() is not None:
            self._see_started([(self._pod(request.pod), request.container)])
            self._started()
        return nri_pb2.Empty()

    def _validate(self, request: Any) -> Any:
        """Record which plugin has set a field that this plugin wanted to set. Nothing is rejected."""
        owners = request.owners.owners
        for field, number in (("cpuset.cpus", nri_pb2.CPUSET_CPUS), ("cpuset.mems", nri_pb2.CPUSET_MEMS)):
            key = f"{request.container.id} {field}"
            conflict = self.conflicts.get(key)
            if conflict is not None and request.container.id in owners:
                by = owners[request.container.id].simple.get(number, "")
                self.conflicts[key] = CpusetConflict(
                    conflict.pod, conflict.container, field, conflict.set_to, conflict.decided, by
                )
        return nri_pb2.ValidateContainerAdjustmentResponse()

    def _conflict(self, conflict: CpusetConflict, container: str) -> None:
        if len(self.conflicts) < MAX_CREATED:
            self.conflicts[f"{container} {conflict.field}"] = conflict

    def _pod(self, sandbox: Any) -> DecidedPod:
        """
        Return the pod of a sandbox, by the API server if known, else by the runtime.

        A sandbox keeps the annotations of the pod at its start, while the API server has those of a rebind.
        """
        known = self._pods.find(sandbox.uid)
        if known is not None:
            return known
        # The kubelet sets the cgroup parent, which contains the QoS class. The request has no QoS class.
        parent = sandbox.linux.cgroup_parent.lower()
        obj = {
            "metadata": {
                "namespace": sandbox.namespace,
                "name": sandbox.name,
                "uid": sandbox.uid,
                "annotations": dict(sandbox.annotations),
                "labels": dict(sandbox.labels),
            },
            "status": {"qosClass": BEST_EFFORT if "besteffort" in parent else ""},
        }
        # The UID of a static pod differs from that of its API object: adding it would count its CPUs twice.
        if sandbox.annotations.get(_CONFIG_SOURCE, "api") == "api":
            self._pods.admit(obj)
        pod = self._pods.find(sandbox.uid) or decided_pod(obj)
        return pod if pod is not None else DecidedPod(sandbox.namespace, sandbox.name, sandbox.uid)

    def _pools(self, plan: PinningPlan, pods: Iterable[DecidedPod]) -> Pools:
        """Return the pools of the node, including pods that the API server has not shown yet."""
        all_pods = {pod.uid: pod for pod in (*pods, *self._pods.all())}
        pools = tuple(all_pods.values())
        return Pools(plan.host, pools, reserved=plan.reserved, mems=plan.mems, isolation=plan.isolation)

    def _see_started(self, started: Iterable[tuple[DecidedPod, Any]]) -> None:
        for pod, container in started:
            running = RunningContainer(container.id, container.name, pod.uid)
            self._pods.started(container.id, [running])


def _same(current: str, wanted: str) -> bool:
    try:
        return CpuSet.parse(current) == CpuSet.parse(wanted)
    except ValueError:
        return False


def _differs(target: ContainerTarget, resources: Any) -> bool:
    return not _same(resources.cpus, str(target.cpus)) or bool(target.mems and not _same(resources.mems, target.mems))


def _update(target: ContainerTarget, *, ignore_failure: bool = False) -> Any:
    cpu = nri_pb2.LinuxCPU(cpus=str(target.cpus), mems=target.mems)
    linux = nri_pb2.LinuxContainerUpdate(resources=nri_pb2.LinuxResources(cpu=cpu))
    return nri_pb2.ContainerUpdate(container_id=target.container, linux=linux, ignore_failure=ignore_failure)
