"""The stream of a watch.

The stream keeps a revision as its cursor and no queue. When the table changes, it takes all changes after the cursor
from the shared history, sends the selected changes in a single write, and advances the cursor. A watcher that lags
behind the history gets 410, as from kube-apiserver. Bookmarks carry the current revision.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final

from koord_numa.sandbox.apiserver.errors import ApiError, Cause, invalid_revision, too_old
from koord_numa.sandbox.apiserver.objects.documents import dumps
from koord_numa.sandbox.apiserver.rules.selectors import Selection
from koord_numa.sandbox.apiserver.serving.http import Parameters, Presentation
from koord_numa.sandbox.apiserver.store.backend import Backend
from koord_numa.sandbox.apiserver.store.reader import Reader
from koord_numa.sandbox.apiserver.store.storage import ADDED, TableChange

DEFAULT_TIMEOUT: Final = 3600.0  # seconds; kube-apiserver chooses between 30 and 60 minutes
_BEFORE_END: Final = 2.0  # seconds between the last bookmark and the end of a watch (watch cache of kube-apiserver)
_CHUNK: Final = 500  # lines per write of the initial list
_END_OF_LIST: Final = {"k8s.io/initial-events-end": "true"}


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """The parameters of a watch.

    Changes after revision ``start`` are sent. With 0, the existing objects are sent first.
    """

    start: int
    timeout: float
    bookmarks: bool
    initial_events: bool

    @staticmethod
    def parse(parameters: Parameters) -> "WatchRequest":
        """Return the watch parameters of a query.

        Raises ``ApiError`` with code 500 for a malformed resourceVersion, 400 for a malformed timeout, and 422 unless
        ``sendInitialEvents`` and ``resourceVersionMatch=NotOlderThan`` are used together.
        """
        text = parameters.text("resourceVersion")
        if text and not text.isdigit():
            raise ApiError(500, "InternalError", f"Internal error occurred: {invalid_revision(text)}")
        initial = parameters.flag("sendInitialEvents")
        match = parameters.text("resourceVersionMatch")
        if (initial and match != "NotOlderThan") or (match and not parameters.text("sendInitialEvents")):
            cause = Cause(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch and sendInitialEvents belong together in a watch",
            )
            raise ApiError(422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: {cause}')
        timeout = float(parameters.number("timeoutSeconds")) or DEFAULT_TIMEOUT
        return WatchRequest(int(text or 0), timeout, parameters.flag("allowWatchBookmarks"), initial)


class WatchStream:
    """The event stream of a watch."""

    def __init__(
        self, backend: Backend, request: WatchRequest, selection: Selection, presentation: Presentation
    ) -> None:
        """Subscribe to the table. ``close`` must be called."""
        self._backend = backend
        self._request = request
        self._selection = selection
        self._presentation = presentation
        self._kind = presentation.target.kind
        self._table = backend.table(self._kind)
        self._cursor = request.start
        self._woken = asyncio.Event()
        self._woken.set()  # changes since the start are sent first
        self._table.listeners.append(self._changed)

    def close(self) -> None:
        """Unsubscribe from the table."""
        self._table.listeners.remove(self._changed)

    def wake(self) -> None:
        """Wake the stream after a change outside the table."""
        self._woken.set()

    def _changed(self, _: TableChange) -> None:
        self._woken.set()

    def begin(self, reader: Reader) -> Iterator[bytes]:
        """Return the lines of the initial list, if requested, and set the cursor.

        Raises 410 when the start precedes the history.
        """
        if self._request.start and not self._request.initial_events:
            if self._request.start < self._table.forgotten:
                raise too_old(self._request.start, self._table.forgotten)
            return iter(())
        self._cursor = revision = self._backend.storage.revision
        records = reader.select(self._kind, self._selection)
        return self._initial([self._presentation.added(ADDED, record) for record in records], revision)

    def _initial(self, lines: list[bytes], revision: int) -> Iterator[bytes]:
        for start in range(0, len(lines), _CHUNK):
            yield b"".join(lines[start : start + _CHUNK])
        if self._request.initial_events and self._request.bookmarks:
            yield self._presentation.bookmark(revision, _END_OF_LIST)

    def pending(self) -> list[bytes]:
        """Return the lines of all changes since the last call. Raises 410 when they are no longer in the history."""
        if self._backend.storage.revision == self._cursor:
            return []
        changes = self._table.since(self._cursor)
        self._cursor = max(self._cursor, self._backend.storage.revision)
        lines = []
        for change in changes:
            event = self._selection.event_of(change)
            if event is not None:
                lines.append(self._presentation.event(event, change))
        return lines

    def bookmark(self) -> bytes:
        """Return the line of a bookmark at the cursor."""
        return self._presentation.bookmark(self._cursor)

    @property
    def served(self) -> bool:
        """Whether the kind is still served in this version."""
        kind = self._backend.registry.find(self._kind.group, self._kind.plural)
        return kind is not None and self._presentation.target.version in kind.versions

    async def ticks(self, bookmark_interval: float) -> AsyncIterator[bool]:
        """Yield on every possible change until the watch times out. The value is true when a bookmark is due."""
        clock = asyncio.get_running_loop().time
        end = clock() + self._request.timeout
        last_bookmark = max(clock(), end - _BEFORE_END)
        due = min(clock() + bookmark_interval, last_bookmark) if self._request.bookmarks else end
        while (now := clock()) < end:
            if not self._woken.is_set():
                try:
                    async with asyncio.timeout_at(min(due, end)):
                        await self._woken.wait()
                except TimeoutError:
                    now = clock()
            self._woken.clear()  # cleared before the caller reads the changes, so that no later change is missed
            is_due = self._request.bookmarks and now >= due
            if is_due:
                due = last_bookmark if now < last_bookmark < now + bookmark_interval else now + bookmark_interval
            yield is_due


def error_line(error: ApiError) -> bytes:
    """Return the line that ends a watch with an error."""
    return dumps({"type": "ERROR", "object": error.status()}) + b"\n"
