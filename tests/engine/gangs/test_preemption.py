"""Preemption for groups in the engine: nominate all members, evict, keep the room, bind together."""

import pytest

from koord_numa.core.objects.constraints import DisruptionBudget
from koord_numa.core.objects.gangs import Dialect, GangKey, GangRef, GangSpec, PodGroup, TopologyLevel
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.ports import Unavailable
from tests.core.preempt.preemption_nodes import budget
from tests.engine.gangs.groups import kubelet_topology
from tests.engine.preemption.world import crowded, important, leaves, make_room, running, wrote
from tests.engine.world import World, bound, make_node, make_pod

KEY = GangKey(Dialect.KUBERNETES, "default", "g")
LOW = GangKey(Dialect.KUBERNETES, "default", "low")


def members(count: int, cpu: int = 4) -> list[Pod]:
    """Members of priority 10 that need so many CPUs of one NUMA node."""
    pods = (important(f"m{number}", cpu) for number in range(count))
    return [replace(pod, request=replace(pod.request, gang=GangRef(KEY))) for pod in pods]


def group(world: World, spec: GangSpec, key: GangKey = KEY) -> None:
    world.engine.groups.observe_group("ADDED", PodGroup(key, spec))


def in_gang(pod: Pod, key: GangKey = LOW) -> Pod:
    return replace(pod, request=replace(pod.request, gang=GangRef(key)))


FULL = [running(f"{node}{numa}", "0-3" if numa == 0 else "4-7", node) for node in "ab" for numa in (0, 1)]


def evicted(world: World) -> list[str]:
    return sorted(call.removeprefix("evict ") for call in wrote(world) if call.startswith("evict"))


def nominated(world: World) -> dict[str, str]:
    return {it.pod.key.name: it.node for it in world.engine.handle.nominator}


def placed(world: World) -> dict[str, str]:
    return {name: node for name, node in world.nodes_of().items() if node and name.startswith("m")}


async def test_a_group_evicts_waits_for_all_and_is_bound_together() -> None:
    world = crowded(*FULL, nodes=("a", "b"))
    group(world, GangSpec(3))
    world.waits(*members(3))
    await make_room(world)
    gone = evicted(world)
    assert len(gone) == 3
    assert wrote(world)[:3] == [f"nominate m{number} {node}" for number, node in enumerate("aab")]
    message = world.pending(members(1)[0]).message
    assert "preemption: 2 node(s) are being freed for 3 pods of the group, 3 pod(s) are evicted: default/a0" in message
    for name in gone[:-1]:
        leaves(world, name)
        await make_room(world)
        assert placed(world) == {}
    # The room is kept: a pod of lower priority does not get it.
    world.waits(important("thief", 4, priority=0))
    await world.settle()
    leaves(world, gone[-1])
    await make_room(world)
    assert placed(world) == {"m0": "a", "m1": "a", "m2": "b"}
    assert evicted(world) == gone
    assert nominated(world) == {}
    assert world.nodes_of()["thief"] == ""


async def test_nothing_is_evicted_when_the_group_does_not_fit_anyway() -> None:
    world = crowded(*FULL, nodes=("a", "b"))
    group(world, GangSpec(5))
    world.waits(*members(5))
    await make_room(world)
    assert wrote(world) == []
    assert nominated(world) == {}


async def test_members_beyond_the_minimum_preempt_after_the_binds() -> None:
    world = crowded(*FULL[:3], nodes=("a", "b"))
    group(world, GangSpec(1))
    world.waits(*members(3))
    await world.settle()
    assert len(placed(world)) == 1
    assert evicted(world) == []
    await make_room(world)
    assert len(evicted(world)) == 1  # one after the other


