"""Paged lists of all objects of a resource: at the start of an informer, and again to find what a watch has missed."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from random import SystemRandom
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from koord_numa.cluster.client import CLIENT, Api, Backoff, decoded
from koord_numa.cluster.resources import Call, Resource
from koord_numa.core.value_objects import ValueObject
from koord_numa.ports import DELETED, ClusterError, EventHandler, Gone, Unavailable
from koord_numa.settings import BackoffSettings
from koord_numa.wire import FieldPath, WireError
from koord_numa.wire.raw_json import UnreadObject

# Paged lists of all objects of a resource, parsed page by page, so that raw objects do not accumulate.
#
# A long list yields to the event loop between slices. Objects without identity are skipped and logged.


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    metadata: dict[str, Any] = {}


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


def unread_page(call: Call, raw: bytes) -> Mapping[str, Any]:
    """Return a page of a list with ``UnreadObject`` items. Raises ``Invalid`` for malformed JSON."""
    try:
        page = _PAGES.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        found: Mapping[str, Any] = decoded(call, raw)
        return found
    return {"items": [UnreadObject(item) for item in page.items], "metadata": page.metadata}


def unread_event(call: Call, line: bytes) -> Mapping[str, Any]:
    """Return a watch event, whose object is an ``UnreadObject`` if it is a change.

    Raises ``Invalid`` for malformed JSON.
    """
    try:
        event = _EVENTS.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        event = None
    if event is None or event.type not in _CHANGES:
        found: Mapping[str, Any] = decoded(call, line)
        return found
    return {"type": event.type, "object": UnreadObject(event.object)}


_PAGES: Final = msgspec.json.Decoder(_Page)
_EVENTS: Final = msgspec.json.Decoder(_Event)
_CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PAGE: Final = 500
"""Objects per page, as in kubectl and client-go."""

SLICE: Final = 100
"""Objects that are parsed before other tasks run: about 10 ms for pods."""

_log = logging.getLogger(__name__)


@runtime_checkable
class Parser(Protocol[T_co]):
    """Converts raw objects of a resource to core types and remembers unreadable objects."""

    def __call__(self, raw: Mapping[str, Any]) -> T_co | None:
        """Return the parsed object, or ``None`` if it is not selected or malformed.

        Raises ``WireError`` for an object without identity.
        """
        ...

    def gone(self, raw: Mapping[str, Any]) -> bool:
        """Process a deletion. Returns whether the last state was unreadable."""
        ...

    def listing(self) -> AbstractContextManager[None]:
        """Return a context in which all existing objects are parsed."""
        ...


class PlainParser(ValueObject, Generic[T]):
    """A ``Parser`` without memory."""

    parse: Callable[[Mapping[str, Any]], T | None]

    def __call__(self, raw: Mapping[str, Any]) -> T | None:
        """Return the parsed object."""
        return self.parse(raw)

    def gone(self, raw: Mapping[str, Any]) -> bool:  # noqa: ARG002  (required by the protocol)
        """Return false: there is no memory."""
        return False

    def listing(self) -> AbstractContextManager[None]:
        """Return an empty context: there is no memory."""
        return nullcontext()


class ListedKind(ValueObject, Generic[T]):
    """A selection of objects of a resource and their parser.

    The parser returns ``None`` for objects that are not selected.

    ``known`` returns the last state of a deleted object if the handler needs no other data; the object is then not
    parsed. ``optional``: the resource may not be installed, and then has no objects. ``title`` is the displayed name,
    which distinguishes several selections of a resource. A watch is read at most once in ``pause`` seconds
    (``BatchedChunks``). ``unread``: ``parse`` gets ``UnreadObject`` values. ``older`` are older versions of the
    resource, which are watched if newer versions are not served.
    """

    resource: Resource
    parse: Callable[[Mapping[str, Any]], T | None]
    field_selector: str = ""
    optional: bool = False
    title: str = ""
    known: Callable[[Mapping[str, Any]], T | None] = lambda _: None
    pause: float = 0.0
    unread: bool = False
    older: tuple[Resource, ...] = ()

    def __str__(self) -> str:
        return f"{self.resource} ({self.field_selector})" if self.field_selector else str(self.resource)

    @property
    def name(self) -> str:
        """The displayed name."""
        return self.title or str(self.resource)

    @property
    def parser(self) -> Parser[T]:
        """``parse`` as a ``Parser``, with or without memory of unreadable objects."""
        return self.parse if isinstance(self.parse, Parser) else PlainParser(self.parse)

    @property
    def params(self) -> dict[str, str]:
        """The selector as query parameters."""
        return {"fieldSelector": self.field_selector} if self.field_selector else {}

    def read(self, raw: Mapping[str, Any]) -> T | None:
        """Return the parsed object. An object that is too malformed to be identified is logged and gives ``None``."""
        try:
            if not isinstance(raw, Mapping):
                raise FieldPath("an object").error("is not a JSON object")
            return self.parse(raw)
        except WireError as error:
            _log.warning("%s: an object is ignored: %s", self.resource, error)
            return None


class Listed(ValueObject, Generic[T]):
    """A complete list and the resourceVersion to watch from."""

    objects: list[T]
    resource_version: str


async def list_all(api: Api, kind: ListedKind[T]) -> Listed[T]:
    """Return all current objects.

    Raises every ``ClusterError`` of a read: ``Gone`` when the resource is not installed, ``Expired`` when the server
    discarded the list's snapshot between pages.
    """
    objects: list[T] = []
    version = ""
    # Inside ``listing`` the parser detects deleted malformed objects, but only if the list is complete.
    with kind.parser.listing():
        async with aclosing(_pages(api, kind)) as pages:
            async for page in pages:
                await _add(objects, page.get("items") or (), kind)
                # The last page has the version of the whole list, as all pages are from the same snapshot.
                version = str((page.get("metadata") or {}).get("resourceVersion", ""))
    return Listed(objects, version)


async def _pages(api: Api, kind: ListedKind[T]) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield the pages of a list. The next page is requested while a page is processed."""
    call, params = Call("list", kind.resource), kind.params | {"limit": str(PAGE)}
    decode = unread_page if kind.unread else None
    asked: asyncio.Task[Any] | None = asyncio.create_task(api.send(call, params=params, decode=decode))
    try:
        while asked is not None:
            page = await asked
            token = (page.get("metadata") or {}).get("continue")
            following = params | {"continue": str(token)}
            asked = asyncio.create_task(api.send(call, params=following, decode=decode)) if token else None
            yield page
    finally:
        if asked is not None:
            # A requested page that is not needed.
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)


