"""
The engine as others see it: facts come in through ``observe_*`` and ``replace_*``, ``run`` decides and binds, views tell why.

Facts are level-based: they may come in any order, merged or repeated. Nothing is decided before every source is synced.
"""

import asyncio
from collections.abc import Iterable
from enum import StrEnum

from koord_numa.core.node import Node, Topology
from koord_numa.core.request import Pod
from koord_numa.engine.outside import Outside
from koord_numa.settings import Settings

DELETED = "DELETED"
"""The event type that says an object is gone; every other type, ``None`` among them, says that it exists as shown."""


class Source(StrEnum):
    """Where facts come from; each must have told everything once before the first decision."""

    WAITING = "waiting"
    BOUND = "bound"
    NODES = "nodes"
    TOPOLOGIES = "topologies"


class Engine:
    """One scheduler: its knowledge of the cluster, its queue and its loop."""

    def __init__(self, settings: Settings, outside: Outside) -> None:
        self.settings = settings
        self.outside = outside
        self._missing = set(Source)
        self._ready = asyncio.Event()

    # Facts in: cheap, synchronous, idempotent.

    def observe_waiting(self, event: str | None, pod: Pod) -> None:
        """
        A pod that has no node yet. ``DELETED`` only says that it waits no longer: the server's field selector reports a bound pod
        that way too, so what a pod holds is settled by ``observe_bound`` and by the answer to the bind.
        """

    def observe_bound(self, event: str | None, pod: Pod) -> None:
        """A pod that has a node, whoever put it there: it is counted the moment it is seen, and no longer once it is gone."""

    def observe_node(self, event: str | None, node: Node) -> None:
        """A Node object."""

    def observe_topology(self, event: str | None, topology: Topology) -> None:
        """A NodeResourceTopology; it may come before its node, after it, or never."""

    # A list is the whole truth about its kind: what it does not show is gone.

    def replace_waiting(self, pods: Iterable[Pod]) -> None:
        """All pods without a node."""

    def replace_bound(self, pods: Iterable[Pod]) -> None:
        """All pods with a node."""

    def replace_nodes(self, nodes: Iterable[Node]) -> None:
        """All nodes."""

    def replace_topologies(self, topologies: Iterable[Topology]) -> None:
        """All NodeResourceTopologies; none at all when their CRD is not installed."""

    def synced(self, source: Source) -> None:
        """This source has told everything that exists."""
        self._missing.discard(source)
        if not self._missing:
            self._ready.set()

    @property
    def ready(self) -> bool:
        """Is everything known that a decision needs?"""
        return self._ready.is_set()

    def lock_node(self, node: str, why: str) -> None:
        """Place nothing on this node until it is unlocked: a rebind works on it."""

    def unlock_node(self, node: str) -> None:
        """The rebind is over; pods that waited for the node are tried again."""

    async def run(self) -> None:
        """Decide and bind until ``stop``: returns when every bind in flight has been settled."""

    async def stop(self) -> None:
        """Decide nothing more, and wait until binds in flight are settled."""
