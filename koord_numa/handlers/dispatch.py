"""
From Kopf's raw events to core types: parse, leave out what is not ours, hand over. Nothing is decided here.

An object that cannot be identified is logged and left out. An object whose ``resourceVersion`` is known already is not parsed again: Kopf
reports every object again after each lost connection, and every pod that leaves the selection once more.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import kopf

from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.rebind_request import RebindRequest
from koord_numa.core.objects.request import Pod
from koord_numa.ports import DELETED
from koord_numa.wire.errors import WireError

SLICE: Final = 50
"""So many events are handed over before others have their turn: some milliseconds."""

_log = logging.getLogger(__name__)


class EventBatches:
    """Events of one kind on their way to ``hand_over``. A pause of 0 seconds hands over each as it comes."""

    def __init__(self, hand_over: Callable[[kopf.RawEvent], None], pause: float) -> None:
        self._hand_over = hand_over
        self._pause = pause
        self._waiting: deque[kopf.RawEvent] = deque()
        self._next = 0.0  # a time of the loop: before it events wait

    def put(self, event: kopf.RawEvent) -> None:
        """Hand over an event, now or with those that come until the pause is over."""
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
                _log.exception("an event cannot be handed over")
        loop = asyncio.get_running_loop()
        if self._waiting:
            loop.call_soon(self._flush)
        else:
            self._next = loop.time() + self._pause


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ObjectStore(Protocol[T]):
    """Where parsed objects go; ``cluster.watch.resync_store`` has the one that is used."""

    def get(self, key: Hashable) -> T | None:
        """An object as last reported."""
        ...

    def observe(self, event: str | None, obj: T) -> None:
        """Report an object."""
        ...

    def discard(self, key: Hashable) -> None:
        """Report a deletion that is known already."""
        ...

    def __len__(self) -> int:
        """How many there are."""
        ...


@dataclass(frozen=True, slots=True)
class Stores:
    """The three kinds that Kopf watches: pods by uid, topologies by node name, RebindResources by uid."""

    waiting_pods: ObjectStore[Pod]
    topologies: ObjectStore[NodeResourceTopology]
    rebinds: ObjectStore[RebindRequest]


class Parser(Protocol[T_co]):
    """Turns a raw object into a core type: ``None`` for one that is not wanted or broken, ``WireError`` for one without identity."""

    def __call__(self, raw: Mapping[str, Any]) -> T_co | None:
        """Parse."""
        ...

    def gone(self, raw: Mapping[str, Any]) -> bool:
        """The object was deleted. Returns whether its last state could not be read."""
        ...


class Parsers(Protocol):
    """One parser a kind; none of them raises anything but ``WireError``."""

    @property
    def waiting_pod(self) -> Parser[Pod]:
        """Pods of our scheduler names."""
        ...

    @property
    def topology(self) -> Parser[NodeResourceTopology]:
        """NodeResourceTopologies."""
        ...

    @property
    def rebind(self) -> Parser[RebindRequest]:
        """RebindResources."""
        ...


class Dispatcher:
    """
    One per process, in every handler's reach as ``memo.dispatcher``.

    ``is_pending`` says of a uid whether that pod still waits for a node here, or for the answer to its bind.
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
        # By name, of the topologies in the store as far as Kopf has reported them.
        self._topology_uids: dict[str, str] = {}

    def waiting_pod(self, event: kopf.RawEvent) -> None:
        """A pod without a node; of several that come together the later ones are handed over in batches."""
        self._pods.put(event)

    def _waiting_pod(self, event: kopf.RawEvent) -> None:
        """
        A pod without a node.

        The server's field selector reports every pod that gets a node as deleted. Of one that this process has bound, only the store
        has to know.
        """
        # A bind of our own: the pod is counted already, and parsing it again would only cost time.
        if event["type"] == DELETED and not self._is_pending(uid := meta(event["object"], "uid")):
            self.stores.waiting_pods.discard(uid)
            self.parsers.waiting_pod.gone(event["object"])
            return
        _hand_over("pod", event, (self.stores.waiting_pods, "uid"), self.parsers.waiting_pod)

    def topology(self, event: kopf.RawEvent) -> None:
        """
        A NodeResourceTopology.

        Kopf has a task for each uid, so that events of one that was deleted may come after those of the next one of its name.
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
        """A RebindResource."""
        _hand_over("RebindResource", event, (self.stores.rebinds, "uid"), self.parsers.rebind)


def _hand_over(kind: str, event: kopf.RawEvent, place: tuple[ObjectStore[T], str], parse: Parser[T]) -> None:
    """Parse and report one object. A deleted one that is known is not parsed: what it was last is enough."""
    (store, key), raw = place, event["object"]
    try:
        if event["type"] == DELETED:
            # What it was last is enough, and needs no parsing.
            found = store.get(meta(raw, key)) or parse(raw)
            # After parsing, which may have found it broken: what is deleted closes no node.
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
    """The object that was parsed from this very version, if there is one."""
    known = store.get(key)
    version = meta(raw, "resourceVersion")
    # An empty version compares with nothing.
    return known if known is not None and version and known.resource_version == version else None


def is_older(version: str, than: str) -> bool:
    """
    Was this resourceVersion before the other one? Both of one kind, compared as the decimal numbers that Kubernetes 1.35 promises.

    What is no such number is older than nothing.
    """
    # Of numbers without leading zeros the longer text is the larger one; as texts they may have any length.
    return version.isdecimal() and than.isdecimal() and (len(version), version) < (len(than), than)


def meta(raw: Mapping[str, Any], key: str) -> str:
    """One text of an object's metadata, empty when it is absent."""
    metadata = raw.get("metadata")
    return str(metadata.get(key, "")) if isinstance(metadata, Mapping) else ""