async def list_first_served(api: Api, kinds: Sequence[ListedKind[T]]) -> list[T]:
    """Return all objects of the first of these versions that the server serves. Empty when all are optional and absent.

    Raises the errors of ``list_all``.
    """
    for kind in kinds:
        try:
            return (await list_all(api, kind)).objects
        except Gone:
            if not kind.optional:
                raise
    return []


async def _add(objects: list[T], raw: Sequence[Mapping[str, Any]], kind: ListedKind[T]) -> None:
    for start in range(0, len(raw), SLICE):
        objects.extend(found for item in raw[start : start + SLICE] if (found := kind.read(item)) is not None)
        await asyncio.sleep(0)


# Lists a resource that Kopf watches: at the start, then every few minutes, and soon after Kopf has listed again.
#
# Failures are retried with back-off; ``problem`` has the last error message.


class ResyncStore(Generic[T]):
    """The objects of a resource by their key: the uid, or the name if only the name matters."""

    def __init__(self, handler: EventHandler[T], key: Callable[[T], Hashable]) -> None:
        self.relisted = asyncio.Event()
        """Set when Kopf has listed again: objects that were deleted in the meantime are still in the store."""
        self._handler = handler
        self._key = key
        self._objects: dict[Hashable, T] = {}
        self._deleted: set[Hashable] | None = None  # keys deleted while a list is in progress; None otherwise

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Hashable) -> T | None:
        """Return the last reported object, or ``None``."""
        return self._objects.get(key)

    def observe(self, event: str | None, obj: T) -> None:
        """Process an object from Kopf. The event type ``None`` marks an item of a list."""
        key = self._key(obj)
        if event == DELETED:
            self.discard(key)
        else:
            # Kopf reports a known object without an event type only when it lists again.
            if event is None and key in self._objects:
                self.relisted.set()
            self._objects[key] = obj
        self._handler.observe(event, obj)

    def discard(self, key: Hashable) -> None:
        """Process a deletion that the handler already knows."""
        self._objects.pop(key, None)
        # A list in progress may still show the object.
        if self._deleted is not None:
            self._deleted.add(key)

    async def resync(self, list_all: Callable[[], Awaitable[Iterable[T]]]) -> None:
        """Compare with a new list. Pass on objects without an event, and report absent objects as ``DELETED``.

        Raises the errors of ``list_all``; the store is then unchanged.
        """
        self.relisted.clear()
        # Deletions are recorded from here on: the list may be older.
        self._deleted = set()
        before = dict(self._objects)
        try:
            listed = {self._key(obj): obj for obj in await list_all()}
            for key, obj in listed.items():
                # An event is newer than the list: the object was deleted or updated.
                if key not in self._objects and key not in self._deleted:
                    self._objects[key] = obj
                    self._handler.observe(None, obj)
        finally:
            self._deleted = None
        for key, obj in before.items():
            # An object that an event replaced in the meantime is newer than the list.
            if key not in listed and self._objects.get(key) is obj:
                del self._objects[key]
                self._handler.observe(DELETED, obj)

    def synced(self) -> None:
        """Report that the first list is complete."""
        self._handler.synced()


