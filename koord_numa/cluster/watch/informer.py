"""
An informer: lists one kind of object, watches on, and lists again when the watch cannot go on.

Theory. An informer hands three sorts of fact to its ``EventHandler``: a complete list (what it does not show is gone), single events, and,
once, that the first list is complete. Everything else is a reason to repeat a step: a watch that ends is continued from the last
resourceVersion; one that expired (410) is replaced by a new list; one that is silent for longer than the server's bookmarks
take is taken for dead and continued; an outage or a missing right is waited out with growing pauses. A kind that is not installed
is empty until it is. An informer never gives up and never raises: ``problem`` says in words what keeps it from being current.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from random import SystemRandom
from time import monotonic
from typing import Any, Final, Generic, Self, TypeVar, cast

import aiohttp
import orjson
from aiohttp.client_middlewares import ClientHandlerType, ClientMiddlewareType

from koord_numa.cluster.client import Api, decoded
from koord_numa.cluster.errors import CLIENT, Backoff, Expired, refusal
from koord_numa.cluster.resources import Call
from koord_numa.cluster.watch.lister import SLICE, ListedKind, list_all, unread_event
from koord_numa.ports import Clock, ClusterError, EventHandler, Gone, Unavailable
from koord_numa.settings import BackoffSettings
from koord_numa.wire.raw_json import UnreadObject

WATCH: Final = ("watch", "true")
"""The parameter by which a request is a watch."""

PORTION: Final = 4
"""So many events are handed on in a row: what they take, some 2 ms, something urgent waits at most."""

BREATH: Final = 0.002
"""Seconds between two portions while something urgent is under way, which takes several turns of the loop."""


def in_batches(plural: str, pause: float, is_urgent: Callable[[], bool] = lambda: False) -> ClientMiddlewareType:
    """
    A middleware of an ``aiohttp.ClientSession``: watches of this resource are read at most once in ``pause`` seconds.

    ``is_urgent``: is something under way that should wait for none of it? Lists and watches of other resources are left as they are.
    """

    async def middleware(request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
        response = await handler(request)
        name, value = WATCH
        if request.url.name == plural and request.url.query.get(name) == value:
            # By its looks a stream like any other: aiohttp and the reader of the watch go on with it as they would.
            response.content = cast("aiohttp.StreamReader", BatchedStream(response.content, pause, is_urgent))
        return response

    return middleware


class BatchedStream:
    """The body of an answer, as ``aiohttp.StreamReader``, of which ``iter_chunked`` pauses between two chunks."""

    def __init__(self, content: aiohttp.StreamReader, pause: float, is_urgent: Callable[[], bool]) -> None:
        self._content = content
        self._pause = pause
        self._is_urgent = is_urgent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    def iter_chunked(self, n: int) -> "BatchedChunks":
        """Chunks of at most ``n`` bytes, each with all that has arrived since the one before."""
        return BatchedChunks(aiter(self._content.iter_chunked(n)), n, self._pause, self._is_urgent)


class BatchedChunks:
    """
    An iterator and no generator: one that is left half read holds nothing that would have to be closed.

    Raises whatever the stream raises, at the latest ``pause`` seconds after the connection has failed or was closed and what had arrived
    was handed on.
    """

    def __init__(
        self, chunks: AsyncIterator[bytes], size: int, pause: float, is_urgent: Callable[[], bool] = lambda: False
    ) -> None:
        self._chunks = chunks
        self._size = size
        self._pause = pause
        self._is_urgent = is_urgent
        self._next_read = 0.0
        self._rest = b""  # of the last chunk, not handed on yet

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._rest:
            # In any case a turn of the loop, which shows whether something urgent has arrived.
            await asyncio.sleep(BREATH if self._is_urgent() else 0)
            return self._portion()
        clock = asyncio.get_running_loop().time
        if (wait := self._next_read - clock()) > 0:
            await asyncio.sleep(wait)
        self._rest = chunk = await anext(self._chunks)
        # A full chunk is a flood, such as the events of an outage: the rest of it is there already.
        self._next_read = 0.0 if len(chunk) == self._size else clock() + self._pause
        return self._portion()

    def _portion(self) -> bytes:
        """The next lines of what is left, an event each."""
        end = 0
        for _ in range(PORTION):
            if not (end := self._rest.find(b"\n", end) + 1):
                end = len(self._rest)
                break
        portion, self._rest = self._rest[:end], self._rest[end:]
        return portion


T = TypeVar("T")

CHUNK: Final = 1 << 16
"""Bytes that are read at once of a watch that is read in batches; where there are more of them it is read on without a pause."""

STEADY: Final = 5.0
"""Seconds after which a watch counts as one that works, even if nothing happened on it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InformerTimeouts:
    """How long an informer waits, in seconds."""

    silence: float = 70.0  # the server sends a bookmark every minute; a dead connection sends nothing
    watch: float = 300.0  # how long one watch may last; the server ends it, and it is spread by up to a third
    absent: float = 30.0  # between looks for a kind that is not installed
    backoff: BackoffSettings = CLIENT


