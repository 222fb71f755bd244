"""Groups in the engine: waiting for members, all or nothing, failures in the middle, and what members are told."""

import asyncio

import pytest

from koord_numa.core.objects.gangs import (
    Dialect,
    GangKey,
    GangRef,
    GangSpec,
    GroupStatus,
    MatchPolicy,
    PodGroup,
    TopologyLevel,
)
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.engine.gangs.group_queue import PartialGangs
from koord_numa.engine.gangs.pod_groups import GangState
from koord_numa.engine.metrics import Result
from koord_numa.ports import Forbidden, Unavailable
from koord_numa.wire.gangs import parse_pod_group
from koord_numa.wire.pods import parse_pod
from tests.engine.binding.test_pre_bind import Step
from tests.engine.gangs.groups import kubelet_topology, make_kind
from tests.engine.world import World, bound, make_node, make_pod, make_world

KEY = GangKey(Dialect.KUBERNETES, "default", "g")


def member(name: str, key: GangKey = KEY, spec: GangSpec | None = None, cpu: int = 2000, **changes: object) -> Pod:
    pod = make_pod(name, cpu=cpu, **changes)  # type: ignore[arg-type]  # changes are named fields
    return replace(pod, request=replace(pod.request, gang=GangRef(key, spec)))


def members(count: int, **changes: object) -> list[Pod]:
    return [member(f"m{number}", **changes) for number in range(count)]  # type: ignore[arg-type]  # named fields


def group(world: World, spec: GangSpec, key: GangKey = KEY) -> None:
    world.engine.groups.observe_group("ADDED", PodGroup(key, spec))


def placed(world: World) -> list[str]:
    return sorted(name for name, node in world.nodes_of().items() if node)


def said(world: World, name: str) -> str:
    return next(message for who, _, message in reversed(world.diary.events) if who == name)


async def test_members_wait_for_their_group_and_are_told_the_count() -> None:
    world = make_world(make_node("a"), make_node("b"))
    pods = members(4)
    world.waits(pods[0])
    assert said(world, "m0") == 'waiting for pod\'s pod group "g" to appear in scheduling queue'
    group(world, GangSpec(4))
    world.waits(*pods[1:3])
    waiting = "waiting for minCount pods from a gang to appear in scheduling queue: {} of 4 pods of default/g exist"
    assert said(world, "m2") == waiting.format(3)
    for _ in range(2):
        world.engine.handlers.pending_pods.tell_untold()
    assert [said(world, f"m{number}") for number in range(3)] == [waiting.format(3)] * 3
    await world.settle()
    assert placed(world) == []
    world.waits(pods[3])
    await world.settle()
    assert placed(world) == ["m0", "m1", "m2", "m3"]


async def test_a_group_that_does_not_fit_binds_after_a_node_is_added() -> None:
    world = make_world(make_node("a", cpu=4))
    group(world, GangSpec(4))
    world.waits(*members(4))
    await world.settle()
    assert placed(world) == []
    assert not world.ledgers()["a"]
    assert said(world, "m3").startswith(
        "gang default/g: minCount (4) cannot be satisfied: 2 scheduled, 1 remaining; pod m2 fits beside 2 placed members on "
        "no node: 0/1 nodes are available: 1 Insufficient cpu."
    )
    assert all("condition" in call for call in world.server.calls)
    world.engine.handlers.nodes.observe("ADDED", make_node("b", cpu=4))
    world.clock.now += 60
    await world.settle()
    assert len(placed(world)) == 4


async def test_single_pods_are_not_held_up_by_a_hopeless_group() -> None:
    world = make_world(make_node("a", cpu=4))
    group(world, GangSpec(4))
    world.waits(*members(4), make_pod("single", cpu=3000, created=9.0))
    await world.settle()
    assert placed(world) == ["single"]


async def test_members_beyond_the_minimal_count_wait_alone() -> None:
    world = make_world(make_node("a", cpu=4))
    group(world, GangSpec(2))
    world.waits(*members(3))
    await world.settle()
    assert len(placed(world)) == 2
    assert sum("0/1 nodes are available: 1 Insufficient cpu" in text for _, _, text in world.diary.events) == 1
    world.engine.handlers.nodes.observe("ADDED", make_node("b", cpu=4))
    world.clock.now += 60
    await world.settle()
    assert len(placed(world)) == 3


async def test_smaller_minimal_counts_let_a_waiting_group_go() -> None:
    world = make_world(make_node("a", cpu=4))
    group(world, GangSpec(4))
    world.waits(*members(2))
    await world.settle()
    group(world, GangSpec(2))
    await world.settle()
    assert placed(world) == ["m0", "m1"]


