"""A crew notices the first of its tasks that ends."""

import asyncio

from koord_numa.app.tasks import Ended, TaskSupervisor


async def forever() -> None:
    await asyncio.Event().wait()


async def once() -> None:
    return


async def fails() -> None:
    raise ValueError("a bug")


async def test_stopping_is_no_failure() -> None:
    crew = TaskSupervisor()
    crew.start("a", forever())
    crew.start("b", forever())
    await crew.stop("a")
    await crew.stop()
    assert not crew.failure.done()


async def test_an_error_is_the_failure_of_all() -> None:
    crew = TaskSupervisor()
    crew.start("a", forever())
    crew.start("b", fails())
    assert str(await crew.failure) == "a bug"
    await crew.stop()


async def test_so_is_an_end_without_one() -> None:
    crew = TaskSupervisor()
    crew.start("a", once())
    error = await crew.failure
    assert (type(error), str(error)) == (Ended, "a ended by itself")


async def test_so_is_being_cancelled_by_others() -> None:
    crew = TaskSupervisor()
    crew.start("a", forever())
    crew._tasks["a"].cancel()
    assert isinstance(await crew.failure, Ended)


async def test_a_task_that_was_asked_to_end_may_do_so() -> None:
    crew = TaskSupervisor()
    asked = asyncio.Event()
    done: list[bool] = []

    async def works() -> None:
        await asked.wait()
        done.append(True)

    crew.start("a", works())
    asked.set()
    await crew.finish("a", 5)
    await crew.finish("unknown", 5)
    assert (done, crew.failure.done()) == ([True], False)


async def test_and_is_cancelled_when_it_takes_too_long() -> None:
    crew = TaskSupervisor()
    crew.start("a", forever())
    await crew.finish("a", 0.01)
    assert not crew.failure.done()
