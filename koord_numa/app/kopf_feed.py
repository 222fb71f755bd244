"""Parsers and stores between Kopf or informers and the event handlers. A broken object affects only itself."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from aiohttp.client_middlewares import ClientMiddlewareType

from koord_numa.cluster.informer import in_batches
from koord_numa.cluster.lister import ResyncStore
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.rebind.plan import RebindRequest
from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.containment import Subject
from koord_numa.engine.event_handlers import ContainedHandler
from koord_numa.engine.rebind import RebindController
from koord_numa.engine.scheduler import Scheduler
from koord_numa.handlers.dispatch import known_version, meta
from koord_numa.wire import WireError, parse_pod, parse_rebind, parse_topology, shortened
from koord_numa.wire.names import TOPOLOGY_PLURAL

T = TypeVar("T")

UNREADABLE: str = "Unreadable"
"""Event reason for a pod that cannot be parsed."""

MOST_TEXT: int = 300


class ContainedParser(Generic[T]):
    """
    A parser of one kind that contains errors.

    It returns None for a broken object and raises ``WireError`` for an object without identity.

    ``node_of`` returns the name of the node that an object belongs to, or an empty string. ``gone`` must be called for
    deleted objects.
    """

    def __init__(
        self,
        kind: str,
        parse: Callable[[Mapping[str, Any]], T | None],
        scheduler: Scheduler,
        node_of: Callable[[Mapping[str, Any]], str] = lambda _: "",
    ) -> None:
        self._listings: list[set[str]] = []  # uids seen so far by each list in progress
        self.broken: dict[
            str, tuple[str, str]
        ] = {}  # uid -> resourceVersion, the node that is closed because of the object
        self._kind = kind
        self._parse = parse
        self._scheduler = scheduler
        self._node_of = node_of

    def __call__(self, raw: Mapping[str, Any]) -> T | None:
        """Parse one object."""
        # The object exists, whether it can be parsed or not.
        for listed in self._listings:
            listed.add(_text(raw, "uid"))
        try:
            found = self._parse(raw)
        except WireError:
            raise
        except Exception as error:  # noqa: BLE001  (contained: it affects this object only)
            self._contain(raw, error)
            return None
        # The lookup is needed only if any object is broken.
        if self.broken:
            self.gone(raw)
        return found

    def gone(self, raw: Mapping[str, Any]) -> bool:
        """Forget a broken object that is deleted or valid again. Returns whether it was broken."""
        known = self.broken.pop(_text(raw, "uid"), None)
        if known is not None and known[1]:
            self._scheduler.cache.set_broken(known[1], self._mark(raw), "")
        return known is not None

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Forget broken objects that a complete list does not contain."""
        # A copy: objects that become broken during the list still exist.
        before, listed = set(self.broken), set[str]()
        # Usually no object is broken, and nothing has to be checked.
        if before:
            self._listings.append(listed)
        try:
            yield  # an exception means that the list is incomplete, so no object is known to be deleted
        finally:
            self._listings = [each for each in self._listings if each is not listed]
        for uid in before - listed:
            self.gone({"metadata": {"uid": uid}})

    def _contain(self, raw: Mapping[str, Any], error: Exception) -> None:
        uid, version, name = _text(raw, "uid"), _text(raw, "resourceVersion"), _text(raw, "name")
        # The same version of the same object has already been reported.
        if self.broken.get(uid, ("",))[0] == version and uid in self.broken:
            return
        # A new version may belong to another node.
        self.gone(raw)
        node = self._node_of(raw)
        self.broken[uid] = (version, node)
        called = "/".join(part for part in (_text(raw, "namespace"), name) if part)
        self._scheduler.handle.quarantine.put(Subject(self._kind, called, node or uid, version), error)
        why = shortened(f"{self._kind} {name} cannot be read: {type(error).__name__}: {error}", MOST_TEXT)
        if node:
            self._scheduler.cache.set_broken(node, self._mark(raw), why)
        if self._kind == "pod":  # by every replica, because most pods are parsed before a leader is elected
            key = PodKey(_text(raw, "namespace"), name, uid)
            self._scheduler.dependencies.recorder.event(key, warning=True, reason=UNREADABLE, message=why)

    def _mark(self, raw: Mapping[str, Any]) -> str:
        return f"unreadable {self._kind} {_text(raw, 'uid')}"