@pytest.mark.parametrize(
    ("priorities", "gone"),
    [((0, 0, 0, 0), ["a0", "b1"]), ((0, 0, 0, 10), []), ((0, 5, 5, 0), ["a0", "b1"])],
    ids=["as one", "not with an important pod", "cheapest"],
)
async def test_gangs_are_evicted_as_one(priorities: tuple[int, ...], gone: list[str]) -> None:
    pods = [
        replace(pod, request=replace(pod.request, priority=priority))
        for pod, priority in zip(FULL, priorities, strict=True)
    ]
    pods = [
        in_gang(pods[0]),
        replace(pods[1], request=replace(pods[1].request, priority=10)),
        pods[2],
        in_gang(pods[3]),
    ]
    pods[2] = replace(pods[2], request=replace(pods[2].request, priority=10))
    world = crowded(nodes=("a", "b"))
    group(world, GangSpec(2, disrupted_together=True), LOW)
    for pod in pods:
        world.server.pods[pod.key.uid] = pod
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    group(world, GangSpec(1))
    world.waits(*members(1))
    await make_room(world)
    assert evicted(world) == gone


async def test_a_single_pod_evicts_a_gang_as_one() -> None:
    pods = [
        in_gang(pod) if pod.key.name in ("a0", "b0") else replace(pod, request=replace(pod.request, priority=10))
        for pod in FULL
    ]
    world = crowded(nodes=("a", "b"))
    group(world, GangSpec(2, disrupted_together=True), LOW)
    for pod in pods:
        world.server.pods[pod.key.uid] = pod
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    world.waits(important("single"))
    await make_room(world)
    assert evicted(world) == ["a0", "b0"]


async def test_budgets_are_respected() -> None:
    world = crowded(*FULL, nodes=("a", "b"))
    world.engine.handlers.budgets.replace([DisruptionBudget("default", "pdb", budget("x", 0, "none").selector, 0)])
    protects = budget("pdb", 0, "a", "b")
    world.engine.handlers.budgets.replace([protects])
    labelled = [replace(pod, labels=(("app", pod.node),)) for pod in FULL]
    for pod in labelled:
        world.engine.handlers.bound_pods.observe("MODIFIED", pod)
    group(world, GangSpec(2))
    world.waits(*members(2))
    await make_room(world)
    assert evicted(world) == []
    assert "every choice of victims would violate a PodDisruptionBudget" in world.pending(members(1)[0]).message
    world.engine.handlers.budgets.replace([budget("pdb", 0, "a")])
    world.clock.now += 60
    world.engine.preemption.look_again()
    await make_room(world)
    assert evicted(world) == ["b0", "b1"]


async def test_a_group_that_never_preempts_says_so() -> None:
    world = crowded(*FULL, nodes=("a", "b"))
    group(world, GangSpec(2, preempts=False))
    world.waits(*members(2))
    await make_room(world)
    assert evicted(world) == []
    assert "not eligible due to preemptionPolicy=Never" in world.pending(members(1)[0]).message


async def test_the_priorities_of_pods_and_group_agree() -> None:
    world = crowded(*FULL, nodes=("a", "b"))
    group(world, GangSpec(2, priority=7))
    world.waits(*members(2))
    await make_room(world)
    assert evicted(world) == []
    said = "all pods in a single pod group should match the priority of the pod group, got: 7 and 10"
    assert world.pending(members(1)[0]).message == said


async def test_a_failed_eviction_gives_the_room_back() -> None:
    world = crowded(*FULL, nodes=("a", "b"))

    def fail(call: str) -> None:
        if call.startswith("evict"):
            raise Unavailable("busy")

    world.server.fail = fail
    group(world, GangSpec(2))
    world.waits(*members(2))
    await make_room(world)
    assert nominated(world) == {}
    assert wrote(world)[-2:] == ["nominate m0 ", "nominate m1 "]
    world.server.fail = lambda call: None
    world.clock.now += 60
    world.engine.preemption.look_again()
    await make_room(world)
    assert len(nominated(world)) == 2


