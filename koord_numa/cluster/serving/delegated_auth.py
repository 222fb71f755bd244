"""
Who may read what this process serves: the API server decides, as for kube-scheduler's secure port.

Authentication is a TokenReview of the bearer token, authorization a SubjectAccessReview of the path (``nonResourceAttributes``), as in
``k8s.io/apiserver`` ``DelegatingAuthenticatorConfig`` and ``DelegatingAuthorizerConfig``, whose cache times hold here as well.
Answers are cached by a digest, so that no token stays in memory. Health is open, for kubelets' probes.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from aiohttp import web
from cachetools import TTLCache

from koord_numa.cluster.client import Api, Body
from koord_numa.cluster.resources import ACCESS_REVIEWS, TOKEN_REVIEWS, Call
from koord_numa.ports import ClusterError

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