def _text(raw: Mapping[str, Any], key: str) -> str:
    metadata = raw.get("metadata")
    # Cut to the maximum length of a name, because the object may contain anything.
    return str(metadata.get(key) or "")[:253] if isinstance(metadata, Mapping) else ""


def own_name(raw: Mapping[str, Any]) -> str:
    """Return the node of a Node or NodeResourceTopology, which has the name of the object."""
    return _text(raw, "name")


def bound_to(raw: Mapping[str, Any]) -> str:
    """Return the node of a pod, or an empty string."""
    spec = raw.get("spec")
    return str(spec.get("nodeName") or "")[:253] if isinstance(spec, Mapping) else ""


TOPOLOGY_PAUSE: Final = 0.4
"""
Seconds in which updates of topologies are batched.

Exporters publish every 10 to 60 s with some delay, so a short wait is harmless. An update in a batch costs half as much
as a single update.
"""

POD_PAUSE: Final = 0.02
"""
Seconds in which updates of pods are batched, waiting or not.

A single update is handled immediately. In a burst each update takes half of the time when updates are parsed, decided
and sent in batches.
"""


def topologies_in_batches(scheduler: Scheduler) -> ClientMiddlewareType:
    """
    Return the middleware for Kopf's session that reads watches of topologies in batches.

    Pods are passed on as they arrive, and binds do not wait for a batch.
    """
    return in_batches(TOPOLOGY_PLURAL, TOPOLOGY_PAUSE, lambda: bool(scheduler.cache.assumed))


class KopfStores(ValueObject):
    """The stores of objects from Kopf, by kind. Each store feeds its event handler."""

    waiting_pods: ResyncStore[Pod]
    topologies: ResyncStore[NodeResourceTopology]
    rebinds: ResyncStore[RebindRequest]


class KopfParsers(ValueObject):
    """Implementation of ``handlers.dispatch.Parsers``, shared by Kopf's events and resyncs."""

    waiting_pod: ContainedParser[Pod]
    topology: ContainedParser[NodeResourceTopology]
    rebind: ContainedParser[RebindRequest]


def kopf_parsers(scheduler: Scheduler, stores: KopfStores) -> KopfParsers:
    """Return parsers that skip pods of other schedulers and reuse parsed objects of the same version."""
    names = scheduler.settings.scheduler_names

    def waiting_pod(raw: Mapping[str, Any]) -> Pod | None:
        # Checked before parsing: with several scheduler names the server selects pods of all schedulers.
        if (raw.get("spec") or {}).get("schedulerName") not in names:
            return None
        # Kopf repeats objects after each lost connection. An unchanged version is not parsed again.
        return known_version(stores.waiting_pods, meta(raw, "uid"), raw) or parse_pod(raw)

    def topology(raw: Mapping[str, Any]) -> NodeResourceTopology:
        return known_version(stores.topologies, meta(raw, "name"), raw) or parse_topology(raw)

    return KopfParsers(
        ContainedParser("pod", waiting_pod, scheduler),
        ContainedParser("topology", topology, scheduler, own_name),
        ContainedParser("rebind", parse_rebind, scheduler),
    )


def kopf_stores(scheduler: Scheduler, rebinds: RebindController) -> KopfStores:
    """Return the stores of the scheduler and of the rebind controller."""
    return KopfStores(
        ResyncStore(scheduler.handlers.pending_pods, lambda pod: pod.key.uid),
        ResyncStore(scheduler.handlers.topologies, lambda topology: topology.node),
        ResyncStore(ContainedHandler("rebind", rebinds, scheduler.handle.quarantine), lambda rebind: rebind.uid),
    )
