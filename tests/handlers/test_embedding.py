"""Kopf is started again when it gives up, its streams are closed, and nothing else is touched."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from copy import copy
from dataclasses import dataclass
from typing import Any

import aiohttp
import kopf
import pytest

from koord_numa.handlers import embedding
from koord_numa.handlers.embedding import KOPF, PER_EVENT, EmbeddedKopf, KopfStalled, SharedMemo, _close, _kopf_streams
from koord_numa.settings import BackoffSettings

STREAMS = """
from contextlib import asynccontextmanager

async def events(ended):
    try:
        yield "first"
        yield "second"
    finally:
        ended.append("events")

@asynccontextmanager
async def block(ended):
    try:
        yield
    finally:
        ended.append("block")

async def watch(ended):
    try:
        async with block(ended):
            async for event in events(ended):
                yield event
    finally:
        ended.append("watch")

async def tedious(gate):
    try:
        yield "first"
    finally:
        await gate.wait()
"""
"""``watch`` is built as Kopf's infinite_watch: a stream that reads another one inside of a block."""

Stream = AsyncGenerator[str, None]


def made_in(folder: str) -> dict[str, Callable[..., Stream]]:
    """Streams whose code is in that folder."""
    found: dict[str, Any] = {}
    exec(compile(STREAMS, f"{folder}/streams.py", "exec"), found)  # noqa: S102  (streams are Kopf's by their file)
    return found


async def test_half_read_streams_of_kopf_are_closed_outer_first() -> None:
    ended: list[str] = []
    with _kopf_streams() as streams:
        stream = made_in(KOPF)["watch"](ended)
        assert await anext(stream) == "first"
        await _close(streams)
        assert ended == ["block", "watch", "events"]
        assert [event async for event in stream] == []


async def test_finished_streams_and_streams_of_others_are_left_alone() -> None:
    ended: list[str] = []
    with _kopf_streams() as streams:
        assert [event async for event in made_in(KOPF)["watch"](ended)] == ["first", "second"]
        ended.clear()
        stream = made_in("somewhere")["watch"](ended)
        assert await anext(stream) == "first"
        await _close(streams)
        assert ended == []
        assert [event async for event in stream] == ["second"]


async def test_context_managers_of_single_events_are_not_collected() -> None:
    with _kopf_streams() as streams:
        stream = made_in(f"{PER_EVENT}actions")["events"]([])
        assert await anext(stream) == "first"
        assert len(streams) == 0
        await stream.aclose()


def test_one_memo_serves_all_objects() -> None:
    memo = SharedMemo(host="h")
    assert copy(memo) is memo


async def test_a_stream_that_is_being_closed_is_left_alone() -> None:
    gate = asyncio.Event()
    with _kopf_streams() as streams:
        stream = made_in(KOPF)["tedious"](gate)
        await anext(stream)
        closing = asyncio.create_task(stream.aclose())
        await asyncio.sleep(0)
        await _close(streams)
        assert not closing.done()
        gate.set()
        await closing


@dataclass(slots=True)
class Runs:
    """Stands in for Kopf: how each of its runs goes. ``begun`` counts them."""

    fates: list[BaseException | None]
    begun: int = 0

    async def spawn(self, **_: object) -> list[asyncio.Task[Any]]:
        self.begun += 1
        return [asyncio.create_task(asyncio.Event().wait())]

    async def run(self, tasks: Collection[asyncio.Task[Any]], **_: object) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        fate = self.fates[self.begun - 1]
        if isinstance(fate, KopfStalled):
            await asyncio.Event().wait()
        if fate is not None:
            raise fate


async def lived(monkeypatch: pytest.MonkeyPatch, *fates: BaseException | None) -> Runs:
    """Runs of an embedded Kopf that go like this, one after the other."""
    runs, restarts = Runs([*fates]), list[int]()
    monkeypatch.setattr(kopf, "spawn_tasks", runs.spawn)
    monkeypatch.setattr(kopf, "run_tasks", runs.run)
    monkeypatch.setattr(embedding, "RESTART", BackoffSettings(initial=0.001, max=0.001))
    monkeypatch.setattr(embedding, "EXIT_SECONDS", 0.01)
    host: Any = None
    embedded = EmbeddedKopf(host, kopf.OperatorRegistry(), lambda: None, lambda: restarts.append(runs.begun))
    try:
        await embedded.run(asyncio.Event())
    finally:
        assert restarts == [*range(1, runs.begun)]
    return runs


async def test_a_run_that_never_ends_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = await lived(monkeypatch, KopfStalled(), None)
    assert runs.begun == 2


async def test_a_failed_run_is_followed_by_another_except_for_bugs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(KeyError, match="a bug"):
        await lived(monkeypatch, kopf.LoginError("out of credentials"), aiohttp.ClientError(), KeyError("a bug"))
