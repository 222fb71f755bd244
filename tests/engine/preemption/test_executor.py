"""Making room: who is evicted, what is checked before, who waits meanwhile, and who gets the room."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.budgets import DisruptionBudget
from koord_numa.core.objects.constraints import LabelSelector
from koord_numa.core.objects.request import Assignment, NumaSpec, Pod, PodKey
from koord_numa.core.objects.vocabulary import NumaPolicy, QosClass
from koord_numa.core.preempt import victims
from koord_numa.core.preempt.dry_run import EvictionTerms
from koord_numa.core.preempt.node import PreemptionNode
from koord_numa.core.preempt.victims import PreemptionCandidate, select_victims_on_node
from koord_numa.core.scheduling.request import SchedulingRequest
from koord_numa.engine.preemption import evaluator as planner
from koord_numa.ports import ClusterError, Forbidden, Gone, Unavailable
from tests.engine.world import GIB, World, bound, make_node, make_pod, make_topology, make_world


def important(name: str, cpu: int = 4, priority: int = 10, **changes: object) -> Pod:
    """A pod that wants so many CPUs of its own on one NUMA node."""
    pod = make_pod(name, cpu=cpu * 1000)
    numa = NumaSpec(NumaPolicy.SINGLE_NUMA_NODE)
    request = replace(pod.request, priority=priority, qos=QosClass.LSR, numa=numa)
    return replace(pod, request=request, **changes)  # type: ignore[arg-type]  # changes are named fields


def running(name: str, cpus: str, node: str = "node", priority: int = 0, **changes: object) -> Pod:
    """A pod that runs on these CPUs: 0 to 3 are on NUMA node 0, 4 to 7 on NUMA node 1."""
    owned = CpuSet.parse(cpus)
    pod = make_pod(name, cpu=1000 * len(owned))
    given = Assignment(owned, ((min(owned) // 4, {"cpu": 1000 * len(owned), "memory": GIB}),))
    request = replace(pod.request, priority=priority, qos=QosClass.LSR)
    return bound(replace(pod, request=request, assignment=given, started=True, phase="Running"), node, **changes)


def crowded(*pods: Pod, nodes: tuple[str, ...] = ("node",), settings: str = "", budgets: bool = True) -> World:
    """Nodes of two NUMA nodes with four CPUs each, and these pods on them."""
    world = make_world(*(make_node(name) for name in nodes), settings=settings)
    for name in nodes:
        world.engine.handlers.topologies.observe("ADDED", make_topology(name))
    for pod in pods:
        world.server.pods[pod.key.uid] = pod
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    if budgets:
        world.engine.handlers.budgets.replace([])
    return world


async def make_room(world: World) -> None:
    """Try who waits, then make room for who could not be placed, then see who is placed now."""
    await world.settle()
    await world.engine.preemption.work()
    await world.settle()


def leaves(world: World, *names: str) -> None:
    """These pods are gone for good."""
    for name in names:
        gone = world.server.pods.pop(f"uid-{name}")
        world.engine.handlers.bound_pods.observe("DELETED", gone)


def wrote(world: World) -> list[str]:
    """What was asked of the API server, without conditions."""
    return [call for call in world.server.calls if not call.startswith("condition")]


def said(world: World, name: str) -> str:
    """The last thing that was said about a pod."""
    return [message for who, _, message in world.diary.events if who == name][-1]


FULL = (running("a", "0-1", priority=5), running("b", "2-3"), running("c", "4-5", priority=1), running("d", "6-7"))


async def test_a_pod_gets_the_numa_node_whose_pods_matter_least() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == ["read pod", "nominate pod node", "evict c", "evict d"]
    assert [event for event in world.diary.events if event[1] == "Preempted"] == [
        ("c", "Preempted", "Preempted by pod uid-pod on node node"),
        ("d", "Preempted", "Preempted by pod uid-pod on node node"),
    ]
    told = "preemption: node node is being freed, 2 pod(s) are evicted: default/c, default/d."
    assert told in said(world, "pod")
    assert said(world, "pod") == world.engine.explain("uid-pod")
    leaves(world, "c")
    await make_room(world)
    assert world.nodes_of()["pod"] == ""
    leaves(world, "d")
    await make_room(world)
    assert wrote(world)[4:] == ["bind pod node"]
    assert world.server.annotations["uid-pod"] == {"cpus": "4-7"}
    meter = world.engine.metrics
    assert (meter.victims, meter.preemptions) == (2, {"nominated": 1})
    assert (meter.victims_each.count, meter.victims_each.total) == (1, 2)


async def test_on_a_node_without_topology_amounts_decide() -> None:
    world = make_world(make_node("plain", cpu=4), make_node("full", cpu=4))
    world.engine.handlers.budgets.replace([])
    for name, node, cpu, priority in (("a", "plain", 1, 1), ("b", "plain", 3, 2), ("c", "full", 4, 3)):
        pod = make_pod(name, cpu=1000 * cpu)
        world.engine.handlers.bound_pods.observe(
            "ADDED", bound(replace(pod, request=replace(pod.request, priority=priority)), node)
        )
    pod = make_pod("pod", cpu=3000)
    world.waits(replace(pod, request=replace(pod.request, priority=10)))
    await make_room(world)
    assert wrote(world)[1:] == ["nominate pod plain", "evict b"]


async def test_a_pod_that_waits_for_its_victims_evicts_no_others() -> None:
    world = crowded(*FULL, running("e", "0-7", "other", priority=5), nodes=("node", "other"))
    world.waits(important("pod"))
    await make_room(world)
    before = wrote(world)
    world.engine.handlers.nodes.observe("MODIFIED", make_node("other", labels={"changed": "yes"}))
    world.clock.now += 60
    world.engine.preemption.look_again()
    await make_room(world)
    assert wrote(world) == before


@pytest.mark.parametrize("priority", [9, 10], ids=["lower", "equal"])
async def test_room_that_is_being_freed_is_kept(priority: int) -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await make_room(world)
    leaves(world, "c")
    world.waits(important("greedy", cpu=2, priority=priority, preempts=False))
    await make_room(world)
    assert world.nodes_of()["greedy"] == ""
    leaves(world, "d")
    world.clock.now += 60
    await make_room(world)
    assert (world.nodes_of()["pod"], world.nodes_of()["greedy"]) == ("node", "")


async def test_a_higher_priority_displaces_a_nomination_before_another_eviction() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await make_room(world)
    world.waits(important("king", priority=20))
    await make_room(world)
    assert wrote(world)[4:] == [
        *("nominate pod ", "read king", "nominate king node"),
        *("read pod", "nominate pod node", "evict a", "evict b"),  # the displaced pod makes room for itself again
    ]
    leaves(world, "c", "d")
    await make_room(world)
    assert (world.nodes_of()["king"], world.nodes_of()["pod"]) == ("node", "")
    leaves(world, "a", "b")
    await make_room(world)
    assert world.server.annotations == {"uid-king": {"cpus": "4-7"}, "uid-pod": {"cpus": "0-3"}}


async def test_twins_make_room_each_for_itself() -> None:
    world = crowded(*FULL)
    world.waits(important("first"), important("second", created=1.0), important("third", created=2.0))
    await make_room(world)
    assert [call for call in wrote(world) if call.startswith("evict")] == ["evict c", "evict d", "evict a", "evict b"]
    leaves(world, "a", "b", "c", "d")
    await make_room(world)
    assert {name: world.nodes_of()[name] for name in ("first", "second", "third")} == {
        "first": "node",
        "second": "node",
        "third": "",
    }


async def test_victims_without_a_budget_are_evicted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    world = crowded(*FULL)
    answer, evict, asked = asyncio.Event(), world.server.evict, list[str]()

    async def slow(pod: PodKey, message: str) -> None:
        asked.append(pod.name)
        await answer.wait()
        await evict(pod, message)

    monkeypatch.setattr(world.server, "evict", slow)
    world.waits(important("pod"))
    await world.settle()
    work = asyncio.create_task(world.engine.preemption.work())
    async with asyncio.timeout(10):
        while len(asked) < 2:  # noqa: ASYNC110  (the server has no signal for it)
            await asyncio.sleep(0)
    answer.set()
    await work
    assert asked == ["c", "d"]


async def test_a_pod_that_may_not_preempt_says_so() -> None:
    world = crowded(*FULL)
    world.waits(important("pod", preempts=False))
    await make_room(world)
    assert wrote(world) == []
    assert "preemption: not eligible due to preemptionPolicy=Never." in said(world, "pod")


async def test_preemption_can_be_switched_off() -> None:
    world = crowded(*FULL, settings="preemption: {enabled: false}")
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == []


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
async def test_a_budget_is_broken_as_the_last_resort_where_the_setting_lets_it(
    budgets: str, priority: int, broken: bool
) -> None:
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


def once(at: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Something happens at this call, the first time."""
    done: list[str] = []

    def happen(call: str) -> None:
        if call == at and not done:
            done.append(call)
            act()

    return happen


