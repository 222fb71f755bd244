"""
Parsers in front of the scheduler's event handlers that never raise: what is broken about one object costs that object only.

``wire`` turns malformed objects into values with a ``problem``; whatever it raises besides ``WireError`` is a bug that one object has
found. The object is quarantined and left out, and while it is there nothing is placed on the node that it is about: what it holds is
not known.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from koord_numa.core.objects.request import PodKey
from koord_numa.engine.containment import Subject
from koord_numa.engine.scheduler import Scheduler
from koord_numa.wire.errors import WireError
from koord_numa.wire.texts import shortened

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
