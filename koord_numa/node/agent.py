"""
The loops of the agent: publish every second, compare every few seconds, apply on every change and periodically.

The loops are independent. An error in a round is counted and logged, and the next round starts from the current state.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry

from koord_numa.cluster.resources import Call
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.node import applier
from koord_numa.node.api_client import NodeApi, NodeApiError, ReservedByNode, read_reservation
from koord_numa.node.applier import IsolationPlan, isolation_plan, refused_plan
from koord_numa.node.interrupts import Interrupts, Steering
from koord_numa.node.kubelet_files import KubeletFolder, KubeletOptions
from koord_numa.node.kubelet_reader import (
    FolderWatch,
    HostSource,
    KubeletReader,
    KubeletReading,
    KubeletSource,
    ResourcesSource,
)
from koord_numa.node.kubelet_state import with_evidence
from koord_numa.node.metrics import AgentMetrics
from koord_numa.node.nri_plugin import NriPlugin, PinningPlan
from koord_numa.node.observer import (
    CgroupError,
    Cgroups,
    Observation,
    Observer,
    conflict_event,
    isolation_event,
    mismatch_event,
    told,
)
from koord_numa.node.podresources import PodResourcesClient, RpcError, RuntimeClient
from koord_numa.node.pods import DecidedPod, NodePods
from koord_numa.node.published_objects import DeviceSource, NodeCpuOwner, NodeFacts, cpu_owner
from koord_numa.node.publisher import AgentConfig, DevicePublisher, Publisher
from koord_numa.node.sysfs import Host

if TYPE_CHECKING:
    from koord_numa.cluster.serving import HttpServer

logger = logging.getLogger(__name__)

PUBLISH_INTERVAL: Final = 1.0
"""Seconds between two reads of the kubelet without an event: podresources has no events."""
QUIET_INTERVAL: Final = 5.0
"""Publish interval in seconds if the scheduler owns the CPUs and the object is published. Decisions then do not use podresources."""
SETTLE: Final = 0.05
"""Seconds from an event to the read of the kubelet: it writes several files per pod, 10 to 60 ms after the bind."""
OBSERVE_INTERVAL: Final = 5.0
APPLY_INTERVAL: Final = 10.0
"""Seconds between two rounds without an event: systemd's daemon-reload and other writers of cpusets cause none."""
INTERRUPT_INTERVAL: Final = 60.0
"""Seconds between two reads of all interrupts, which other programs may move: a machine has up to some thousand."""
NODE_INTERVAL: Final = 30.0
"""Seconds between two reads of the Node, which rarely changes."""


class ApplyRefused(Exception):
    """The agent must not apply cpusets on this node. The text has the reason."""


