"""A rebind that is interrupted at every step, in every way: the node stays consistent, and a second one completes the work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from koord_numa.app.runtime import Runtime
from koord_numa.cluster.leader_election import NoElection
from koord_numa.engine.rebind import controller
from koord_numa.sandbox.apiserver import Effect, Fault
from koord_numa.settings import LeaseSettings
from tests.cluster.objects import until
from tests.rebind.steps import PATCH, repacked
from tests.rebind.world import FRAGMENTED, MACHINE, NODE, RESOURCE, SETTINGS, STEPS, World, fragmented


async def test_so_many_steps(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler():
        world.ask(dryRun=True)
        assert (await world.ended())["steps"] == STEPS


@pytest.mark.e2e
@pytest.mark.parametrize("step", range(STEPS))
async def test_a_refused_step_ends_it_and_a_second_rebind_completes(tmp_path: Path, step: int) -> None:
    async with fragmented(tmp_path) as world, world.scheduler() as runtime:
        fault = world.server.faults.add(Fault(status=403, skip=step, **PATCH))
        world.ask("first")
        status = await world.ended("first")
        assert (status["phase"], status["reason"]) == (
            "Failed",
            f"stopped after {step} of {STEPS} steps: koord-numa lacks the permission to patch pods",
        )
        assert len(world.moved) == step
        assert world.complaints() == []
        assert world.ledger_is_true(runtime)
        assert not runtime.scheduler.cache.nodes[NODE].locked
        world.server.faults.remove(fault)
        world.ask("second")
        await repacked(world, "second")
        assert world.ledger_is_true(runtime)


PASSING = {
    "lost answer": Fault(effect=Effect.LOSE_ANSWER, count=1, **PATCH),
    "dropped": Fault(effect=Effect.DROP, count=2, **PATCH),
    "conflict": Fault(status=409, count=2, **PATCH),
    "overload": Fault(status=429, count=2, **PATCH),
    "internal error": Fault(status=500, count=4, **PATCH),
    "gateway": Fault(status=504, count=1, **PATCH),
    "unreadable": Fault(status=503, count=2, verb="get", resource="pods", subresource=""),
}


@pytest.mark.e2e
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
@pytest.mark.parametrize("step", [0, STEPS // 2, STEPS - 1])
async def test_passing_trouble_is_waited_out(tmp_path: Path, step: int, fault: Fault) -> None:
    async with fragmented(tmp_path) as world, world.scheduler() as runtime:
        number = world.server.faults.add(fault.model_copy(update={"skip": step}))
        world.ask()
        await repacked(world, "tidy")
        assert world.server.faults.hits(number) == fault.count
        assert len(world.moved) == STEPS
        assert world.ledger_is_true(runtime)


@pytest.mark.e2e
@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("arrives", [False, True], ids=["before the write", "after the write"])
async def test_a_process_killed_at_any_step_is_continued(tmp_path: Path, step: int, arrives: bool) -> None:
    """``kill -9`` of the process: nothing more is sent, and no answer is read."""
    async with fragmented(tmp_path) as world:
        effect = Effect.SLOW_ANSWER if arrives else Effect.DELAY
        hanging = world.server.faults.add(Fault(effect=effect, seconds=None, skip=step, **PATCH))
        async with killed_at_the_end(world) as runtime:
            world.ask()
            await until(lambda: world.server.faults.hits(hanging))
            await until(lambda: not arrives or len(world.moved) > step)
            assert runtime.scheduler.cache.nodes[NODE].locked
        world.server.faults.remove(hanging)
        begun = world.status()["startTime"]
        assert (world.phase(), world.complaints()) == ("Pending", [])
        async with world.scheduler() as runtime:
            await repacked(world, "tidy")
            assert world.status()["startTime"] == begun
            assert world.ledger_is_true(runtime)


@asynccontextmanager
async def killed_at_the_end(world: World) -> AsyncIterator[Runtime]:
    """A scheduler whose tasks all end at once where they are."""
    async with world.scheduler() as runtime:
        yield runtime
        await runtime.tasks.stop()


async def test_a_stop_settles_the_step_and_leaves_the_rest(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:
        slow = world.server.faults.add(Fault(effect=Effect.SLOW_ANSWER, seconds=None, skip=1, **PATCH))
        async with world.scheduler() as runtime:
            world.ask()
            await until(lambda: world.server.faults.hits(slow))
            stopping = asyncio.create_task(runtime.stop())
            await until(lambda: runtime.rebinds._stopping)
            world.server.faults.remove(slow)
            await stopping
        assert len(world.moved) == 2
        assert world.phase() == "Pending"
        async with world.scheduler():
            await repacked(world, "tidy")


@pytest.mark.e2e
@pytest.mark.parametrize("step", [0, STEPS // 2])
async def test_a_lost_lease_ends_it_and_the_next_leader_continues(tmp_path: Path, step: int) -> None:
    async with fragmented(tmp_path) as world, world.scheduler(elect=True) as first:
        await until(first.lease.fresh)
        answers = world.server.faults.add(Fault(effect=Effect.SLOW_ANSWER, seconds=None, skip=step, count=1, **PATCH))
        renewals = Fault(status=503, resource="leases", user_agent="*")
        world.ask()
        await until(lambda: world.server.faults.hits(answers))
        lost = world.server.faults.add(renewals)
        await until(lambda: not first.lease.fresh())
        world.server.faults.remove(answers)
        await until(lambda: not first.scheduler.cache.nodes[NODE].locked)
        assert len(world.moved) == step + 1
        assert world.phase() == "Pending"
        world.server.faults.remove(lost)
        async with world.scheduler(elect=True):
            await repacked(world, "tidy")


async def test_a_missing_right_to_answer_keeps_the_node_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fragmented(tmp_path) as world, world.scheduler() as runtime:
        fault = world.server.faults.add(Fault(status=403, resource="rebindresources", verb="patch"))
        world.ask()
        await until(lambda: world.server.faults.hits(fault) > 3)
        assert "missing rule: patch rebindresources/status.scheduling.koordinator.sh" in caplog.text
        assert world.assigned() == FRAGMENTED
        assert not runtime.scheduler.cache.nodes[NODE].locked
        world.server.faults.remove(fault)
        await repacked(world, "tidy")


async def test_a_standby_keeps_its_hands_off(tmp_path: Path) -> None:
    steady = SETTINGS.model_copy(update={"lease": LeaseSettings(duration=60, renew=45, retry=2)})
    async with fragmented(tmp_path) as world, world.scheduler(elect=True, settings=steady) as leader:
        await until(leader.lease.fresh)
        async with world.scheduler(elect=True, settings=steady) as standby:
            await until(lambda: standby.scheduler.ready)
            world.ask()
            await repacked(world, "tidy")
            assert not isinstance(standby.lease, NoElection)
            assert not standby.lease.fresh()
            assert len(world.moved) == STEPS


async def test_an_exception_about_one_rebind_ends_that_rebind_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug that the pods of one node find: the rebind has failed and says why, its node is open again, and the next one is served."""

    def explode(_: object) -> None:
        raise ZeroDivisionError("no CPUs")

    async with fragmented(tmp_path) as world, world.scheduler() as runtime:
        with monkeypatch.context() as patch:
            patch.setattr(controller, "plan_rebind", explode)
            world.ask("bad")
            status = await world.ended("bad")
        assert (status["phase"], "ZeroDivisionError: no CPUs" in status["reason"]) == ("Failed", True)
        assert runtime.scheduler.handle.quarantine.counts == {"rebind": 1}
        assert not runtime.scheduler.cache.nodes[NODE].locked
        world.ask("good")
        await repacked(world, "good")
        assert not runtime.failure.done()


