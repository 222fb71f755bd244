"""Kopf's events and a list lead to the same state."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.cluster import lister as resync_module
from koord_numa.cluster.lister import Resync, ResyncStore
from koord_numa.ports import DELETED, Forbidden, Unavailable
from koord_numa.settings import BackoffSettings
from tests.cluster.objects import until


@dataclass(frozen=True)
class Thing:
    key: str
    version: int = 1


class Recorded:
    """An event handler that keeps what it is told."""

    def __init__(self) -> None:
        self.present: dict[str, Thing] = {}
        self.events: list[tuple[str | None, str]] = []
        self.syncs = 0

    def replace(self, objects: Iterable[Thing]) -> None:
        raise AssertionError("a list is older than events that arrive meanwhile")

    def synced(self) -> None:
        self.syncs += 1

    def observe(self, event: str | None, thing: Thing) -> None:
        self.events.append((event, thing.key))
        if event == DELETED:
            self.present.pop(thing.key, None)
        else:
            self.present[thing.key] = thing


def made() -> tuple[Recorded, ResyncStore[Thing]]:
    told = Recorded()
    return told, ResyncStore(told, lambda thing: thing.key)


def listing(*things: Thing, meanwhile: Callable[[], None] = lambda: None) -> Callable[[], Awaitable[Iterable[Thing]]]:
    """Return a list from before ``meanwhile``."""

    async def answer() -> Iterable[Thing]:
        await asyncio.sleep(0)
        meanwhile()
        return things

    return answer


async def test_the_first_list_reports_what_no_event_told_yet() -> None:
    told, store = made()
    store.observe(None, Thing("a"))
    await store.resync(listing(Thing("a"), Thing("b")))
    assert told.events == [(None, "a"), (None, "b")]


async def test_what_a_list_does_not_show_is_gone() -> None:
    told, store = made()
    for key in "abc":
        store.observe("ADDED", Thing(key))
    await store.resync(listing(Thing("b")))
    assert (sorted(told.present), len(store)) == (["b"], 1)


async def test_what_is_told_while_the_list_is_on_its_way_is_newer() -> None:
    told, store = made()
    store.observe("ADDED", Thing("goes"))
    store.observe("ADDED", Thing("again", 1))

    def meanwhile() -> None:
        store.observe(DELETED, Thing("goes"))
        store.observe("ADDED", Thing("comes"))
        store.observe("ADDED", Thing("again", 2))

    await store.resync(listing(Thing("goes"), meanwhile=meanwhile))
    assert told.present == {"comes": Thing("comes"), "again": Thing("again", 2)}


async def test_a_list_of_kopfs_own_makes_the_store_doubtful() -> None:
    _, store = made()
    store.observe(None, Thing("a"))
    assert not store.relisted.is_set()
    store.observe("MODIFIED", Thing("a"))
    assert not store.relisted.is_set()
    store.observe(None, Thing("a"))
    assert store.relisted.is_set()
    await store.resync(listing(Thing("a")))
    assert not store.relisted.is_set()


@given(
    steps=st.lists(st.tuples(st.sampled_from(["ADDED", "MODIFIED", None, DELETED]), st.sampled_from("abcde"))),
    left=st.sets(st.sampled_from("abcdefg")),
)
def test_after_a_quiet_list_the_store_is_the_list(steps: list[tuple[str | None, str]], left: set[str]) -> None:
    told, store = made()
    for event, key in steps:
        store.observe(event, Thing(key))
    asyncio.run(store.resync(listing(*map(Thing, sorted(left)))))
    assert set(told.present) == left


async def test_a_resync_retries_and_reports_completion_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync_module, "DEBOUNCE", 0.001)
    told, store = made()
    answers: list[Exception | tuple[Thing, ...]] = [
        Unavailable("down"),
        Forbidden("no", "list things"),
        (Thing("a"),),
        (Thing("b"),),
    ]
    problems: list[str] = []
    resync: Resync[Thing]

    async def everything() -> Iterable[Thing]:
        problems.append(resync.problem)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    resync = Resync("things", store, everything, BackoffSettings(initial=0.001, max=0.002))
    task = asyncio.create_task(resync.run())
    await until(lambda: resync.synced)
    assert (problems, resync.problem) == (["", "down", "no; missing rule: list things"], "")
    resync.needs_relist()
    await until(lambda: sorted(told.present) == ["b"])
    assert told.syncs == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
