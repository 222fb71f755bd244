"""A TCP connection to a port of a pod through the API server and the kubelet, as with ``kubectl port-forward``.

It uses the WebSocket protocol (``kubelet/pkg/cri/streaming/portforward/websocket.go``): subprotocol
``v4.channel.k8s.io`` with binary frames. The first byte of a frame is the channel: 0 for data, 1 for an error message.
The first frame of each channel only repeats the port in two bytes. A WebSocket carries a single connection.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import aiohttp

from koord_numa.cluster.client import Api
from koord_numa.cluster.resources import PODS, Call

PROTOCOL: Final = "v4.channel.k8s.io"
DATA: Final = 0
CHUNK: Final = 2**16
"""Maximum bytes of a frame."""


@asynccontextmanager
async def forwarded(api: Api, namespace: str, pod: str, port: int) -> AsyncIterator[int]:
    """Provide a loopback port whose first connection leads to the pod's port. It is closed at the end of the block.

    Raises every ``ClusterError``; ``Forbidden`` without permission to ``get pods/portforward`` and, from Kubernetes
    1.35, to ``create`` it.
    """
    call = Call("get", PODS, namespace, pod, "portforward")
    async with api.websocket(call, {"ports": str(port)}, PROTOCOL) as remote:

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            outwards = asyncio.create_task(_send(reader, remote))
            try:
                with suppress(ConnectionError):
                    await _receive(remote, writer)
            finally:
                outwards.cancel()
                writer.close()

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        async with server:
            yield int(server.sockets[0].getsockname()[1])


async def _send(reader: asyncio.StreamReader, remote: aiohttp.ClientWebSocketResponse) -> None:
    while chunk := await reader.read(CHUNK):
        await remote.send_bytes(bytes([DATA]) + chunk)


async def _receive(remote: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    """Write data from the pod until either side closes or the connection to the pod's port fails."""
    begun: set[int] = set()
    async for message in remote:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel = message.data[0]
        # The first frame of each channel only repeats the port.
        if channel not in begun:
            begun.add(channel)
        elif channel == DATA:
            writer.write(message.data[1:])
            await writer.drain()
        # The error channel: the connection to the pod's port has failed.
        else:
            return
