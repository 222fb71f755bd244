"""Parse objects on their way to the event handlers. What is broken about one object costs that object only."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from aiohttp.client_middlewares import ClientMiddlewareType

from koord_numa.cluster.watch.informer import in_batches
from koord_numa.cluster.watch.resync import ResyncStore
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.rebind_request import RebindRequest
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.engine.containment import Subject
from koord_numa.engine.event_handlers import ContainedHandler
from koord_numa.engine.rebind.controller import RebindController
from koord_numa.engine.scheduler import Scheduler
from koord_numa.handlers.dispatch import known_version, meta
from koord_numa.wire.errors import WireError
from koord_numa.wire.metadata import shortened
from koord_numa.wire.names import TOPOLOGY_PLURAL
from koord_numa.wire.node.topologies import parse_topology
from koord_numa.wire.pod.pods import parse_pod
from koord_numa.wire.rebinds import parse_rebind

T = TypeVar("T")

UNREADABLE: str = "Unreadable"
"""The reason of the event on a pod that cannot be read."""

MOST_TEXT: int = 300


class ContainedParser(Generic[T]):
    """
    One kind. Calling it gives the parsed object, ``None`` for one that is broken, and raises ``WireError`` for one without identity.

    ``node_of`` names the node that an object is about, empty for none; ``gone`` must be called for objects that are deleted.
    """

    def __init__(
        self,
        kind: str,
        parse: Callable[[Mapping[str, Any]], T | None],
        scheduler: Scheduler,
        node_of: Callable[[Mapping[str, Any]], str] = lambda _: "",
    ) -> None:
        self._listings: list[set[str]] = []  # uids seen so far by each list under way
        self.broken: dict[str, tuple[str, str]] = {}  # uid -> resourceVersion, the node that is closed for it
        self._kind = kind
        self._parse = parse
        self._scheduler = scheduler
        self._node_of = node_of

    def __call__(self, raw: Mapping[str, Any]) -> T | None:
        """Parse one object."""
        # Listed, whether it can be read or not: it exists.
        for listed in self._listings:
            listed.add(_text(raw, "uid"))
        try:
            found = self._parse(raw)
        except WireError:
            raise
        except Exception as error:  # noqa: BLE001  (contained: it costs this object only)
            self._contain(raw, error)
            return None
        # A look-up only where something is broken at all.
        if self.broken:
            self.gone(raw)
        return found

    def gone(self, raw: Mapping[str, Any]) -> bool:
        """The object is deleted, or well again. Returns whether it was broken."""
        known = self.broken.pop(_text(raw, "uid"), None)
        if known is not None and known[1]:
            self._scheduler.cache.set_broken(known[1], self._mark(raw), "")
        return known is not None

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Objects that a complete list does not show are gone."""
        # A copy: objects that turn out broken during the list are not gone.
        before, listed = set(self.broken), set[str]()
        # Most of the time nothing is broken, so that nothing can be found to be gone.
        if before:
            self._listings.append(listed)
        try:
            yield  # an exception means that the list is not complete: then nothing is known to be gone
        finally:
            self._listings = [each for each in self._listings if each is not listed]
        for uid in before - listed:
            self.gone({"metadata": {"uid": uid}})

    def _contain(self, raw: Mapping[str, Any], error: Exception) -> None:
        uid, version, name = _text(raw, "uid"), _text(raw, "resourceVersion"), _text(raw, "name")
        # The same version of the same object: said already.
        if self.broken.get(uid, ("",))[0] == version and uid in self.broken:
            return  # said already
        # Another version: its node may be another one too.
        self.gone(raw)
        node = self._node_of(raw)
        self.broken[uid] = (version, node)
        called = "/".join(part for part in (_text(raw, "namespace"), name) if part)
        self._scheduler.handle.quarantine.put(Subject(self._kind, called, node or uid, version), error)
        why = shortened(f"{self._kind} {name} cannot be read: {type(error).__name__}: {error}", MOST_TEXT)
        if node:
            self._scheduler.cache.set_broken(node, self._mark(raw), why)
        if self._kind == "pod":  # said by every replica: most pods are read before anyone leads
            key = PodKey(_text(raw, "namespace"), name, uid)
            self._scheduler.dependencies.recorder.event(key, warning=True, reason=UNREADABLE, message=why)

    def _mark(self, raw: Mapping[str, Any]) -> str:
        return f"unreadable {self._kind} {_text(raw, 'uid')}"


