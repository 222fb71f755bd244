"""An informer: lists a resource, watches it, and lists again when the watch cannot continue.

It passes complete lists, single events, and once the completion of the first list to its ``EventHandler``. A watch
that ends continues from the last resourceVersion. An expired watch (410) is replaced by a new list. A watch that is
silent for longer than the bookmark interval is considered dead and continued. Outages and missing permissions are
retried with back-off. A resource that is not installed is empty until it is. An informer never gives up and never
raises; ``problem`` explains why it is not current.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from random import SystemRandom
from time import monotonic
from typing import Any, Final, Generic, Self, TypeVar, cast

import aiohttp
import orjson
from aiohttp.client_middlewares import ClientHandlerType, ClientMiddlewareType

from koord_numa.cluster.client import CLIENT, Api, Backoff, decoded
from koord_numa.cluster.lister import SLICE, ListedKind, list_all, unread_event
from koord_numa.cluster.resources import Call, Expired, refusal
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.ports import Clock, ClusterError, EventHandler, Gone, Unavailable
from koord_numa.settings import BackoffSettings
from koord_numa.wire.raw_json import UnreadObject

WATCH: Final = ("watch", "true")
"""The query parameter of a watch."""

PORTION: Final = 4
"""Events that are passed on at a time. They take about 2 ms, which is the maximum delay of urgent work."""

BREATH: Final = 0.002
"""Seconds between two portions while urgent work is in progress, which takes several iterations of the event loop."""


def in_batches(plural: str, pause: float, is_urgent: Callable[[], bool] = lambda: False) -> ClientMiddlewareType:
    """Return an aiohttp client middleware that reads watches of a resource at most once in ``pause`` seconds.

    ``is_urgent`` reports whether work is in progress that must not be delayed. Lists and watches of other resources
    are not changed.
    """

    async def middleware(request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
        response = await handler(request)
        name, value = WATCH
        if request.url.name == plural and request.url.query.get(name) == value:
            # It has the interface of a stream, so aiohttp and the reader of the watch need no change.
            response.content = cast("aiohttp.StreamReader", BatchedStream(response.content, pause, is_urgent))
        return response

    return middleware


class BatchedStream:
    """The body of a response, as ``aiohttp.StreamReader``, whose ``iter_chunked`` pauses between chunks."""

    def __init__(self, content: aiohttp.StreamReader, pause: float, is_urgent: Callable[[], bool]) -> None:
        self._content = content
        self._pause = pause
        self._is_urgent = is_urgent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    def iter_chunked(self, n: int) -> "BatchedChunks":
        """Iterate over chunks of at most ``n`` bytes, with all data since the previous chunk."""
        return BatchedChunks(aiter(self._content.iter_chunked(n)), n, self._pause, self._is_urgent)


class BatchedChunks:
    """Iterator over the chunks of a batched stream. It is no generator, so it needs no closing when it is abandoned.

    Raises the errors of the stream, at most ``pause`` seconds after the connection failed or was closed and all data
    was passed on.
    """

    def __init__(
        self, chunks: AsyncIterator[bytes], size: int, pause: float, is_urgent: Callable[[], bool] = lambda: False
    ) -> None:
        self._chunks = chunks
        self._size = size
        self._pause = pause
        self._is_urgent = is_urgent
        self._next_read = 0.0
        self._rest = b""  # of the last chunk, not passed on yet

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._rest:
            # Always yields to the event loop, which detects urgent work.
            await asyncio.sleep(BREATH if self._is_urgent() else 0)
            return self._portion()
        clock = asyncio.get_running_loop().time
        if (wait := self._next_read - clock()) > 0:
            await asyncio.sleep(wait)
        self._rest = chunk = await anext(self._chunks)
        # A full chunk indicates a burst of events, for example after an outage: more data is already available.
        self._next_read = 0.0 if len(chunk) == self._size else clock() + self._pause
        return self._portion()

    def _portion(self) -> bytes:
        """Return the next ``PORTION`` lines, with an event per line."""
        end = 0
        for _ in range(PORTION):
            if not (end := self._rest.find(b"\n", end) + 1):
                end = len(self._rest)
                break
        portion, self._rest = self._rest[:end], self._rest[end:]
        return portion


T = TypeVar("T")

CHUNK: Final = 1 << 16
"""Bytes per read of a watch that is read in batches. If more data is available, the next read does not pause."""

STEADY: Final = 5.0
"""Seconds after which a watch counts as successful, even without events."""

_log = logging.getLogger(__name__)


class InformerTimeouts(ValueObject):
    """Timeouts of an informer in seconds."""

    silence: float = 70.0  # the server sends a bookmark every minute; a dead connection sends nothing
    watch: float = 300.0  # maximum duration of a watch; the server ends it after at least two thirds
    absent: float = 30.0  # between attempts for a resource that is not installed
    backoff: BackoffSettings = CLIENT


class Informer(Generic[T]):
    """Keeps an event handler current. ``run`` must be called once. The properties may be read at any time."""

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
        self._parser = kind.parser  # cached: a check against a runtime protocol takes 10 us
        self._timeouts = timeouts or InformerTimeouts()
        self._clock = clock
        self._last_message = clock()
        self._progress_at = clock()
        self._watching_since: float | None = None
        self._version = ""
        self._random = SystemRandom()
        self._cycle: asyncio.Task[None] | None = None
        self._refreshes = 0  # number of requested lists
        self._requested = asyncio.Event()  # set while a list is requested that has not begun
        self._refresh_waiters: list[
            tuple[int, asyncio.Future[None]]
        ] = []  # waiting calls of ``refresh`` by their number

    @property
    def age(self) -> float:
        """Seconds since the last list, event or bookmark."""
        return self._clock() - self._last_message

    @property
    def stuck(self) -> float:
        """Seconds since the last response or detected failure, without deliberate pauses.

        It stays small in an outage and grows only while the informer is blocked.
        """
        return max(0.0, self._clock() - self._progress_at)

    async def run(self) -> None:
        """List and watch until cancelled."""
        backoff = Backoff(self._timeouts.backoff)
        while True:
            events = self.events
            pause = 0.0
            self._requested.clear()
            # A separate task, so that ``refresh`` can cancel the watch without ending the informer.
            self._cycle = asyncio.create_task(self._list_and_watch())
            try:
                await self._cycle
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling() > 0:
                    self._cycle.cancel()
                    raise
                continue  # only this cycle was cancelled: ``refresh`` requests an immediate list
            except Expired:
                # Without a version the next cycle lists again.
                self._version = ""
            except Gone as error:
                pause = self._absent(error)
            except ClusterError as error:
                self._report(str(error))
                # Without Retry-After the back-off determines the pause.
                pause = (error.retry_after or 0.0) if isinstance(error, Unavailable) else 0.0
            if self.events > events or self._watch_duration() > STEADY:
                backoff.reset()  # the watch was successful, so its end is not a consecutive failure
            self.reconnects += 1
            pause = backoff.pause(pause)
            # Includes the pause: a deliberate pause does not count as stuck.
            self._progress_at = self._clock() + pause
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._requested.wait()  # ``refresh`` ends the pause of a resource that is not installed

    async def refresh(self) -> None:
        """List again, and return when a list that began after this call has been passed on, without a time limit.

        A watch may be late by any amount. A list shows everything that was written before it began.
        """
        self._refreshes += 1
        self._version = ""
        self._requested.set()
        done = asyncio.get_running_loop().create_future()
        self._refresh_waiters.append((self._refreshes, done))
        # The watch is cancelled: a list that begins now shows all earlier writes.
        if self._cycle is not None:
            self._cycle.cancel()
        await done

    async def _list_and_watch(self) -> None:
        if not self._version:
            await self._list()
        await self._watch()

    async def _list(self) -> None:
        self._watching_since = None
        # Read before the list begins: later calls of ``refresh`` need another list.
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
        """Process a 404 and return the pause in seconds before the next list.

        A resource that is not installed has no objects. This applies only to optional resources: a 404 for pods or
        nodes does not come from an API server.
        """
        self._version = ""
        if self._next_version():
            return 0.0
        self._report(f"not installed: {error}")
        if not self.kind.optional:
            return 0.0
        # An uninstalled optional resource has no objects, so all known objects are removed.
        self._handler.replace([])
        self._mark_synced()
        self._release_waiters(self._refreshes)
        return self._timeouts.absent

    def _next_version(self) -> bool:
        """Select the next older version of the resource.

        Returns false and selects the newest version again after the oldest.
        """
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
        """Pass on events until the server ends the watch."""
        call = Call("watch", self.kind.resource)
        params = self.kind.params | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            # Randomized, so that watches of many informers do not end together. Never 0, which means no limit.
            "timeoutSeconds": str(round(self._timeouts.watch * self._random.uniform(0.67, 1.0)) or 1),
        }
        async with self._api.stream(call, params, silence=self._timeouts.silence) as content:
            self._message_received()
            self._watching_since = self._clock()
            count = 0
            async for line in lines(self._chunks(content)):
                self._handle(call, self._decode(call, line))
                count += 1
                # A burst of events must not block other tasks.
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
            # The server ends a watch with an ERROR event whose status is the reason.
            raise refusal(call, int(raw.get("code") or 500), {}, orjson.dumps(raw))
        self._message_received()
        self.events += 1
        version = _version(raw)
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            found = self._deleted(raw) if kind == "DELETED" else self.kind.read(raw)
            if found is not None:
                self._handler.observe(kind, found)
        # Bookmarks contain only a version.
        if version:
            self._version = str(version)

    def _deleted(self, raw: Mapping[str, Any]) -> T | None:
        known = self.kind.known(raw)
        found = self.kind.read(raw) if known is None else known
        # Called after reading, and also for unreadable objects, to end their quarantine. The handler may know an
        # earlier readable state, which only a new list removes.
        if self._parser.gone(raw) and known is None:
            raise Expired(f"a deleted object of {self.kind} cannot be read")
        return found

    def _message_received(self) -> None:
        self._last_message = self._progress_at = self._clock()
        if self.problem:
            self.problem = ""
            _log.info("%s: current again", self.kind)

    def _report(self, problem: str) -> None:
        """Log a problem once, however often it repeats."""
        if problem != self.problem:
            self.problem = problem
            _log.warning("%s: %s", self.kind, problem)


def _version(raw: Mapping[str, Any]) -> object:
    # Of an unread object only the identity is decoded.
    if isinstance(raw, UnreadObject):
        return raw.identity.resource_version
    metadata = raw.get("metadata")
    return metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the non-empty lines of a stream, independent of chunk boundaries and line length."""
    rest = b""
    async for chunk in chunks:
        # Split at line feeds, not at chunks: an event may be longer than any buffer.
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line
    if rest:
        yield rest
