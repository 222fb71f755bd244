"""The supervisor notices the first of its tasks that ends."""

import asyncio
from contextlib import suppress

import pytest

from koord_numa.app import tasks
from koord_numa.app.tasks import Ended, TaskSupervisor
from tests.cluster.objects import PATIENCE


async def forever() -> None:
    await asyncio.Event().wait()


async def once() -> None:
    return


async def fails() -> None:
    raise ValueError("a bug")


async def test_stopping_is_no_failure() -> None:
    supervisor = TaskSupervisor()
    supervisor.start("a", forever())
    supervisor.start("b", forever())
    await supervisor.stop("a")
    await supervisor.stop()
    assert not supervisor.failure.done()


async def test_a_task_that_does_not_hear_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It awaits another one, which ends with an error of its own when it is cancelled."""

    async def breaks() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            raise TimeoutError from None

    async def deaf() -> None:
        with suppress(TimeoutError):
            await asyncio.create_task(breaks())
        await forever()

    monkeypatch.setattr(tasks, "CANCEL_AGAIN", 0.01)
    supervisor = TaskSupervisor()
    supervisor.start("a", deaf())
    supervisor.start("b", deaf())
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        await supervisor.stop("a")
        await supervisor.finish(0.0, "b")
    assert not supervisor.failure.done()


async def test_an_error_is_the_failure_of_all() -> None:
    supervisor = TaskSupervisor()
    supervisor.start("a", forever())
    supervisor.start("b", fails())
    assert str(await supervisor.failure) == "a bug"
    await supervisor.stop()


async def test_so_is_an_end_without_one() -> None:
    supervisor = TaskSupervisor()
    supervisor.start("a", once())
    error = await supervisor.failure
    assert (type(error), str(error)) == (Ended, "a ended by itself")


async def test_so_is_being_cancelled_by_others() -> None:
    supervisor = TaskSupervisor()
    supervisor.start("a", forever())
    supervisor._tasks["a"].cancel()
    assert isinstance(await supervisor.failure, Ended)


async def test_a_task_that_was_asked_to_end_may_do_so() -> None:
    supervisor = TaskSupervisor()
    asked = asyncio.Event()
    done: list[bool] = []

    async def works() -> None:
        await asked.wait()
        done.append(True)

    supervisor.start("a", works())
    asked.set()
    await supervisor.finish(5, "a")
    await supervisor.finish(5, "unknown")
    assert (done, supervisor.failure.done()) == ([True], False)


async def test_one_of_several_may_end_while_another_is_waited_for() -> None:
    supervisor = TaskSupervisor()
    ends, other_ended = asyncio.Event(), asyncio.Event()

    async def other() -> None:
        await ends.wait()
        other_ended.set()

    async def works() -> None:
        await ends.wait()
        await other_ended.wait()
        for _ in range(5):  # the end of the other one is noticed meanwhile
            await asyncio.sleep(0)

    supervisor.start("a", works())
    supervisor.start("b", other())
    await asyncio.sleep(0)
    ends.set()
    await supervisor.finish(300, "a", "b")
    assert not supervisor.failure.done()


async def test_and_is_cancelled_when_it_takes_too_long() -> None:
    supervisor = TaskSupervisor()
    supervisor.start("a", forever())
    await supervisor.finish(0.01, "a")
    assert not supervisor.failure.done()
