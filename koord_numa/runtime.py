"""
Everything that runs beside Kopf: the connection, mirrors, election, events, health and the engine, put together once.

It starts and stops them in the right order and notices when one of them dies. It decides nothing.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import Final
from uuid import uuid4

from prometheus_client import CollectorRegistry

from koord_numa import __version__
from koord_numa.cluster.binder import ApiBinder
from koord_numa.cluster.client import Api
from koord_numa.cluster.events import EventRecorder
from koord_numa.cluster.health import HealthServer, Questions
from koord_numa.cluster.lease import Alone, LeaseElection, Term
from koord_numa.cluster.listing import Kind, list_first_served
from koord_numa.cluster.loop_lag import LoopLag
from koord_numa.cluster.mirror import Mirror, Sink
from koord_numa.cluster.rebind_writer import ApiRebindWriter
from koord_numa.cluster.resources import BUDGETS, NODES, PODS, REBINDS, TOPOLOGIES
from koord_numa.cluster.roster import Roster
from koord_numa.core.budgets import DisruptionBudget
from koord_numa.core.node import Node, Topology
from koord_numa.core.rebind_request import RebindRequest
from koord_numa.core.request import Pod
from koord_numa.crew import Crew
from koord_numa.engine.engine import Engine, Source
from koord_numa.engine.outside import Outside
from koord_numa.engine.rebind.desk import RebindDesk
from koord_numa.engine.rebind.errand import RebindPorts
from koord_numa.handlers.census import Census
from koord_numa.handlers.kopf_settings import waiting_pods
from koord_numa.handlers.reception import Reception
from koord_numa.settings import LeaseSettings, Settings
from koord_numa.wire.budgets import parse_budget
from koord_numa.wire.nodes import parse_node
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.rebinds import parse_rebind
from koord_numa.wire.status import resource_status
from koord_numa.wire.topologies import parse_topology

BOUND_PODS: Final = "spec.nodeName!=,status.phase!=Succeeded"
"""Failed pods are wanted too: among them are those that a kubelet refused."""

AGENT: Final = f"koord-numa/{__version__} (scheduler)"
"""The user agent of the scheduler's requests, as opposed to those of the command line."""

DEFAULT_PORT: Final = 10251
"""Where kube-scheduler used to serve the same paths without TLS."""

SETTLING: Final = 5.0
"""Seconds that binds in flight get at the end, with the lease still ours."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How one process is run, as opposed to what it decides. Port 0 takes any free port, ``None`` serves nothing."""

    settings: Settings = field(default_factory=Settings)
    kubeconfig: Path | None = None
    identity: str = ""
    elect: bool = True
    port: int | None = DEFAULT_PORT


class Runtime:
    """One scheduler process, less Kopf. ``start`` once, ``stop`` once."""

    def __init__(self, options: Options, api: Api) -> None:
        settings = options.settings
        self.options = options
        self.api = api
        self.crew = Crew()
        self.identity = options.identity or f"{gethostname()}_{uuid4()}"
        self.lease = self._election(settings.lease) if options.elect else Alone()
        self.recorder = EventRecorder(api, self.identity)
        self.roster = Roster()
        self.engine = Engine(
            settings,
            Outside(ApiBinder(api, self.roster.takes_pods), self.recorder, self.lease, resource_status),
        )
        self.rebinds = RebindDesk(self.engine, RebindPorts(ApiRebindWriter(api), self.recorder))
        self.reception = Reception(self.engine, self.rebinds)
        self.mirrors = self._mirrors()
        self.budgets = self._budgets()
        self.censuses = self._censuses()
        self.lag = LoopLag()
        self.health = HealthServer(Questions(self._unhealthy, self._not_ready, CollectorRegistry()), options.port or 0)
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
        if isinstance(self.lease, LeaseElection):
            self.crew.start("lease", self.lease.run())
        self.crew.start("events", self.recorder.run())
        self.crew.start("loop lag", self.lag.run())
        for mirror in self.mirrors:
            self.crew.start(f"mirror of {mirror.kind.resource}", mirror.run())
        self.crew.start("mirror of disruption budgets", self.budgets.run())
        for census in self.censuses:
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
        if isinstance(self.lease, LeaseElection):
            await self.lease.release()
        await self.crew.stop()
        await self.recorder.flush()
        await self.health.stop()
        await self.api.close()

    def _election(self, lease: LeaseSettings) -> LeaseElection:
        term = Term(lease.name, lease.namespace, self.identity, lease.duration, lease.renew, lease.retry)
        return LeaseElection(self.api, term, elected=self._elected)

    def _elected(self) -> None:
        self.engine.kick()

    def _mirrors(self) -> tuple[Mirror[Pod] | Mirror[Node], ...]:
        engine, roster = self.engine, self.roster

        def replace_nodes(nodes: list[Node]) -> None:
            roster.replace(nodes)
            engine.replace_nodes(nodes)

        def observe_node(event: str, node: Node) -> None:
            roster.observe(event, node)
            engine.observe_node(event, node)

        return (
            Mirror(
                self.api,
                Kind(PODS, parse_pod, BOUND_PODS),
                Sink(engine.replace_bound, engine.observe_bound, lambda: engine.synced(Source.BOUND)),
            ),
            Mirror(
                self.api,
                Kind(NODES, parse_node),
                Sink(replace_nodes, observe_node, lambda: engine.synced(Source.NODES)),
            ),
        )

    def _budgets(self) -> Mirror[DisruptionBudget]:
        """Only preemption waits for these, so a replica without them is ready for everything else."""
        return Mirror(
            self.api, Kind(BUDGETS, parse_budget), Sink(self.engine.replace_budgets, self.engine.observe_budget)
        )

    def _censuses(self) -> tuple[Census[Pod] | Census[Topology] | Census[RebindRequest], ...]:
        waiting = Kind(PODS, self.reception.parse_ours, waiting_pods(self.options.settings.scheduler_names))
        topologies = tuple(Kind(resource, parse_topology, optional=True) for resource in TOPOLOGIES)
        return (
            Census(
                "waiting pods",
                self.reception.waiting,
                lambda: list_first_served(self.api, (waiting,)),
                lambda: self.engine.synced(Source.WAITING),
            ),
            Census(
                "NodeResourceTopologies",
                self.reception.topologies,
                lambda: list_first_served(self.api, topologies),
                lambda: self.engine.synced(Source.TOPOLOGIES),
            ),
            Census(
                "RebindResources",
                self.reception.rebinds,
                lambda: list_first_served(self.api, (Kind(REBINDS, parse_rebind, optional=True),)),
            ),
        )

    def _unhealthy(self) -> Iterator[str]:
        if self.crew.failure.done():
            yield f"a task has died: {self.crew.failure.result()}"

    def _not_ready(self) -> Iterator[str]:
        """What keeps this replica from scheduling, or from taking over at once. A warm standby is ready."""
        yield from self._unhealthy()
        for source in (*self.mirrors, *self.censuses):
            what = source.kind.resource if isinstance(source, Mirror) else source.what
            if not source.synced:
                yield f"not all {what} are known yet{': ' if source.problem else ''}{source.problem}"
            elif source.problem:
                yield f"{what}: {source.problem}"
        if self.lease.problem:
            yield f"lease: {self.lease.problem}"
