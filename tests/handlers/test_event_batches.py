"""Events that are handed over in batches: the first at once, those behind it together, in their order."""

import asyncio
import logging
from itertools import pairwise
from typing import Any, cast

import kopf
import pytest

from koord_numa.handlers.dispatch import SLICE, EventBatches
from tests.cluster.objects import until

LONG = 1e6
"""Seconds; no test waits so long."""


def event(name: str) -> kopf.RawEvent:
    return cast("kopf.RawEvent", {"type": "ADDED", "object": {"metadata": {"name": name}}})


class RecordingHandler:
    def __init__(self, pause: float, broken: str = "") -> None:
        self.names: list[str] = []
        self.broken = broken
        self.batches = EventBatches(self.hear, pause)

    def hear(self, told: kopf.RawEvent) -> None:
        found: Any = told["object"]
        name = found["metadata"]["name"]
        if name == self.broken:
            raise ValueError(name)
        self.names.append(name)

    def put(self, *names: str) -> None:
        for name in names:
            self.batches.put(event(name))


def test_without_a_pause_every_event_is_handed_over_as_it_comes() -> None:
    heard = RecordingHandler(0.0)
    heard.put("a", "b")
    assert heard.names == ["a", "b"]


async def test_the_first_event_after_a_pause_waits_for_nothing() -> None:
    heard = RecordingHandler(LONG)
    heard.put("a")
    assert heard.names == ["a"]
    heard.put("b", "c")
    await asyncio.sleep(0)
    assert heard.names == ["a"]


async def test_those_behind_it_come_together_and_in_their_order() -> None:
    heard = RecordingHandler(0.01)
    heard.put("a", "b", "c")
    await until(lambda: len(heard.names) > 1)
    assert heard.names == ["a", "b", "c"]
    # A pause begins with each batch, and ends without another one.
    heard.put("d")
    assert heard.names == ["a", "b", "c"]
    await until(lambda: heard.names[-1] == "d")
    await asyncio.sleep(0.02)
    heard.put("e")
    assert heard.names[-1] == "e"


async def test_a_flood_gives_way_to_others() -> None:
    heard = RecordingHandler(0.001)
    heard.put(*map(str, range(1 + 3 * SLICE)))
    turns = [len(heard.names)]
    while turns[-1] < 1 + 3 * SLICE:
        await asyncio.sleep(0)
        turns.append(len(heard.names))
    assert max(now - before for before, now in pairwise(turns)) == SLICE
    assert heard.names == [*map(str, range(1 + 3 * SLICE))]


async def test_an_event_that_cannot_be_handed_over_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    heard = RecordingHandler(0.01, broken="b")
    with caplog.at_level(logging.ERROR):
        heard.put("a", "b", "c")
        await until(lambda: heard.names == ["a", "c"])
    assert [record.message for record in caplog.records] == ["an event cannot be processed"]