class Agent:
    """The agent of a node. ``run`` returns when ``stop`` is set."""

    def __init__(self, config: AgentConfig, api: NodeApi, clock: Callable[[], float] = monotonic) -> None:
        self._config = config
        self._api = api
        self._clock = clock
        self.metrics = AgentMetrics()
        self.host = HostSource(config.sysfs, clock)
        self.kubelet = KubeletSource(config.node, config.kubelet_config, api if config.configz else None, clock)
        self.resources: ResourcesSource | None = None
        self.pods = NodePods(api, config.node, config.koordlet_namespace)
        self._folder = None if config.root_dir is None else KubeletFolder(config.root_dir)
        self._kubelet_reader = KubeletReader(self._folder, self.pods, self.metrics, clock)
        self._reading: KubeletReading | None = None
        self.publisher = Publisher(api, config.node, config.publish, clock)
        self._devices = DeviceSource(config.sysfs, clock)
        self.device_publisher = DevicePublisher(api, config.node, clock) if config.devices else None
        self._cgroups = Cgroups(config.cgroups)
        self._observer = Observer(self._cgroups, mems=config.apply_memory, clock=clock)
        self._runtime: applier.CpusetSetter | None = None
        self._cri: RuntimeClient | None = None
        self._applied = asyncio.Event()
        self.nri: NriPlugin | None = None
        if config.apply and config.nri_socket is not None:
            self.nri = NriPlugin(config.nri_socket, self.pods, self._plan, self._applied.set)
        # Set while this agent may apply cpusets. The first round decides.
        self._may_apply = asyncio.Event()
        self._pinning: dict[str, Any] = {}  # the contents of the annotation
        self._update_conflicts: dict[str, str] = {}  # by container id
        self._why_not = ""  # reason why the last round applied no cpusets
        self._differences: dict[str, dict[str, str]] = {}
        self.observation = Observation()
        self._node = ReservedByNode()
        self._node_read = float("-inf")
        # Container id -> time when it was first seen running. -1 once it is measured, since each container is measured
        # once.
        self._running_since: dict[str, float] = {}
        self._interrupts = Interrupts(config.proc, config.run, config.state)
        self._quiet: CpuSet | None = None  # CPUs without interrupts, after the last round that set them
        self._steered = float("-inf")
        self._steering = Steering()
        self._isolation_refusals: dict[str, str] = {}  # by UID of the pod
        self._reported_refusals: dict[str, str] = {}
        self._not_ready = "the pods of this node are not listed"

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set. Raises ``ApplyRefused`` if cpusets are to be applied and no way is configured."""
        async with self.connected():
            tasks = [asyncio.create_task(self.pods.run()), asyncio.create_task(stop.wait())]
            try:
                if self._config.apply:
                    tasks.append(asyncio.create_task(self._applying()))
                if self.nri is not None:
                    tasks.append(asyncio.create_task(self._pinning_at_creation(self.nri)))
                tasks += [asyncio.create_task(loop) for loop in self._loops()]
                ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()  # a bug or ``Refused`` ends the agent with an exception
            finally:
                # Wait for cancelled tasks: the exit stack that closes next owns their sockets.
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            # Only the removal of the DaemonSet releases the cpusets. On a restart or update, every pinned pod would run
            # on other CPUs meanwhile.
            if self._config.apply and await self._removed():
                await self.release()

    async def release(self) -> int:
        """
        Reset every container to all CPUs, and all interrupts. Return the number of changed containers.

        Used when the agent is removed from a node.
        """
        host = self.host.read()
        if problem := (await self._interrupts.keep_off(EMPTY, host.cpu_set if host else EMPTY)).problem:
            logger.error("%s", problem)
        if host is None or self._runtime is None or self._cri is None:
            return 0
        result = await applier.apply(applier.unpinned(host, await self._cri.containers()), self._cgroups, self._runtime)
        logger.info("returned all CPUs to %d containers", len(result.updated))
        return len(result.updated)

    async def release_only(self) -> int:
        """Connect, reset all containers, and disconnect."""
        async with self.connected():
            return await self.release()

    async def round(self) -> None:
        """Run all parts once with the current pods, for callers that drive the agent step by step."""
        await self.pods.relist()
        await self._read_node()
        if self._config.apply:
            await self.apply()
        await self.observe()
        await self.publish()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Keep the sockets open while the context lasts."""
        async with AsyncExitStack() as stack:
            if self._config.metrics_port:
                server = metrics_server(self._config, self._api, self.metrics, lambda: self._not_ready)
                await server.start()
                stack.push_async_callback(server.stop)
            if self._config.podresources is not None:
                client = await stack.enter_async_context(PodResourcesClient(self._config.podresources))
                self.resources = ResourcesSource(client, self._clock)
            if self._config.cri_socket is not None:
                self._runtime = self._cri = await stack.enter_async_context(RuntimeClient(self._config.cri_socket))
            if self._config.direct_writes:
                self._runtime = applier.CgroupRuntime(self._cgroups)
            if self._folder is not None:
                stack.enter_context(FolderWatch(self._folder.folders, self.pods.noticed.set))
            yield

    def _loops(self) -> list[Coroutine[Any, Any, None]]:
        loops = [self._publishing(), self._every(OBSERVE_INTERVAL, self.observe)]
        if self._config.apply and self._cri is not None:
            loops.append(self._container_events(self._cri))
        return loops

    async def _pinning_at_creation(self, plugin: NriPlugin) -> None:
        """Run the NRI plugin as soon as it can answer requests: pods are listed, and cpusets may be applied on this node."""
        await self._may_apply.wait()
        await plugin.run()

    def _plan(self) -> PinningPlan | None:
        """Return the input of the NRI plugin's decisions, ``None`` while this agent may not apply cpusets."""
        host = self.host.value
        if host is None or not self._may_apply.is_set():
            return None
        return PinningPlan(host, self._node.cpus, self._config.apply_memory, self._node.isolation)

    async def _every(self, interval: float, round_: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            started = self._clock()
            await round_()
            # The interval is from start to start, so it includes the duration of the round.
            await asyncio.sleep(max(0.0, interval - (self._clock() - started)))

    async def _publishing(self) -> None:
        """Publish after every event of a kubelet file or a pod, and periodically."""
        while True:
            self.pods.noticed.clear()
            await self.publish()
            if await self._noticed():
                # Not before the next write is allowed. After failures, only the timed rounds publish.
                await asyncio.sleep(min(PUBLISH_INTERVAL, max(SETTLE, self.publisher.ready_in())))

    async def _noticed(self) -> bool:
        """Wait for an event or the next timed read of the kubelet. Return true for an event."""
        host, until = self.host.value, self._clock() + self._publish_interval()
        # CPUs that go offline cause no event. Two small files show them.
        while self._clock() < until and self.host.read() is host:
            with suppress(TimeoutError):
                async with asyncio.timeout(PUBLISH_INTERVAL):
                    await self.pods.noticed.wait()
                    return True
        return False

    def _publish_interval(self) -> float:
        reading, evidence = self._reading, self._kubelet_reader.evidence
        if reading is None or reading.options is None or reading.contradiction or not self.publisher.is_current:
            return PUBLISH_INTERVAL
        owner = cpu_owner(self._config.owner, reading.options, static=bool(evidence.cpus or evidence.memory))
        is_quiet = owner is NodeCpuOwner.SCHEDULER and self.device_publisher is None
        return QUIET_INTERVAL if is_quiet else PUBLISH_INTERVAL

    async def _read_kubelet(self, host: Host) -> KubeletReading:
        options = await self.kubelet.read()
        if options is not None:
            self._cgroups.cgroup_root = options.cgroup_root
        self._reading = await self._kubelet_reader.read(host, options, self.resources)
        return self._reading

    async def facts(self) -> NodeFacts | None:
        """
        Return the current facts of the node.

        ``None`` if the machine was never readable or the sources of the kubelet's state contradict each other.
        """
        host = self.host.read()
        if host is None:
            return None
        reading = await self._read_kubelet(host)
        await self._read_node()
        if reading.contradiction:
            return None
        evidence = self._kubelet_reader.evidence
        return NodeFacts(
            name=self._config.node,
            host=host,
            owner=cpu_owner(self._config.owner, reading.options, static=bool(evidence.cpus or evidence.memory)),
            kubelet=reading.options,
            resources=reading.resources,
            checkpoint=reading.checkpoint,
            decided=self.pods.all(),
            reservation=self._node.text,
            reserved=self._node.cpus,
            node_uid=self._node.uid,
            pinning=self._pinning,
            isolation=self._node.isolation,
        )

    async def publish(self) -> None:
        """Run one round of the publisher."""
        # Before the first list of pods, the CPUs that they hold would be offered again.
        if not self.pods.synced.is_set():
            return
        facts = await self.facts()
        if self.host.failed:
            self.metrics.errors.labels("sysfs").inc()
        if self.resources is not None and self.resources.failed:
            self.metrics.errors.labels("podresources").inc()
        # Without the kubelet's state the available amounts would be wrong. The last object stays published.
        unknown = self.resources is not None and facts is not None and facts.resources is None
        if facts is None or unknown:
            self._not_ready = f"{'the machine' if facts is None else 'podresources'} cannot be read"
            return
        if await self.publisher.write(facts, self._differences):
            self.metrics.writes.inc()
        self._not_ready = "" if self.publisher.has_looked else "the topology cannot be read or written"
        # Publish the Device object, except where koordlet does.
        if self.device_publisher is None or facts.resources is None or self._koordlet():
            return
        found = self._devices.object(facts.name, facts.node_uid, facts.host, facts.resources)
        if found is not None:
            await self.device_publisher.write(found)

    async def observe(self) -> None:
        """Run one round of the observer: metrics, contents of the annotation, and an event for each new difference."""
        with suppress(NodeApiError):
            await self.pods.confirm()
        if not self._config.apply:
            await self._read_node()
            await self._isolate(
                refused_plan(self.pods.all(), self._node.isolation, "the node agent applies no cpusets")
            )
        try:
            seen = self._observer.look(self.pods.all())
        except CgroupError as error:
            self.metrics.errors.labels("cgroups").inc()
            logger.warning("cpusets cannot be compared: %s", error)
            return
        self.observation = seen
        self.metrics.differences.set(len(seen.differences))
        self.metrics.compared.set(seen.checked)
        self.metrics.missing.set(sum(bool(one.missing) for one in seen.differences))
        why, no_cgroup = (
            self._why(),
            f"no kubepods below {self._cgroups.root} has it: does the kubelet have another cgroupRoot?",
        )
        for one in seen.appeared:
            if one.missing:
                logger.warning("pod %s: %s: %s", one.pod.key, one, no_cgroup)
        self._differences = told(seen.differences, why, no_cgroup)
        # At most ten: after the removal of an agent all pods may differ, and events would overload the API server.
        events = [
            mismatch_event(one.pod, f"{one}: {no_cgroup if one.missing else why}", self._config.node)
            for one in seen.appeared[:10]
        ]
        events += [mismatch_event(pod, "", self._config.node) for pod in seen.resolved[:10]]
        events += [conflict_event(pod, text, self._config.node) for pod, text in self._conflicts()]
        events += [isolation_event(pod, text, self._config.node) for pod, text in self._refusals()]
        for event in events:
            with suppress(NodeApiError):
                namespace = event["metadata"]["namespace"]
                await self._api.post(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", event)

    def _conflicts(self) -> list[tuple[DecidedPod, str]]:
        """Return and clear the conflicts with other NRI plugins that are to be reported, at most ten."""
        if self.nri is None:
            return []
        conflicts = [(conflict.pod, str(conflict)) for conflict in self.nri.conflicts.values()]
        self.nri.conflicts.clear()
        for pod in self.pods.all():
            for container in pod.containers:
                if text := self._update_conflicts.get(container.id, ""):
                    self._update_conflicts[container.id] = ""  # reported once, until a round without the conflict
                    conflicts.append((pod, text))
        for pod, text in conflicts:
            logger.warning("pod %s: %s", pod.key, text)
            self.metrics.errors.labels("nri").inc()
        return conflicts[:10]

    def _refusals(self) -> list[tuple[DecidedPod, str]]:
        """Return the pods whose isolation is refused for a reason that was not reported, at most ten."""
        reported = {uid: text for uid, text in self._reported_refusals.items() if uid in self._isolation_refusals}
        pods = {pod.uid: pod for pod in self.pods.all()}
        new = [
            (pods[uid], text)
            for uid, text in self._isolation_refusals.items()
            if uid in pods and reported.get(uid) != text
        ][:10]
        self._reported_refusals = reported | {pod.uid: text for pod, text in new}
        for pod, text in new:
            logger.warning("pod %s: CPUs are not isolated: %s", pod.key, text)
        return new

    async def _isolate(self, plan: IsolationPlan) -> None:
        """Keep interrupts off the CPUs of the plan, and record which pods do not get what they request."""
        if self._node_read == float("-inf"):
            return  # the label is not known: interrupts stay as an earlier agent has set them
        now = self._clock()
        interval = APPLY_INTERVAL if self._steering.pending else INTERRUPT_INTERVAL
        if plan.quiet != self._quiet or now - self._steered >= interval:
            host = self.host.value
            found = await self._interrupts.keep_off(plan.quiet, host.cpu_set if host else EMPTY)
            self._quiet, self._steered, self._steering = plan.quiet, now, found
            self.metrics.kept_off.set(found.kept_off)
            self.metrics.unmovable.set(found.unmovable)
            self.metrics.returned.inc(found.returned)
            if found.problem:
                self.metrics.errors.labels("interrupts").inc()
        refusals = dict(plan.refusals)
        problem = self._steering.problem
        for uid in plan.steered if problem else ():
            refusals[uid] = "; ".join(filter(None, (refusals.get(uid, ""), problem)))
        self._isolation_refusals = refusals
        self.metrics.isolation_refused.set(len(refusals))

    async def apply(self) -> None:
        """Run one round of the applier."""
        host, kubelet = self.host.read(), await self._kubelet_options()
        pods = self.pods.all()
        why_not = applier.refusal(kubelet, koordlet=self._koordlet(), mems=self._config.apply_memory)
        if host is None or self._runtime is None or why_not:
            if why_not:
                self.metrics.errors.labels("apply").inc()
                # Log each reason once. Publisher and observer continue.
                if why_not != self._why_not:
                    logger.error("no cpuset is applied: %s", why_not)
            self._why_not = why_not
            self._may_apply.clear()
            if why_not:
                await self._isolate(refused_plan(pods, self._node.isolation, f"no cpuset is applied: {why_not}"))
            return
        self._why_not = ""
        self._may_apply.set()
        # While the Node cannot be read, nothing is reserved, and a later round corrects the pool.
        reserved = self._node.cpus
        isolation = self._node.isolation
        targets = applier.wanted(host, pods, reserved=reserved, mems=self._config.apply_memory, isolation=isolation)
        result = await applier.apply(targets, self._cgroups, self._runtime)
        self.metrics.updates.inc(len(result.updated))
        for container, text in result.errors.items():
            self.metrics.errors.labels("apply").inc()
            logger.warning("a cpuset is not applied: container %s: %s", container[:12], text)
        # The runtime names both plugins (containerd/nri, pkg/adaptation/result.go).
        self._update_conflicts = {
            container: self._update_conflicts.get(container, text)
            for container, text in result.errors.items()
            if "both tried to set" in text
        }
        # Skip rounds with errors: containers may not have reached their targets, and the measured time would be too
        # short.
        if not result.errors:
            self._measure(targets, result)
        await self._isolate(isolation_plan(host, pods, isolation))

    def _measure(self, targets: list[applier.ContainerTarget], result: applier.Round) -> None:
        """Measure how long pinned containers have run on other CPUs. Containers without a cgroup do not count as pinned."""
        pinned = {target.container for target in targets if target.pinned}
        for container in pinned - self._running_since.keys():
            self._running_since[container] = self._clock()
        now = self._clock()
        created = {} if self.nri is None else self.nri.created
        for container in [one for one in self._running_since if one in pinned and one not in result.missing]:
            since = self._running_since[container]
            if since >= 0:
                # A container that NRI created on its CPUs has run nowhere else, unless this round corrected it.
                never_elsewhere = container in created and container not in result.updated
                seconds = 0.0 if never_elsewhere else now - since
                self.metrics.pinned.observe(seconds)
                # Record that a container runs on its CPUs, after ``seconds`` on other CPUs.
                through = "cgroups" if self._config.direct_writes else "CRI"
                if self.nri is not None and self.nri.connected:
                    through = "NRI"
                self._pinning = {
                    "through": through,
                    "containers": self._pinning.get("containers", 0) + 1,
                    "seconds": max(self._pinning.get("seconds", 0.0), round(seconds, 2)),
                }
                created.pop(container, None)
                self._running_since[container] = -1.0
        for container in self._running_since.keys() - pinned:
            del self._running_since[container]

    async def _applying(self) -> None:
        if self._runtime is None:
            raise ApplyRefused("--apply needs --cri-socket or --direct-writes")
        await self.pods.synced.wait()
        # Later, only publish reads the Node: a slow API server must not delay a round.
        await self._read_node()
        while True:
            # Cleared before the round, so that a change during the round causes another round.
            self._applied.clear()
            self.pods.changed.clear()
            await self.apply()
            waits = [asyncio.create_task(event.wait()) for event in (self.pods.changed, self._applied)]
            await asyncio.wait(waits, timeout=APPLY_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _container_events(self, runtime: RuntimeClient) -> None:
        """Pin containers when they start, before the kubelet reports them. Runtimes without events depend on the pod's status."""
        while True:
            try:
                async for container in runtime.started():
                    self._running_since.setdefault(container, self._clock())
                    self.pods.started(container, await runtime.containers())
                    self._applied.set()
            except RpcError as error:
                if error.unimplemented:
                    # The runtime does not support events. Wait forever: the timed rounds do the work.
                    await asyncio.Event().wait()
                logger.warning("container events are not available: %s", error)
            await asyncio.sleep(APPLY_INTERVAL)

    async def _kubelet_options(self) -> KubeletOptions | None:
        """Return the options of the running kubelet: its configuration, corrected by evidence."""
        host = self.host.read()
        if self._reading is None and host is not None:
            await self._read_kubelet(host)
        return with_evidence(await self.kubelet.read(), self._kubelet_reader.evidence)

    def _koordlet(self) -> bool:
        """Return whether koordlet runs here, by a pod of its DaemonSet or by its label on the NodeResourceTopology."""
        return any(pod.is_koordlet for pod in self.pods.all()) or self.publisher.is_koordinator

    def _why(self) -> str:
        kubelet = with_evidence(self.kubelet.value, self._kubelet_reader.evidence)
        if kubelet is not None and kubelet.cpu_policy != "none":
            return "the kubelet's static CPU manager chooses CPUs on this node"
        if self._config.apply:
            return "the node agent has not been able to apply it"
        if self._koordlet():
            return "koordlet has not applied it"
        return "no agent applies cpusets on this node"

    async def _read_node(self) -> None:
        if self._clock() - self._node_read >= NODE_INTERVAL:
            with suppress(NodeApiError):
                self._node = read_reservation(await self._api.get(f"/api/v1/nodes/{self._config.node}"))
                self._node_read = self._clock()

    async def _removed(self) -> bool:
        """Return whether the DaemonSet is deleted or being deleted. Otherwise, this is a restart."""
        namespace, _, name = self._config.daemon_set.partition("/")
        if not name:
            return False
        try:
            found = await self._api.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
        except NodeApiError as error:
            logger.warning("cannot determine whether the agent is being removed, cpusets are kept: %s", error)
            return False
        return found is None or bool((found.get("metadata") or {}).get("deletionTimestamp"))


def metrics_server(
    config: AgentConfig, api: NodeApi, metrics: AgentMetrics, not_ready: Callable[[], str]
) -> "HttpServer":
    """
    Return the server of the metrics port, with TLS and delegated authorization if they are configured.

    ``not_ready`` returns the reason for which the agent is not ready, or "". Raises ``OSError`` for unusable certificates.
    """
    # Imported here, because an agent without the port lives in less memory.
    from koord_numa.cluster.serving import (  # noqa: PLC0415  (see above)
        DelegatedAuth,
        HttpServer,
        Protection,
        StatusProviders,
        server_context,
    )
    from koord_numa.ports import Unavailable  # noqa: PLC0415  (see above)

    async def review(call: Call, document: Mapping[str, Any]) -> Any:
        try:
            return await api.post(call.path, document)
        except NodeApiError as error:
            raise Unavailable(str(error)) from error

    protection = None
    if config.metrics_tls:
        tls = server_context(config.tls_cert_file, config.tls_private_key_file)
        protection = Protection(tls, DelegatedAuth(review).middleware())
    providers = StatusProviders(
        unhealthy=tuple,
        not_ready=lambda: filter(None, [not_ready()]),
        metrics=metrics.registry,
        nodes=CollectorRegistry(),
    )
    return HttpServer(providers, config.metrics_port, protection=protection, setting="--metrics-port")
