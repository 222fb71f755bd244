"""A run of Kopf neither stalls nor leaves anything behind unnoticed."""

import asyncio
from contextlib import suppress

import pytest
from kopf._cogs.aiokits.aiotasks import Scheduler, create_guarded_task

from koord_numa.handlers import embedding
from koord_numa.handlers.embedding import KopfStalled, end_leftovers, runs_kopf, supervise


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
    await end_leftovers()
    assert task.cancelled()
    assert ended == ["worker", "watcher"]  # the other two had not even begun
    assert [task for task in asyncio.all_tasks() if runs_kopf(task)] == []


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last answer is not awaited."""
    monkeypatch.setattr(embedding, "EXIT_SECONDS", 0.01)


async def deaf(begun: asyncio.Event) -> None:
    """It does not hear when it is cancelled for the first time, as a watcher of Kopf that opens its stream again."""
    begun.set()
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


@pytest.mark.usefixtures("hasty")
async def test_a_stuck_watcher_is_cancelled_again_when_kopf_ends() -> None:
    begun, end = asyncio.Event(), asyncio.Event()
    watcher = create_guarded_task(deaf(begun), "watcher for pods", cancellable=True)
    root = create_guarded_task(end.wait(), "stop-flag checker", finishable=True)
    await begun.wait()
    supervising = asyncio.create_task(supervise([root]))
    await asyncio.sleep(0)
    assert not watcher.cancelling()  # Kopf is not ending yet
    end.set()
    await asyncio.wait({watcher})
    assert watcher.cancelled()
    supervising.cancel()


@pytest.mark.usefixtures("hasty")
async def test_a_stuck_watcher_is_cancelled_again_while_kopf_runs() -> None:
    """As when a kind is uninstalled: Kopf waits for that watcher, and starts no other meanwhile."""
    begun = asyncio.Event()
    watcher = create_guarded_task(deaf(begun), "watcher for pods", cancellable=True)
    await begun.wait()
    supervising = asyncio.create_task(supervise([asyncio.create_task(asyncio.Event().wait())]))
    watcher.cancel()
    await asyncio.wait({watcher})
    assert watcher.cancelled()
    supervising.cancel()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("name", ["watcher for pods", "credentials retriever"])
async def test_kopf_does_not_go_on_without_a_part_of_it(name: str) -> None:
    end = asyncio.Event()
    part = create_guarded_task(end.wait(), name, finishable=True)
    supervising = asyncio.create_task(supervise([asyncio.create_task(asyncio.Event().wait())]))
    await asyncio.sleep(0)
    end.set()
    with pytest.raises(KopfStalled, match=name):
        await supervising
    assert part.done()


@pytest.mark.usefixtures("hasty")
async def test_kopf_does_not_end_for_ever() -> None:
    root = asyncio.create_task(asyncio.sleep(0))
    with pytest.raises(KopfStalled, match="has not ended"):
        await supervise([root])


@pytest.mark.usefixtures("hasty")
async def test_leftovers_that_do_not_hear_are_told_again() -> None:
    begun = asyncio.Event()
    watcher = create_guarded_task(deaf(begun), "watcher for pods", cancellable=True)
    await begun.wait()
    await end_leftovers()
    assert watcher.cancelled()
