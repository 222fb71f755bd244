"""Watches that are read in batches: nothing but the moments of reading is different from any other watch."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from unittest.mock import AsyncMock, patch

import aiohttp
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.cluster.client import Api
from koord_numa.cluster.informer import BREATH, PORTION, BatchedChunks, in_batches
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions

PAUSE = 1e6
"""Seconds; no test waits so long, so that a read that comes all the same did not pause."""


async def stream(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def config_map(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}


async def watch(api: Api, pause: float, plural: str = "configmaps", *, seconds: int = 3600) -> aiohttp.ClientResponse:
    """A watch of ConfigMaps from the beginning, where those of ``plural`` are read in batches."""
    session = await api.new_session(in_batches(plural, pause))
    params = {"watch": "true", "resourceVersion": "0", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
    return await session.request("get", f"{api.server}/api/v1/configmaps", params=params)


async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str]]:
    """As Kopf reads a watch: event types and names."""
    async for line in import_module("kopf._cogs.clients.api").iter_jsonlines(response.content):
        event = orjson.loads(line)
        yield event["type"], event["object"]["metadata"].get("name", "")


async def test_the_first_chunk_is_immediate_and_others_are_delayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    chunks = BatchedChunks(stream([b"a", b"bc", b"d"]), 9, PAUSE)
    assert await anext(chunks) == b"a"
    assert pauses == []
    assert [chunk async for chunk in chunks] == [b"bc", b"d"]
    assert len(pauses) == 3
    assert all(0.9 * PAUSE < pause <= PAUSE for pause in pauses)


async def test_a_flood_is_read_without_pauses() -> None:
    chunks = BatchedChunks(stream([b"abc", b"def", b"g"]), 3, PAUSE)
    assert [await anext(chunks) for _ in range(3)] == [b"abc", b"def", b"g"]


@pytest.mark.parametrize(("is_urgent", "pause"), [(True, BREATH), (False, 0)])
async def test_a_chunk_is_handed_on_in_portions_of_whole_events(
    monkeypatch: pytest.MonkeyPatch, *, is_urgent: bool, pause: float
) -> None:
    """Between them the loop has a turn, and time where something urgent is under way."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    events = [f"event {number}\n".encode() for number in range(2 * PORTION + 3)]
    text = b"".join(events) + b"begun"
    chunks = BatchedChunks(stream([text]), len(text), PAUSE, lambda: is_urgent)
    first, second, *others = [portion async for portion in chunks]
    assert (first, second) == (b"".join(events[:PORTION]), b"".join(events[PORTION : 2 * PORTION]))
    assert b"".join(others) == b"".join([*events[2 * PORTION :], b"begun"])
    assert pauses == [pause, pause]


@given(st.text("ab\n").map(str.encode))
async def test_nothing_of_a_chunk_is_lost(text: bytes) -> None:
    with patch.object(asyncio, "sleep", AsyncMock()):
        found = [portion async for portion in BatchedChunks(stream([text] if text else []), len(text), PAUSE)]
    assert b"".join(found) == text
    assert all(found)


async def test_events_arrive_in_order_with_bookmarks_and_the_end(server: ApiServer, api: Api) -> None:
    store, expected = server.store, list[tuple[str, str]]()
    async with asyncio.timeout(300), await watch(api, 0.01, seconds=2) as response:
        for number in range(50):
            store.create(config_map(f"c-{number}"))
            expected.append(("ADDED", f"c-{number}"))
            if not number % 7:
                store.delete("configmaps", f"c-{number}", "default", DeleteOptions(grace=0))
                expected.append(("DELETED", f"c-{number}"))
            await asyncio.sleep(0)
        seen = [event async for event in lines(response)]
    assert [event for event in seen if event[0] != "BOOKMARK"] == expected
    assert seen[-1] == ("BOOKMARK", "")


async def test_lists_and_other_watches_are_read_as_ever(api: Api) -> None:
    session = await api.new_session(in_batches("configmaps", PAUSE))
    async with await session.request("get", f"{api.server}/api/v1/configmaps") as listed:
        assert isinstance(listed.content, aiohttp.StreamReader)
        assert (await listed.json())["items"] == []
    async with await watch(api, PAUSE, "pods") as other:
        assert isinstance(other.content, aiohttp.StreamReader)
    async with await watch(api, PAUSE) as batched:
        assert not isinstance(batched.content, aiohttp.StreamReader)


async def test_a_watch_that_is_closed_during_a_pause_ends_as_any_other(server: ApiServer, api: Api) -> None:
    """Kopf closes the answer when it is told to stop watching, and takes this error for the end."""
    server.store.create(config_map("a"))
    async with asyncio.timeout(300), await watch(api, 0.01) as response:
        events = lines(response)
        assert await anext(events) == ("ADDED", "a")
        response.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await anext(events)


async def test_a_reader_that_is_cancelled_during_a_pause_ends_at_once(server: ApiServer, api: Api) -> None:
    server.store.create(config_map("a"))
    read = asyncio.Event()

    async def follow() -> None:
        async with await watch(api, PAUSE) as response:
            async for _ in lines(response):
                read.set()

    async with asyncio.timeout(300):
        task = asyncio.create_task(follow())
        await read.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_connection_that_breaks_says_so(server: ApiServer, api: Api) -> None:
    server.store.create(config_map("a"))
    async with asyncio.timeout(300), await watch(api, 0.01) as response:
        events = lines(response)
        assert await anext(events) == ("ADDED", "a")
        assert response.connection is not None
        assert response.connection.transport is not None
        response.connection.transport.abort()
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientConnectionError)):
            await anext(events)
