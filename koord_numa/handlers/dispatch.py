"""
From Kopf's raw events to core types: parse, leave out what is not ours, hand over. Nothing is decided here.

An object that cannot be identified is logged and left out. An object whose ``resourceVersion`` is known already is not parsed again: Kopf
reports everything anew after each lost connection, and every pod that leaves the selection once more.
"""

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import kopf

from koord_numa.core.node import NodeResourceTopology
from koord_numa.core.rebind_request import RebindRequest
from koord_numa.core.request import Pod
from koord_numa.ports import DELETED
from koord_numa.wire.errors import WireError
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.rebinds import parse_rebind
from koord_numa.wire.topologies import parse_topology

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ObjectStore(Protocol[T]):
    """Where parsed objects go; ``cluster.resync_store`` has the one that is used."""

    def get(self, key: Hashable) -> T | None:
        """An object as last reported."""
        ...

    def observe(self, event: str | None, obj: T) -> None:
        """Report an object."""
        ...

    def discard(self, key: Hashable) -> None:
        """Report a deletion that is known already."""
        ...


@dataclass(frozen=True, slots=True)
class Stores:
    """The three kinds that Kopf watches: pods by uid, topologies by node name, RebindResources by uid."""

    waiting_pods: ObjectStore[Pod]
    topologies: ObjectStore[NodeResourceTopology]
    rebinds: ObjectStore[RebindRequest]


class Dispatcher:
    """
    One per process, in every handler's reach as ``memo.dispatcher``.

    ``is_pending`` says of a uid whether that pod still waits for a node here, or for the answer to its bind.
    """

    def __init__(
        self, stores: Stores, scheduler_names: tuple[str, ...], is_pending: Callable[[str], bool] = lambda _: True
    ) -> None:
        self.stores = stores
        self.scheduler_names = scheduler_names
        self._is_pending = is_pending

    def parse_ours(self, raw: Mapping[str, Any]) -> Pod | None:
        """The pod, if it asks for one of our scheduler names. Raises ``WireError``."""
        if (raw.get("spec") or {}).get("schedulerName") not in self.scheduler_names:
            return None
        return _known(self.stores.waiting_pods, _meta(raw, "uid"), raw) or parse_pod(raw)

    def parse_topology(self, raw: Mapping[str, Any]) -> NodeResourceTopology:
        """The NodeResourceTopology. Raises ``WireError``."""
        return _known(self.stores.topologies, _meta(raw, "name"), raw) or parse_topology(raw)

    def is_relevant(self, event: kopf.RawEvent) -> bool:
        """
        Must a handler see this event of a pod?

        The server's field selector reports every pod that gets a node as deleted. Of one that this process has bound, only the store
        has to know; asking is cheaper than a handler's cycle in Kopf.
        """
        if event["type"] != DELETED:
            return True
        uid = _meta(event["object"], "uid")
        if self._is_pending(uid):
            return True
        self.stores.waiting_pods.discard(uid)
        return False

    def waiting_pod(self, event: kopf.RawEvent) -> None:
        """A pod without a node."""
        raw = event["object"]
        try:
            known = self.stores.waiting_pods.get(_meta(raw, "uid")) if event["type"] == DELETED else None
            pod = known or self.parse_ours(raw)
        except WireError as error:
            _log.warning("a pod is ignored: %s", error)
            return
        if pod is not None:
            self.stores.waiting_pods.observe(event["type"], pod)

    def topology(self, event: kopf.RawEvent) -> None:
        """A NodeResourceTopology."""
        try:
            self.stores.topologies.observe(event["type"], self.parse_topology(event["object"]))
        except WireError as error:
            _log.warning("a NodeResourceTopology is ignored: %s", error)

    def rebind(self, event: kopf.RawEvent) -> None:
        """A RebindResource."""
        try:
            self.stores.rebinds.observe(event["type"], parse_rebind(event["object"]))
        except WireError as error:
            _log.warning("a RebindResource is ignored: %s", error)


class _Versioned(Protocol):
    @property
    def resource_version(self) -> str: ...


V = TypeVar("V", bound=_Versioned)


def _known(store: ObjectStore[V], key: str, raw: Mapping[str, Any]) -> V | None:
    """The object that was parsed from this very version, if there is one."""
    known = store.get(key)
    version = _meta(raw, "resourceVersion")
    return known if known is not None and version and known.resource_version == version else None


def _meta(raw: Mapping[str, Any], key: str) -> str:
    metadata = raw.get("metadata")
    return str(metadata.get(key, "")) if isinstance(metadata, Mapping) else ""
