"""Until when a rebind goes on: its deadline, and outcomes that stay unknown."""

from pathlib import Path

from koord_numa.app.runtime import Runtime
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.apiserver import Effect, Fault
from tests.cluster.objects import until
from tests.rebind.steps import PATCH
from tests.rebind.world import FRAGMENTED, RESOURCE, STEPS, fragmented


def advance(runtime: Runtime, seconds: float) -> None:
    """So much time passes for the rebinds of this scheduler."""
    before = runtime.scheduler.dependencies
    runtime.scheduler.dependencies = replace(before, clock=lambda: before.clock() + seconds)


async def test_the_deadline_counts_from_the_start_between_steps(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler() as runtime:
        step = world.server.faults.add(Fault(effect=Effect.SLOW_ANSWER, seconds=None, **PATCH))
        world.ask(deadlineInSeconds=600)
        await until(lambda: world.server.faults.hits(step))
        advance(runtime, 600)
        world.server.faults.remove(step)
        status = await world.ended()
        assert status["phase"] == "Failed"
        assert status["reason"] == f"stopped after 1 of {STEPS} steps: the deadline of 600 s has passed"
        assert len(status["result"]) == len(world.moved) == 1
        assert world.ledger_is_true(runtime)


async def test_a_deadline_passed_without_leader_ends_the_rebind(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:
        world.ask()
        begun = {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}
        world.server.store.patch(RESOURCE, "tidy", {"status": begun}, subresource="status")
        async with world.scheduler():
            status = await world.ended()
        assert (status["phase"], status["reason"]) == ("Failed", "the deadline of 600 s has passed")
        assert world.assigned() == FRAGMENTED


async def test_a_start_in_the_future_extends_no_deadline(tmp_path: Path) -> None:
    """The time of day went back by a century while no scheduler led."""
    async with fragmented(tmp_path) as world:
        world.ask(deadlineInSeconds=600)
        begun = {"phase": "Pending", "startTime": "2126-01-01T00:00:00Z", "observedGeneration": 1}
        world.server.store.patch(RESOURCE, "tidy", {"status": begun}, subresource="status")
        step = world.server.faults.add(Fault(effect=Effect.SLOW_ANSWER, seconds=None, **PATCH))
        async with world.scheduler() as runtime:
            await until(lambda: world.server.faults.hits(step))
            advance(runtime, 600)
            world.server.faults.remove(step)
            status = await world.ended()
        assert status["reason"] == f"stopped after 1 of {STEPS} steps: the deadline of 600 s has passed"


async def test_an_unknown_outcome_is_settled_after_the_deadline(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler() as runtime:
        told: list[str] = []
        world.server.store.subscribe(
            RESOURCE, lambda _, found: told.append((found.get("status") or {}).get("phase", ""))
        )
        fault = world.server.faults.add(Fault(effect=Effect.DROP, skip=1, **PATCH))
        world.ask(deadlineInSeconds=600)
        await until(lambda: "Unknown" in told)
        advance(runtime, 600)
        assert "does not say whether pod" in world.status()["reason"]
        await until(lambda: world.server.faults.hits(fault) > 12)
        world.server.faults.remove(fault)
        status = await world.ended()
        assert status["phase"] == "Failed"
        assert len(world.moved) == 2
        assert len(status["result"]) == len(set(world.moved))
        assert world.complaints() == []
