"""What a run of Kopf leaves behind is cleared away, and nothing else is touched."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from copy import copy
from typing import Any

import pytest
from kopf._cogs.aiokits.aiotasks import Scheduler, create_guarded_task

from koord_numa.handlers import embedding as kopf_run
from koord_numa.handlers.embedding import (
    KOPF,
    PER_EVENT,
    SharedMemo,
    _cancel_watchers_again,
    _close,
    _end_leftovers,
    _kopf_streams,
    runs_kopf,
)

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


async def test_streams_that_kopf_left_half_read_are_closed_outer_ones_first() -> None:
    ended: list[str] = []
    with _kopf_streams() as streams:
        stream = made_in(KOPF)["watch"](ended)
        assert await anext(stream) == "first"
        await _close(streams)
        assert ended == ["block", "watch", "events"]
        assert [event async for event in stream] == []


async def test_streams_that_are_read_to_the_end_or_not_kopfs_are_left_alone() -> None:
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


async def test_watchers_that_a_failed_run_left_end_in_good_order() -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("worker")

    async def watcher() -> None:
        """As Kopf's: whatever happens, it first waits until its workers are over."""
        workers = Scheduler(limit=1)
        try:
            for _ in range(3):
                await workers.spawn(work())
            begun.set()
            await asyncio.Event().wait()
        finally:
            closing = asyncio.create_task(workers.close())
            while not closing.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(closing)
            ended.append("watcher")

    task = create_guarded_task(watcher(), "watcher", cancellable=True)
    await begun.wait()
    await _end_leftovers()
    assert task.cancelled()
    assert ended == ["worker", "watcher"]  # the other two had not even begun
    assert [task for task in asyncio.all_tasks() if runs_kopf(task)] == []


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last answer is not awaited."""
    monkeypatch.setattr(kopf_run, "EXIT_SECONDS", 0.01)


async def deaf(begun: asyncio.Event) -> None:
    """It does not hear when it is cancelled for the first time, as a watcher of Kopf that opens its stream again."""
    begun.set()
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


@pytest.mark.usefixtures("hasty")
async def test_a_watcher_that_does_not_hear_is_told_again_when_kopf_ends() -> None:
    begun, end = asyncio.Event(), asyncio.Event()
    watcher = create_guarded_task(deaf(begun), "watcher for pods", cancellable=True)
    root = create_guarded_task(end.wait(), "stop-flag checker", finishable=True)
    await begun.wait()
    urging = asyncio.create_task(_cancel_watchers_again([root]))
    await asyncio.sleep(0)
    assert not watcher.cancelling()  # Kopf is not ending yet
    end.set()
    await asyncio.wait({watcher})
    assert watcher.cancelled()
    urging.cancel()


@pytest.mark.usefixtures("hasty")
async def test_leftovers_that_do_not_hear_are_told_again() -> None:
    begun = asyncio.Event()
    watcher = create_guarded_task(deaf(begun), "watcher for pods", cancellable=True)
    await begun.wait()
    await _end_leftovers()
    assert watcher.cancelled()
