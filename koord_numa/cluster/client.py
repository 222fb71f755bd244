"""A connection to the API server: raw JSON, errors as defined in ``ports``.

Requests are not retried here, because only the caller knows whether a retry is correct.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from math import floor
from pathlib import Path
from random import SystemRandom
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp
import orjson
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_middlewares import ClientMiddlewareType
from multidict import CIMultiDict
from yarl import URL

from koord_numa import __version__
from koord_numa.cluster.credentials import Credentials, NoCredentials, Overrides, load_credentials
from koord_numa.cluster.resources import Call, refusal
from koord_numa.core.value_objects import ValueObject
from koord_numa.ports import ClusterError, Invalid, NotLeader, Unavailable, UnknownOutcome
from koord_numa.settings import BackoffSettings
from koord_numa.wire import raw_json


class LentSession:
    """The part of ``aiohttp.ClientSession`` that Kopf uses: ``request``, ``headers``, ``closed`` and ``close``."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._closed = False
        self._session = session
        self._under_way = 0

    @property
    def closed(self) -> bool:
        """True if new requests are rejected, also because the shared connections are closed."""
        return self._closed or self._session.closed

    @property
    def headers(self) -> CIMultiDict[str]:
        """The headers of every request."""
        return self._session.headers

    async def request(self, method: str, url: str, **options: Any) -> aiohttp.ClientResponse:
        """Send a request and return the response before its body.

        Raises the exceptions of aiohttp, and ``RuntimeError`` with aiohttp's message when the session is closed before
        or during the request.
        """
        self._refuse_when_closed()
        self._under_way += 1
        try:
            response = await self._session.request(method, url, **options)
        finally:
            self._under_way -= 1
            await self._close_behind_the_last()
        if self.closed:
            # The response arrived after the session had closed its other responses.
            response.close()
        self._refuse_when_closed()
        return response

    async def close(self) -> None:
        """Reject new requests. Running requests complete. May be called repeatedly."""
        self._closed = True
        await self._close_behind_the_last()

    def _refuse_when_closed(self) -> None:
        if self.closed:
            raise RuntimeError("Session is closed")

    async def _close_behind_the_last(self) -> None:
        if self._closed and not self._under_way:
            await self._session.close()


CLIENT: BackoffSettings = BackoffSettings(initial=0.2, max=30.0, jitter=0.5)
"""Back-off of lists and watches."""


@dataclass(slots=True)
class Backoff:
    """The number of consecutive failures and the pause after a failure."""

    limits: BackoffSettings = CLIENT
    random: Callable[[], float] = field(default=SystemRandom().random)
    failures: int = 0

    def pause(self, at_least: float = 0.0) -> float:
        """Count a failure and return the pause in seconds. ``at_least`` is the server's Retry-After."""
        self.failures += 1
        # Retry-After is a lower bound: the back-off may be longer.
        return max(at_least, self.limits.pause(self.failures, self.random()))

    def reset(self) -> None:
        """Reset the number of failures after a success."""
        self.failures = 0


SHORTEST_WRITE: Final = 0.5
"""Minimum remaining seconds of the lease for a write.

A write takes milliseconds, or up to this time on a busy server.
"""

CONNECT_TIMEOUT: Final = 5.0
"""Timeout in seconds for a new connection."""

PROMISED: Final = 0.9
"""Fraction of the lease's remaining time that is the server's deadline.

The rest covers delays before the first byte, such as connecting.
"""


class LeaseEnded(Exception):
    """Aborts the writing of a body. aiohttp converts it to a connection error and closes the connection."""