async def test_a_node_that_changes_before_the_eviction_is_looked_at_again() -> None:
    world = crowded(*FULL)
    newcomer = running("rival", "6-7", priority=15)

    def meanwhile() -> None:
        leaves(world, "d")
        world.engine.handlers.bound_pods.observe("ADDED", newcomer)

    world.server.fail = once("nominate pod", meanwhile)
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod", "nominate pod node", "nominate pod "]
    assert "uid-pod" not in world.engine.cache.nodes["node"].nominees


async def test_a_victim_that_left_by_itself_saves_the_others() -> None:
    world = crowded(*FULL)
    world.server.fail = once("nominate pod", lambda: leaves(world, "a", "b"))
    world.waits(important("pod"))
    await make_room(world)
    assert [call for call in wrote(world) if call.startswith("evict")] == []
    world.clock.now += 1
    await make_room(world)
    assert world.nodes_of()["pod"] == "node"


async def test_for_a_pod_that_is_gone_no_pod_is_evicted() -> None:
    world = crowded(*FULL)
    pod = important("pod")
    world.waits(pod)
    await world.settle()
    world.server.fail = once("nominate pod", lambda: world.engine.handlers.pending_pods.observe("DELETED", pod))
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod", "nominate pod node"]
    assert not world.engine.cache.nodes["node"].nominees


