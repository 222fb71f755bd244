"""A TCP connection to a port of a pod through the API server and the kubelet, as with ``kubectl port-forward``.

It uses the WebSocket protocol (``kubelet/pkg/cri/streaming/portforward/websocket.go``): subprotocol
``v4.channel.k8s.io`` with binary frames. The first byte of a message is the channel: 0 for data, 1 for an error. The
first message of each channel only repeats the port in two bytes. A WebSocket carries a single connection.

Blocking, with standard modules only: commands that ask the scheduler must start quickly.
"""

import base64
import http.client
import io
import os
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from koord_numa.cluster.blocking import BlockingApi
from koord_numa.cluster.resources import PODS, Call

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