PERIOD: Final = 300.0
"""Seconds between two lists, randomized by a fifth, so that replicas do not list together."""

DEBOUNCE: Final = 1.0
"""Seconds after Kopf starts to list again, so that a single list covers all of Kopf's pages."""


class Resync(Generic[T]):
    """Periodic resync of a store. ``run`` must be called once. ``synced`` is true after the first successful list."""

    def __init__(
        self,
        name: str,
        store: ResyncStore[T],
        list_all: Callable[[], Awaitable[Iterable[T]]],
        pauses: BackoffSettings | None = None,
    ) -> None:
        self.name = name
        self.problem = ""
        self.synced = False
        self._store = store
        self._list_all = list_all
        self._pauses = pauses or CLIENT
        self._random = SystemRandom()

    async def run(self) -> None:
        """List periodically until cancelled."""
        backoff = Backoff(self._pauses)
        while True:
            try:
                await self._store.resync(self._list_all)
            except ClusterError as error:
                self._report(str(error))
                asked = error.retry_after if isinstance(error, Unavailable) else None
                await asyncio.sleep(backoff.pause(asked or 0.0))
                continue
            backoff.reset()
            self.problem = ""
            if not self.synced:
                self.synced = True
                self._store.synced()
            with contextlib.suppress(TimeoutError):
                # Randomized, so that replicas do not list together.
                async with asyncio.timeout(PERIOD * self._random.uniform(0.8, 1.2)):
                    await self._store.relisted.wait()
                # Kopf lists in pages. A single list covers all of them.
                await asyncio.sleep(DEBOUNCE)

    def needs_relist(self) -> None:
        """Request a list soon.

        Objects may have been deleted without an event, for example while another replica led.
        """
        self._store.relisted.set()

    def _report(self, problem: str) -> None:
        """Log a problem once, however often it repeats."""
        if problem != self.problem:
            self.problem = problem
            _log.warning("%s cannot be listed: %s", self.name, problem)