class Informer(Generic[T]):
    """Keeps one event handler current. ``run`` it once; the properties may be read at any time."""

    def __init__(
        self,
        api: Api,
        kind: ListedKind[T],
        handler: EventHandler[T],
        timeouts: InformerTimeouts | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self.kind = kind
        self.synced = False
        self.problem = ""
        self.relists = 0
        self.reconnects = 0
        self.events = 0
        self._api = api
        self._handler = handler
        self._decode = unread_event if kind.unread else decoded
        self._versions = (kind.resource, *kind.older)
        self._parser = kind.parser  # once: to ask whether an object follows a protocol takes 10 us
        self._timeouts = timeouts or InformerTimeouts()
        self._clock = clock
        self._last_message = clock()
        self._progress_at = clock()
        self._watching_since: float | None = None
        self._version = ""
        self._random = SystemRandom()
        self._cycle: asyncio.Task[None] | None = None
        self._refreshes = 0  # how often a new list was requested
        self._refresh_waiters: list[
            tuple[int, asyncio.Future[None]]
        ] = []  # calls of ``refresh`` that wait, by their number

    @property
    def age(self) -> float:
        """Seconds since the last list, event or bookmark."""
        return self._clock() - self._last_message

    @property
    def stuck(self) -> float:
        """
        Seconds since the last answer or noticed failure, apart from deliberate pauses. It stays small in an outage and grows only while
        the informer waits for something that will never come.
        """
        return max(0.0, self._clock() - self._progress_at)

    async def run(self) -> None:
        """List and watch until cancelled."""
        backoff = Backoff(self._timeouts.backoff)
        while True:
            events = self.events
            pause = 0.0
            # A task of its own, so that ``refresh`` can cancel the watch without ending the informer.
            self._cycle = asyncio.create_task(self._list_and_watch())
            try:
                await self._cycle
            except asyncio.CancelledError:
                if _is_ending():
                    self._cycle.cancel()
                    raise
                continue  # only this cycle was: ``refresh`` wants a new list at once
            except Expired:
                # An empty version makes the next cycle list again.
                self._version = ""
            except Gone as error:
                pause = self._absent(error)
            except ClusterError as error:
                self._report(str(error))
                # A failure without a wish of the server's is waited out by the backoff alone.
                pause = (error.retry_after or 0.0) if isinstance(error, Unavailable) else 0.0
            if self.events > events or self._watch_duration() > STEADY:
                backoff.reset()  # the watch worked for a while: its end is no failure in a row
            self.reconnects += 1
            pause = backoff.pause(pause)
            # Moved ahead by the pause: waiting on purpose is not being stuck.
            self._progress_at = self._clock() + pause
            await asyncio.sleep(pause)

    async def refresh(self) -> None:
        """
        List again, and return when a list that began after this call has been handed over, however long that takes.

        A watch may be late by any amount; a list shows everything that was written before it began.
        """
        self._refreshes += 1
        self._version = ""
        done = asyncio.get_running_loop().create_future()
        self._refresh_waiters.append((self._refreshes, done))
        # The watch is given up: a list that begins now shows everything that was written before.
        if self._cycle is not None:
            self._cycle.cancel()
        await done

    async def _list_and_watch(self) -> None:
        if not self._version:
            await self._list()
        await self._watch()

    async def _list(self) -> None:
        self._watching_since = None
        # Noted before the list begins: calls of ``refresh`` that come while it runs need another one.
        request = self._refreshes
        listed = await list_all(self._api, self.kind)
        self._version = listed.resource_version
        self.relists += 1
        self._message_received()
        self._handler.replace(listed.objects)
        self._mark_synced()
        self._release_waiters(request)

    def _release_waiters(self, request: int) -> None:
        for number, done in self._refresh_waiters:
            if number <= request and not done.done():
                done.set_result(None)
        self._refresh_waiters = [(number, done) for number, done in self._refresh_waiters if number > request]

    def _absent(self, error: Gone) -> float:
        """
        A kind that is not installed has no objects. That holds only for an optional kind: a 404 for pods or nodes comes from something that
        is no API server. Returns how long to wait before the next list, in seconds.
        """
        self._version = ""
        if self._next_version():
            return 0.0
        self._report(f"not installed: {error}")
        if not self.kind.optional:
            return 0.0
        # An optional kind that is gone has no objects, so that what was known is taken back.
        self._handler.replace([])
        self._mark_synced()
        self._release_waiters(self._refreshes)
        return self._timeouts.absent

    def _next_version(self) -> bool:
        """Turn to the next older version of the kind. False, and the newest version again, where there is none."""
        at = (self._versions.index(self.kind.resource) + 1) % len(self._versions)
        self.kind = replace(self.kind, resource=self._versions[at])
        return at > 0

    def _watch_duration(self) -> float:
        return self._clock() - self._watching_since if self._watching_since is not None else 0.0

    def _mark_synced(self) -> None:
        if not self.synced:
            self.synced = True
            self._handler.synced()

    async def _watch(self) -> None:
        """Hand over events until the server ends the watch."""
        call = Call("watch", self.kind.resource)
        params = self.kind.params | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            # Spread, so that watches of many informers do not all end at once; never 0, which is "no limit".
            "timeoutSeconds": str(round(self._timeouts.watch * self._random.uniform(0.67, 1.0)) or 1),
        }
        async with self._api.stream(call, params, silence=self._timeouts.silence) as content:
            self._message_received()
            self._watching_since = self._clock()
            count = 0
            async for line in lines(self._chunks(content)):
                self._handle(call, self._decode(call, line))
                count += 1
                # A burst of events must not keep other tasks waiting.
                if count % SLICE == 0:
                    await asyncio.sleep(0)

    def _chunks(self, content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
        if not self.kind.pause:
            return aiter(content.iter_any())
        return BatchedChunks(aiter(content.iter_chunked(CHUNK)), CHUNK, self.kind.pause)

    def _handle(self, call: Call, event: Mapping[str, Any]) -> None:
        kind, raw = event.get("type"), event.get("object")
        if not isinstance(raw, Mapping):
            raw = {}
        if kind == "ERROR":
            # The server ends a watch in this way: its status is the reason.
            raise refusal(call, int(raw.get("code") or 500), {}, orjson.dumps(raw))
        self._message_received()
        self.events += 1
        version = _version(raw)
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            found = self._deleted(raw) if kind == "DELETED" else self.kind.read(raw)
            if found is not None:
                self._handler.observe(kind, found)
        # Bookmarks have a version and nothing else.
        if version:
            self._version = str(version)

    def _deleted(self, raw: Mapping[str, Any]) -> T | None:
        known = self.kind.known(raw)
        found = self.kind.read(raw) if known is None else known
        # After reading, also of an object that cannot be read: its quarantine ends with it. The handler may know it from a state
        # that could be read, and only a list can tell that it is gone.
        if self._parser.gone(raw) and known is None:
            raise Expired(f"a deleted object of {self.kind} cannot be read")
        return found

    def _message_received(self) -> None:
        self._last_message = self._progress_at = self._clock()
        if self.problem:
            self.problem = ""
            _log.info("%s: current again", self.kind)

    def _report(self, problem: str) -> None:
        """One log line per problem, however often it is met."""
        if problem != self.problem:
            self.problem = problem
            _log.warning("%s: %s", self.kind, problem)


def _version(raw: Mapping[str, Any]) -> object:
    # Of an unread object no more is decoded than that.
    if isinstance(raw, UnreadObject):
        return raw.identity.resource_version
    metadata = raw.get("metadata")
    return metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None


def _is_ending() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The non-empty lines of a stream, however it is cut into chunks and however long they are."""
    rest = b""
    async for chunk in chunks:
        # Cut by line feeds and not by chunks: an event may be longer than any buffer.
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line
    if rest:
        yield rest