async def test_a_replaced_member_joins_the_domain_of_the_running_ones() -> None:
    nodes = [make_node(f"{rack}{n}", cpu=4, labels={"rack": rack}) for rack in "pq" for n in range(2)]
    world = make_world(*nodes)
    group(world, GangSpec(2, levels=(TopologyLevel("rack"),)))
    running = [bound(pod, "q0", started=True) for pod in members(2, cpu=1000)]
    for pod in running:
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    world.engine.handlers.bound_pods.observe("DELETED", replace(running[1], deleting=True))
    world.waits(member("late", cpu=4000))
    await world.settle()
    assert world.nodes_of() == {"late": "q1"}
    world.waits(member("later", cpu=4000))
    await world.settle()
    assert world.nodes_of()["later"] == ""
    assert "0/1 placements are available: rack=q places 0 of 1" in said(world, "later")


async def test_members_are_told_what_each_topology_domain_lacks() -> None:
    racks = {"p": (4, 4), "q": (4, 2), "r": (2, 1)}
    nodes = [
        make_node(f"{rack}{n}", cpu=cpu, labels={"rack": rack})
        for rack, cpus in racks.items()
        for n, cpu in enumerate(cpus)
    ]
    world = make_world(*nodes)
    group(world, GangSpec(3, levels=(TopologyLevel("rack"),)))
    world.waits(*members(3, cpu=3000))
    await world.settle()
    assert placed(world) == []
    assert said(world, "m0").splitlines() == [
        (
            "gang default/g: minCount (3) cannot be satisfied: 2 scheduled, 0 remaining; 0/3 placements are available: "
            "rack=p places 2 of 3, rack=q places 1 of 3, rack=r places 0 of 3; pod m2 fits beside 2 placed members on no node: "
            "0/2 nodes are available: 2 Insufficient cpu."
        ),
        "p0: needs 3 CPUs, 1 of 4 free",
        "p1: needs 3 CPUs, 1 of 4 free",
        "rack=q: pod m1 fits on no node: 0/2 nodes are available: 2 Insufficient cpu.",
        "rack=r: pod m0 fits on no node: 0/2 nodes are available: 2 Insufficient cpu.",
    ]
    assert not any(world.ledgers().values())


async def test_a_group_finds_the_empty_rack_behind_many_full_ones() -> None:
    full = [make_node(f"full{number}", cpu=2, labels={"rack": f"r{number}"}) for number in range(100)]
    world = make_world(*full, make_node("empty", cpu=8, labels={"rack": "empty"}))
    group(world, GangSpec(4, levels=(TopologyLevel("rack"),)))
    world.waits(*members(4))
    await world.settle()
    assert set(world.nodes_of().values()) == {"empty"}


async def test_completed_members_count_as_scheduled() -> None:
    world = make_world(make_node("a"))
    group(world, GangSpec(3))
    for pod in members(2):
        world.engine.handlers.bound_pods.observe("ADDED", bound(pod, "a", started=True))
    world.engine.handlers.bound_pods.observe("DELETED", bound(member("m0"), "a", started=True))
    world.waits(member("late"))
    await world.settle()
    assert placed(world) == []
    done = bound(member("m0"), "a", started=True, phase="Succeeded")
    world.engine.groups.replace_completed([done])
    await world.settle()
    assert placed(world) == ["late"]
    world.engine.groups.observe_completed("DELETED", done)
    assert world.engine.handle.pod_groups.missing(KEY) == 1


async def test_a_kubelet_is_asked_for_all_members_together() -> None:
    world = make_world(make_node("a", cpu=16, memory=200), make_node("b", cpu=16, memory=200))
    for name in "ab":
        world.engine.handlers.topologies.observe("ADDED", kubelet_topology(name, 2, 8))
    group(world, GangSpec(5))
    pods = [make_kind(f"m{number}", 5, aligned=False) for number in range(5)]
    pods = [replace(pod, request=replace(pod.request, gang=GangRef(KEY))) for pod in pods]
    world.waits(*pods)  # 25 of 32 CPUs, and one place on each of four NUMA nodes
    await world.settle()
    assert placed(world) == []
    group(world, GangSpec(4))
    world.clock.now += 60
    await world.settle()
    assert len(placed(world)) == 4


GANG_GROUP = ("default/a", "default/b")
A, B = (GangKey(Dialect.KOORDINATOR, "default", name) for name in "ab")


