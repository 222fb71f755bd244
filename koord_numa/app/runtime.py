"""
The process without Kopf: connection, informers, leader election, event recorder, HTTP server and scheduler.

It assembles, starts and stops them in order and detects tasks that die. It makes no decisions.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any, Final
from uuid import uuid4

from prometheus_client import CollectorRegistry

from koord_numa import __version__
from koord_numa.app.api import ViewApi
from koord_numa.app.debug import Dump, node_dump, pod_dump
from koord_numa.app.informers import ClaimsCatchUp, informers_of
from koord_numa.app.kopf_feed import POD_PAUSE, kopf_parsers, kopf_stores, topologies_in_batches
from koord_numa.app.metrics import MetricSources, NodeCollector, RebindCollector, SchedulerCollector
from koord_numa.app.tasks import LoopLag, TaskSupervisor
from koord_numa.cluster.client import Api, Body
from koord_numa.cluster.events import EventLimits, EventRecorder
from koord_numa.cluster.leader_election import LeaderElection, LeaseConfig, LeaseConflicts, NoElection, Rival
from koord_numa.cluster.serving import (
    SECURE_PORT_SETTING,
    DelegatedAuth,
    HttpServer,
    Protection,
    StatusProviders,
    server_context,
)
from koord_numa.cluster.writers import ApiBinder, ApiClaimWriter, ApiPodGroupWriter, ApiRebindWriter, ApiVolumeWriter
from koord_numa.core.value_objects import ValueObject, replace, value_field
from koord_numa.engine.device_moves import DeviceMoves
from koord_numa.engine.rebind import AutomaticRebinds, DoubleHoldRepair, FinishedRebinds, RebindController, RebindPorts
from koord_numa.engine.scheduler import Scheduler
from koord_numa.handlers.dispatch import Dispatcher, Stores
from koord_numa.ports import Dependencies, ObjectReference
from koord_numa.settings import DynamicResources, LeaseSettings, RebindMode, Settings
from koord_numa.wire import resource_status
from koord_numa.wire.names import DEFAULT_PORT

AGENT: Final = f"koord-numa/{__version__} (scheduler)"
"""User agent of the scheduler, different from that of the command line."""

LOOPBACK: Final = "127.0.0.1"

SETTLE: Final = 5.0
"""Seconds for binds in flight at shutdown, while the lease is still held."""

FLUSH: Final = 3.0
"""Seconds for posting queued events at shutdown."""

STUCK: Final = 300.0
"""
Seconds without progress of an informer before the process is unhealthy.