async def test_members_go_to_one_domain() -> None:
    world = crowded(nodes=())
    for name in ("p0", "p1", "q0", "q1"):
        world.engine.handlers.nodes.observe("ADDED", make_node(name, cpu=4, labels={"rack": name[0]}))
    for name, cpu, priority in (("p0", 4, 0), ("p1", 2, 20), ("q0", 4, 5), ("q1", 4, 5)):
        pod = make_pod(f"on-{name}", cpu=1000 * cpu)
        pod = bound(replace(pod, request=replace(pod.request, priority=priority), started=True), name)
        world.server.pods[pod.key.uid] = pod
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    group(world, GangSpec(2, levels=(TopologyLevel("rack"),)))
    pods = (make_pod(f"m{number}", cpu=3000) for number in range(2))
    world.waits(*(replace(pod, request=replace(pod.request, priority=10, gang=GangRef(KEY))) for pod in pods))
    await make_room(world)
    assert evicted(world) == ["on-q0", "on-q1"]


async def test_nodes_with_the_least_important_pods_are_candidates() -> None:
    nodes = tuple(f"n{number:02}" for number in range(12))
    pods = [
        running(f"{node}-{numa}", "0-3" if numa == 0 else "4-7", node, priority=5 if index < 10 else 1)
        for index, node in enumerate(nodes)
        for numa in (0, 1)
    ]
    world = crowded(*pods, nodes=nodes, settings="preemption: {candidateNodes: 1}")
    group(world, GangSpec(4))
    world.waits(*members(4))
    await make_room(world)
    assert evicted(world) == ["n10-0", "n10-1", "n11-0", "n11-1"]


async def test_kubelets_admit_the_group_on_what_is_freed() -> None:
    """Of 16 CPUs 8 would be free without ``low``, but only 5 of them on one NUMA node."""
    world = crowded(nodes=())
    world.engine.handlers.nodes.observe("ADDED", make_node("k", cpu=16, memory=200))
    topology = kubelet_topology("k", 2, 8)
    used = [{"cpu": 3000, "memory": 31 << 30}, {"cpu": 5000, "memory": 31 << 30}]
    zones = tuple(replace(zone, available=amounts) for zone, amounts in zip(topology.zones, used, strict=True))
    low = replace(running("low", "0-4", "k"), assignment=None)
    world.server.pods[low.key.uid] = low
    world.engine.handlers.bound_pods.observe("ADDED", low)
    high = replace(running("high", "8-10", "k", priority=20), assignment=None)
    world.engine.handlers.bound_pods.observe("ADDED", high)
    world.engine.handlers.topologies.observe("ADDED", replace(topology, zones=zones))
    group(world, GangSpec(2))
    world.waits(*members(2, cpu=6))
    await make_room(world)
    assert evicted(world) == []
    small = [replace(pod, request=replace(pod.request, gang=GangRef(LOW))) for pod in members(2, cpu=5)]
    small = [replace(pod, key=replace(pod.key, name=f"s{n}", uid=f"uid-s{n}")) for n, pod in enumerate(small)]
    group(world, GangSpec(2), LOW)
    world.waits(*small)
    await make_room(world)
    assert evicted(world) == ["low"]


async def test_a_restart_keeps_the_nominated_nodes() -> None:
    world = crowded(*FULL[:2], running("b0", "0-3", "b", priority=20), nodes=("a", "b"))
    group(world, GangSpec(3))
    pods = [replace(pod, nominated=node) for pod, node in zip(members(3), ("a", "a", "b"), strict=True)]
    world.waits(*pods)
    await world.settle()
    world.waits(important("thief", 4, priority=0))
    await world.settle()
    assert world.nodes_of()["thief"] == ""
    await make_room(world)
    for name in evicted(world):
        leaves(world, name)
    await make_room(world)
    assert sorted(placed(world).values()) == ["a", "a", "b"]


async def test_an_incomplete_group_keeps_no_room() -> None:
    world = crowded(*FULL, nodes=("a", "b"))
    group(world, GangSpec(2))
    pods = members(2)
    world.waits(*pods)
    await make_room(world)
    assert len(nominated(world)) == 2
    world.engine.handlers.pending_pods.observe("DELETED", pods[0])
    world.engine.preemption.look_again()
    await make_room(world)
    assert nominated(world) == {}
