"""
One connection to the API server: credentials from kubernetes-asyncio, raw JSON in and out, errors as ``ports`` names them.

No retries here: only the caller knows whether asking again is right.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from math import floor
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp
import orjson
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_middlewares import ClientMiddlewareType
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import ConfigException
from multidict import CIMultiDict
from yarl import URL

from koord_numa import __version__
from koord_numa.cluster.credentials import Headers, NoCredentials, load_configuration
from koord_numa.cluster.errors import broken, refusal
from koord_numa.cluster.resources import Call
from koord_numa.core.value_objects import ValueObject
from koord_numa.ports import Invalid, NotLeader, Unavailable
from koord_numa.wire import raw_json


class LentSession:
    """What Kopf uses of an ``aiohttp.ClientSession``: ``request``, ``headers``, ``closed`` and ``close``."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._closed = False
        self._session = session
        self._under_way = 0

    @property
    def closed(self) -> bool:
        """Are new requests refused? Also when the connections are closed that it shares."""
        return self._closed or self._session.closed

    @property
    def headers(self) -> CIMultiDict[str]:
        """What every request carries."""
        return self._session.headers

    async def request(self, method: str, url: str, **options: Any) -> aiohttp.ClientResponse:
        """
        The beginning of an answer.

        Raises as aiohttp; ``RuntimeError`` with its words when the session is closed, before or meanwhile.
        """
        self._refuse_when_closed()
        self._under_way += 1
        try:
            response = await self._session.request(method, url, **options)
        finally:
            self._under_way -= 1
            await self._close_behind_the_last()
        if self.closed:
            # Who closed the session has closed all answers that there were, and does not know of this one.
            response.close()
        self._refuse_when_closed()
        return response

    async def close(self) -> None:
        """Begin nothing more; what is on its way goes on. May be called again."""
        self._closed = True
        await self._close_behind_the_last()

    def _refuse_when_closed(self) -> None:
        if self.closed:
            raise RuntimeError("Session is closed")

    async def _close_behind_the_last(self) -> None:
        if self._closed and not self._under_way:
            await self._session.close()


SHORTEST_WRITE: Final = 0.5
"""Seconds that a write under a lease must have left; a write takes some milliseconds, and up to this much on a busy server."""

CONNECT_TIMEOUT: Final = 5.0
"""Seconds to get a connection."""

PROMISED: Final = 0.9
"""Share of what the lease has left that the server gets; the rest is for what lies before the first byte, such as a new connection."""


class LeaseEnded(Exception):
    """What ends the writing of a body; aiohttp makes a connection error of it, and gives the connection up."""