async def test_the_gangs_of_a_gang_group_go_together() -> None:
    world = make_world(make_node("n", cpu=6))
    spec = GangSpec(2, match_policy=MatchPolicy.ONCE_SATISFIED, group=GANG_GROUP)
    world.waits(*(member(f"a{number}", A, spec) for number in range(2)))
    await world.settle()
    assert (
        said(world, "a1") == "waiting for gang default/b of the gang group of default/a to appear in scheduling queue"
    )
    world.waits(member("b0", B, replace(spec, min_count=1)))
    await world.settle()
    assert placed(world) == ["a0", "a1", "b0"]


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ([member("m0"), member("m1", scheduler="other")], ".spec.schedulerName set, got: koord-numa and other"),
        ([member("m0"), replace(member("m1"), request=replace(member("m1").request, priority=7))], "got: 0 and 7"),
        ([member("m0", A, GangSpec(2)), member("m1", A, GangSpec(1))], "define it in 2 different ways"),
        ([replace(member("m0"), request=replace(member("m0").request, gang=GangRef(KEY, problem="two")))], "two"),
    ],
    ids=["schedulers", "priorities", "definitions", "broken"],
)
async def test_groups_that_contradict_themselves_say_so(pods: list[Pod], why: str) -> None:
    settings = "profiles: [{schedulerName: koord-numa}, {schedulerName: other}]"
    world = make_world(make_node("n"), settings=settings)
    group(world, GangSpec(len(pods)))
    world.waits(*pods)
    await world.settle()
    assert placed(world) == []
    assert why in said(world, pods[-1].key.name)


async def test_members_of_a_composite_group_are_rejected() -> None:
    world = make_world(make_node("n"))
    spec = {"schedulingPolicy": {"gang": {"minCount": 1}}, "parentCompositePodGroupName": "tree"}
    composite = parse_pod_group(Dialect.KUBERNETES, {"metadata": {"name": "g", "namespace": "default"}, "spec": spec})
    world.engine.groups.observe_group("ADDED", composite)
    world.waits(member("m0"))
    await world.settle()
    assert placed(world) == []
    assert "parentCompositePodGroupName: CompositePodGroups are not supported" in said(world, "m0")


async def test_groups_can_be_switched_off() -> None:
    world = make_world(make_node("n"), settings="podGroups: Off")
    group(world, GangSpec(1))
    world.waits(member("m0"))
    await world.settle()
    assert placed(world) == []
    assert "podGroups: Off" in said(world, "m0")


async def test_a_bind_that_fails_is_retried_and_the_others_stay() -> None:
    world = make_world(make_node("a"), make_node("b"))
    group(world, GangSpec(3))
    failures = iter([Unavailable("busy"), Unavailable("busy")])

    def fail(call: str) -> None:
        if call == "bind before" and world.server.calls[-1].startswith("bind m1") and (error := next(failures, None)):
            raise error

    world.server.fail = fail
    world.waits(*members(3))
    await world.settle()
    assert len(placed(world)) == 2
    for _ in range(5):
        world.clock.now += 10
        await world.settle()
    assert len(placed(world)) == 3


async def test_no_bind_is_sent_while_a_step_of_any_member_fails() -> None:
    world = make_world(make_node("a"), make_node("b"))
    step = Step("volumes")
    broken = [True]

    async def do(pod: Pod, placement: object) -> None:
        if pod.key.name == "m2" and broken[0]:
            raise Forbidden("no", "update claims")

    step.do = do  # type: ignore[method-assign]  # the first try fails
    world.engine.loop.binding.steps = (step,)
    group(world, GangSpec(3))
    world.waits(*members(3))
    for _ in range(3):
        await world.step()
    assert not [call for call in world.server.calls if call.startswith("bind")]
    assert not world.ledgers()["a"]
    broken[0] = False
    for _ in range(3):
        world.clock.now += 300
        await world.settle()
    assert len(placed(world)) == 3


class Killed(BaseException):
    """The process ends here."""


async def test_a_restart_in_the_middle_completes_the_group() -> None:
    for cut in range(1, 4):
        world = make_world(make_node("a"), make_node("b"))
        group(world, GangSpec(4))
        binds = 0

        def fail(call: str, cut: int = cut) -> None:
            nonlocal binds
            binds += call == "bind before"
            if binds > cut:
                raise Killed

        world.server.fail = fail
        world.waits(*members(4))
        with pytest.raises(BaseExceptionGroup):
            await world.settle()
        world.server.fail = lambda call: None
        again = make_world(make_node("a"), make_node("b"), server=world.server)
        group(again, GangSpec(4))
        for pod in again.server.pods.values():
            if pod.node:
                again.engine.handlers.bound_pods.observe("ADDED", pod)
            else:
                again.engine.handlers.pending_pods.observe("ADDED", pod)
        assert 0 < len(placed(again)) < 4
        await again.settle()
        assert len(placed(again)) == 4


