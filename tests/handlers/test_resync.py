"""What Kopf reports and what a list shows end in the same truth."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.handlers import resync as census_module
from koord_numa.handlers.resync import Resync
from koord_numa.handlers.resync_store import DELETED, ResyncStore
from koord_numa.ports import Forbidden, Unavailable
from tests.cluster.objects import until


@dataclass(frozen=True)
class Thing:
    key: str
    version: int = 1


class Told:
    """Keeps what a roll reports."""

    def __init__(self) -> None:
        self.present: dict[str, Thing] = {}
        self.reports: list[tuple[str | None, str]] = []

    def report(self, event: str | None, thing: Thing) -> None:
        self.reports.append((event, thing.key))
        if event == DELETED:
            self.present.pop(thing.key, None)
        else:
            self.present[thing.key] = thing


def made() -> tuple[Told, ResyncStore[Thing]]:
    told = Told()
    return told, ResyncStore(told.report, lambda thing: thing.key)


def listing(*things: Thing, meanwhile: Callable[[], None] = lambda: None) -> Callable[[], Awaitable[Iterable[Thing]]]:
    """A list that was made before ``meanwhile`` happened."""

    async def answer() -> Iterable[Thing]:
        await asyncio.sleep(0)
        meanwhile()
        return things

    return answer


async def test_the_first_list_reports_what_nobody_told_yet() -> None:
    told, roll = made()
    roll.note(None, Thing("a"))
    await roll.check(listing(Thing("a"), Thing("b")))
    assert told.reports == [(None, "a"), (None, "b")]


async def test_what_a_list_does_not_show_is_gone() -> None:
    told, roll = made()
    for key in "abc":
        roll.note("ADDED", Thing(key))
    await roll.check(listing(Thing("b")))
    assert (sorted(told.present), len(roll)) == (["b"], 1)


async def test_what_is_told_while_the_list_is_on_its_way_is_newer() -> None:
    told, roll = made()
    roll.note("ADDED", Thing("goes"))
    roll.note("ADDED", Thing("again", 1))

    def meanwhile() -> None:
        roll.note(DELETED, Thing("goes"))
        roll.note("ADDED", Thing("comes"))
        roll.note("ADDED", Thing("again", 2))

    await roll.check(listing(Thing("goes"), meanwhile=meanwhile))
    assert told.present == {"comes": Thing("comes"), "again": Thing("again", 2)}


async def test_a_list_of_kopfs_own_makes_the_roll_doubtful() -> None:
    _, roll = made()
    roll.note(None, Thing("a"))
    assert not roll.doubtful.is_set()
    roll.note("MODIFIED", Thing("a"))
    assert not roll.doubtful.is_set()
    roll.note(None, Thing("a"))
    assert roll.doubtful.is_set()
    await roll.check(listing(Thing("a")))
    assert not roll.doubtful.is_set()


@given(
    steps=st.lists(st.tuples(st.sampled_from(["ADDED", "MODIFIED", None, DELETED]), st.sampled_from("abcde"))),
    left=st.sets(st.sampled_from("abcdefg")),
)
def test_after_a_quiet_list_the_roll_is_the_list(steps: list[tuple[str | None, str]], left: set[str]) -> None:
    told, roll = made()
    for event, key in steps:
        roll.note(event, Thing(key))
    asyncio.run(roll.check(listing(*map(Thing, sorted(left)))))
    assert set(told.present) == left


async def test_a_census_waits_out_failures_and_tells_once_that_all_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census_module, "AGAIN", (0.001, 0.002))
    told, roll = made()
    answers: list[Exception | tuple[Thing, ...]] = [
        Unavailable("down"),
        Forbidden("no", "list things"),
        (Thing("a"),),
        (Thing("b"),),
    ]
    problems: list[str] = []
    complete: list[bool] = []
    census: Resync[Thing]

    async def everything() -> Iterable[Thing]:
        problems.append(census.problem)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    census = Resync("things", roll, everything, lambda: complete.append(True))
    task = asyncio.create_task(census.run())
    await until(lambda: census.synced)
    assert (problems, census.problem) == (["", "down", "no; missing rule: list things"], "")
    roll.doubtful.set()
    await until(lambda: sorted(told.present) == ["b"])
    assert complete == [True]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