class FencedBody(aiohttp.BytesPayload):
    """The body of a write that the server may carry out within ``seconds`` after receiving it.

    It is sent only while ``remaining`` is at least ``seconds``. A server does not carry out a request without its
    body, so a withheld body means that nothing was written.
    """

    def __init__(self, value: bytes, seconds: float, remaining: Callable[[], float]) -> None:
        super().__init__(value)
        self.seconds = seconds
        self.withheld = False
        """True if too little of the lease was left, so that the body was not sent."""
        self._remaining = remaining

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write the body.

        Raises ``LeaseEnded`` if it is too late. No other task runs between the check and the write.
        """
        if self._remaining() < self.seconds:
            self.withheld = True
            raise LeaseEnded
        await super().write_with_length(writer, content_length)


def fenced(call: Call, data: bytes, remaining: Callable[[], float], longest: float) -> FencedBody:
    """Return the body of a write with a deadline in seconds.

    The deadline is at most ``longest`` and within the ``remaining`` seconds of the lease. Raises ``NotLeader`` when
    the lease ends too soon.
    """
    left = remaining()
    if left < SHORTEST_WRITE:
        raise NotLeader(f"{call}: the lease ends in {left:.1f} s, too soon for a write")
    # Rounded down to tenths of a second, so that the cached values of ``deadline`` are reused.
    return FencedBody(data, floor(min(PROMISED * left, longest) * 10) / 10, remaining)


@lru_cache(maxsize=256)  # an entry per tenth of a second, see ``fenced``
def deadline(seconds: float) -> tuple[str, aiohttp.ClientTimeout]:
    """Return the query parameter and the client timeout of a write that must not be carried out after ``seconds``.

    The parameter is ``timeout`` (``WithRequestDeadline`` in k8s.io/apiserver): the server's deadline for the whole
    request, counted from its arrival. A request that has not reached etcd by then fails.
    """
    # In milliseconds: the server parses a Go duration.
    query = f"timeout={int(seconds * 1000)}ms"
    return query, aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, CONNECT_TIMEOUT))


AGENT: Final = f"koord-numa/{__version__}"

JSON: Final = "application/json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"

REQUEST_TIMEOUT: Final = 15.0
"""Timeout in seconds for a whole request.

