"""The HTTP request handler: logging, faults, dispatch and streaming of watches."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson
from aiohttp import web
from pydantic import ValidationError

from koord_numa.core.value_objects import replace
from koord_numa.sandbox.apiserver.errors import ApiError, bad_request, expired, no_such_path, timed_out
from koord_numa.sandbox.apiserver.faults import Effect, Fault, Faults, first
from koord_numa.sandbox.apiserver.serving import http, nonresource, port_forward
from koord_numa.sandbox.apiserver.serving.http import Parameters, ResourceApi, ResourceCall, parse
from koord_numa.sandbox.apiserver.serving.request_log import Asked, RequestLog
from koord_numa.sandbox.apiserver.serving.reviews import ABOUT_ONESELF, attributes, user_of
from koord_numa.sandbox.apiserver.serving.watch import WatchRequest, WatchStream, error_line
from koord_numa.sandbox.apiserver.store.cluster import Cluster
from koord_numa.wire.errors import sentence_of

PREFIX = "/sandbox/"


@dataclass(frozen=True, slots=True)
class Control:
    """The control endpoints of the sandbox.

    ``POST /sandbox/faults`` adds a fault and returns ``{"id": n}``. ``GET`` lists the faults, ``DELETE`` removes all
    of them and ``DELETE /sandbox/faults/n`` removes fault n. ``POST /sandbox/compact`` discards the history. ``GET``
    and ``DELETE`` on ``/sandbox/requests`` read and clear the request log.
    """

    faults: Faults
    requests: RequestLog
    compact: Callable[[], int]

    async def answer(self, request: web.BaseRequest, path: str) -> web.Response:
        """Serve a control endpoint. Raises ``ApiError`` with code 400 or 404."""
        thing, _, which = path.removeprefix(PREFIX).strip("/").partition("/")
        action = (request.method, thing)
        if action == ("POST", "faults") and not which:
            return await self._add(request)
        if action == ("GET", "faults"):
            return http.json_answer({"faults": self.faults.describe()})
        if action == ("DELETE", "faults"):
            if which:
                self.faults.remove(int(which) if which.isdigit() else 0)
            else:
                self.faults.clear()
            return http.json_answer({"faults": self.faults.describe()})
        if action == ("POST", "compact"):
            return http.json_answer({"revision": self.compact()})
        if action == ("GET", "requests"):
            return http.json_answer({"requests": self.requests.describe()})
        if action == ("DELETE", "requests"):
            self.requests.clear()
            return http.json_answer({"requests": []})
        raise no_such_path()

    async def _add(self, request: web.BaseRequest) -> web.Response:
        try:
            asked = orjson.loads(await request.read())
        except orjson.JSONDecodeError as problem:
            raise bad_request(f"the body is not JSON: {problem.msg}") from None
        try:
            fault = Fault.model_validate(asked)
        except ValidationError as problem:
            raise bad_request(sentence_of(problem, asked, ("not a fault",))) from None
        return http.json_answer({"id": self.faults.add(fault)}, 201)


_NAMED: Final = re.compile(r"metadata\.name==?([^,]+)")


@dataclass(frozen=True, slots=True)
class Serving:
    """The parts that a handler serves from. ``bookmark_interval`` is in seconds."""

    cluster: Cluster
    faults: Faults
    requests: RequestLog
    compact: Callable[[], int]
    bookmark_interval: float
    local_ports: port_forward.LocalPorts


class Handler:
    """Handler of all requests of the server."""

    def __init__(self, serving: Serving) -> None:
        """Create the handler.

        Changes of faults and of served kinds wake the watches, so they take effect immediately.
        """
        self._serving = serving
        self._resources = ResourceApi(serving.cluster, serving.faults)
        self._control = Control(serving.faults, serving.requests, serving.compact)
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
            if asked.path.startswith(PREFIX):
                return await self._control.answer(request, asked.path)
            self._log(request, asked)
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

    def _log(self, request: web.BaseRequest, asked: Asked) -> None:
        transport = request.transport
        if transport is not None:
            asked.port = (transport.get_extra_info("peername") or ("", 0))[1]
        asked.user_agent = request.headers.get("User-Agent", "")
        asked.user = user_of(request.headers.get("Authorization", ""))
        self._serving.requests.add(asked)

    async def _serve(self, request: web.BaseRequest, asked: Asked, parameters: Parameters) -> web.StreamResponse:
        if not asked.resource:
            return nonresource.answer(request, asked.path, self._serving.cluster.backend)
        if asked.user:
            self._authorize(asked, parameters)
        call = self._resources.call(request, asked, parameters)
        if asked.verb == "watch":
            return await self._watch(call)
        if asked.subresource == port_forward.SUBRESOURCE:
            return await self._forward(call)
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
        return await port_forward.serve(call.request, local, port)

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
