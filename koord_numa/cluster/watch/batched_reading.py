"""
A watch that is read in batches: what arrives within a pause is handed on at once.

Theory. An event that comes alone finds the caches of the processor full of other things and costs twice as much as one that is handled
behind another of its kind. Where updates are periodic and nothing waits for them, they are left in the connection's buffer for a moment.
The first event after a pause is handed on as it arrives, those behind it together at the next read, a portion at a time: everything else
that the loop does would wait for all of them. Nothing else about the stream is different: order, bookmarks, errors and its end are those
of the connection.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Self, cast

import aiohttp
from aiohttp.client_middlewares import ClientHandlerType, ClientMiddlewareType

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