async def test_for_a_pod_that_others_have_bound_no_pod_is_evicted() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await world.settle()
    world.server.pods["uid-pod"] = bound(important("pod"), "elsewhere")
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod"]  # a status of a pod with a node that names another one would be refused (422)
    assert not world.engine.cache.nodes["node"].nominees


async def test_a_pod_that_is_bound_while_it_is_read_is_not_nominated() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await world.settle()
    elsewhere = bound(important("pod"), "elsewhere")

    def arrives() -> None:
        world.engine.handlers.pending_pods.observe("DELETED", elsewhere)
        world.engine.handlers.bound_pods.observe("ADDED", elsewhere)

    world.server.fail = once("read", arrives)
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod"]
    assert not world.engine.cache.nodes["node"].nominees


async def test_without_the_lease_no_pod_is_evicted() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await world.settle()
    world.server.fail = once("nominate pod", lambda: setattr(world.lease, "held", False))
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod", "nominate pod node"]
    assert not world.engine.cache.nodes["node"].nominees


def raising(at: str, *errors: ClusterError) -> Callable[[str], None]:
    """These errors are the answers to this call, then none."""
    rest = list(errors)

    def fail(call: str) -> None:
        if call == at and rest:
            raise rest.pop(0)

    return fail


async def test_who_is_protected_is_asked_for_first_and_a_refusal_spares_the_others() -> None:
    world = crowded(*FULL)
    selector = LabelSelector()
    world.engine.handlers.budgets.observe("ADDED", DisruptionBudget("default", "all", selector, allowed=2))
    world.server.fail = raising("evict c", Unavailable("a budget forbids it now"))
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod", "nominate pod node", "evict c", "nominate pod "]
    assert "being freed" not in said(world, "pod")
    await make_room(world)
    assert wrote(world)[4:] == []
    world.clock.now += 60
    world.engine.preemption.look_again()
    await make_room(world)
    assert wrote(world)[4:] == ["read pod", "nominate pod node", "evict c", "evict d"]


async def test_a_victim_that_is_gone_already_is_no_obstacle() -> None:
    world = crowded(*FULL)
    world.server.fail = raising("evict c", Gone("no such pod"))
    world.waits(important("pod"))
    await make_room(world)
    assert [who for who, reason, _ in world.diary.events if reason == "Preempted"] == ["d"]


async def test_a_missing_right_is_said_by_its_rule() -> None:
    world = crowded(*FULL)
    world.server.fail = raising("evict c", Forbidden("no", "create pods/eviction"))
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    assert ("pod", "FailedScheduling", "koord-numa lacks the right to create pods/eviction") in world.diary.events


async def test_a_locked_node_is_left_alone() -> None:
    world = crowded(*FULL)
    world.engine.lock_node("node", "RebindResource repack works on it")
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world) == []


async def test_a_node_that_is_locked_while_the_plan_is_made_is_left_alone() -> None:
    world = crowded(*FULL)
    world.server.fail = once("nominate pod", lambda: world.engine.lock_node("node", "RebindResource repack"))
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    assert wrote(world) == ["read pod", "nominate pod node", "nominate pod "]


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
    assert wrote(world)[1:] == ["nominate pod node-2", "evict a2"]
    world = crowded(*full, *rest, nodes=names)
    world.waits(important("pod"))
    await make_room(world)
    assert wrote(world)[1:] == ["nominate pod node-0", "evict a0"]


async def test_a_new_scheduler_goes_on_where_the_old_one_stopped() -> None:
    leaving = [replace(pod, deleting=pod.key.name in "cd") for pod in FULL]
    world = crowded(*leaving)
    world.waits(replace(important("pod"), nominated="node"))
    await make_room(world)
    assert [call for call in wrote(world) if call.startswith("evict")] == []
    assert "2 pod(s) are leaving anyway" in said(world, "pod")
    leaves(world, "c", "d")
    await make_room(world)
    assert world.nodes_of()["pod"] == "node"


