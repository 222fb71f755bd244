"""``pods/portforward`` over WebSocket, as the kubelet serves it (``portforward/websocket.go``).

The SPDY protocol of kubectl is not supported. Simulated pods run no programs: ``LocalPorts`` maps pod ports to
loopback ports.
"""

import asyncio
from contextlib import suppress
from typing import Final

from aiohttp import WSMsgType, web

from koord_numa.sandbox.apiserver.errors import bad_request

PROTOCOL: Final = "v4.channel.k8s.io"
SUBRESOURCE: Final = "portforward"

LocalPorts = dict[tuple[str, str, int], int]
"""Loopback port by namespace, pod name and pod port."""


async def serve(request: web.BaseRequest, local: int | None, port: int) -> web.StreamResponse:
    """Relay a connection until either side closes it.

    An unmapped port is reported on the error channel. Raises ``ApiError`` with code 400 if the request is not a
    WebSocket upgrade.
    """
    socket = web.WebSocketResponse(protocols=(PROTOCOL,))
    if not socket.can_prepare(request):
        raise bad_request("Upgrade request required")
    await socket.prepare(request)
    number = port.to_bytes(2, "little")
    await socket.send_bytes(b"\0" + number)
    await socket.send_bytes(b"\1" + number)
    if local is None:
        await socket.send_bytes(b"\1" + f"connection to port {port} inside the pod is refused".encode())
        return socket
    reader, writer = await asyncio.open_connection("127.0.0.1", local)
    back = asyncio.create_task(_back(reader, socket))
    try:
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
                writer.write(message.data[1:])
                await writer.drain()
    finally:
        back.cancel()
        writer.close()
    return socket


async def _back(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(2**16):
            await socket.send_bytes(b"\0" + chunk)
        await socket.close()