def _text(raw: Mapping[str, Any], key: str) -> str:
    metadata = raw.get("metadata")
    # Cut to the longest name, as the object may hold anything.
    return str(metadata.get(key) or "")[:253] if isinstance(metadata, Mapping) else ""


def own_name(raw: Mapping[str, Any]) -> str:
    """The node of a Node or a NodeResourceTopology is called as the object."""
    return _text(raw, "name")


def bound_to(raw: Mapping[str, Any]) -> str:
    """The node of a pod."""
    spec = raw.get("spec")
    return str(spec.get("nodeName") or "")[:253] if isinstance(spec, Mapping) else ""


TOPOLOGY_PAUSE: Final = 0.4
"""
Seconds in which updates of topologies are gathered. Exporters publish once in 10 to 60 s what they have seen some time before, so that
nothing waits for an update, and one of several costs half of one that comes alone.
"""

POD_PAUSE: Final = 0.02
"""
The same of pods, waiting or not. One that comes alone is taken in at once; of those that come in a crowd each takes half of the time when
they are read, decided on and sent one behind the other.
"""


def topologies_in_batches(scheduler: Scheduler) -> ClientMiddlewareType:
    """For Kopf's session: watches of topologies are read in batches. Pods are handed on as they arrive, and binds wait for no batch."""
    return in_batches(TOPOLOGY_PLURAL, TOPOLOGY_PAUSE, lambda: bool(scheduler.cache.assumed))


@dataclass(frozen=True, slots=True)
class KopfStores:
    """What Kopf reports, by kind, each in front of its event handler."""

    waiting_pods: ResyncStore[Pod]
    topologies: ResyncStore[NodeResourceTopology]
    rebinds: ResyncStore[RebindRequest]


@dataclass(frozen=True, slots=True)
class KopfParsers:
    """``handlers.dispatch.Parsers``, the same for Kopf's events and for resyncs."""

    waiting_pod: ContainedParser[Pod]
    topology: ContainedParser[NodeResourceTopology]
    rebind: ContainedParser[RebindRequest]


def kopf_parsers(scheduler: Scheduler, stores: KopfStores) -> KopfParsers:
    """Parsers that leave out pods of other schedulers, and reuse what was parsed from the same version."""
    names = scheduler.settings.scheduler_names

    def waiting_pod(raw: Mapping[str, Any]) -> Pod | None:
        # Before parsing: with several scheduler names the server selects pods of all schedulers.
        if (raw.get("spec") or {}).get("schedulerName") not in names:
            return None
        # Kopf repeats objects after each lost connection; the version tells that nothing is new.
        return known_version(stores.waiting_pods, meta(raw, "uid"), raw) or parse_pod(raw)

    def topology(raw: Mapping[str, Any]) -> NodeResourceTopology:
        return known_version(stores.topologies, meta(raw, "name"), raw) or parse_topology(raw)

    return KopfParsers(
        ContainedParser("pod", waiting_pod, scheduler),
        ContainedParser("topology", topology, scheduler, own_name),
        ContainedParser("rebind", parse_rebind, scheduler),
    )


def kopf_stores(scheduler: Scheduler, rebinds: RebindController) -> KopfStores:
    """Stores in front of this scheduler and this controller of rebinds."""
    return KopfStores(
        ResyncStore(scheduler.handlers.pending_pods, lambda pod: pod.key.uid),
        ResyncStore(scheduler.handlers.topologies, lambda topology: topology.node),
        ResyncStore(ContainedHandler("rebind", rebinds, scheduler.handle.quarantine), lambda rebind: rebind.uid),
    )
