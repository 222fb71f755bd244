"""
Blocking requests of commands: raw JSON over one connection, with the errors of ``ports``.

Imports only standard modules and orjson: aiohttp alone takes half of the CPU time that a command may take.
"""

import gzip
import http.client
import ssl
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, BinaryIO, Final, Self
from urllib.parse import SplitResult, urlencode, urlsplit

import orjson

from koord_numa import __version__
from koord_numa.cluster.credentials import Credentials, NoCredentials
from koord_numa.cluster.errors import refusal
from koord_numa.cluster.resources import Call, Resource
from koord_numa.ports import ClusterError, Gone, Invalid, Unavailable, UnknownOutcome

TIMEOUT: Final = 15.0
"""Default timeout in seconds of a connection attempt and of each read."""

PAGE: Final = 500
"""Objects per page, as in kubectl and client-go."""

METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""``Accept`` for lists of names. A server that does not convert sends whole objects."""


class _Connection(http.client.HTTPSConnection):
    """A TLS connection that verifies another server name than that of the address."""

    def __init__(
        self, host: str, port: int | None, timeout: float | None, context: ssl.SSLContext, server_name: str
    ) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._tls, self._server_name = context, server_name

    def connect(self) -> None:
        """Connect, then verify the certificate for the server name."""
        http.client.HTTPConnection.connect(self)
        name = self._server_name or self._tunnel_host or self.host  # type: ignore[attr-defined]  # of the base class
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=name)


class BlockingApi:
    """Requests to an API server over one connection. Not for several threads."""

    def __init__(self, credentials: Credentials, timeout: float | None = None) -> None:
        self.credentials = credentials
        self._timeout = TIMEOUT if timeout is None else timeout or None
        self._server = _split(credentials.server)
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send(
        self, call: Call, value: Any = None, params: Mapping[str, str] | None = None, accept: str = "application/json"
    ) -> Any:
        """Send a request and return the JSON value of the response. Raises every ``ClusterError`` and ``NoCredentials``."""
        status, headers, raw = self._exchange(call, value, params or {}, accept)
        if status >= 300:
            raise refusal(call, status, headers, raw)
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise Invalid(f"{call}: the answer is not JSON: {error}") from error

    def items(
        self, resource: Resource, *, namespace: str = "", optional: bool = False, accept: str = "application/json"
    ) -> Iterator[Any]:
        """Yield all objects of a resource, page by page. An ``optional`` resource may not be served."""
        call, params = Call("list", resource, namespace), {"limit": str(PAGE)}
        while True:
            try:
                page = self.send(call, params=params, accept=accept)
            except Gone:
                if optional:
                    return
                raise
            yield from page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            params["continue"] = str(token)

    def upgrade(
        self, call: Call, params: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, BinaryIO]:
        """
        Switch protocols on a new connection, which the caller closes. Raises every ``ClusterError`` and ``NoCredentials``.

        Returns the connection, and a reader of the bytes that follow the response.
        """
        connection = self._new_connection()
        try:
            connection.putrequest("GET", self._path(call, params), skip_accept_encoding=True)
            for name, text in (*headers.items(), *self._headers("application/json", None)):
                connection.putheader(name, text)
            connection.endheaders()
            response = connection.getresponse()
            if response.status != http.client.SWITCHING_PROTOCOLS:
                raise refusal(call, response.status, dict(response.headers.items()), response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise Unavailable(f"{call}: {type(error).__name__}: {error}") from error
        except (ClusterError, NoCredentials):
            connection.close()
            raise
        # The reader of the response may have buffered the first bytes of the new protocol.
        return connection, response.fp

    def _path(self, call: Call, params: Mapping[str, str]) -> str:
        return f"{self._server.path.rstrip('/')}{call.path}" + (f"?{urlencode(params)}" if params else "")

    def _exchange(
        self, call: Call, value: Any, params: Mapping[str, str], accept: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        path = self._path(call, params)
        body = None if value is None else orjson.dumps(value)
        headers = [*self._headers(accept, body)]
        kept, sent = self._connection is not None, False
        try:
            connection = self._connected()
            connection.putrequest(call.method, path, skip_accept_encoding=True)
            for name, text in headers:  # a name may occur several times
                connection.putheader(name, text)
            connection.endheaders(body)
            sent = True
            response = connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            # The server may have closed a kept connection. A read may be sent again.
            if kept and not call.writes and not isinstance(error, TimeoutError):
                return self._exchange(call, value, params, accept)
            message = f"{call}: {type(error).__name__}: {error}".rstrip(": ")
            raise (UnknownOutcome if sent and call.writes else Unavailable)(message) from error
        if response.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        return response.status, dict(response.headers.items()), raw

    def _headers(self, accept: str, body: bytes | None) -> Iterator[tuple[str, str]]:
        yield "User-Agent", f"koord-numa/{__version__}"
        yield "Accept", accept
        yield "Accept-Encoding", "gzip"
        if body is not None:
            yield "Content-Type", "application/json"
            yield "Content-Length", str(len(body))
        yield from self.credentials.impersonation
        try:
            authorization = self.credentials.authorization.value()
        except OSError as error:
            raise NoCredentials(f"no credentials for a cluster: {error}") from error
        if authorization:
            yield "Authorization", authorization

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = self._new_connection()
        return self._connection

    def _new_connection(self) -> http.client.HTTPConnection:
        server, proxy = self._server, self.credentials.proxy
        at = server if not proxy else _split(proxy)
        if proxy and at.scheme != "http":
            raise NoCredentials(
                f"no credentials for a cluster: proxies of scheme {at.scheme} are not supported: {proxy}"
            )
        host, port = at.hostname or "", at.port or (443 if at.scheme == "https" else 80)
        connection: http.client.HTTPConnection
        if server.scheme == "https":
            connection = _Connection(host, port, self._timeout, self.credentials.tls(), self.credentials.server_name)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
        if proxy:
            connection.set_tunnel(server.hostname or "", server.port or (443 if server.scheme == "https" else 80))
        return connection


def _split(address: str) -> SplitResult:
    """Return the parts of an address. Raises ``NoCredentials``."""
    text = address if "://" in address else f"http://{address}"
    try:
        found = urlsplit(text)
        valid = found.scheme in ("http", "https") and bool(found.hostname) and (found.port or 1) > 0
    except ValueError:
        valid = False
    if not valid:
        raise NoCredentials(f"no credentials for a cluster: {address!r} is no address of a server")
    return found