async def test_a_rebind_with_a_changed_node_waits_for_the_new_node(tmp_path: Path) -> None:
    """Two rebinds at work on one node at a time would undo each other's plan."""
    machines = [MACHINE, MACHINE | {"name": "other"}]
    async with fragmented(tmp_path, machines=machines) as world:
        first = world.server.faults.add(Fault(effect=Effect.SLOW_ANSWER, seconds=None, count=1, **PATCH))
        async with world.scheduler() as runtime:
            world.ask()
            await until(lambda: world.server.faults.hits(first))
            # It cannot be looked at until it names the node that the first one is at work on.
            look = world.server.faults.add(Fault(status=503, verb="get", resource="rebindresources"))
            world.ask("second", "other")
            await until(lambda: world.server.faults.hits(look))
            world.server.store.patch(RESOURCE, "second", {"spec": {"nodeName": NODE}})
            world.server.faults.remove(look)
            await until(lambda: "waits until another rebind of node" in world.status("second").get("reason", ""))
            assert world.phase() == "Pending"
            assert runtime.scheduler.cache.nodes[NODE].locked == "RebindResource tidy"
            world.server.faults.remove(first)
            await repacked(world, "tidy")
            assert (await world.ended("second"))["phase"] == "Succeed"
            assert world.complaints() == []
