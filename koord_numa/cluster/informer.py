"""
A mirror of one kind of object: list once, watch on, and list again when the watch cannot go on.

Theory. A mirror hands over three sorts of fact: a complete list (what it does not show is gone), single events, and, once, that
the first list is complete. Everything else is a reason to start a step over: a watch that ends is continued from the last
resourceVersion; one that expired (410) is replaced by a new list; one that says nothing for longer than the server's bookmarks
come is taken for dead and continued; an outage or a missing right is waited out with growing pauses. A kind that is not installed
is empty until it is. A mirror never gives up and never raises: ``problem`` says in words what keeps it from being current.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from random import SystemRandom
from time import monotonic
from typing import Any, Final, Generic, TypeVar

import aiohttp
import orjson

from koord_numa.cluster.backoff import Backoff
from koord_numa.cluster.client import Api, decoded
from koord_numa.cluster.errors import Expired, refusal
from koord_numa.cluster.lister import SLICE, ListedKind, list_all
from koord_numa.cluster.resources import Call
from koord_numa.ports import Clock, ClusterError, Gone, Unavailable

T = TypeVar("T")

STEADY: Final = 5.0
"""Seconds after which a watch counts as one that works, even if nothing happened on it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sink(Generic[T]):
    """Who is told. ``observe`` gets the event type of the watch; all three are synchronous and cheap."""

    replace: Callable[[list[T]], None]
    observe: Callable[[str, T], None]
    synced: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class InformerTimeouts:
    """How long a mirror waits, in seconds."""

    silence: float = 70.0  # the server sends a bookmark every minute; a dead connection sends nothing
    watch: float = 300.0  # how long one watch may last; the server ends it, and it is spread by up to a third
    absent: float = 30.0  # between looks for a kind that is not installed
    backoff: Callable[[], Backoff] = Backoff


class Informer(Generic[T]):
    """Keeps one sink current. ``run`` it once; the properties may be read at any time."""

    def __init__(
        self,
        api: Api,
        kind: ListedKind[T],
        sink: Sink[T],
        patience: InformerTimeouts | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self.kind = kind
        self.synced = False
        self.problem = ""
        self.relists = 0
        self.reconnects = 0
        self.events = 0
        self._api = api
        self._sink = sink
        self._patience = patience or InformerTimeouts()
        self._clock = clock
        self._last_sign = clock()
        self._alive = clock()
        self._opened: float | None = None
        self._version = ""
        self._random = SystemRandom()
        self._turn: asyncio.Task[None] | None = None
        self._tickets = 0  # how often a new list was asked for
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # who waits for the list of which ticket

    @property
    def age(self) -> float:
        """Seconds since the server last said anything: list, event or bookmark."""
        return self._clock() - self._last_sign

    @property
    def stuck(self) -> float:
        """
        Seconds since it last got an answer or noticed that there was none, apart from pauses that it takes on purpose. An outage
        keeps it small; only a mirror that waits for something that will never come has a large one.
        """
        return max(0.0, self._clock() - self._alive)

    async def run(self) -> None:
        """List and watch until cancelled."""
        backoff = self._patience.backoff()
        while True:
            events = self.events
            pause = 0.0
            self._turn = asyncio.create_task(self._list_and_watch())
            try:
                await self._turn
            except asyncio.CancelledError:
                if _is_ending():
                    self._turn.cancel()
                    raise
                continue  # only this turn was: somebody wants a new list at once
            except Expired:
                self._version = ""
            except Gone as error:
                pause = self._absent(error)
            except ClusterError as error:
                self._say(str(error))
                pause = (error.retry_after or 0.0) if isinstance(error, Unavailable) else 0.0
            if self.events > events or self._watched_for() > STEADY:
                backoff.reset()  # the watch did work for a while: what ended it is no series of failures
            self.reconnects += 1
            pause = backoff.pause(pause)
            self._alive = self._clock() + pause
            await asyncio.sleep(pause)

    async def refresh(self) -> None:
        """
        List again, and return when a list that began after this call has been handed over, however long that takes.

        What a watch has shown is true, but nobody knows how late it is; a list shows what was written before it began.
        """
        self._tickets += 1
        self._version = ""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((self._tickets, done))
        if self._turn is not None:
            self._turn.cancel()
        await done

    async def _list_and_watch(self) -> None:
        if not self._version:
            await self._list()
        await self._watch()

    async def _list(self) -> None:
        self._opened = None
        ticket = self._tickets
        listed = await list_all(self._api, self.kind)
        self._version = listed.resource_version
        self.relists += 1
        self._sign()
        self._sink.replace(listed.objects)
        self._tell_synced()
        self._tell_waiting(ticket)

    def _tell_waiting(self, ticket: int) -> None:
        for number, done in self._waiting:
            if number <= ticket and not done.done():
                done.set_result(None)
        self._waiting = [(number, done) for number, done in self._waiting if number > ticket]

    def _absent(self, error: Gone) -> float:
        """
        Nothing is installed, so nothing exists. Only of an optional kind is that believed: a 404 for pods or nodes comes from
        something that is no API server. Returns how long to wait before looking again.
        """
        self._version = ""
        self._say(f"not installed: {error}")
        if not self.kind.optional:
            return 0.0
        self._sink.replace([])
        self._tell_synced()
        self._tell_waiting(self._tickets)
        return self._patience.absent

    def _watched_for(self) -> float:
        return self._clock() - self._opened if self._opened is not None else 0.0

    def _tell_synced(self) -> None:
        if not self.synced:
            self.synced = True
            self._sink.synced()

    async def _watch(self) -> None:
        """Hand over events until the server ends the watch."""
        call = Call("watch", self.kind.resource)
        params = self.kind.params | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(round(self._patience.watch * self._random.uniform(0.67, 1.0)) or 1),
        }
        async with self._api.stream(call, params, silence=self._patience.silence) as content:
            self._sign()
            self._opened = self._clock()
            count = 0
            async for line in lines(content):
                self._handle(call, decoded(call, line))
                count += 1
                if count % SLICE == 0:
                    await asyncio.sleep(0)

    def _handle(self, call: Call, event: Mapping[str, Any]) -> None:
        kind, raw = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            raise refusal(call, int(raw.get("code") or 500), {}, orjson.dumps(raw))
        self._sign()
        self.events += 1
        version = (raw.get("metadata") or {}).get("resourceVersion")
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            found = self.kind.read(raw)
            if found is not None:
                self._sink.observe(kind, found)
        if version:
            self._version = str(version)

    def _sign(self) -> None:
        self._last_sign = self._alive = self._clock()
        if self.problem:
            self.problem = ""
            _log.info("%s: current again", self.kind)

    def _say(self, problem: str) -> None:
        """Once per problem, however often it is met."""
        if problem != self.problem:
            self.problem = problem
            _log.warning("%s: %s", self.kind, problem)


def _is_ending() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The non-empty lines of a stream, however it is cut into chunks and however long they are."""
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line
    if rest:
        yield rest