Shorter than a lease lasts after its last renewal, see ``leader_election.py``.
"""

LIMITS: Final = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT, sock_connect=CONNECT_TIMEOUT)
"""Timeouts of a request that no lease limits. Shared, because creating them costs as much as encoding a body."""

CONNECTIONS: Final = 100
"""Maximum number of concurrent connections, as the default of aiohttp."""

READ_BUFFER: Final = 2**21
"""Bytes. A watch event of the largest object that etcd accepts fits in."""


class Body(ValueObject):
    """The body of a request: a JSON value and its content type.

    ``remaining`` returns the seconds that the write may still take. It is called immediately before the request is
    sent.
    """

    value: Any
    content_type: str = JSON
    remaining: Callable[[], float] | None = None


class Api:
    """Raw requests to an API server.

    Requests share the connections of one connector. A proxy and a netrc file of the environment are not used: aiohttp
    looks them up in a thread for every request, which costs more than the request.
    """

    def __init__(self, credentials: Credentials, agent: str = AGENT) -> None:
        self.credentials = credentials
        self.server = _address(credentials.server).rstrip("/")
        # The certificate authorities of the system take 40 ms to load, which a plain connection does not need.
        tls = credentials.tls() if self.server.startswith("https:") else True
        self._connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=tls)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            # Sessions that are lent use the connector, so closing this session must not close it.
            connector_owner=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),  # cookies are not used, and their lookup is expensive
            read_bufsize=READ_BUFFER,
            headers=CIMultiDict([("User-Agent", agent), ("Accept", JSON), *credentials.impersonation]),
        )
        self._lent: list[LentSession] = []
        self._root = _parsed(self.server)
        self._prefix = "" if self._root is None else self._root.raw_path.rstrip("/")
        self.cut_off = False
        """True if a leader's write (``Body.remaining``) was cancelled before its response.

        The server may still carry it out.
        """
        # Only values that are set: a ``server_hostname`` of ``None`` would be passed on to TLS.
        options = {"proxy": credentials.proxy, "server_hostname": credentials.server_name}
        self._options: dict[str, Any] = {key: value for key, value in options.items() if value}

    async def new_session(self, *middlewares: ClientMiddlewareType) -> LentSession:
        """Return a session for a client that authenticates by default headers, as Kopf does. It shares the connections.

        The session has the current credentials, so a new session is needed after a 401. Raises the same errors as
        ``send``. ``close`` closes the session unless the client has closed it: Kopf closes only sessions that it has
        used.
        """
        headers: dict[str, str] = {}
        await self._authenticate(headers)
        options = {"proxy": self._options["proxy"]} if "proxy" in self._options else {}
        session = aiohttp.ClientSession(
            connector=self._connector,
            connector_owner=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER,
            headers=CIMultiDict([*headers.items(), *self.credentials.impersonation]),
            middlewares=middlewares,
            **options,
        )
        lent = LentSession(session)
        self._lent = [*(it for it in self._lent if not it.closed), lent]
        return lent

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None, agent: str = AGENT, *, context: str | None = None) -> Self:
        """Load credentials without sending a request.

        ``agent`` is the user agent in the server's audit log. Raises ``NoCredentials``.
        """
        # In a thread, because a credential plugin may wait for a login.
        return cls(await asyncio.to_thread(load_credentials, kubeconfig, Overrides(context=context)), agent)

    async def close(self) -> None:
        """Close all connections. May be called repeatedly, for sessions that were lent in the meantime."""
        await self._session.close()
        for lent in self._lent:
            await lent.close()
        await self._connector.close()

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
        """Send a request and return the response as a JSON value or the result of ``decode``.

        Raises every ``ClusterError``; ``UnknownOutcome`` only for writes.
        """
        # The body is read inside the block, so that a connection failure during the body is an error of this request.
        try:
            response = await self._open(call, body, params, LIMITS)
            raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise broken(call, error) from error
        except asyncio.CancelledError:
            # Only writes under a lease matter: the server may carry them out after this process has released the lease.
            self.cut_off = self.cut_off or (body is not None and body.remaining is not None)
            raise
        if response.status >= 300:
            raise refusal(call, response.status, response.headers, raw)
        return (decode or decoded)(call, raw)

    @asynccontextmanager
    async def stream(
        self, call: Call, params: Mapping[str, str], silence: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Send a request with a streaming response, such as a watch. Leaving the block ends the request.

        Raises the errors of ``send``, also when the connection fails inside the block or sends nothing for ``silence``
        seconds.
        """
        # No total timeout: a watch lasts minutes. A dead watch is detected by its silence.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=silence)
        try:
            async with await self._open(call, None, params, timeout) as response:
                if response.status >= 300:
                    raise refusal(call, response.status, response.headers, await response.read())
                yield response.content
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise broken(call, error) from error

    async def _open(
        self, call: Call, body: Body | None, params: Mapping[str, str] | None, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Return the response before its body. The caller must close it."""
        headers: dict[str, str] = {}
        data: bytes | FencedBody | None = None
        if body is not None:
            headers["Content-Type"] = body.content_type
            data = encoded(call, body.value)
        query = urlencode(params) if params else ""
        await self._authenticate(headers)
        # As late as possible: the time for authentication does not count for the server.
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
                # A redirect would send the token to another host.
                allow_redirects=False,
                **self._options,
            )
        except aiohttp.ClientConnectionError as error:
            if isinstance(data, FencedBody) and data.withheld:
                raise NotLeader(f"{call}: the lease ended before the request could be sent") from error
            raise

    def _url(self, call: Call, query: str) -> URL | str:
        if self._root is None:
            return self.server + call.path  # aiohttp raises the error for it
        # Built from quoted parts: parsing and quoting a URL takes a tenth of the cost of a request.
        return URL.build(
            scheme=self._root.scheme,
            authority=self._root.raw_authority,
            path=self._prefix + call.path,
            query_string=query,
            encoded=True,
        )

    async def _authenticate(self, headers: dict[str, str]) -> None:
        """Set the Authorization header. Raises ``Unavailable``."""
        authorization = self.credentials.authorization
        try:
            # In a thread if a token file is read again or a credential plugin runs.
            value = await asyncio.to_thread(authorization.value) if authorization.is_due else authorization.value()
        except (NoCredentials, OSError) as error:
            # A token file that is temporarily empty or absent is being rotated, so the error is not fatal.
            raise Unavailable(f"no credentials at the moment: {error}") from error
        if value:
            headers["Authorization"] = value


def _address(server: str) -> str:
    """Return the server address with the encoded host name. A host name may contain non-ASCII characters."""
    address = _parsed(server)
    return server if address is None else str(address)


def _parsed(server: str) -> URL | None:
    """Return the URL of a server, or ``None`` for an invalid URL."""
    try:
        return URL(server)
    except ValueError:
        return None


def broken(call: Call, error: aiohttp.ClientError | TimeoutError | OSError) -> ClusterError:
    """Return the error for a connection error. Only a failure to connect proves that nothing was sent."""
    message = f"{call}: {type(error).__name__}: {error}".rstrip(": ")
    # Nothing was sent without a connection. Every other error may follow the last byte.
    unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    if call.writes and not unsent:
        return UnknownOutcome(message)
    return Unavailable(message)


def encoded(call: Call, value: Any) -> bytes:
    """Return the JSON of a request.

    Raises ``Invalid`` for values that cannot be encoded, which originate from an object.
    """
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise Invalid(f"{call}: cannot be written as JSON: {error}") from error


def decoded(call: Call, raw: bytes) -> Any:
    """Return the JSON value of a response.

    Raises ``Invalid`` for other content, which does not come from an API server.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        try:
            return raw_json.loads(raw)  # a single deeply nested object must not hide all other objects
        except ValueError:
            raise Invalid(f"{call}: the answer is not JSON: {error}") from error
