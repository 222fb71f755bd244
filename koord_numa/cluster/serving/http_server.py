"""The read-only HTTP server for probes, metrics and debugging.

It serves ``/healthz``, ``/readyz``, ``/metrics``, ``/metrics/nodes``, ``/nodes/NAME`` and ``/pods/NAMESPACE/NAME``.
Liveness concerns only this process: an unavailable API server does not make it unhealthy, because a restart would not
help. Responses come from the event loop that schedules, so a blocked loop fails the probe by timeout. Readiness lists
the reasons that prevent scheduling, one per line.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of a port."""

    header_seconds: float = 10.0
    """Seconds from the connection to the end of the first request's headers. kube-scheduler: 32."""
    idle_seconds: float = 60.0
    """Seconds between requests of a connection. kube-scheduler: 90."""
    handshake_seconds: float = 10.0
    """Seconds of a TLS handshake."""
    most: int = 512
    """Maximum number of connections. A connection takes about 50 kB with TLS."""


LIMITS: Final = ConnectionLimits()


@dataclass(slots=True)
class _Peer:
    """A connection. ``welcome`` is whether a response had a status other than 401 and 403."""

    since: float
    requests: int = 0  # requests in progress
    served: bool = False
    welcome: bool = False


@dataclass(slots=True)
class Connections:
    """The connections of a server."""

    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    limits: ConnectionLimits = LIMITS
    _peers: dict[Any, _Peer] = field(
        default_factory=dict
    )  # by protocol; a protocol without a transport is in its handshake or closed

    def __len__(self) -> int:
        return sum(1 for protocol in self._peers if protocol.transport is not None)

    def factory(self, server: Callable[[], Any]) -> Callable[[], Any]:
        """Return the factory of protocols for new connections.

        At the limit it closes the connection with the lowest priority.
        """

        def connect() -> Any:
            if len(self._peers) >= self.limits.most:
                self._close_least()
            protocol = server()
            self._peers[protocol] = _Peer(self.clock())
            return protocol

        return connect

    @web.middleware
    async def middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Track the requests of a connection."""
        peer = self._peers.get(request.protocol)
        if peer is None:
            return await handler(request)  # type: ignore[no-any-return]  # handlers are untyped in aiohttp
        peer.requests += 1
        try:
            response: web.StreamResponse = await handler(request)
            peer.welcome = peer.welcome or response.status not in (401, 403)
            return response
        finally:
            peer.requests -= 1
            peer.served, peer.since = True, self.clock()

    def close_silent(self) -> int:
        """Close connections that exceed their idle limit and return their number."""
        now, closed = self.clock(), 0
        for protocol, peer in list(self._peers.items()):
            if protocol.transport is None:
                longest = self.limits.handshake_seconds
            else:
                longest = self.limits.idle_seconds if peer.served else self.limits.header_seconds
            if not peer.requests and now - peer.since > longest:
                closed += self._close(protocol)
        return closed

    async def watch(self) -> None:
        """Close idle connections until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            self.close_silent()

    def _close_least(self) -> None:
        """Close the connection with the lowest priority.

        In this order: closed, without running requests, never authorized, idle for the longest time.
        """

        def worth(protocol: Any) -> tuple[bool, bool, bool, float]:
            peer = self._peers[protocol]
            return protocol.transport is not None, peer.requests > 0, peer.welcome, peer.since

        self._close(min(self._peers, key=worth))

    def _close(self, protocol: Any) -> bool:
        del self._peers[protocol]
        if protocol.transport is None:
            return False
        # Not ``close``: a peer that does not complete the TLS shutdown would keep its descriptor.
        protocol.transport.abort()
        return True