A live watch has a bookmark every minute, and a dead watch is detected after 70 s. An unavailable API server is not a
cause: only a restart helps.
"""

_log = logging.getLogger(__name__)


class SecureServing(ValueObject):
    """The TLS port with access control, on every interface. Without files the certificate is self-signed."""

    port: int
    certificate: Path | None = None
    key: Path | None = None


class Options(ValueObject):
    """
    Options of the process, as opposed to settings of its decisions.

    ``port`` is plain HTTP on loopback. 0 selects any free port, None disables the server.
    """

    settings: Settings = value_field(default_factory=Settings)
    kubeconfig: Path | None = None
    identity: str = ""
    elect: bool = True
    port: int | None = DEFAULT_PORT
    secure: SecureServing | None = None


class Runtime:
    """Implementation of ``handlers.embedding.EmbeddingProcess``. ``start`` and ``stop`` are called once."""

    def __init__(self, options: Options, api: Api) -> None:
        settings = options.settings
        self.options = options
        self.api = api
        self.tasks = TaskSupervisor()
        self.identity = options.identity or f"{gethostname()}_{uuid4()}"  # unique even where host names are not
        self.lease = self._election(settings.lease) if options.elect else NoElection()
        self.recorder = EventRecorder(api, self.identity, EventLimits(settings.events))
        self.lease_conflicts = LeaseConflicts(api, self._lease_config(settings.lease), self._rival_found)
        self.scheduler = Scheduler(
            settings,
            Dependencies(
                ApiBinder(api, self.lease.remaining),
                self.recorder,
                self.lease,
                resource_status,
                pod_groups=ApiPodGroupWriter(api, self.lease.remaining),
                volumes=ApiVolumeWriter(api, self.lease.remaining),
                claim_writer=self._claim_writer(),
            ),
        )
        ports = RebindPorts(ApiRebindWriter(api, self.lease.remaining), self.recorder)
        self.rebinds = RebindController(self.scheduler, ports)
        self.double_hold_repair = DoubleHoldRepair(self.scheduler, ports)
        self.automatic_rebinds = AutomaticRebinds(self.scheduler, self.rebinds, ports)
        self.device_moves = DeviceMoves(self.scheduler)
        self.finished_rebinds = FinishedRebinds(self.scheduler, self.rebinds, ports)
        stores = kopf_stores(self.scheduler, self.rebinds)
        parsers = kopf_parsers(self.scheduler, stores)
        names = settings.scheduler_names
        self.dispatcher = Dispatcher(
            Stores(stores.waiting_pods, stores.topologies, stores.rebinds),
            parsers,
            names,
            self.scheduler.waits,
            POD_PAUSE,
        )
        self.informers = informers_of(api, self.scheduler, stores, parsers)
        self._claims_catch_up = ClaimsCatchUp(self.informers.claims, self.scheduler.claims)
        self.loop_lag = LoopLag()
        self.view_api = ViewApi(self.scheduler, self._pod_dump, self.rebinds.known, lambda: self.device_moves.moves)
        providers = self._status_providers()
        self.http_server = HttpServer(providers, options.port or 0, LOOPBACK)
        self.secure_server = None if options.secure is None else self._secure(providers, options.secure)
        self._stopped = False

    @classmethod
    async def connect(cls, options: Options) -> "Runtime":
        """Create the runtime without sending anything. Raises ``NoCredentials``."""
        return cls(options, await Api.connect(options.kubeconfig, AGENT))

    @property
    def failure(self) -> asyncio.Future[BaseException]:
        """Future that is done when a task has died."""
        return self.tasks.failure

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self.api.server

    async def new_session(self) -> Any:
        """Return a session for Kopf with the current credentials. Kopf closes the session."""
        return await self.api.new_session(topologies_in_batches(self.scheduler))

    async def start(self) -> None:
        """Start to watch, to compete for the lease, and to schedule once everything is synced."""
        if self.options.port is not None:
            await self.http_server.start()
            _log.info(
                "serving the page, /healthz, /readyz and /metrics on http://%s:%d", LOOPBACK, self.http_server.port
            )
        if self.secure_server is not None:
            await self.secure_server.start()
            _log.info("serving the same on port %d with TLS and delegated authorization", self.secure_server.port)
        if isinstance(self.lease, LeaderElection):
            self.tasks.start("lease", self.lease.run())
        self.tasks.start("lease conflicts", self.lease_conflicts.run())
        self.tasks.start("events", self.recorder.run())
        self.tasks.start("loop lag", self.loop_lag.run())
        self.tasks.start("history", self.view_api.history.run())
        for informer in self.informers.all:
            self.tasks.start(f"informer of {informer.kind.name}", informer.run())
        for resync in self.informers.resyncs:
            self.tasks.start(f"resync of {resync.name}", resync.run())
        self.tasks.start("scheduler", self.scheduler.run())
        self.tasks.start("rebinds", self.rebinds.run())
        if self.scheduler.settings.rebind_policy.mode is not RebindMode.OFF:
            self.tasks.start("automatic rebinds", self.automatic_rebinds.run())
        self.tasks.start("device moves", self.device_moves.run())
        self.tasks.start("finished rebinds", self.finished_rebinds.run())
        self.tasks.start("double hold repair", self.double_hold_repair.run())

    async def stop(self) -> None:
        """
        Shut down in an order that loses nothing: stop deciding, settle writes in flight, release the lease, then stop.

        Further calls do nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        self.api.cut_off = False  # earlier requests that were cut off are no longer in flight
        await self.scheduler.stop()
        self.rebinds.stop()
        await self.tasks.finish(SETTLE, "scheduler", "rebinds")
        await self.tasks.stop("lease")
        if isinstance(self.lease, LeaderElection):
            await self._end_leading(self.lease)
        await self.tasks.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH):
                await self.recorder.flush()
        await self.view_api.live.stop()
        self._claims_catch_up.stop()
        await self.http_server.stop()
        if self.secure_server is not None:
            await self.secure_server.stop()
        await self.api.close()

    def _secure(self, providers: StatusProviders, serving: SecureServing) -> HttpServer:
        """Return the HTTPS server. Raises ``OSError`` for an unusable certificate."""
        guard = DelegatedAuth(lambda call, review: self.api.send(call, Body(review))).middleware()
        protection = Protection(server_context(serving.certificate, serving.key), guard)
        return HttpServer(providers, serving.port, protection=protection, setting=SECURE_PORT_SETTING)

    async def _end_leading(self, lease: LeaderElection) -> None:
        """
        Release the lease, unless a write was cut off.

        The API server may still execute the write. A new leader that acts before could assign the same CPUs.
        """
        if self.api.cut_off or self.scheduler.loop.binding.cut_off:
            lease.stop_acting()
            _log.warning("writes were in flight after %g s: the lease is not released and will expire", SETTLE)
        else:
            await lease.release()

    def _claim_writer(self) -> ApiClaimWriter | None:
        if self.options.settings.dynamic_resources is DynamicResources.OFF:
            return None
        return ApiClaimWriter(self.api, self.lease.remaining)

    def _election(self, lease: LeaseSettings) -> LeaderElection:
        config = self._lease_config(lease)
        return LeaderElection(self.api, config, elected=self._elected, prepare=self._catch_up)

    def _lease_config(self, lease: LeaseSettings) -> LeaseConfig:
        times = (lease.duration, lease.renew, lease.retry)
        config = LeaseConfig(lease.name, lease.namespace, self.identity, *times)
        return replace(config, scheduler_names=self.options.settings.scheduler_names)

    def _rival_found(self, rival: Rival) -> None:
        lease = self.options.settings.lease
        about = ObjectReference("Lease", lease.namespace, lease.name, "", "coordination.k8s.io/v1")
        message = f"{rival}; CPUs may be allocated twice"
        self.recorder.object_event(about, warning=True, reason="SecondScheduler", message=message)

    async def _catch_up(self) -> None:
        """Relist, because the previous leader may have written changes that no watch has delivered yet."""
        self.informers.needs_relist()
        self._claims_catch_up.begin()
        await asyncio.gather(*(informer.refresh() for informer in self.informers.essential))

    def _elected(self) -> None:
        self.scheduler.kick()

    def _status_providers(self) -> StatusProviders:
        sources = MetricSources(
            self.scheduler, self.informers, self.lease, self.recorder, self.loop_lag, self.lease_conflicts
        )
        metrics, node_metrics = CollectorRegistry(), CollectorRegistry()
        metrics.register(SchedulerCollector(sources))
        metrics.register(RebindCollector(self.scheduler.metrics.rebinds, self.rebinds))
        node_metrics.register(NodeCollector(sources))
        return StatusProviders(
            self._unhealthy,
            self._not_ready,
            metrics,
            node_metrics,
            partial(node_dump, self.scheduler),
            self._pod_dump,
            lambda: [*self.informers.warnings(), *self.scheduler.writers.warnings()],
            self.view_api.routes(),
        )

    def _pod_dump(self, namespace: str, name: str) -> Dump | None:
        return pod_dump(self.scheduler, namespace, name, lambda: self.lease.holder)

    def _unhealthy(self) -> Iterator[str]:
        if self.tasks.failure.done():
            yield f"a task has failed: {self.tasks.failure.result()}"
        for informer in self.informers.all:
            if informer.stuck > STUCK:
                yield f"{informer.kind}: no response for {informer.stuck:.0f} s"

    def _not_ready(self) -> Iterator[str]:
        """Yield the reasons why this replica cannot schedule or take over at once. A warm standby is ready."""
        yield from self._unhealthy()
        yield from self.informers.not_synced()
        if self.lease.problem:
            yield f"lease: {self.lease.problem}"
        yield from map(str, self.lease_conflicts.rivals)
