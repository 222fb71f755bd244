"""Conversion of Kopf's raw events to core types: parse, filter, pass on. No decisions are made here.

An object without identity is logged and skipped. Kopf reports every object again after a lost connection, and every
pod that leaves the selection once more. An object with a known ``resourceVersion`` is not parsed again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Protocol, TypeVar

import kopf

from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.rebind.plan import RebindRequest
from koord_numa.core.value_objects import ValueObject
from koord_numa.ports import DELETED
from koord_numa.wire import WireError

SLICE: Final = 50
"""Events that are passed on before other tasks run: some milliseconds."""

_log = logging.getLogger(__name__)


class EventBatches:
    """Queue of events of a resource for ``hand_over``.

    With a pause of 0 seconds every event is passed on immediately.
    """

    def __init__(self, hand_over: Callable[[kopf.RawEvent], None], pause: float) -> None:
        self._hand_over = hand_over
        self._pause = pause
        self._waiting: deque[kopf.RawEvent] = deque()
        self._next = 0.0  # loop time before which events wait

    def put(self, event: kopf.RawEvent) -> None:
        """Pass on an event, immediately or together with the events that arrive until the end of the pause."""
        if not self._pause:
            self._hand_over(event)
            return
        loop = asyncio.get_running_loop()
        if self._waiting:
            self._waiting.append(event)
        elif loop.time() < self._next:
            self._waiting.append(event)
            loop.call_at(self._next, self._flush)
        else:
            self._next = loop.time() + self._pause
            self._hand_over(event)

    def _flush(self) -> None:
        for _ in range(min(SLICE, len(self._waiting))):
            try:
                self._hand_over(self._waiting.popleft())
            except Exception:  # noqa: BLE001 - contained, as Kopf contains errors of handlers
                _log.exception("an event cannot be processed")
        loop = asyncio.get_running_loop()
        if self._waiting:
            loop.call_soon(self._flush)
        else:
            self._next = loop.time() + self._pause


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ObjectStore(Protocol[T]):
    """The destination of parsed objects, implemented by ``cluster.lister.ResyncStore``."""

    def get(self, key: Hashable) -> T | None:
        """Return the last reported object, or ``None``."""
        ...

    def observe(self, event: str | None, obj: T) -> None:
        """Report an object."""
        ...

    def discard(self, key: Hashable) -> None:
        """Report a deletion that the handler already knows."""
        ...

    def __len__(self) -> int:
        """Return the number of objects."""
        ...


class Stores(ValueObject):
    """The resources that Kopf watches: pods by uid, topologies by node name, RebindResources by uid."""

    waiting_pods: ObjectStore[Pod]
    topologies: ObjectStore[NodeResourceTopology]
    rebinds: ObjectStore[RebindRequest]


class ObjectParser(Protocol[T_co]):
    """Converts a raw object to a core type."""

    def __call__(self, raw: Mapping[str, Any]) -> T_co | None:
        """Return the parsed object, or ``None`` if it is not selected or malformed.

        Raises ``WireError`` for an object without identity.
        """
        ...

    def gone(self, raw: Mapping[str, Any]) -> bool:
        """Process a deletion. Returns whether the last state was unreadable."""
        ...


class Parsers(Protocol):
    """A parser per resource. The parsers raise only ``WireError``."""

    @property
    def waiting_pod(self) -> ObjectParser[Pod]:
        """Parser of pods with the configured scheduler names."""
        ...

    @property
    def topology(self) -> ObjectParser[NodeResourceTopology]:
        """Parser of NodeResourceTopologies."""
        ...

    @property
    def rebind(self) -> ObjectParser[RebindRequest]:
        """Parser of RebindResources."""
        ...


class Dispatcher:
    """The receiver of all events, available to handlers as ``memo.dispatcher``. A single instance per process.

    ``is_pending`` reports whether the pod with a uid still waits for a node, or for the response to its bind.
    """

    def __init__(
        self,
        stores: Stores,
        parsers: Parsers,
        scheduler_names: tuple[str, ...],
        is_pending: Callable[[str], bool] = lambda _: True,
        pause: float = 0.0,
    ) -> None:
        self.stores = stores
        self.parsers = parsers
        self.scheduler_names = scheduler_names
        self._is_pending = is_pending
        self._pods = EventBatches(self._waiting_pod, pause)
        # uids of reported topologies in the store, by name
        self._topology_uids: dict[str, str] = {}

    def waiting_pod(self, event: kopf.RawEvent) -> None:
        """Process a pod without a node. Pods in quick succession are passed on in batches."""
        self._pods.put(event)

    def _waiting_pod(self, event: kopf.RawEvent) -> None:
        """Process a pod without a node.

        The server's field selector reports every pod that gets a node as deleted. For a pod that this process has
        bound, only the store is updated.
        """
        # An own bind: the pod is already accounted for, so it is not parsed again.
        if event["type"] == DELETED and not self._is_pending(uid := meta(event["object"], "uid")):
            self.stores.waiting_pods.discard(uid)
            self.parsers.waiting_pod.gone(event["object"])
            return
        _hand_over("pod", event, (self.stores.waiting_pods, "uid"), self.parsers.waiting_pod)

    def topology(self, event: kopf.RawEvent) -> None:
        """Process a NodeResourceTopology.

        Kopf has a task per uid, so events of a deleted object may follow events of a later object of the same name.
        """
        raw = event["object"]
        name, uid = meta(raw, "name"), meta(raw, "uid")
        known = self.stores.topologies.get(name)
        another = self._topology_uids.get(name) != uid
        if another and known is not None and is_older(meta(raw, "resourceVersion"), known.resource_version):
            if event["type"] == DELETED:
                self.parsers.topology.gone(raw)
            return
        if event["type"] == DELETED:
            self._topology_uids.pop(name, None)
        else:
            self._topology_uids[name] = uid
        _hand_over("NodeResourceTopology", event, (self.stores.topologies, "name"), self.parsers.topology)

    def rebind(self, event: kopf.RawEvent) -> None:
        """Process a RebindResource."""
        _hand_over("RebindResource", event, (self.stores.rebinds, "uid"), self.parsers.rebind)


def _hand_over(kind: str, event: kopf.RawEvent, place: tuple[ObjectStore[T], str], parse: ObjectParser[T]) -> None:
    """Parse and report an object. A known deleted object is not parsed, because its last state suffices."""
    (store, key), raw = place, event["object"]
    try:
        if event["type"] == DELETED:
            # The last state suffices without parsing.
            found = store.get(meta(raw, key)) or parse(raw)
            # After parsing, which may have found it malformed: a deleted object must not block a node.
            parse.gone(raw)
        else:
            found = parse(raw)
    except WireError as error:
        _log.warning("a %s is ignored: %s", kind, error)
        return
    if found is not None:
        store.observe(event["type"], found)


class _Versioned(Protocol):
    @property
    def resource_version(self) -> str: ...


V = TypeVar("V", bound=_Versioned)


def known_version(store: ObjectStore[V], key: str, raw: Mapping[str, Any]) -> V | None:
    """Return the object that was parsed from this version, or ``None``."""
    known = store.get(key)
    version = meta(raw, "resourceVersion")
    # An empty version equals no other version.
    return known if known is not None and version and known.resource_version == version else None


def is_older(version: str, than: str) -> bool:
    """Report whether a resourceVersion precedes another of the same resource.

    They are compared as decimal numbers, which Kubernetes 1.35 guarantees. Other values are never older.
    """
    # Without leading zeros the longer text is the larger number. Texts may have any length.
    return version.isdecimal() and than.isdecimal() and (len(version), version) < (len(than), than)


def meta(raw: Mapping[str, Any], key: str) -> str:
    """Return a metadata field as text, or "" when it is absent."""
    metadata = raw.get("metadata")
    return str(metadata.get(key, "")) if isinstance(metadata, Mapping) else ""