async def test_members_that_go_let_the_rest_wait() -> None:
    world = make_world(make_node("a"))
    group(world, GangSpec(3))
    pods = members(3)
    world.waits(*pods)
    world.engine.handlers.pending_pods.observe("DELETED", pods[0])
    await world.settle()
    assert placed(world) == []
    for _ in range(2):
        world.engine.handlers.pending_pods.tell_untold()
    assert "2 of 3 pods" in said(world, "m1")
    for pod in pods[1:]:
        world.engine.handlers.pending_pods.observe("DELETED", pod)
    assert not len(world.engine.handle.pod_groups)


class RecordingWriter:
    """A writer of statuses that remembers them; the first call fails."""

    def __init__(self) -> None:
        self.calls = 0
        self.written: list[tuple[str, str, str]] = []

    async def write_status(self, group: PodGroup, status: GroupStatus) -> None:
        self.calls += 1
        if self.calls == 1:
            raise Unavailable("busy")
        self.written.append((group.key.name, status.reason, status.message))


async def test_the_status_says_whether_the_group_was_scheduled() -> None:
    world = make_world(make_node("a", cpu=2))
    statuses, writer = world.engine.loop.group_statuses, RecordingWriter()
    statuses.dependencies = replace(statuses.dependencies, pod_groups=writer)
    running = asyncio.create_task(statuses.run())
    group(world, GangSpec(2))
    world.waits(*members(2))
    await world.settle()
    await asyncio.sleep(0.01)
    world.engine.handlers.nodes.observe("ADDED", make_node("b", cpu=2))
    world.clock.now += 60
    await world.settle()
    for pod in list(world.server.pods.values()):
        world.engine.handlers.bound_pods.observe("MODIFIED", pod)
    for _ in range(3):
        world.engine.handlers.pending_pods.tell_untold()
        statuses.tell_all()
        await asyncio.sleep(0.01)
    running.cancel()
    assert [(name, reason) for name, reason, _ in writer.written] == [("g", "Unschedulable"), ("g", "Scheduled")]
    assert writer.written[0][2].startswith(
        "gang default/g: minCount (2) cannot be satisfied: 1 scheduled, 0 remaining; pod m1"
    )
    assert world.engine.explain("uid-m0") == ""


async def test_the_status_of_a_group_that_cannot_be_used() -> None:
    world = make_world(make_node("a", cpu=8))
    statuses, writer = world.engine.loop.group_statuses, RecordingWriter()
    statuses.dependencies = replace(statuses.dependencies, pod_groups=writer)
    running = asyncio.create_task(statuses.run())
    problem = GangSpec(2, problem="the PodGroup cannot be understood")
    group(world, problem)
    group(world, problem, replace(KEY, name="foreign"))  # no pod of this scheduler waits for it
    world.waits(*members(2))
    for _ in range(3):
        await world.settle()
        statuses.tell_all()
        await asyncio.sleep(0.01)
    running.cancel()
    assert writer.written == [("g", "SchedulerError", "the PodGroup cannot be understood")]


async def test_the_rest_of_a_group_goes_before_other_pods() -> None:
    world = make_world(make_node("a", cpu=4))
    group(world, GangSpec(2))
    world.waits(make_pod("older", cpu=2000), member("m1"))
    world.engine.handlers.bound_pods.observe("ADDED", bound(member("m0"), "a", started=True))
    await world.settle()
    assert placed(world) == ["m1"]


@pytest.mark.parametrize(
    ("settings", "waited", "running", "gone"),
    [
        ("", 400, 2, []),
        ("partialGangs: {evict: true, afterSeconds: 300}", 200, 2, []),
        ("partialGangs: {evict: true, afterSeconds: 300}", 400, 2, ["m0", "m1"]),
        ("partialGangs: {evict: true, afterSeconds: 300}", 400, 3, []),
    ],
    ids=["off", "not yet", "overdue", "complete"],
)
async def test_members_of_a_gang_that_cannot_be_completed(
    settings: str, waited: int, running: int, gone: list[str]
) -> None:
    world = make_world(make_node("a", cpu=6), settings=settings)
    group(world, GangSpec(3))
    pods = members(4)
    for pod in pods[:running]:
        world.engine.handlers.bound_pods.observe("ADDED", bound(pod, "a", started=True))
    world.engine.handlers.bound_pods.observe("ADDED", bound(make_pod("other", cpu=2000), "a", started=True))
    world.waits(pods[3])
    partial = PartialGangs(world.engine.handle)
    world.engine.groups.tick()
    for _ in range(2):
        await world.settle()
        await partial.evict_overdue()
        world.clock.now += waited
    assert sorted({call.removeprefix("evict ") for call in world.server.calls if call.startswith("evict")}) == gone


