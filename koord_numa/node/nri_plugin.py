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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.node.applier import BEST_EFFORT, ContainerTarget, Pools
from koord_numa.node.decided import DecidedPod, decided_pod
from koord_numa.node.inputs.pods import NodePods
from koord_numa.node.inputs.rpc import RunningContainer
from koord_numa.node.inputs.ttrpc import Method, TtrpcError, TtrpcLink
from koord_numa.node.sysfs import Host
from koord_numa.wire.proto import nri_pb2

logger = logging.getLogger(__name__)

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
