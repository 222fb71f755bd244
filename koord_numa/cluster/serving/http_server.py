"""
What the outside may ask of the process over HTTP: ``/healthz``, ``/readyz``, ``/metrics``, ``/metrics/nodes``, and for people
``/nodes/NAME`` and ``/pods/NAMESPACE/NAME``. It answers questions and changes nothing.

Health is about this process alone: an API server that is down does not make it unhealthy, since a restart would not help. Answers
come from the event loop that does the work, so that one that is stuck fails the probe by its silence.
Readiness tells, in one line for each, what keeps it from scheduling.
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
    """Limits of one port."""

    header_seconds: float = 10.0
    """Seconds from a connection to the end of its first request's headers. kube-scheduler: 32."""
    idle_seconds: float = 60.0
    """Seconds without a request on a connection that has had one. kube-scheduler: 90."""
    handshake_seconds: float = 10.0
    """Seconds of a TLS handshake."""
    most: int = 512
    """Connections. Each takes about 50 kB with TLS."""


LIMITS: Final = ConnectionLimits()


@dataclass(slots=True)
class _Peer:
    """One connection. ``welcome`` is whether a request of it was answered other than by 401 or 403."""

    since: float
    requests: int = 0  # that are being answered
    served: bool = False
    welcome: bool = False


@dataclass(slots=True)
class Connections:
    """The connections of one server."""

    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    limits: ConnectionLimits = LIMITS
    _peers: dict[Any, _Peer] = field(
        default_factory=dict
    )  # by protocol; without a transport it is in its handshake, or ended

    def __len__(self) -> int:
        return sum(1 for protocol in self._peers if protocol.transport is not None)

    def factory(self, server: Callable[[], Any]) -> Callable[[], Any]:
        """What makes the protocol of a new connection. At the limit the connection that is worth least makes room."""

        def connect() -> Any:
            if len(self._peers) >= self.limits.most:
                self._close_least()
            protocol = server()
            self._peers[protocol] = _Peer(self.clock())
            return protocol

        return connect

    @web.middleware
    async def middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Note that the peer is being answered."""
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
        """Close connections that were silent for too long; returns how many."""
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
        """Close silent connections until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            self.close_silent()

    def _close_least(self) -> None:
        """Close the connection that is worth least: ended, not being answered, never welcome, the longest silent."""

        def worth(protocol: Any) -> tuple[bool, bool, bool, float]:
            peer = self._peers[protocol]
            return protocol.transport is not None, peer.requests > 0, peer.welcome, peer.since

        self._close(min(self._peers, key=worth))

    def _close(self, protocol: Any) -> bool:
        del self._peers[protocol]
        if protocol.transport is None:
            return False
        # Not ``close``: a peer that does not answer the end of TLS would keep its descriptor.
        protocol.transport.abort()
        return True


DEFAULT_PORT: Final = 10251
"""Of plain HTTP on loopback: where kube-scheduler used to serve the same paths without TLS."""

ANY_IPV4: Final = "0.0.0.0"  # noqa: S104  (probes and scrapers come from outside the pod)

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Addresses on which only this machine, or whoever has forwarded the port, can connect."""
LOCAL_NAMES: Final = frozenset({"127.0.0.1", "[::1]", "localhost"})
"""Names in a Host header that no other machine can have."""
PORT_SUFFIX: Final = re.compile(r":\d*$")

Complaints = Callable[[], Iterable[str]]
"""What is wrong right now, a sentence each; nothing when all is well."""

Dump = Mapping[str, Any]
"""All about one object, ready for JSON; ``None`` in its place where nothing is known of it."""


@dataclass(frozen=True, slots=True)
class StatusProviders:
    """
    What the pages are made of. ``unhealthy`` fails the liveness probe, ``not_ready`` the readiness probe; ``warnings`` are only shown on
    ``/readyz``, after ``ok``.
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
    """TLS, and the middleware that decides who may read."""

    tls: ssl.SSLContext
    guard: Any


class HttpServer:
    """Serves on one port of every interface until stopped: probes and scrapers come from outside the pod."""

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
        """Listen. Port 0 takes any free one, and ``port`` then says which. Raises ``OSError`` when the port is taken."""
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
        # Signals belong to the process; a scrape that hangs must not hold up its end.
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            # Of port 0 each address family would take a free port of its own; only one can be told.
            host = self._host if self._host or self.port else ANY_IPV4
            tls = None if self._protection is None else self._protection.tls
            handshake = None if tls is None else connections.limits.handshake_seconds
            assert runner.server is not None  # noqa: S101  (made by ``setup``)
            self._server = await asyncio.get_running_loop().create_server(
                connections.factory(runner.server), host, self.port, ssl=tls, ssl_handshake_timeout=handshake
            )
        except OSError:
            # Nothing listens, so the runner has to go with it.
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
    """
    Refuse requests under other names than this machine's own.

    A web page that is open in a browser could otherwise read a forwarded port: its own name may be made to resolve to 127.0.0.1.
    """
    name = request.host.rpartition(":")[0] if PORT_SUFFIX.search(request.host) else request.host
    if name.lower().rstrip(".") not in LOCAL_NAMES:
        raise web.HTTPForbidden(text="this port answers to localhost, 127.0.0.1 and [::1] only\n")
    return await handler(request)  # type: ignore[no-any-return]  # handlers are untyped in aiohttp


def _page(registry: CollectorRegistry) -> web.Response:
    return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _dump(dump: Dump | None, missing: str) -> web.Response:
    """Indented, with a line feed at the end: it is read by people, with curl."""
    body = orjson.dumps({"error": missing} if dump is None else dump, option=orjson.OPT_INDENT_2)
    return web.Response(status=404 if dump is None else 200, body=body + b"\n", content_type="application/json")


def _verdict(complaints: Iterable[str], warnings: Iterable[str] = ()) -> web.Response:
    # Generators: collected first, since the status comes before the text.
    found = list(complaints)
    text = "".join(f"{line}\n" for line in found) or "ok\n"
    text += "".join(f"warning: {line}\n" for line in warnings)
    return web.Response(status=503 if found else 200, text=text)