ANY_IPV4: Final = "0.0.0.0"  # noqa: S104  (probes and scrapers connect from outside the pod)

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Addresses that only this machine, or a client with a forwarded port, can reach."""
LOCAL_NAMES: Final = frozenset({"127.0.0.1", "[::1]", "localhost"})
"""Names in a Host header that only this machine can have."""
PORT_SUFFIX: Final = re.compile(r":\d*$")

Complaints = Callable[[], Iterable[str]]
"""Returns the current problems as sentences, or nothing."""

Dump = Mapping[str, Any]
"""The state of an object, ready for JSON. ``None`` is used for an unknown object."""


@dataclass(frozen=True, slots=True)
class StatusProviders:
    """The sources of the pages.

    ``unhealthy`` fails the liveness probe and ``not_ready`` the readiness probe. ``warnings`` are only listed on
    ``/readyz`` after ``ok``.
    """

    unhealthy: Complaints
    not_ready: Complaints
    metrics: CollectorRegistry
    nodes: CollectorRegistry
    node: Callable[[str], Dump | None] = lambda _: None
    pod: Callable[[str, str], Dump | None] = lambda *_: None
    warnings: Complaints = tuple
    routes: Sequence[web.RouteDef] = ()


@dataclass(frozen=True, slots=True)
class Protection:
    """The TLS context, and the middleware for authentication and authorization."""

    tls: ssl.SSLContext
    guard: Any


class HttpServer:
    """HTTP server on a port of every interface, because probes and scrapers connect from outside the pod."""

    def __init__(
        self, providers: StatusProviders, port: int, host: str | None = None, protection: Protection | None = None
    ) -> None:
        self.port = port
        self._host = host
        self._providers = providers
        self._protection = protection
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self.connections: Connections | None = None

    async def start(self) -> None:
        """Listen.

        For port 0 a free port is selected and stored in ``port``. Raises ``OSError`` when the port is in use.
        """
        connections = self.connections = Connections()
        is_local = self._protection is None and self._host in LOOPBACK_HOSTS
        local = (only_local_names,) if is_local else ()
        guards = () if self._protection is None else (self._protection.guard,)
        app = web.Application(middlewares=(connections.middleware, *local, *guards))
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/livez", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/metrics/nodes", self._node_metrics)
        app.router.add_get("/nodes/{name}", self._node)
        app.router.add_get("/pods/{namespace}/{name}", self._pod)
        app.add_routes(self._providers.routes)
        # The process handles signals. A hanging scrape must not delay its end.
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            # With port 0 each address family would select its own port, but only one can be reported.
            host = self._host if self._host or self.port else ANY_IPV4
            tls = None if self._protection is None else self._protection.tls
            handshake = None if tls is None else connections.limits.handshake_seconds
            assert runner.server is not None  # noqa: S101  (made by ``setup``)
            self._server = await asyncio.get_running_loop().create_server(
                connections.factory(runner.server), host, self.port, ssl=tls, ssl_handshake_timeout=handshake
            )
        except OSError:
            # Nothing listens, so the runner is cleaned up.
            await runner.cleanup()
            raise
        self._runner = runner
        self._watch = asyncio.create_task(connections.watch())
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, _: web.Request) -> web.Response:
        return _verdict(self._providers.unhealthy())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _verdict(self._providers.not_ready(), self._providers.warnings())

    async def _metrics(self, _: web.Request) -> web.Response:
        return _page(self._providers.metrics)

    async def _node_metrics(self, _: web.Request) -> web.Response:
        return _page(self._providers.nodes)

    async def _node(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return _dump(self._providers.node(name), f"nothing is known of node {name}")

    async def _pod(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        return _dump(self._providers.pod(namespace, name), f"nothing is known of pod {namespace}/{name}")


@web.middleware
async def only_local_names(request: web.Request, handler: Any) -> web.StreamResponse:
    """Reject requests with a Host header other than the local machine.

    Otherwise a web page in a browser could read a forwarded port, because its host name may resolve to 127.0.0.1 (DNS
    rebinding).
    """
    name = request.host.rpartition(":")[0] if PORT_SUFFIX.search(request.host) else request.host
    if name.lower().rstrip(".") not in LOCAL_NAMES:
        raise web.HTTPForbidden(text="this port answers to localhost, 127.0.0.1 and [::1] only\n")
    return await handler(request)  # type: ignore[no-any-return]  # handlers are untyped in aiohttp


def _page(registry: CollectorRegistry) -> web.Response:
    return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _dump(dump: Dump | None, missing: str) -> web.Response:
    """Return indented JSON with a trailing line feed, for users of curl."""
    body = orjson.dumps({"error": missing} if dump is None else dump, option=orjson.OPT_INDENT_2)
    return web.Response(status=404 if dump is None else 200, body=body + b"\n", content_type="application/json")


def _verdict(complaints: Iterable[str], warnings: Iterable[str] = ()) -> web.Response:
    # Generators are collected first, because the status precedes the text.
    found = list(complaints)
    text = "".join(f"{line}\n" for line in found) or "ok\n"
    text += "".join(f"warning: {line}\n" for line in warnings)
    return web.Response(status=503 if found else 200, text=text)
