"""Automatic rebinds (``rebindPolicy``): when one is created, and everything that keeps one from being created."""

import time
from datetime import time as day
from pathlib import Path

import pytest

from koord_numa.core.value_objects import replace
from koord_numa.settings import RebindMode, RebindPolicySettings, Settings
from koord_numa.wire import names
from tests.cluster.objects import until
from tests.rebind.world import FRAGMENTED, NODE, RESOURCE, SETTINGS, World, fragmented, pod


def policy(mode: RebindMode = RebindMode.CREATE, **changes: object) -> Settings:
    """The settings of these tests with automatic rebinds; nothing happens by itself: tests look when they want."""
    rules = RebindPolicySettings.model_validate({"mode": mode, "interval_seconds": 86_400, **changes})
    return SETTINGS.model_copy(update={"rebind_policy": rules})


def created(world: World) -> list[dict[str, object]]:
    """The RebindResources that exist."""
    return [dict(found) for found in world.server.store.list(RESOURCE)]


async def test_a_fragmented_node_is_rebound_without_being_asked(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler(settings=policy()) as runtime:
        await until(lambda: runtime.scheduler.ready)
        assert await runtime.automatic_rebinds.look() == NODE
        (made,) = world.server.store.list(RESOURCE)
        assert made["metadata"]["name"].startswith(f"auto-{NODE}-")
        assert made["metadata"]["annotations"][names.REBIND_REASON].startswith("NUMA crossings ")
        status = await world.ended(made["metadata"]["name"])
        assert (status["phase"], status["after"]["crossings"]) == ("Succeed", 0)
        crossings = status["before"]["crossings"]
        assert crossings > 0
        await until(lambda: all(rebind.is_answered for rebind in runtime.rebinds.known()))
        assert await runtime.automatic_rebinds.look() == ""  # nothing is left to improve
        counted = runtime.scheduler.metrics.rebinds
        await until(lambda: counted.ended["Succeed", False] == 1)
        assert (counted.moves, counted.crossings_before, counted.crossings_after) == (status["steps"], crossings, 0)
        assert world.complaints() == []


async def test_a_proposal_shows_the_plan_and_moves_no_pod(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler(settings=policy(RebindMode.PROPOSE)) as runtime:
        await until(lambda: runtime.scheduler.ready)
        assert await runtime.automatic_rebinds.look() == NODE
        (made,) = world.server.store.list(RESOURCE)
        status = await world.ended(made["metadata"]["name"])
        assert made["spec"]["dryRun"] is True
        assert status["plan"]
        assert world.assigned() == FRAGMENTED
        await until(lambda: all(rebind.is_answered for rebind in runtime.rebinds.known()))
        assert (
            await runtime.automatic_rebinds.look() == ""
        )  # the same node is not proposed again while it stays as it is


async def test_a_waiting_pod_that_would_fit_is_a_reason(tmp_path: Path) -> None:
    """Two free cores on each NUMA node, all of them broken: a pod of whole cores waits until others are packed."""
    spread = {"x": "0,2", "y": "4,6", "z": "8,10", "w": "12,14"}
    async with (
        fragmented(tmp_path, spread) as world,
        world.scheduler(settings=policy(min_crossings=100, min_block=100)) as runtime,
    ):
        await until(lambda: runtime.scheduler.ready)
        assert await runtime.automatic_rebinds.look() == ""
        whole = pod("whole", 4)
        whole["metadata"]["annotations"][names.RESOURCE_SPEC] = '{"requiredCPUBindPolicy": "FullPCPUs"}'
        world.server.store.create(whole)
        await until(lambda: bool(runtime.scheduler.waiting()))
        assert await runtime.automatic_rebinds.look() == NODE
        (made,) = world.server.store.list(RESOURCE)
        assert made["metadata"]["annotations"][names.REBIND_REASON] == "pod default/whole would fit"
        await until(lambda: "whole" in world.assigned())
        assert world.complaints() == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"min_crossings": 100, "min_block": 100}, id="too-little-to-win"),
        pytest.param({"quiet_hours": ["00:00-12:00", "12:00-00:00"]}, id="quiet-hours"),
        pytest.param({"mode": RebindMode.OFF}, id="off"),
    ],
)
async def test_what_keeps_a_rebind_from_being_created(tmp_path: Path, changes: dict[str, object]) -> None:
    async with fragmented(tmp_path) as world, world.scheduler(settings=policy(**changes)) as runtime:  # type: ignore[arg-type]  # fields of several types
        await until(lambda: runtime.scheduler.ready)
        if changes.get("mode") is RebindMode.OFF:
            await runtime.automatic_rebinds.run()
        else:
            assert await runtime.automatic_rebinds.look() == ""
        assert created(world) == []


async def test_a_pod_may_forbid_it(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:
        found = world.server.store.get("pods", "a", "default")
        patch = {"metadata": {"annotations": {**found["metadata"]["annotations"], names.REBIND: "false"}}}
        world.server.store.update({**found, "metadata": {**found["metadata"], **patch["metadata"]}})
        async with world.scheduler(settings=policy()) as runtime:
            await until(lambda: runtime.scheduler.ready)
            assert await runtime.automatic_rebinds.look() == ""


async def test_one_at_a_time_and_so_many_an_hour(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler(settings=policy(max_per_hour=1)) as runtime:
        await until(lambda: runtime.scheduler.ready)
        assert await runtime.automatic_rebinds.look() == NODE
        await until(
            lambda: bool(runtime.rebinds.known()) and all(rebind.is_answered for rebind in runtime.rebinds.known())
        )
        world.place({"late": "8,14"})
        # The time of day jumps; an hour of the monotonic clock has not passed.
        ports = runtime.automatic_rebinds._ports
        runtime.automatic_rebinds._ports = replace(ports, wall=lambda: time.time() + 7200)
        assert await runtime.automatic_rebinds.look() == ""
        assert len(created(world)) == 1


@pytest.mark.parametrize(
    ("span", "quiet", "loud"),
    [
        ("08:00-18:00", day(8), day(18)),
        ("22:00-06:00", day(3), day(6)),
        ("22:00-06:00", day(22), day(12)),
    ],
)
def test_quiet_hours(span: str, quiet: day, loud: day) -> None:
    rules = RebindPolicySettings(quiet_hours=(span,))
    assert rules.is_quiet(quiet)
    assert not rules.is_quiet(loud)
