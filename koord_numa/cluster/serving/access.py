"""TLS certificates of the served port, and delegated authentication and authorization of its clients."""

import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from typing import Any, Final

from aiohttp import web
from cachetools import TTLCache
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from koord_numa.cluster.client import Api, Body
from koord_numa.cluster.resources import ACCESS_REVIEWS, TOKEN_REVIEWS, Call
from koord_numa.ports import ClusterError

VALID: Final = timedelta(days=365)
"""As long as client-go's ``GenerateSelfSignedCertKey`` makes certificates valid."""


def server_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """
    The TLS context of a server, TLS 1.2 and later. Without files, a new self-signed certificate for this host.

    Raises ``OSError`` and ``ssl.SSLError`` (an ``OSError``) for files that cannot be used.
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
    """A path for the ssl module, which reads files only; in memory where the system can, as root file systems are read-only."""
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
    """Key and certificate as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Common names are at most 64 characters long (RFC 5280).
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(host), x509.DNSName("localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    # A little in the past, for clients whose clocks are behind.
    builder = builder.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + VALID)
    signed = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return private + signed.public_bytes(serialization.Encoding.PEM)


OPEN_PATHS: Final = frozenset({"/healthz", "/livez", "/readyz"})

CACHE_SECONDS: Final = 10.0
"""How long an answer holds: ``DefaultTokenCacheTTL`` and the deny and allow TTLs of kube-scheduler's defaults."""

CACHED: Final = 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class User:
    """Whom a token belongs to."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()


class DelegatedAuth:
    """A middleware for an aiohttp application. One per process."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._users: TTLCache[bytes, User | None] = TTLCache(CACHED, CACHE_SECONDS)
        self._rights: TTLCache[tuple[User, str, str], bool] = TTLCache(CACHED, CACHE_SECONDS)

    def middleware(self) -> Any:
        """Answers 401 without a valid token, 403 without the right, and 503 while the API server cannot be asked."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path not in OPEN_PATHS:
                await self._check(request)
            return await handler(request)

        return check

    async def _check(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            # Without a token there is nothing that the API server could review.
            raise web.HTTPUnauthorized(text="a bearer token is needed\n", headers={"WWW-Authenticate": "Bearer"})
        try:
            user = await self._user(token.strip())
            if user is None:
                raise web.HTTPUnauthorized(text="the token is not valid\n", headers={"WWW-Authenticate": "Bearer"})
            # As kube-apiserver maps methods to verbs of non-resource URLs.
            verb = "get" if request.method in ("GET", "HEAD") else request.method.lower()
            if not await self._allowed(user, verb, request.path):
                raise web.HTTPForbidden(text=f"{user.name} may not {verb} {request.path}\n")
        except ClusterError as error:
            raise web.HTTPServiceUnavailable(text=f"access cannot be decided: {error}\n") from error

    async def _user(self, token: str) -> User | None:
        # A digest: the cache must not hold tokens.
        key = sha256(token.encode()).digest()
        if key not in self._users:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
            answer = await self._api.send(Call("create", TOKEN_REVIEWS), Body(review))
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
            answer = await self._api.send(Call("create", ACCESS_REVIEWS), Body(review))
            status = answer.get("status") or {}
            # ``denied`` wins over ``allowed`` (SubjectAccessReviewStatus).
            self._rights[key] = bool(status.get("allowed")) and not status.get("denied")
        return self._rights.get(key, False)


def _user(status: dict[str, Any]) -> User | None:
    found = status.get("user") or {}
    if not status.get("authenticated") or not found.get("username"):
        return None
    return User(str(found["username"]), str(found.get("uid") or ""), tuple(map(str, found.get("groups") or ())))
