"""
Server-sent events for the page: what changed in the cluster document, at most once a second, to a bounded number of readers.

Nothing is derived while no page is open. A reader that does not keep up is sent a
``reload`` instead of being queued for.
"""

import asyncio
from contextlib import suppress
from typing import Final

import orjson
from aiohttp import web

from koord_numa.app.api.node_entries import NodeChanges, NodeEntries
from koord_numa.view.documents import Document
from koord_numa.view.documents.cluster import summary

READERS: Final = 32
"""At most so many pages are served live at a time; more are answered 503."""

INTERVAL: Final = 1.0
"""Seconds between two looks at what changed."""

BACKLOG: Final = 8
"""So many changes wait for a slow reader before it is told to read everything again."""

WHOLE: Final = 500
"""With more nodes changed at once, reading the whole document again is cheaper."""

RELOAD: Final = b"event: reload\ndata: {}\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"


class LiveFeed:
    """Sends changes to the pages that are open."""

    def __init__(self, entries: NodeEntries) -> None:
        self._entries = entries
        self._readers: set[asyncio.Queue[bytes]] = set()
        self._task: asyncio.Task[None] | None = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One page's stream, until the page is closed."""
        if len(self._readers) >= READERS:
            raise web.HTTPServiceUnavailable(text=f"{READERS} pages are open already\n")
        queue: asyncio.Queue[bytes] = asyncio.Queue(BACKLOG)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        # Counted before the first await: others that come at the same time see it.
        self._readers.add(queue)
        try:
            with suppress(ConnectionError):
                await response.prepare(request)
                self._start()
                while True:
                    await response.write(await self._next(queue))
        finally:
            self._readers.discard(queue)
        return response

    async def stop(self) -> None:
        """Send nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _next(self, queue: asyncio.Queue[bytes]) -> bytes:
        try:
            async with asyncio.timeout(15 * INTERVAL):
                return await queue.get()
        except TimeoutError:
            return KEEP_ALIVE

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch(), name="live page")

    async def _watch(self) -> None:
        # What changed before the first page opened is in the document that it reads; only later changes are sent.
        await self._entries.refresh()
        waiting = len(self._entries.scheduler.waiting())
        # Ends with the last reader: without pages the derivation costs nothing.
        while self._readers:
            await asyncio.sleep(INTERVAL)
            changes = await self._entries.refresh()
            now_waiting = len(self._entries.scheduler.waiting())
            if changes or now_waiting != waiting:
                waiting = now_waiting
                self._send(self._message(changes, waiting))

    def _message(self, changes: NodeChanges, waiting: int) -> bytes:
        if len(changes.nodes) > WHOLE:
            return RELOAD
        change: Document = {
            "nodes": changes.nodes,
            "removed": changes.removed,
            "summary": summary(self._entries.entries.values(), waiting),
        }
        return b"event: change\ndata: " + orjson.dumps(change) + b"\n\n"

    def _send(self, message: bytes) -> None:
        for queue in self._readers:
            if queue.full():
                # What waits is dropped: a page that is told to read everything again has no use for the steps.
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(RELOAD)
            else:
                queue.put_nowait(message)