async def test_a_failed_bind_on_the_freed_node_is_waited_out() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    await make_room(world)
    world.server.fail = raising("bind before", Unavailable("overload", retry_after=7.0))
    leaves(world, "c", "d")
    await make_room(world)
    assert wrote(world)[4:] == ["bind pod node"]
    world.clock.now += 8
    await make_room(world)
    assert world.nodes_of()["pod"] == "node"


async def test_room_is_given_back_when_its_pod_goes() -> None:
    world = crowded(*FULL)
    before = world.ledgers()
    pod = important("pod")
    world.waits(pod)
    await make_room(world)
    record = world.engine.cache.nodes["node"]
    assert (set(record.nominees), set(record.booked.holdings) - set(record.ledger.holdings)) == (
        {"uid-pod"},
        {"uid-pod"},
    )
    world.engine.handlers.pending_pods.observe("DELETED", pod)
    assert record.nominees == {}
    assert record.booked is record.ledger
    assert world.ledgers() == before


async def test_the_loop_makes_room_by_itself() -> None:
    world = crowded(*FULL)
    world.waits(important("pod"))
    running_engine = asyncio.create_task(world.engine.run())
    for _ in range(200):
        await asyncio.sleep(0)
        if "evict d" in world.server.calls:
            break
    leaves(world, "c", "d")
    for _ in range(200):
        await asyncio.sleep(0)
    await world.engine.stop()
    await asyncio.wait_for(running_engine, 5)
    assert world.nodes_of()["pod"] == "node"


async def test_a_pod_that_joins_others_in_vain_is_looked_at_too() -> None:
    world = crowded(*FULL)
    world.waits(important("first", preempts=False))
    await make_room(world)
    assert wrote(world) == []
    world.waits(important("second", created=1.0))
    await make_room(world)
    assert wrote(world)[1:] == ["nominate second node", "evict c", "evict d"]


async def test_a_dry_run_without_victims_is_repeated_only_after_a_change(
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


async def test_a_bug_beside_the_loop_stops_the_engine_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    world = crowded(*FULL)

    def broken(*_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(planner.Evaluator, "forget_the_gone", broken)  # about no pod in particular
    world.waits(important("pod"))
    with pytest.raises(AssertionError, match="a bug"):
        await asyncio.wait_for(world.engine.run(), 60)


async def test_a_later_nomination_of_equal_priority_takes_no_room_from_an_earlier_one() -> None:
    world = crowded(*FULL)
    world.waits(important("first"))
    await make_room(world)
    world.waits(important("second", created=1.0))
    await make_room(world)
    leaves(world, "c", "d")  # who has to leave for the second is still there
    await make_room(world)
    assert (world.nodes_of()["first"], world.nodes_of()["second"]) == ("node", "")
    assert "nominate first " not in wrote(world)


async def test_no_one_else_is_evicted_for_a_pod_whose_node_is_free_and_that_is_tried_next() -> None:
    there = [
        running(f"{name}-{node}", cpus, node)
        for node in ("node", "other")
        for name, cpus in (("a", "0-3"), ("b", "4-7"))
    ]
    world = crowded(*there, nodes=("node", "other"))
    world.waits(important("pod"))
    await world.settle()
    await world.engine.preemption.work()
    evicted = [call for call in wrote(world) if call.startswith("evict ")]
    assert evicted
    for victim in there:
        if f"evict {victim.key.name}" in evicted:
            world.engine.handlers.bound_pods.observe("DELETED", victim)
    world.engine.preemption.look_again()
    await world.engine.preemption.work()
    assert [call for call in wrote(world) if call.startswith("evict ")] == evicted
    await world.settle()
    assert world.nodes_of()["pod"]


async def test_what_trying_a_node_out_has_shown_holds_until_the_node_changes(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_an_exception_about_one_pod_while_room_is_made_costs_that_pod_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = crowded(running("a", "0-3"), running("b", "4-7"))
    plan = planner.Evaluator.plan

    async def explode(self, pod, *rest):  # type: ignore[no-untyped-def]  # as Evaluator.plan
        if pod.key.name == "bad":
            raise OverflowError("too large")
        return await plan(self, pod, *rest)

    monkeypatch.setattr(planner.Evaluator, "plan", explode)
    world.waits(important("bad", priority=20), important("good"))
    await make_room(world)
    assert world.engine.handle.quarantine.counts == {"pod": 1}
    assert any(call.startswith("evict") for call in world.server.calls)
