"""The served port: TLS, delegated authentication and authorization, and the HTTP server for probes, metrics and debugging."""

import asyncio
import os
import re
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from typing import Any, Final

import orjson
from aiohttp import web
from cachetools import TTLCache
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from koord_numa.cluster.resources import ACCESS_REVIEWS, TOKEN_REVIEWS, Call
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field
from koord_numa.ports import ClusterError

VALID: Final = timedelta(days=365)
"""Validity of self-signed certificates, as in client-go's ``GenerateSelfSignedCertKey``."""


def server_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return the TLS context of a server with TLS 1.2 or later.

    Without files it has a new self-signed certificate for this host.

    Raises ``OSError`` and ``ssl.SSLError`` (an ``OSError``) for unusable files.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None and key is not None:
        context.load_cert_chain(certificate, key)
        return context
    with _as_file(_self_signed(gethostname())) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Provide a path to the content for the ssl module.

    The file is in memory if possible, because root file systems may be read-only.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("koord-numa-certificate")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name


def _self_signed(host: str) -> bytes:
    """Return a private key and certificate as PEM."""
    # The imports take 0.1 s, which a start without a self-signed certificate saves.
    from cryptography import x509  # noqa: PLC0415  (only where needed)
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415  (as above)
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415  (as above)
    from cryptography.x509.oid import NameOID  # noqa: PLC0415  (as above)

    key = ec.generate_private_key(ec.SECP256R1())
    # Common names are at most 64 characters long (RFC 5280).
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(host), x509.DNSName("localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    # Slightly in the past, for clients with late clocks.
    builder = builder.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + VALID)
    signed = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return private + signed.public_bytes(serialization.Encoding.PEM)


OPEN_PATHS: Final = frozenset({"/healthz", "/livez", "/readyz"})

CACHE_SECONDS: Final = 10.0
"""Seconds that a result is cached: ``DefaultTokenCacheTTL`` and the allow and deny TTLs of kube-scheduler."""

CACHED: Final = 1024


class Refusal(ValueObject):
    """HTTP status and text of the answer to a rejected request."""

    status: int
    text: str


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class User(ValueObject):
    """The user of a token."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()


Review = Callable[[Call, Mapping[str, Any]], Awaitable[Any]]
"""Creates a review and returns it with its status. Raises ``ClusterError``."""


class DelegatedAuth:
    """Delegated authentication and authorization: TokenReview and SubjectAccessReview. A single instance per process."""

    def __init__(self, review: Review) -> None:
        self._review = review
        self._users: TTLCache[bytes, User | None] = TTLCache(CACHED, CACHE_SECONDS)
        self._rights: TTLCache[tuple[User, str, str], bool] = TTLCache(CACHED, CACHE_SECONDS)

    def middleware(self) -> Any:
        """Return the middleware of an aiohttp application."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            refused = await self.refusal(request.headers.get("Authorization", ""), request.method, request.path)
            if refused is None:
                return await handler(request)
            headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}
            return web.Response(status=refused.status, text=f"{refused.text}\n", headers=headers)

        return check

    async def refusal(self, authorization: str, method: str, path: str) -> Refusal | None:
        """
        Return why a request is rejected, or None.

        The status is 401 without a valid token, 403 without permission, and 503 if the API server is unavailable.
        """
        if path in OPEN_PATHS:
            return None
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            # Without a token there is no TokenReview to request.
            return Refusal(401, "a bearer token is needed")
        try:
            user = await self._user(token.strip())
            if user is None:
                return Refusal(401, "the token is not valid")
            # Mapping of methods to verbs for non-resource URLs in kube-apiserver.
            verb = "get" if method in ("GET", "HEAD") else method.lower()
            if not await self._allowed(user, verb, path):
                return Refusal(403, f"{user.name} may not {verb} {path}")
        except ClusterError as error:
            return Refusal(503, f"access cannot be decided: {error}")
        return None

    async def _user(self, token: str) -> User | None:
        # Digest, because the cache must not hold tokens.
        key = sha256(token.encode()).digest()
        if key not in self._users:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
            answer = await self._review(Call("create", TOKEN_REVIEWS), review)
            self._users[key] = _user(answer.get("status") or {})
        return self._users.get(key)

    async def _allowed(self, user: User, verb: str, path: str) -> bool:
        key = (user, verb, path)
        if key not in self._rights:
            spec = {
                "user": user.name,
                "uid": user.uid,
                "groups": list(user.groups),
                "nonResourceAttributes": {"path": path, "verb": verb},
            }
            review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
            answer = await self._review(Call("create", ACCESS_REVIEWS), review)
            status = answer.get("status") or {}
            # ``denied`` takes precedence over ``allowed`` (SubjectAccessReviewStatus).
            self._rights[key] = bool(status.get("allowed")) and not status.get("denied")
        return self._rights.get(key, False)


def _user(status: dict[str, Any]) -> User | None:
    found = status.get("user") or {}
    if not status.get("authenticated") or not found.get("username"):
        return None
    return User(str(found["username"]), str(found.get("uid") or ""), tuple(map(str, found.get("groups") or ())))


# The read-only HTTP server for probes, metrics and debugging.
#
# It serves ``/healthz``, ``/readyz``, ``/metrics``, ``/metrics/nodes``, ``/nodes/NAME`` and ``/pods/NAMESPACE/NAME``.
# Liveness concerns only this process: an unavailable API server does not make it unhealthy, because a restart would not
# help. Responses come from the event loop that schedules, so a blocked loop fails the probe by timeout. Readiness lists
# the reasons that prevent scheduling, one per line.


class ConnectionLimits(ValueObject):
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


class _Peer(MutableObject):
    """A connection. ``welcome`` is whether a response had a status other than 401 and 403."""

    since: float
    requests: int = 0  # requests in progress
    served: bool = False
    welcome: bool = False


class Connections(MutableObject):
    """The connections of a server."""

    clock: Callable[[], float] = value_field(default_factory=lambda: asyncio.get_running_loop().time)
    limits: ConnectionLimits = LIMITS
    _peers: dict[Any, _Peer] = value_field(
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


class StatusProviders(ValueObject):
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


class Protection(ValueObject):
    """The TLS context, and the middleware for authentication and authorization."""

    tls: ssl.SSLContext
    guard: Any


PORT_SETTING: Final = "KOORD_NUMA_METRICS_PORT"
"""Environment variable of the plain port, under ``koord-numa run`` and ``kopf run``."""

SECURE_PORT_SETTING: Final = "KOORD_NUMA_SECURE_PORT"
"""Environment variable of the port with TLS."""


class HttpServer:
    """HTTP server on a port of every interface, because probes and scrapers connect from outside the pod."""

    def __init__(
        self,
        providers: StatusProviders,
        port: int,
        host: str | None = None,
        protection: Protection | None = None,
        setting: str = PORT_SETTING,
    ) -> None:
        self.port = port
        self._setting = setting
        self._host = host
        self._providers = providers
        self._protection = protection
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self.connections: Connections | None = None

    async def start(self) -> None:
        """Listen.

        For port 0 a free port is selected and stored in ``port``. Raises ``OSError`` when the port is in use, with a
        message that names the port and how to set it.
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
        except OSError as error:
            # Nothing listens, so the runner is cleaned up.
            await runner.cleanup()
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(f"cannot listen on port {self.port}: {reason}; {self._setting} sets the port") from error
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
        return _dump(self._providers.node(name), f"there is no node {name}")

    async def _pod(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        return _dump(self._providers.pod(namespace, name), f"there is no pod {namespace}/{name}")


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
