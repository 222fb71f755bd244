"""TLS certificates of the served port, and delegated authentication and authorization of its clients."""

import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from typing import Any, Final

from aiohttp import web
from cachetools import TTLCache

from koord_numa.cluster.resources import ACCESS_REVIEWS, TOKEN_REVIEWS, Call
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """HTTP status and text of the answer to a rejected request."""

    status: int
    text: str


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class User:
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
