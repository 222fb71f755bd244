"""
Paged lists: every object of a kind, parsed page by page, so that raw objects never pile up.

A long list gives way to the event loop between slices. Objects that cannot even be identified are left out and said.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from koord_numa.cluster.client import Api, decoded
from koord_numa.cluster.resources import Call, Resource
from koord_numa.ports import Gone
from koord_numa.wire.errors import FieldPath, WireError
from koord_numa.wire.raw_json import UnreadObject


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    metadata: dict[str, Any] = {}


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


def unread_page(call: Call, raw: bytes) -> Mapping[str, Any]:
    """One page of a list, its items as ``UnreadObject``. Raises ``Invalid`` when it is no JSON."""
    try:
        page = _PAGES.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        found: Mapping[str, Any] = decoded(call, raw)
        return found
    return {"items": [UnreadObject(item) for item in page.items], "metadata": page.metadata}


def unread_event(call: Call, line: bytes) -> Mapping[str, Any]:
    """One event of a watch; of a change the object is an ``UnreadObject``. Raises ``Invalid`` when it is no JSON."""
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
"""Objects a page, as kubectl and client-go ask for."""

SLICE: Final = 100
"""Objects parsed before others get their turn: about ten milliseconds of pods."""

_log = logging.getLogger(__name__)


@runtime_checkable
class Parser(Protocol[T_co]):
    """Turns raw objects of one kind into core types, and remembers those that it could not read."""

    def __call__(self, raw: Mapping[str, Any]) -> T_co | None:
        """The parsed object; ``None`` for one that is not wanted or broken. Raises ``WireError`` for one without identity."""
        ...

    def gone(self, raw: Mapping[str, Any]) -> bool:
        """The object was deleted. Returns whether its last state could not be read."""
        ...

    def listing(self) -> AbstractContextManager[None]:
        """Everything that exists is parsed inside the block."""
        ...


@dataclass(frozen=True, slots=True)
class PlainParser(Generic[T]):
    """A ``Parser`` that remembers nothing."""

    parse: Callable[[Mapping[str, Any]], T | None]

    def __call__(self, raw: Mapping[str, Any]) -> T | None:
        """The parsed object."""
        return self.parse(raw)

    def gone(self, raw: Mapping[str, Any]) -> bool:  # noqa: ARG002  (of the protocol)
        """Nothing to forget."""
        return False

    def listing(self) -> AbstractContextManager[None]:
        """Nothing to compare."""
        return nullcontext()


@dataclass(frozen=True, slots=True)
class ListedKind(Generic[T]):
    """
    Which objects (one resource, narrowed down by the server) and what to make of each: ``None`` for one that is not wanted.

    ``known`` gives an object as it was last, where that is all that the handler needs of one that was deleted: then it is not parsed.
    ``optional``: a cluster may well live without this kind installed, and then has no such objects. ``title`` is for people, where
    several selections of one resource have to be told apart. A watch is read at most once in ``pause`` seconds (``batched_reading``).
    ``unread``: ``parse`` gets every object as an ``UnreadObject``. ``older`` are older versions of the resource, which are watched
    where newer ones are not served.
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
        """What people read."""
        return self.title or str(self.resource)

    @property
    def parser(self) -> Parser[T]:
        """``parse``, with or without a memory of what it could not read."""
        return self.parse if isinstance(self.parse, Parser) else PlainParser(self.parse)

    @property
    def params(self) -> dict[str, str]:
        """The selector as query parameters."""
        return {"fieldSelector": self.field_selector} if self.field_selector else {}

    def read(self, raw: Mapping[str, Any]) -> T | None:
        """The parsed object; ``None`` also when it is too malformed to be identified, which is said in the log."""
        try:
            if not isinstance(raw, Mapping):
                raise FieldPath("an object").error("is not a JSON object")
            return self.parse(raw)
        except WireError as error:
            _log.warning("%s: an object is ignored: %s", self.resource, error)
            return None


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A whole list, and the resourceVersion to watch from."""

    objects: list[T]
    resource_version: str


async def list_all(api: Api, kind: ListedKind[T]) -> Listed[T]:
    """
    Every object of the kind as it is now.

    Raises every ``ClusterError`` of a read: ``Gone`` when the kind is not installed, ``Expired`` when the server forgot the
    list's snapshot half-way.
    """
    objects: list[T] = []
    version = ""
    # Inside ``listing`` the parser learns which broken objects are gone, but only if the list is complete.
    with kind.parser.listing():
        async with aclosing(_pages(api, kind)) as pages:
            async for page in pages:
                await _add(objects, page.get("items") or (), kind)
                # The last page's version is that of the whole list, as all pages are one snapshot.
                version = str((page.get("metadata") or {}).get("resourceVersion", ""))
    return Listed(objects, version)


async def _pages(api: Api, kind: ListedKind[T]) -> AsyncGenerator[Mapping[str, Any], None]:
    """The pages of a list. While one is worked on the server prepares the next: neither waits for the other."""
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
            # A page that was asked for and is not wanted any more.
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)


async def list_first_served(api: Api, kinds: Sequence[ListedKind[T]]) -> list[T]:
    """
    Every object of the first of these kinds (versions of one) that the server knows; none when all are optional and absent.

    Raises as ``list_all``.
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
