"""
Blocking requests of commands, and TCP connections to ports of pods, with the errors of ``ports``.

Imports only standard modules and orjson: aiohttp alone takes half of the CPU time that a command may take.
"""

import base64
import gzip
import http.client
import io
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, BinaryIO, Final, Self
from urllib.parse import SplitResult, urlencode, urlsplit

import orjson

from koord_numa import __version__
from koord_numa.cluster.credentials import Credentials, NoCredentials
from koord_numa.cluster.resources import PODS, Call, Resource, refusal
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
            if self._connection is None:
                self._connection = self._new_connection()
            connection = self._connection
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
        raise NoCredentials(f"no credentials for a cluster: {address!r} is not a server address")
    return found


# A TCP connection to a port of a pod through the API server and the kubelet, as with ``kubectl port-forward``.
#
# It uses the WebSocket protocol (``kubelet/pkg/cri/streaming/portforward/websocket.go``): subprotocol
# ``v4.channel.k8s.io`` with binary frames. The first byte of a message is the channel: 0 for data, 1 for an error. The
# first message of each channel only repeats the port in two bytes. A WebSocket carries a single connection.
#
# Blocking, with standard modules only: commands that ask the scheduler must start quickly.

PROTOCOL: Final = "v4.channel.k8s.io"
DATA: Final = 0
LARGEST: Final = 2**26
"""Maximum bytes of a message. A document of 5,000 nodes is a tenth of it."""

_CONTINUED, _BINARY, _CLOSE, _PING, _PONG = 0, 2, 8, 9, 10
"""Opcodes of RFC 6455."""


class PodConnection(http.client.HTTPConnection):
    """An HTTP connection to a port of a pod. Closing it closes the WebSocket.

    The constructor raises every ``ClusterError``; ``Forbidden`` without permission to ``get pods/portforward`` and,
    from Kubernetes 1.35, to ``create`` it.
    """

    def __init__(self, api: BlockingApi, namespace: str, pod: str, port: int) -> None:
        super().__init__("127.0.0.1", port)
        call = Call("get", PODS, namespace, pod, "portforward")
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": PROTOCOL,
        }
        self._through, incoming = api.upgrade(call, {"ports": str(port)}, headers)
        self.sock = _PodSocket(self._through, incoming)  # as much of a socket as is used

    def connect(self) -> None:
        """Keep the connection, which is already open."""

    def close(self) -> None:
        """Close the WebSocket."""
        super().close()
        self._through.close()


class _PodReader(io.RawIOBase):
    """Reads from a connection that it does not close."""

    def __init__(self, receive: Callable[[memoryview], int]) -> None:
        self._receive = receive

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer; none at the end."""
        return self._receive(buffer)


class _PodSocket:
    """The methods of a socket that ``http.client`` uses, over a WebSocket."""

    def __init__(self, through: http.client.HTTPConnection, incoming: BinaryIO) -> None:
        self._through, self._incoming = through, incoming
        self._data = b""
        self._begun: set[int] = set()

    def close(self) -> None:
        """Leave the WebSocket open. Closing the connection closes it."""

    def sendall(self, data: bytes) -> None:
        """Send bytes to the pod."""
        self._send(_BINARY, bytes([DATA]) + data)

    def makefile(self, _mode: str, *_: object) -> io.BufferedReader:
        """Return a reader of the bytes from the pod."""
        return io.BufferedReader(_PodReader(self.recv_into))

    def recv_into(self, buffer: memoryview) -> int:
        """Read bytes from the pod; none at the end. Raises ``ConnectionError`` with the message of the kubelet."""
        while not self._data:
            opcode, message = self._message()
            if opcode == _CLOSE:
                return 0
            if opcode == _PING:
                self._send(_PONG, message)
            elif opcode == _BINARY and message:
                self._receive(message[0], message[1:])
        part = self._data[: len(buffer)]
        buffer[: len(part)] = part
        self._data = self._data[len(part) :]
        return len(part)

    def _receive(self, channel: int, content: bytes) -> None:
        if channel not in self._begun:
            self._begun.add(channel)
        elif channel == DATA:
            self._data = content
        else:
            raise ConnectionError(content.decode(errors="replace"))

    def _message(self) -> tuple[int, bytes]:
        """Return the opcode and the content of the next message. Raises ``ConnectionError`` for a cut-off message."""
        opcode, content, last = _CONTINUED, b"", False
        while not last:
            first, second = self._exactly(2)
            last, length = bool(first & 0x80), second & 0x7F
            if length > 125:
                length = int.from_bytes(self._exactly(2 if length == 126 else 8))
            if length + len(content) > LARGEST:
                raise ConnectionError(f"a message of {length} bytes")
            content += self._exactly(length)
            opcode = first & 0x0F or opcode
        return opcode, content

    def _exactly(self, count: int) -> bytes:
        found = self._incoming.read(count)
        if len(found) < count:
            raise ConnectionError("the connection to the pod ended")
        return found

    def _send(self, opcode: int, content: bytes) -> None:
        size = len(content)
        if size < 126:
            header = bytes([0x80 | opcode, 0x80 | size])
        elif size < 2**16:
            header = bytes([0x80 | opcode, 0x80 | 126]) + size.to_bytes(2)
        else:
            header = bytes([0x80 | opcode, 0x80 | 127]) + size.to_bytes(8)
        mask = os.urandom(4)  # clients have to mask
        masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(content))
        self._through.sock.sendall(header + mask + masked)
