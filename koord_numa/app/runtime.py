"""
Everything that runs beside Kopf: the connection, mirrors, election, events, health and the engine, put together once.

It starts and stops them in the right order and notices when one of them dies. It decides nothing.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Final
from uuid import uuid4

from prometheus_client import CollectorRegistry

from koord_numa import __version__
from koord_numa.app.debug import node_dump, pod_dump
from koord_numa.app.informers import informers_of
from koord_numa.app.metrics import NodeNumbers, SchedulerNumbers, Subjects
from koord_numa.app.pod_source import PodSource
from koord_numa.app.tasks import TaskSupervisor
from koord_numa.cluster.binder import ApiBinder
from koord_numa.cluster.client import Api
from koord_numa.cluster.events import EventLimits, EventRecorder
from koord_numa.cluster.http_server import HttpServer, StatusProviders
from koord_numa.cluster.leader_election import LeaderElection, LeaseConfig, NoElection
from koord_numa.cluster.loop_lag import LoopLag
from koord_numa.cluster.rebind_writer import ApiRebindWriter
from koord_numa.cluster.schedulable_nodes import SchedulableNodes
from koord_numa.engine.rebind.context import RebindPorts
from koord_numa.engine.rebind.controller import RebindController
from koord_numa.engine.scheduler import Scheduler
from koord_numa.handlers.dispatch import Dispatcher
from koord_numa.ports import Dependencies
from koord_numa.settings import LeaseSettings, Settings
from koord_numa.wire.resource_status import resource_status

AGENT: Final = f"koord-numa/{__version__} (scheduler)"
"""The user agent of the scheduler's requests, as opposed to those of the command line."""

DEFAULT_PORT: Final = 10251
"""Where kube-scheduler used to serve the same paths without TLS."""

SETTLING: Final = 5.0
"""Seconds that binds in flight get at the end, with the lease still ours."""

LAST_WORDS: Final = 3.0
"""Seconds in which events that still wait are posted at the end."""

STUCK: Final = 300.0
"""
Seconds without any sign of life from a mirror before the process counts as unhealthy. A live watch brings a bookmark every minute,
and a dead one is noticed after 70 s, so this is no trouble of the API server: only a restart helps.
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How one process is run, as opposed to what it decides. Port 0 takes any free port, ``None`` serves nothing."""

    settings: Settings = field(default_factory=Settings)
    kubeconfig: Path | None = None
    identity: str = ""
    elect: bool = True
    port: int | None = DEFAULT_PORT
    pods: PodSource = PodSource.OURS


class Runtime:
    """One scheduler process, less Kopf. ``start`` once, ``stop`` once."""

    def __init__(self, options: Options, api: Api) -> None:
        settings = options.settings
        self.options = options
        self.api = api
        self.crew = TaskSupervisor()
        self.identity = options.identity or f"{gethostname()}_{uuid4()}"
        self.lease = self._election(settings.lease) if options.elect else NoElection()
        self.recorder = EventRecorder(api, self.identity, EventLimits(settings.events))
        self.roster = SchedulableNodes()
        self.engine = Scheduler(
            settings,
            Dependencies(ApiBinder(api, self.roster.takes_pods), self.recorder, self.lease, resource_status),
        )
        self.rebinds = RebindController(self.engine, RebindPorts(ApiRebindWriter(api), self.recorder))
        self.reception = Dispatcher(self.engine, self.rebinds)
        self.sources = informers_of(api, self.engine, self.roster, self.reception, options.pods)
        self.lag = LoopLag()
        self.health = HttpServer(self._questions(), options.port or 0)
        self._stopped = False

    @classmethod
    async def connect(cls, options: Options) -> "Runtime":
        """Put everything together; nothing is sent yet. Raises ``NoCredentials``."""
        return cls(options, await Api.connect(options.kubeconfig, AGENT))

    async def start(self) -> None:
        """Begin to watch, to compete for the lease, and to schedule as soon as everything is known."""
        if self.options.port is not None:
            await self.health.start()
            _log.info("serving /healthz, /readyz and /metrics on port %d", self.health.port)
        if isinstance(self.lease, LeaderElection):
            self.crew.start("lease", self.lease.run())
        self.crew.start("events", self.recorder.run())
        self.crew.start("loop lag", self.lag.run())
        for mirror in self.sources.mirrors:
            self.crew.start(f"mirror of {mirror.kind.name}", mirror.run())
        for census in self.sources.censuses:
            self.crew.start(f"census of {census.what}", census.run())
        self.crew.start("engine", self.engine.run())
        self.crew.start("rebinds", self.rebinds.run())

    async def stop(self) -> None:
        """
        End in the order that loses nothing: decide no more and settle what is in flight, then let a standby lead, then go.

        May be called again, and does nothing then.
        """
        if self._stopped:
            return
        self._stopped = True
        await self.engine.stop()
        self.rebinds.stop()
        await self.crew.finish("engine", SETTLING)
        await self.crew.finish("rebinds", SETTLING)
        await self.crew.stop("lease")
        if isinstance(self.lease, LeaderElection):
            await self.lease.release()
        await self.crew.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await self.recorder.flush()
        await self.health.stop()
        await self.api.close()

    def _election(self, lease: LeaseSettings) -> LeaderElection:
        term = LeaseConfig(lease.name, lease.namespace, self.identity, lease.duration, lease.renew, lease.retry)
        return LeaderElection(self.api, term, elected=self._elected, prepare=self._catch_up)

    async def _catch_up(self) -> None:
        """See everything that the leader before us has written, not only what our watches have shown so far."""
        self.reception.doubt()
        await asyncio.gather(*(mirror.refresh() for mirror in self.sources.essential))

    def _elected(self) -> None:
        self.engine.kick()

    def _questions(self) -> StatusProviders:
        ages = self.reception.topology_ages
        subjects = Subjects(self.engine, self.sources, self.lease, self.recorder, self.lag, ages)
        page, nodes = CollectorRegistry(), CollectorRegistry()
        page.register(SchedulerNumbers(subjects))
        nodes.register(NodeNumbers(subjects))
        return StatusProviders(
            self._unhealthy,
            self._not_ready,
            page,
            nodes,
            partial(node_dump, self.engine),
            partial(pod_dump, self.engine),
        )

    def _unhealthy(self) -> Iterator[str]:
        if self.crew.failure.done():
            yield f"a task has died: {self.crew.failure.result()}"
        for mirror in self.sources.mirrors:
            if mirror.stuck > STUCK:
                yield f"{mirror.kind}: neither an answer nor a failure for {mirror.stuck:.0f} s"

    def _not_ready(self) -> Iterator[str]:
        """What keeps this replica from scheduling, or from taking over at once. A warm standby is ready."""
        yield from self._unhealthy()
        yield from self.sources.incomplete()
        if self.lease.problem:
            yield f"lease: {self.lease.problem}"
