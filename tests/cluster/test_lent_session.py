"""A session may be closed while requests are on their way: none of them ends in an error that looks like a bug."""

import asyncio
from collections.abc import Awaitable, Callable
from importlib import import_module
from logging import getLogger
from typing import Any

import aiohttp
import kopf
import pytest

from koord_numa.cluster.client import Api, LentSession


def request_of(api: Api, session: LentSession) -> asyncio.Task[aiohttp.ClientResponse]:
    return asyncio.create_task(session.request("get", f"{api.server}/api/v1/pods"))


@pytest.fixture
def connecting(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Set when a request waits for a connection, and to be set to give it one."""
    begun, free = asyncio.Event(), asyncio.Event()
    connect: Callable[..., Awaitable[Any]] = aiohttp.TCPConnector.connect

    async def late(*args: Any, **options: Any) -> Any:
        begun.set()
        await free.wait()
        return await connect(*args, **options)

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", late)
    return begun, free


async def test_a_broken_connection_after_the_session_was_closed(api: Api) -> None:
    """aiohttp sends it once more, by the connector that the session had."""
    asked, broken = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        asked.set()
        await broken.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as unreliable:
        port = unreliable.sockets[0].getsockname()[1]
        session = await api.new_session()
        request = asyncio.create_task(session.request("get", f"http://127.0.0.1:{port}/"))
        await asked.wait()
        await session.close()
        broken.set()
        with pytest.raises(aiohttp.ClientConnectionError):
            await request


@pytest.mark.usefixtures("server")
async def test_a_connection_after_the_session_was_closed(
    api: Api, connecting: tuple[asyncio.Event, asyncio.Event]
) -> None:
    begun, free = connecting
    session = await api.new_session()
    request = request_of(api, session)
    await begun.wait()
    await session.close()
    free.set()
    with pytest.raises(RuntimeError, match="Session is closed"):
        await request


async def test_no_request_begins_when_the_session_is_closed(api: Api) -> None:
    session = await api.new_session()
    (await request_of(api, session)).close()
    await session.close()
    await session.close()
    with pytest.raises(RuntimeError, match="Session is closed"):
        await request_of(api, session)


async def test_kopf_logs_in_again_after_its_session_was_closed(
    api: Api, connecting: tuple[asyncio.Event, asyncio.Event]
) -> None:
    clients, errors, auth = (import_module(f"kopf._cogs.clients.{name}") for name in ("api", "errors", "auth"))
    begun, free = connecting
    lent: Any = await api.new_session()
    context = auth.APIContext(kopf.AiohttpSession(server=api.server, aiohttp_session=lent))
    options: dict[str, Any] = {"settings": kopf.OperatorSettings(), "logger": getLogger("kopf"), "context": context}
    request = asyncio.create_task(clients.request("get", "/api/v1/pods", **options))
    await begun.wait()
    await context.close()
    free.set()
    with pytest.raises(errors.APISessionClosed):
        await request
