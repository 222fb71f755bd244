"""Nodes that are tried for a pod that fits nowhere, and the number of attempts."""

import pytest

from koord_numa.core.objects.constraints import DisruptionBudget, LabelSelector
from koord_numa.core.preempt import victims
from koord_numa.core.preempt.dry_run import EvictionTerms, PreemptionNode
from koord_numa.core.preempt.victims import PreemptionCandidate, select_victims_on_node
from koord_numa.core.scheduling.request import SchedulingRequest
from koord_numa.core.value_objects import replace
from koord_numa.engine.preemption import evaluator as planner
from tests.engine.preemption.world import FULL, crowded, important, leaves, make_room, running, wrote
from tests.engine.world import bound, make_topology


async def test_a_locked_node_is_left_alone() -> None:
    world = crowded(*FULL)
    world.engine.lock_node("node", "RebindResource repack works on it")
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == []


async def test_a_node_that_cools_down_is_left_alone() -> None:
    world = crowded(*FULL[:3])
    twin = important("twin")
    world.engine.handlers.bound_pods.observe("ADDED", bound(twin, "node"))
    world.engine.handlers.bound_pods.observe(
        "MODIFIED", bound(twin, "node", phase="Failed", reason="TopologyAffinityError")
    )
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == []


async def test_a_topology_that_speaks_of_other_pods_is_not_trusted() -> None:
    world = crowded(*FULL)
    published = replace(make_topology("node"), fingerprint="pfp0v0010123456789abcdef", fingerprint_method="all")
    world.engine.handlers.topologies.observe("MODIFIED", published)
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == []


async def test_so_many_nodes_are_tried_out_the_emptiest_first() -> None:
    full = [running(f"a{i}", "0-3", f"node-{i}", priority=i) for i in range(3)]
    rest = [running(f"b{i}", "4-6" if i == 2 else "4-7", f"node-{i}", priority=9) for i in range(3)]
    names = ("node-0", "node-1", "node-2")
    world = crowded(*full, *rest, nodes=names, settings="preemption: {candidateNodes: 1}")
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == ["nominate pod node-2", "evict a2"]
    world = crowded(*full, *rest, nodes=names)
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == ["nominate pod node-0", "evict a0"]


async def test_a_dry_run_without_victims_is_repeated_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []
    real = victims.select_victims_on_node

    def counting(ask: SchedulingRequest, site: PreemptionNode, terms: EvictionTerms) -> PreemptionCandidate | None:
        looked.append(site.seen.node.name)
        return real(ask, site, terms)

    monkeypatch.setattr(planner, "select_victims_on_node", counting)
    world = crowded(running("a", "0", priority=20), running("b", "4", priority=20), running("c", "1-3,5-7"))
    world.waits(important("pod"))
    await make_room(world)
    world.clock.now += 60
    world.engine.handlers.pending_pods.observe("ADDED", important("other", created=1.0))
    await make_room(world)
    assert looked == ["node"]
    leaves(world, "a")
    world.engine.preemption.look_again()
    await make_room(world)
    assert looked[:2] == ["node", "node"]
    assert "evict c" in wrote(world)


async def test_a_dry_run_result_holds_until_the_node_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = crowded(*FULL, settings="preemption: {budgets: Keep}")
    everything = DisruptionBudget("default", "all", LabelSelector(), allowed=0)
    world.engine.handlers.budgets.observe("ADDED", everything)
    tried = []

    def counting(*arguments: object) -> object:
        tried.append(arguments)
        return select_victims_on_node(*arguments)  # type: ignore[arg-type]  # handed on as they come

    monkeypatch.setattr("koord_numa.engine.preemption.evaluator.select_victims_on_node", counting)
    world.waits(important("one"), important("two"))
    await make_room(world)
    world.clock.now += 60
    world.engine.preemption.look_again()
    await make_room(world)
    assert len(tried) == 1
    world.engine.handlers.bound_pods.observe("MODIFIED", replace(FULL[0], labels=(("new", "label"),)))
    world.clock.now += 60
    world.engine.preemption.look_again()
    await make_room(world)
    assert len(tried) == 2
