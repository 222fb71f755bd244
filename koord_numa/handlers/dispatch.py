"""
Where handlers hand over: raw events become core types here and go to the engine; nothing is decided.

Malformed objects that cannot even be identified are said in the log and left out; an error raised here would only be swallowed.
"""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import kopf

from koord_numa.core.node import NodeResourceTopology
from koord_numa.core.rebind_request import RebindRequest
from koord_numa.core.request import Pod
from koord_numa.engine.scheduler import Scheduler
from koord_numa.handlers.freshness import Freshness
from koord_numa.handlers.resync_store import DELETED, ResyncStore
from koord_numa.wire.errors import WireError
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.rebinds import parse_rebind
from koord_numa.wire.topologies import parse_topology

_log = logging.getLogger(__name__)


class RebindHandler(Protocol):
    """Who works on RebindResources."""

    def observe_rebind(self, event: str | None, request: RebindRequest) -> None:
        """A RebindResource as it is now; ``DELETED`` when it is gone."""
        ...


class Dispatcher:
    """One per operator, reachable from every handler as ``memo.reception``."""

    def __init__(self, engine: Scheduler, rebinds: RebindHandler) -> None:
        self._ours = frozenset(engine.settings.scheduler_names)
        self._waits = engine.waits
        self.waiting: ResyncStore[Pod] = ResyncStore(engine.observe_waiting, lambda pod: pod.key.uid)
        self._freshness = Freshness(engine.observe_topology)
        self.topologies: ResyncStore[NodeResourceTopology] = ResyncStore(
            self._freshness.observe, lambda topology: topology.node
        )
        self.rebinds: ResyncStore[RebindRequest] = ResyncStore(rebinds.observe_rebind, lambda rebind: rebind.uid)

    def is_ours(self, raw: Mapping[str, Any]) -> bool:
        """Does this pod ask for one of our scheduler names?"""
        return (raw.get("spec") or {}).get("schedulerName") in self._ours

    def parse_ours(self, raw: Mapping[str, Any]) -> Pod | None:
        """The pod, if it is for us. Raises ``WireError``."""
        return parse_pod(raw) if self.is_ours(raw) else None

    def listed_pod(self, raw: Mapping[str, Any]) -> Pod | None:
        """A pod in a list. One that is on the roll is not read again: a list only says who exists. Raises ``WireError``."""
        return self.waiting.known(_meta(raw, "uid")) or self.parse_ours(raw)

    def listed_topology(self, raw: Mapping[str, Any]) -> NodeResourceTopology:
        """A NodeResourceTopology in a list, likewise. Raises ``WireError``."""
        return self.topologies.known(_meta(raw, "name")) or parse_topology(raw)

    def is_news(self, event: kopf.RawEvent) -> bool:
        """Is there anything to do? A pod that nobody waits for any more, as when we have bound it, is only crossed off the roll."""
        if event["type"] != DELETED or self._waits(uid := _meta(event["object"], "uid")):
            return True
        self.waiting.cross_off(uid)
        return False

    def pod(self, event: kopf.RawEvent) -> None:
        """A pod without a node."""
        raw = event["object"]
        try:
            # Every pod that gets a node is reported as deleted here: who it was is known already.
            known = self.waiting.known(_meta(raw, "uid")) if event["type"] == DELETED else None
            pod = known or self.parse_ours(raw)
        except WireError as error:
            _log.warning("a pod is ignored: %s", error)
            return
        if pod is not None:
            self.waiting.note(event["type"], pod)

    def topology(self, event: kopf.RawEvent) -> None:
        """A NodeResourceTopology."""
        try:
            self.topologies.note(event["type"], parse_topology(event["object"]))
        except WireError as error:
            _log.warning("a NodeResourceTopology is ignored: %s", error)

    def rebind(self, event: kopf.RawEvent) -> None:
        """A RebindResource."""
        try:
            self.rebinds.note(event["type"], parse_rebind(event["object"]))
        except WireError as error:
            _log.warning("a RebindResource is ignored: %s", error)

    def topology_ages(self) -> dict[str, float]:
        """Seconds since a node's topology was last told anew, by node."""
        return self._freshness.ages()

    def doubt(self) -> None:
        """Kopf was away: what vanished meanwhile is still on the rolls."""
        for roll in (self.waiting, self.topologies, self.rebinds):
            roll.doubtful.set()


def _meta(raw: Mapping[str, Any], key: str) -> str:
    metadata = raw.get("metadata")
    return str(metadata.get(key, "")) if isinstance(metadata, Mapping) else ""
