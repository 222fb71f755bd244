"""The HTTP request handler: logging, faults, dispatch, watches, and port forwarding."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from aiohttp import WSMsgType, web

from koord_numa.core.value_objects import replace
from koord_numa.sandbox.apiserver import http, nonresource
from koord_numa.sandbox.apiserver.authorization import ABOUT_ONESELF, attributes, user_of
from koord_numa.sandbox.apiserver.backend import Backend, Reader
from koord_numa.sandbox.apiserver.direct import Cluster
from koord_numa.sandbox.apiserver.documents import dig, dumps
from koord_numa.sandbox.apiserver.errors import (
    ApiError,
    Cause,
    bad_request,
    expired,
    invalid_revision,
    timed_out,
    too_old,
)
from koord_numa.sandbox.apiserver.faults import Asked, Effect, Fault, Faults, RequestLog, first
from koord_numa.sandbox.apiserver.http import Parameters, Presentation, ResourceApi, ResourceCall, parse
from koord_numa.sandbox.apiserver.selectors import Selection
from koord_numa.sandbox.apiserver.storage import ADDED, TableChange

# ``pods/portforward`` over WebSocket, as the kubelet serves it (``portforward/websocket.go``).
#
# The SPDY protocol of kubectl is not supported. Simulated pods run no programs: ``LocalPorts`` maps pod ports to
# loopback ports.

PROTOCOL: Final = "v4.channel.k8s.io"
SUBRESOURCE: Final = "portforward"

LocalPorts = dict[tuple[str, str, int], int]
"""Loopback port by namespace, pod name and pod port."""


async def serve(request: web.BaseRequest, local: int | None, port: int) -> web.StreamResponse:
    """Relay a connection until either side closes it.

    An unmapped port is reported on the error channel. Raises ``ApiError`` with code 400 if the request is not a
    WebSocket upgrade.
    """
    socket = web.WebSocketResponse(protocols=(PROTOCOL,))
    if not socket.can_prepare(request):
        raise bad_request("Upgrade request required")
    await socket.prepare(request)
    number = port.to_bytes(2, "little")
    await socket.send_bytes(b"\0" + number)
    await socket.send_bytes(b"\1" + number)
    if local is None:
        await socket.send_bytes(b"\1" + f"connection to port {port} inside the pod is refused".encode())
        return socket
    reader, writer = await asyncio.open_connection("127.0.0.1", local)
    back = asyncio.create_task(_back(reader, socket))
    try:
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
                writer.write(message.data[1:])
                await writer.drain()
    finally:
        back.cancel()
        writer.close()
    return socket


async def _back(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(2**16):
            await socket.send_bytes(b"\0" + chunk)
        await socket.close()


# The stream of a watch.
#
# The stream keeps a revision as its cursor and no queue. When the table changes, it takes all changes after the cursor
# from the shared history, sends the selected changes in a single write, and advances the cursor. A watcher that lags
# behind the history gets 410, as from kube-apiserver. Bookmarks carry the current revision.

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
        """True if the kind is still served in this version."""
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


_NAMED: Final = re.compile(r"metadata\.name==?([^,]+)")


@dataclass(frozen=True, slots=True)
class Serving:
    """The parts that a handler serves from. ``bookmark_interval`` is in seconds."""

    cluster: Cluster
    faults: Faults
    requests: RequestLog
    bookmark_interval: float
    local_ports: LocalPorts


class Handler:
    """Handler of all requests of the server."""

    def __init__(self, serving: Serving) -> None:
        """Create the handler.

        Changes of faults and of served kinds wake the watches, so they take effect immediately.
        """
        self._serving = serving
        self._resources = ResourceApi(serving.cluster, serving.faults)
        self._watches: set[WatchStream] = set()
        self._held: set[asyncio.Event] = set()
        self._stopping = False
        serving.faults.on_change(self._wake_watches)
        serving.faults.on_change(self._wake_held)
        serving.cluster.backend.registry.on_change(self._wake_watches)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve a request."""
        asked, parameters = parse(request.method, request.raw_path)
        try:
            transport = request.transport
            if transport is not None:
                asked.port = (transport.get_extra_info("peername") or ("", 0))[1]
            asked.user_agent = request.headers.get("User-Agent", "")
            asked.user = user_of(request.headers.get("Authorization", ""))
            self._serving.requests.add(asked)
            suffered = self._serving.faults.on_request(asked)
            if suffered:
                return await self._suffer(request, asked, parameters, suffered)
            response = await self._serve(request, asked, parameters)
        except ApiError as error:
            response = http.refusal(error)
        asked.status = response.status
        return response

    def stop(self) -> None:
        """End all watches so that the server can close."""
        self._stopping = True
        self._wake_watches()

    def resume(self) -> None:
        """Serve watches again."""
        self._stopping = False

    @property
    def open_watches(self) -> int:
        """The number of open watches."""
        return len(self._watches)

    async def _serve(self, request: web.BaseRequest, asked: Asked, parameters: Parameters) -> web.StreamResponse:
        if not asked.resource:
            return nonresource.answer(request, asked.path, self._serving.cluster.backend)
        if asked.user:
            self._authorize(asked, parameters)
        call = self._resources.call(request, asked, parameters)
        if asked.verb == "watch":
            return await self._watch(call)
        if asked.subresource == SUBRESOURCE:
            return await self._forward(call)
        if asked.subresource == "log":
            return self._container_log(call)
        return await self._resources.answer(call)

    def _authorize(self, asked: Asked, parameters: Parameters) -> None:
        """Raise ``ApiError`` with code 403 unless the request is permitted.

        As in kube-apiserver, a list or watch of a single object by field selector counts as a request for that name.
        """
        if asked.resource in ABOUT_ONESELF:
            return
        selected = _NAMED.fullmatch(parameters.text("fieldSelector"))
        name = asked.name or (selected[1] if selected else "")
        self._serving.cluster.authorizer.check(attributes(asked.user, replace(asked, name=name)))

    async def _suffer(
        self, request: web.BaseRequest, asked: Asked, parameters: Parameters, suffered: list[Fault]
    ) -> web.StreamResponse:
        """Serve a request with faults. A lost response is discarded after all other effects."""
        received, limit = asyncio.get_running_loop().time(), parameters.seconds("timeout")
        for fault in suffered:
            if fault.effect is Effect.DELAY:
                await self._elapse(fault)
        if limit is not None and asyncio.get_running_loop().time() - received >= limit:
            raise timed_out(limit)
        if first(suffered, Effect.DROP, Effect.OUTAGE):
            return _abort(request)
        error = first(suffered, Effect.ERROR)
        if error:
            raise error.error()
        try:
            response = await self._serve(request, asked, parameters)
        except ApiError as refused:
            response = http.refusal(refused)
        slow = first(suffered, Effect.SLOW_ANSWER)
        if slow:
            await self._elapse(slow)
        if first(suffered, Effect.LOSE_ANSWER):
            return _abort(request)
        asked.status = response.status
        return response

    async def _forward(self, call: ResourceCall) -> web.StreamResponse:
        """Serve a port forward. Raises ``ApiError`` with code 404 for an absent pod."""
        target, port = call.target, call.parameters.number("ports")
        self._serving.cluster.backend.get(replace(target, subresource=""))
        local = self._serving.local_ports.get((target.namespace, target.name, port))
        return await serve(call.request, local, port)

    def _container_log(self, call: ResourceCall) -> web.Response:
        """Serve ``kubectl logs``. Raises ``ApiError`` with code 404 for an absent pod and 400 for a pod without a node."""
        target = replace(call.target, subresource="")
        pod = self._serving.cluster.backend.get(target).load()
        if not dig(pod, "spec", "nodeName"):
            raise bad_request(f"pod {target.name} does not have a host assigned")
        return http.text(f"{target.name} is simulated and writes no log. koord-numa explain shows its CPUs.\n")

    async def _watch(self, call: ResourceCall) -> web.StreamResponse:
        cluster = self._serving.cluster
        presentation = self._resources.presentation(call)
        stream = WatchStream(cluster.backend, WatchRequest.parse(call.parameters), call.selection(), presentation)
        self._watches.add(stream)
        try:
            response = web.StreamResponse(headers={"Content-Type": http.JSON})
            call.asked.status = 200
            await response.prepare(call.request)
            await self._stream(call, stream, response)
            return response
        finally:
            self._watches.discard(stream)
            stream.close()

    async def _stream(self, call: ResourceCall, stream: WatchStream, response: web.StreamResponse) -> None:
        try:
            for chunk in stream.begin(self._serving.cluster.reader):
                await response.write(chunk)
            async for bookmark_due in stream.ticks(self._serving.bookmark_interval):
                if self._stopping or not stream.served:
                    return
                suffered = self._serving.faults.on_event(call.asked)
                if first(suffered, Effect.CUT_WATCH):
                    _abort(call.request)
                    return
                if first(suffered, Effect.EXPIRE_WATCH):
                    raise expired("too old resource version: expired on demand")
                if first(suffered, Effect.SILENT_WATCH):
                    continue
                await self._send(stream, response, first(suffered, Effect.SLOW_WATCH))
                if bookmark_due:
                    await response.write(stream.bookmark())
        except ApiError as error:
            await response.write(error_line(error))
        except ConnectionError:  # the client disconnected; its next watch names its own start
            return

    async def _send(self, stream: WatchStream, response: web.StreamResponse, slow: Fault | None) -> None:
        lines = stream.pending()
        if slow is None:
            if lines:
                await response.write(b"".join(lines))
            return
        for line in lines:
            await self._elapse(slow)
            await response.write(line)

    async def _elapse(self, fault: Fault) -> None:
        """Wait for the duration of the fault: its seconds, or until the fault is no longer active."""
        if fault.seconds is not None:
            await asyncio.sleep(fault.seconds)
            return
        changed = asyncio.Event()
        self._held.add(changed)
        try:
            while self._serving.faults.in_force(fault):
                await changed.wait()
                changed.clear()
        finally:
            self._held.discard(changed)

    def _wake_held(self) -> None:
        for changed in self._held:
            changed.set()

    def _wake_watches(self) -> None:
        for stream in self._watches:
            stream.wake()


def _abort(request: web.BaseRequest) -> web.StreamResponse:
    """Abort the connection. The returned response is never sent."""
    transport = request.transport
    if transport is not None:
        transport.abort()
    return web.Response(status=500)