class FencedBody(aiohttp.BytesPayload):
    """
    The body of a write that the server may carry out for ``seconds`` after it has received it.

    It is written only while ``remaining`` is at least that much. Without its body a request is not carried out, so that nothing was sent.
    """

    def __init__(self, value: bytes, seconds: float, remaining: Callable[[], float]) -> None:
        super().__init__(value)
        self.seconds = seconds
        self.withheld = False
        """Was the body asked for when it was too late?"""
        self._remaining = remaining

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Raises ``LeaseEnded``. Between the look and the write nothing else runs."""
        if self._remaining() < self.seconds:
            self.withheld = True
            raise LeaseEnded
        await super().write_with_length(writer, content_length)


def fenced(call: Call, data: bytes, remaining: Callable[[], float], longest: float) -> FencedBody:
    """
    The body of a write that must not be carried out after ``remaining`` seconds, nor take longer than ``longest``.

    Raises ``NotLeader``.
    """
    left = remaining()
    if left < SHORTEST_WRITE:
        raise NotLeader(f"{call}: the lease ends in {left:.1f} s, too soon for a write")
    # Tenths of a second, rounded down: there are few of them, so that what is made of a deadline is made once.
    return FencedBody(data, floor(min(PROMISED * left, longest) * 10) / 10, remaining)


@lru_cache(maxsize=256)  # a deadline for each tenth of a second, see ``fenced``
def deadline(seconds: float) -> tuple[str, aiohttp.ClientTimeout]:
    """
    What a write gets that must not be carried out after so many seconds: the part of its query with the server's deadline for the whole
    request, counted from when it receives it, and what its client waits at most.

    ``timeout``, see ``WithRequestDeadline`` in k8s.io/apiserver; what has not reached etcd by then fails.
    """
    # Milliseconds, as the server parses a Go duration.
    query = f"timeout={int(seconds * 1000)}ms"
    return query, aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, CONNECT_TIMEOUT))


AGENT: Final = f"koord-numa/{__version__}"

JSON: Final = "application/json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"

REQUEST_TIMEOUT: Final = 15.0
"""Seconds for a whole request. Shorter than a lease lasts after its last renewal, see ``leader_election.py``."""

LIMITS: Final = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT, sock_connect=CONNECT_TIMEOUT)
"""Of a request that no lease limits: to make one for each request costs as much as to encode its body."""

READ_BUFFER: Final = 2**21
"""Bytes: one watch event of the largest object that etcd takes fits in."""


class Body(ValueObject):
    """
    What a request carries: a JSON value and how the server is to read it.

    ``remaining`` says how many seconds the write may still take; it is asked at the last moment before the request is sent.
    """

    value: Any
    content_type: str = JSON
    remaining: Callable[[], float] | None = None


class Api:
    """
    Raw requests to one API server.

    kubernetes-asyncio gives the credentials, TLS and the connection pool. The session is our own: the one it makes looks for a
    proxy and a netrc file in a thread before every single request, which costs more than the request.
    """

    def __init__(self, configuration: Configuration, agent: str = AGENT) -> None:
        self._client = ApiClient(configuration)
        self._impersonation: Headers = getattr(configuration, "impersonation", ())
        self.configuration = configuration
        rest = self._client.rest_client
        self._session = aiohttp.ClientSession(
            # The pool is the library's, with its TLS; the session must not close it.
            connector=rest.pool_manager.connector,
            connector_owner=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),  # no cookies are in use, and looking for some has its price
            read_bufsize=READ_BUFFER,
            headers=CIMultiDict([("User-Agent", agent), ("Accept", JSON), *self._impersonation]),
        )
        self._lent: list[LentSession] = []
        self.server = _address(str(configuration.host)).rstrip("/")
        self._root = _parsed(self.server)
        self._prefix = "" if self._root is None else self._root.raw_path.rstrip("/")
        self.cut_off = False
        """Was a leader's write (``Body.remaining``) cancelled before its answer came? It may still be carried out."""
        self._options: dict[str, Any] = {
            key: value
            for key, value in (
                ("proxy", rest.proxy),
                ("proxy_headers", rest.proxy_headers),
                # Only what is set: ``None`` for ``server_hostname`` would still be passed on to TLS.
                ("server_hostname", rest.server_hostname),
            )
            if value
        }

    async def new_session(self, *middlewares: ClientMiddlewareType) -> LentSession:
        """
        A session of its own for a client that authenticates by default headers, as Kopf does; the connections are shared.

        The credentials are those of this moment: after a 401 another session is needed. Raises nothing that ``send`` would not.
        ``close`` closes it unless its client has: Kopf closes only sessions that it has used.
        """
        headers: dict[str, str] = {}
        await self._authenticate(headers)
        options = {"proxy": self._options["proxy"]} if "proxy" in self._options else {}
        session = aiohttp.ClientSession(
            connector=self._client.rest_client.pool_manager.connector,
            connector_owner=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER,
            headers=CIMultiDict([*headers.items(), *self._impersonation]),
            middlewares=middlewares,
            **options,
        )
        lent = LentSession(session)
        self._lent = [*(it for it in self._lent if not it.closed), lent]
        return lent

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None, agent: str = AGENT, *, context: str | None = None) -> Self:
        """Load credentials; nothing is sent yet. ``agent`` is who the server's audit log says it was. Raises ``NoCredentials``."""
        configuration = await load_configuration(kubeconfig, context)
        try:
            return cls(configuration, agent)
        except OSError as error:  # of ssl: the library reads the certificates here
            raise NoCredentials(f"no credentials for a cluster: the certificates cannot be used: {error}") from error

    async def close(self) -> None:
        """Give every connection back. May be called again, when sessions were lent meanwhile."""
        await self._session.close()
        for lent in self._lent:
            await lent.close()
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(
        self,
        call: Call,
        body: Body | None = None,
        params: Mapping[str, str] | None = None,
        decode: Callable[[Call, bytes], Any] | None = None,
    ) -> Any:
        """
        One request and its whole answer, as plain JSON values or what ``decode`` makes of it. Raises every ``ClusterError``.

        ``UnknownOutcome`` is raised only for calls that write.
        """
        # The body is read inside the block, so that a break half-way is an error of this request. Whether that goes well or not, the
        # connection is given back or closed then.
        try:
            response = await self._open(call, body, params, LIMITS)
            raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise broken(call, error) from error
        except asyncio.CancelledError:
            # Only writes under a lease matter: they may still be carried out after this process has let go.
            self.cut_off = self.cut_off or (body is not None and body.remaining is not None)
            raise
        if response.status >= 300:
            raise refusal(call, response.status, response.headers, raw)
        return (decode or decoded)(call, raw)

    @asynccontextmanager
    async def stream(
        self, call: Call, params: Mapping[str, str], silence: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """
        One answer that goes on, such as a watch; leaving the block ends the request.

        Raises as ``send``, also for a connection that breaks inside the block or says nothing for ``silence`` seconds.
        """
        # No limit in all: a watch goes on for minutes; silence is what tells a dead one.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=silence)
        try:
            async with await self._open(call, None, params, timeout) as response:
                if response.status >= 300:
                    raise refusal(call, response.status, response.headers, await response.read())
                yield response.content
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise broken(call, error) from error

    @asynccontextmanager
    async def websocket(
        self, call: Call, params: Mapping[str, str], protocol: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket to a subresource such as ``pods/portforward``. Raises as ``send``."""
        headers: dict[str, str] = {}
        await self._authenticate(headers)
        options = {key: self._options[key] for key in ("proxy", "proxy_headers") if key in self._options}
        url = self.server + call.path
        try:
            async with self._session.ws_connect(
                url, protocols=(protocol,), params=params, headers=headers, **options
            ) as socket:
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            raise refusal(call, error.status, error.headers or {}, error.message.encode()) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise broken(call, error) from error

    async def _open(
        self, call: Call, body: Body | None, params: Mapping[str, str] | None, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """The beginning of an answer, to be closed by the caller."""
        headers: dict[str, str] = {}
        data: bytes | FencedBody | None = None
        if body is not None:
            headers["Content-Type"] = body.content_type
            data = encoded(call, body.value)
        query = urlencode(params) if params else ""
        await self._authenticate(headers)
        # As late as possible: the time that authenticating takes is not the server's.
        if isinstance(data, bytes) and body is not None and body.remaining is not None:
            data = fenced(call, data, body.remaining, REQUEST_TIMEOUT)
            until, limits = deadline(data.seconds)
            query = f"{query}&{until}" if query else until
        try:
            return await self._session.request(
                call.method,
                self._url(call, query),
                data=data,
                headers=headers,
                timeout=limits,
                # A redirect would carry the token to another host.
                allow_redirects=False,
                **self._options,
            )
        except aiohttp.ClientConnectionError as error:
            if isinstance(data, FencedBody) and data.withheld:
                raise NotLeader(f"{call}: the lease ended before the request could be sent") from error
            raise

    def _url(self, call: Call, query: str) -> URL | str:
        if self._root is None:
            return self.server + call.path  # aiohttp has the error for it
        # From parts that are quoted already: to take the address apart and to quote it again is a tenth of what a request costs.
        return URL.build(
            scheme=self._root.scheme,
            authority=self._root.raw_authority,
            path=self._prefix + call.path,
            query_string=query,
            encoded=True,
        )

    async def _authenticate(self, headers: dict[str, str]) -> None:
        """Tokens of a service account change on disk; the configuration's own hook re-reads them. Raises ``Unavailable``."""
        try:
            token = await self.configuration.get_api_key_with_prefix("BearerToken")
        except (ConfigException, OSError) as error:
            # A token file that is empty or away for a moment is being written: no reason to end the process.
            raise Unavailable(f"no credentials at the moment: {error}") from error
        if token:
            headers["Authorization"] = token
        elif self.configuration.username:
            headers["Authorization"] = self.configuration.get_basic_auth_token()


def _address(server: str) -> str:
    """As it is sent: the name of a host may have letters of any alphabet."""
    address = _parsed(server)
    return server if address is None else str(address)


def _parsed(server: str) -> URL | None:
    """The address of a server; ``None`` for what is none."""
    try:
        return URL(server)
    except ValueError:
        return None


def encoded(call: Call, value: Any) -> bytes:
    """JSON for a request. Raises ``Invalid`` for what JSON or the encoder cannot hold: such a value came from an object."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise Invalid(f"{call}: cannot be written as JSON: {error}") from error


def decoded(call: Call, raw: bytes) -> Any:
    """The JSON value of an answer. Raises ``Invalid`` when it is none: something else than an API server answered."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        try:
            return raw_json.loads(raw)  # one object with a deeply nested value is no reason not to see all others
        except ValueError:
            raise Invalid(f"{call}: the answer is not JSON: {error}") from error
