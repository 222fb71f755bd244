"""The NRI side of a container runtime for a simulated node: plugins register, and containers are created and updated as they answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.node.nri_plugin import RUNTIME, TtrpcError, TtrpcLink
from koord_numa.sandbox.machines.node_services import NodeServices
from koord_numa.wire.proto import nri_pb2
from tests.node.nodes import World

RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"


class Refused(Exception):
    """The runtime has refused to create or update a container."""


@dataclass
class Plugin:
    """One connected plugin; those of tests answer without a socket."""

    name: str = ""
    index: str = ""
    events: int = 0
    link: Any = None
    writer: asyncio.StreamWriter | None = None
    cpus: str = ""  # what a plugin without a socket sets

    async def call(self, method: str, request: Any, answer: Any, timeout: float) -> Any:  # noqa: ASYNC109  (it is sent too)
        if self.link is not None:
            return await self.link.call(f"{PLUGIN_SERVICE}/{method}", request, answer, timeout)
        found = answer()
        if method == "CreateContainer":
            found.adjust.linux.resources.cpu.cpus = self.cpus
        elif method == "UpdateContainer":
            update = found.update.add(container_id=request.container.id)
            update.linux.resources.cpu.cpus = self.cpus
        return found

    def wants(self, event: int) -> bool:
        return bool(self.events & 1 << event - 1)


@dataclass
class FakeNri:
    """The runtime. ``version`` is that of NRI; ``timeout`` the seconds after which a plugin is dropped."""

    world: World
    socket: Path
    version: str = ""
    timeout: float = 2.0
    part: int = 1000  # containers in one message of a synchronization
    plugins: list[Plugin] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    updates_at_synchronization: list[str] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)  # containers that a plugin with a socket has answered for
    synchronized: asyncio.Event = field(default_factory=asyncio.Event)
    _sandboxes: dict[str, Any] = field(default_factory=dict)  # by UID of the pod, also of pods whose object is gone
    _server: Any = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def services(self) -> NodeServices:
        return self.world.services

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._connected, str(self.socket))

    async def stop(self) -> None:
        """The runtime ends: its connections and its socket are gone."""
        self.socket.unlink(missing_ok=True)
        # CPython 3.11 leaves a connection half open that is being accepted while the server closes.
        await asyncio.sleep(0.01)
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.plugins = [plugin for plugin in self.plugins if plugin.link is None]
        self.synchronized.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        plugin = Plugin(writer=writer)

        def register(request: Any) -> Any:
            plugin.name, plugin.index = request.plugin_name, request.plugin_idx
            task = asyncio.create_task(self._configure(plugin))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return nri_pb2.Empty()

        methods = {f"{RUNTIME_SERVICE}/RegisterPlugin": (nri_pb2.RegisterPluginRequest, register)}
        plugin.link = TtrpcLink(reader, writer, methods, serves=RUNTIME)
        try:
            await plugin.link.run()
        except (OSError, TtrpcError):
            pass
        finally:
            self._drop(plugin)
            self._writers.discard(writer)

    def _drop(self, plugin: Plugin) -> None:
        if plugin in self.plugins:
            self.plugins.remove(plugin)
            self.synchronized.clear()
            if plugin.writer is not None:
                plugin.writer.close()

    async def _configure(self, plugin: Plugin) -> None:
        request = nri_pb2.ConfigureRequest(runtime_name="fake", runtime_version="1", nri_version=self.version)
        plugin.events = (await plugin.call("Configure", request, nri_pb2.ConfigureResponse, self.timeout)).events
        running = [one for one in self.services._running() if one.id in self.services.cgroups.containers]
        pods = [self._sandbox(one.pod_uid) for one in running]
        containers = []
        for one in running:
            container = nri_pb2.Container(
                id=one.id, pod_sandbox_id=one.pod_uid, name=one.name, state=nri_pb2.CONTAINER_RUNNING
            )
            container.linux.resources.cpu.cpus = str(self.services.cgroups.effective(one.id))
            containers.append(container)
        for start in range(0, max(1, len(containers)), self.part):
            more = start + self.part < len(containers)
            request = nri_pb2.SynchronizeRequest(
                pods=pods[start : start + self.part], containers=containers[start : start + self.part], more=more
            )
            answer = await plugin.call("Synchronize", request, nri_pb2.SynchronizeResponse, self.timeout)
        for update in answer.update:
            self.updates_at_synchronization.append(update.container_id)
            self.services.cgroups.set(update.container_id, *_cpusets(update.linux.resources.cpu))
        self.plugins.append(plugin)
        self.synchronized.set()

    def _sandbox(self, uid: str) -> Any:
        if uid not in self._sandboxes:
            pod = next(pod for pod in self.world.server.store.list("pods") if pod["metadata"]["uid"] == uid)
            meta = pod["metadata"]
            self._sandboxes[uid] = nri_pb2.PodSandbox(
                id=uid,
                uid=uid,
                name=meta["name"],
                namespace=meta["namespace"],
                annotations=meta.get("annotations") or {},
                labels=meta.get("labels") or {},
            )
        return self._sandboxes[uid]

    async def create(self, running: Any, _: str, __: str) -> tuple[str, str]:
        """Ask every plugin in order. Raises ``Refused`` if two of them set the same field."""
        container = nri_pb2.Container(id=running.id, pod_sandbox_id=running.pod_uid, name=running.name)
        pod = self._sandbox(running.pod_uid)
        owners: dict[str, str] = {}
        self.answered.discard(running.id)
        for plugin in sorted(self.plugins, key=lambda plugin: plugin.index):
            request = nri_pb2.CreateContainerRequest(pod=pod, container=container)
            try:
                answer = await plugin.call("CreateContainer", request, nri_pb2.CreateContainerResponse, self.timeout)
            except (TtrpcError, TimeoutError):
                self._drop(plugin)
                continue
            self._merge(plugin, owners, answer.adjust.linux.resources.cpu, container.linux.resources.cpu)
            if plugin.link is not None:
                self.answered.add(running.id)
        request = nri_pb2.ValidateContainerAdjustmentRequest(pod=pod, container=container)
        numbers = {"cpus": nri_pb2.CPUSET_CPUS, "mems": nri_pb2.CPUSET_MEMS}
        for name, owner in owners.items():
            request.owners.owners[running.id].simple[numbers[name]] = owner
        for plugin in self.plugins:
            if plugin.wants(nri_pb2.VALIDATE_CONTAINER_ADJUSTMENT):
                method = "ValidateContainerAdjustment"
                await plugin.call(method, request, nri_pb2.ValidateContainerAdjustmentResponse, self.timeout)
        asyncio.get_running_loop().call_soon(self._started, pod, container)
        cpu = container.linux.resources.cpu
        return cpu.cpus, cpu.mems

    def _started(self, pod: Any, container: Any) -> None:
        async def report() -> None:
            for plugin in list(self.plugins):
                if plugin.link is not None and plugin.wants(nri_pb2.POST_START_CONTAINER):
                    event = nri_pb2.StateChangeEvent(event=nri_pb2.POST_START_CONTAINER, pod=pod, container=container)
                    try:
                        await plugin.call("StateChange", event, nri_pb2.Empty, self.timeout)
                    except (TtrpcError, TimeoutError):
                        self._drop(plugin)

        task = asyncio.create_task(report())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _merge(self, plugin: Plugin, owners: dict[str, str], wanted: Any, current: Any) -> None:
        for name in ("cpus", "mems"):
            if value := getattr(wanted, name):
                if name in owners:
                    text = f'plugins "{owners[name]}" and "{plugin.name}" both tried to set CPU cpuset {name}'
                    self.refusals.append(text)
                    raise Refused(text)
                owners[name] = plugin.name
                setattr(current, name, value)

    async def update(self, running: Any, cpus: str, mems: str) -> tuple[str, str]:
        """An update of a container by the kubelet or another client of CRI."""
        resources = nri_pb2.LinuxResources(cpu=nri_pb2.LinuxCPU(cpus=cpus, mems=mems))
        owners: dict[str, str] = {}
        for plugin in sorted(self.plugins, key=lambda plugin: plugin.index):
            request = nri_pb2.UpdateContainerRequest(
                pod=self._sandbox(running.pod_uid),
                container=nri_pb2.Container(id=running.id, name=running.name),
                linux_resources=resources,
            )
            try:
                answer = await plugin.call("UpdateContainer", request, nri_pb2.UpdateContainerResponse, self.timeout)
            except (TtrpcError, TimeoutError):
                self._drop(plugin)
                continue
            for update in answer.update:
                self._merge(plugin, owners, update.linux.resources.cpu, resources.cpu)
        return resources.cpu.cpus, resources.cpu.mems


def _cpusets(cpu: Any) -> tuple[Any, Any]:
    return (CpuSet.parse(cpu.cpus) if cpu.cpus else None, CpuSet.parse(cpu.mems) if cpu.mems else None)


@asynccontextmanager
async def nri_runtime(world: World, **settings: Any) -> AsyncIterator[FakeNri]:
    """The runtime of a simulated node speaks NRI while the context lasts."""
    runtime = FakeNri(world, world.services.cri.with_name("nri.sock"), **settings)
    world.services.on_create, world.services.on_update = runtime.create, runtime.update
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()
