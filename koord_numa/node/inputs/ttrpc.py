"""
ttrpc over the multiplexed socket of the Node Resource Interface (NRI).

A frame of the multiplexer is ``connection u32 | length u32 | bytes``; connection 1 carries the calls of the runtime to the plugin, and
connection 2 those of the plugin to the runtime. In a connection, a message is ``length u32 | stream u32 | type u8 | flags u8 | protobuf``.
All numbers are big-endian. Frames and messages have independent bounds.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import count
from struct import Struct
from typing import Any, Final

from google.protobuf.message import DecodeError

from koord_numa.wire.proto import nri_pb2

logger = logging.getLogger(__name__)

PLUGIN: Final = 1
"""Connection of the service that the plugin serves."""
RUNTIME: Final = 2
"""Connection of the service that the runtime serves."""
MAX_MESSAGE: Final = 4 << 20
"""Bytes; the limit of ttrpc (``channel.go``)."""
MAX_FRAME: Final = 4096
"""Bytes in a frame that is sent. The reader in Go fails if a frame is larger than its buffer, which has at least this size."""

_FRAME: Final = Struct(">II")
_MESSAGE: Final = Struct(">IIBB")
_REQUEST: Final = 1
_RESPONSE: Final = 2
_UNKNOWN: Final = 2  # status codes of gRPC
_UNIMPLEMENTED: Final = 12

Method = tuple[Any, Callable[[Any], Any]]
"""Type of the request, and a non-blocking function that returns the response."""


class TtrpcError(Exception):
    """A rejected call, or a violation of the protocol by the other side."""


class TtrpcLink:
    """
    A multiplexed socket: serves ``methods`` by ``service/method`` on one connection and calls the other side on the other one.

    ``run`` reads until the socket is closed. It must run while calls wait for their responses.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        methods: Mapping[str, Method],
        serves: int = PLUGIN,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._methods = methods
        self._serves = serves
        self._calls = RUNTIME if serves == PLUGIN else PLUGIN
        self._received = {self._serves: bytearray(), self._calls: bytearray()}
        self._streams = count(1, 2)  # streams of a client are odd
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def run(self) -> None:
        """Read and respond until the other side closes the socket. Raises ``TtrpcError`` and ``OSError``."""
        try:
            while True:
                connection, length = _FRAME.unpack(await self._reader.readexactly(_FRAME.size))
                if length > MAX_MESSAGE + _MESSAGE.size:
                    raise TtrpcError(f"a frame of {length} bytes")
                data = await self._reader.readexactly(length)
                # Frames of other connections are skipped, as the runtime does.
                if connection in self._received:
                    self._received[connection] += data
                    self._take_messages(connection)
                    await self._writer.drain()
        except asyncio.IncompleteReadError:
            return
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(TtrpcError("the connection was closed"))
            self._writer.close()

    async def call(self, method: str, request: Any, answer: Any, timeout: float) -> Any:  # noqa: ASYNC109  (it is sent too)
        """Call ``service/method`` and return the response. Raises ``TtrpcError`` and ``TimeoutError``."""
        service, _, name = method.rpartition("/")
        envelope = nri_pb2.TtrpcRequest(
            service=service, method=name, payload=request.SerializeToString(), timeout_nano=int(timeout * 1e9)
        )
        stream = next(self._streams)
        waiting = self._waiting[stream] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                self._send(self._calls, stream, _REQUEST, envelope.SerializeToString())
                await self._writer.drain()
                response = await waiting
        except OSError as error:
            raise TtrpcError(f"{method}: {error}") from None
        finally:
            del self._waiting[stream]
            if not waiting.cancel() and not waiting.cancelled():
                waiting.exception()  # marks the error as read: asyncio would log it
        if response.status.code:
            raise TtrpcError(f"{method}: {response.status.message}")
        return answer.FromString(response.payload)

    def _take_messages(self, connection: int) -> None:
        """Handle every completely received message. Raises ``TtrpcError``."""
        received = self._received[connection]
        while len(received) >= _MESSAGE.size:
            length, stream, kind, _ = _MESSAGE.unpack_from(received)
            if length > MAX_MESSAGE:
                raise TtrpcError(f"a message of {length} bytes")
            end = _MESSAGE.size + length
            if len(received) < end:
                return
            body = bytes(received[_MESSAGE.size : end])
            del received[:end]
            try:
                if kind == _REQUEST and connection == self._serves:
                    self._send(connection, stream, _RESPONSE, self._answer(body).SerializeToString())
                elif kind == _RESPONSE and connection == self._calls:
                    waiting = self._waiting.get(stream)  # absent after a timeout
                    if waiting is not None and not waiting.done():
                        waiting.set_result(nri_pb2.TtrpcResponse.FromString(body))
            except DecodeError as error:
                raise TtrpcError(f"a message that is not understood: {error}") from None

    def _answer(self, body: bytes) -> Any:
        request = nri_pb2.TtrpcRequest.FromString(body)
        name = f"{request.service}/{request.method}"
        if name not in self._methods:
            return _failed(_UNIMPLEMENTED, f"{name} is not implemented")
        kind, method = self._methods[name]
        message = kind.FromString(request.payload)
        try:
            return nri_pb2.TtrpcResponse(payload=method(message).SerializeToString())
        except (
            Exception
        ) as error:  # a failed request must not close the connection: all containers of the node depend on it
            logger.exception("%s failed", name)
            return _failed(_UNKNOWN, f"{name}: {error!r}")

    def _send(self, connection: int, stream: int, kind: int, body: bytes) -> None:
        message = _MESSAGE.pack(len(body), stream, kind, 0) + body
        frames = [message[start : start + MAX_FRAME] for start in range(0, len(message), MAX_FRAME)]
        self._writer.write(b"".join(_FRAME.pack(connection, len(frame)) + frame for frame in frames))


def _failed(code: int, text: str) -> Any:
    return nri_pb2.TtrpcResponse(status=nri_pb2.TtrpcStatus(code=code, message=text))
