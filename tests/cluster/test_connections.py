"""Peers of the served ports: silent ones, too many of them, and names that another machine could have."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from koord_numa.cluster.serving import (
    LIMITS,
    ConnectionLimits,
    Connections,
    HttpServer,
    Protection,
    StatusProviders,
    server_context,
)
from tests.tables import each_row


@web.middleware
async def nobody_but_probes(request: web.Request, handler: object) -> web.StreamResponse:
    if request.path == "/healthz":
        return await handler(request)  # type: ignore[operator,no-any-return]  # handlers are untyped in aiohttp
    raise web.HTTPUnauthorized


@asynccontextmanager
async def serving(*, tls: bool = True) -> AsyncIterator[HttpServer]:
    providers = StatusProviders(lambda: (), lambda: (), CollectorRegistry(), CollectorRegistry())
    protection = Protection(server_context(None, None), nobody_but_probes) if tls else None
    server = HttpServer(providers, 0, "127.0.0.1", protection)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def anything() -> ssl.SSLContext:
    context = ssl.SSLContext(
        ssl.PROTOCOL_TLS_CLIENT
    )  # without the certificates of the system, which make handshakes slower
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def health(port: int) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{port}/healthz", ssl=False) as response,
    ):
        return (await response.text()).strip()


async def test_health_answers_beside_600_idle_tls_connections() -> None:
    writers = []
    async with serving() as server:
        context = anything()
        for _ in range(12):
            opened = await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", server.port, ssl=context) for _ in range(50))
            )
            writers += [writer for _, writer in opened]
            assert await health(server.port) == "ok"
        assert server.connections is not None
        assert len(server.connections) <= LIMITS.most < len(writers)
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize(
    ("request_text", "patience"),
    [
        pytest.param(b"", "header_seconds", id="nothing"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: ", "header_seconds", id="half a header"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "idle_seconds", id="after a request"),
        pytest.param(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "idle_seconds", id="after a refusal"),
    ],
)
async def test_a_silent_peer_is_disconnected(request_text: bytes, patience: str) -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=anything())
        writer.write(request_text)
        await writer.drain()
        if b"\r\n\r\n" in request_text:
            await reader.readuntil(b"\r\n\r\n")
        else:
            await asyncio.sleep(0.1)
        assert server.connections is not None
        now = asyncio.get_running_loop().time()
        server.connections.clock = lambda: now + getattr(LIMITS, patience) - 5
        assert server.connections.close_silent() == 0
        server.connections.clock = lambda: now + getattr(LIMITS, patience) + 5
        assert server.connections.close_silent() == 1
        writer.transport.abort()


class FakeTransport:
    closed = False

    def abort(self) -> None:
        self.closed = True


class FakeProtocol:
    def __init__(self) -> None:
        self.transport = FakeTransport()


class FakeRequest:
    def __init__(self, protocol: FakeProtocol) -> None:
        self.protocol = protocol


async def test_the_peer_that_is_worth_least_makes_room() -> None:
    now = [0.0]
    peers = Connections(lambda: now[0], ConnectionLimits(most=3))
    connect = peers.factory(FakeProtocol)
    made = []
    for _ in range(3):
        now[0] += 1
        made.append(connect())

    async def answer(status: int) -> web.Response:
        return web.Response(status=status)

    now[0] += 1
    await peers.middleware(FakeRequest(made[0]), lambda _: answer(200))  # type: ignore[arg-type]  # the protocol is all that is read
    await peers.middleware(FakeRequest(made[1]), lambda _: answer(401))  # type: ignore[arg-type]  # the protocol is all that is read
    connect()
    assert [it.transport.closed for it in made] == [False, False, True], "the longest silent of those without a welcome"
    connect()
    assert [it.transport.closed for it in made] == [False, True, True]


@each_row(
    ("host", "status"),
    [
        ("localhost", 200), ("127.0.0.1:10251", 200), ("[::1]:10251", 200), ("LOCALHOST:1", 200), ("localhost.", 200),
        ("evil.example.com", 403), ("evil.example.com:10251", 403), ("127.0.0.1.evil.example.com", 403), ("", 403), ("[::2]", 403),
    ],
)  # fmt: skip
async def test_the_loopback_port_answers_to_local_names_only(host: str, status: int) -> None:
    async with serving(tls=False) as server, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.port}/healthz"
        async with session.get(url, headers={"Host": host}) as response:
            assert response.status == status