async def test_binds_are_sent_in_the_order_of_the_decisions() -> None:
    world = make_world(make_node("a", cpu=10))
    group(world, GangSpec(3))
    world.waits(member("m0", cpu=1000), member("m1", cpu=2000), member("m2", cpu=4000))
    await world.settle()
    assert [call for call in world.server.calls if call.startswith("bind")] == ["bind m2 a", "bind m1 a", "bind m0 a"]


async def test_groups_are_counted_by_result_and_reason() -> None:
    world = make_world(make_node("a", cpu=4))
    handle, meter = world.engine.handle, world.engine.metrics.groups
    group(world, GangSpec(3))
    world.waits(*members(2))
    await world.settle()
    assert handle.pod_groups.state_of(KEY) is GangState.INCOMPLETE
    assert not meter.attempts
    world.waits(member("m2"))
    await world.settle()
    assert handle.pod_groups.state_of(KEY) is GangState.WAITING
    assert (meter.attempts, meter.rejections) == ({Result.UNSCHEDULABLE: 1}, {"resources": 1})
    world.clock.now += 60
    world.engine.handlers.nodes.observe("ADDED", make_node("b", cpu=4))
    await world.settle()
    assert handle.pod_groups.state_of(KEY) is GangState.SCHEDULED
    assert (meter.attempts[Result.SCHEDULED], meter.waited.count, meter.waited.total) == (1, 1, 60)
    for name in ("m0", "m1"):
        world.engine.handlers.bound_pods.observe("DELETED", world.server.pods[f"uid-{name}"])
    assert handle.pod_groups.state_of(KEY) is GangState.PARTIAL
    group(world, GangSpec(3, match_policy=MatchPolicy.ONCE_SATISFIED))
    handle.pod_groups.gang(KEY).satisfied = True  # the others need no replacement
    assert handle.pod_groups.state_of(KEY) is GangState.SCHEDULED


def kueue_pod(number: int, *, gates: tuple[str, ...], selector: dict[str, str]) -> Pod:
    """A pod of a group of plain pods of Kueue that is a gang of this scheduler too."""
    metadata = {
        "name": f"m{number}",
        "namespace": "default",
        "uid": f"uid-m{number}",
        "labels": {"kueue.x-k8s.io/managed": "true", "kueue.x-k8s.io/pod-group-name": "g"},
        "annotations": {
            "kueue.x-k8s.io/pod-group-total-count": "2",
            "gang.scheduling.koordinator.sh/name": "g",
            "gang.scheduling.koordinator.sh/min-available": "2",
        },
    }
    spec = {
        "schedulerName": "koord-numa",
        "schedulingGates": [{"name": gate} for gate in gates],
        "nodeSelector": selector,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}],
    }
    return parse_pod({"metadata": metadata, "spec": spec})


async def test_pods_of_kueue_are_decided_when_the_last_gate_is_gone() -> None:
    world = make_world(*(make_node(name, cpu=4, labels={"rack": name[0]}) for name in ("a0", "a1", "b0", "b1")))
    admission, topology = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"
    rounds: list[list[tuple[tuple[str, ...], dict[str, str]]]] = [
        [((admission, topology), {}), ((admission, topology), {})],
        [((topology,), {}), ((topology,), {})],  # the quota is reserved
        [((), {"rack": "b"}), ((topology,), {})],
        [((), {"rack": "b"}), ((), {"rack": "b"})],
    ]
    for gates_and_selectors in rounds:
        assert placed(world) == []
        pods = [
            kueue_pod(number, gates=gates, selector=selector)
            for number, (gates, selector) in enumerate(gates_and_selectors)
        ]
        world.waits(*pods)
        await world.settle()
    assert world.nodes_of() == {"m0": "b0", "m1": "b1"}
    assert "1 of 2 pods of default/g exist" in "".join(message for _, _, message in world.diary.events)
