"""PodDisruptionBudgets: known before any eviction, asked for first, and broken only where the setting lets it."""

import pytest

from koord_numa.core.objects.constraints import DisruptionBudget, LabelSelector
from koord_numa.core.value_objects import replace
from koord_numa.ports import Unavailable
from tests.engine.failures import raise_once
from tests.engine.preemption.world import FULL, crowded, important, make_room, said, wrote


async def test_no_pod_is_evicted_before_budgets_are_known() -> None:
    world = crowded(*FULL, budgets=False)
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == []
    world.engine.handlers.budgets.replace([])
    await make_room(world)
    assert "evict c" in wrote(world)


@pytest.mark.parametrize(
    ("budgets", "priority", "broken"),
    [
        ("Keep", 2_000_000_000, False),
        ("BreakForSystemCritical", 2_000_000_000, True),
        ("BreakForSystemCritical", 1_000_000_000, False),
        ("LikeKubeScheduler", 1_000, True),
    ],
)
async def test_a_budget_is_violated_last_if_the_setting_allows_it(budgets: str, priority: int, broken: bool) -> None:
    world = crowded(*FULL, settings=f"preemption: {{budgets: {budgets}}}")
    world.engine.handlers.budgets.observe("ADDED", DisruptionBudget("default", "all", LabelSelector(), allowed=1))
    pod = important("pod")
    world.waits(replace(pod, request=replace(pod.request, priority=priority)))
    await make_room(world)
    written = wrote(world)
    assert any(each.startswith("delete ") for each in written) is broken
    assert any(each.startswith("evict ") for each in written) is broken  # what the budget allows is evicted


async def test_budgets_are_never_violated() -> None:
    world = crowded(*FULL)
    world.engine.handlers.budgets.observe("ADDED", DisruptionBudget("default", "all", LabelSelector(), allowed=1))
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == []
    assert "preemption: every choice of victims would violate a PodDisruptionBudget." in said(world, "pod")
    world.engine.handlers.budgets.observe("DELETED", DisruptionBudget("default", "all", LabelSelector()))
    world.clock.now += 1
    world.engine.preemption.look_again()
    await make_room(world)
    assert "evict c" in wrote(world)


async def test_protected_pods_are_evicted_first_and_may_spare_others() -> None:
    world = crowded(*FULL)
    selector = LabelSelector()
    world.engine.handlers.budgets.observe("ADDED", DisruptionBudget("default", "all", selector, allowed=2))
    world.server.fail = raise_once(Unavailable("a budget forbids it now"), at="evict c")
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    assert wrote(world) == ["nominate pod node", "evict c", "nominate pod "]
    assert "being freed" not in said(world, "pod")
    await make_room(world)
    assert wrote(world)[3:] == []
    world.clock.now += 60
    world.engine.preemption.look_again()
    await make_room(world)
    assert wrote(world)[3:] == ["nominate pod node", "evict c", "evict d"]
