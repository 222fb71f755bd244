"""Situations of kube-scheduler's own tables about pod groups, with its verdicts (``gangscheduling``, ``schedule_one_podgroup``)."""

from collections.abc import Callable

import pytest

from koord_numa.core.objects.gangs import (
    Dialect,
    GangKey,
    GangMode,
    GangRef,
    GangSpec,
    MatchPolicy,
    PodGroup,
    TopologyLevel,
)
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from tests.engine.world import World, bound, make_node, make_pod, make_world
from tests.tables import each_row

KEY = GangKey(Dialect.KUBERNETES, "default", "pg")
PROFILES = "profiles: [{schedulerName: koord-numa}, {schedulerName: other}]"


def pod(name: str, cpu: int = 1, *, priority: int = 0, key: GangKey = KEY, **changes: object) -> Pod:
    made = make_pod(name, cpu=1000 * cpu, **changes)  # type: ignore[arg-type]  # changes are named fields
    request = replace(made.request, priority=priority, gang=GangRef(key))
    return replace(made, key=replace(made.key, namespace=key.namespace), request=request)


def group(world: World, spec: GangSpec, key: GangKey = KEY, event: str = "ADDED") -> None:
    world.engine.groups.observe_group(event, PodGroup(key, spec))


def placed(world: World) -> list[str]:
    return sorted(name for name, node in world.nodes_of().items() if node)


def runs(world: World, *pods: Pod, node: str = "a") -> None:
    for each in pods:
        world.engine.handlers.bound_pods.observe("ADDED", bound(each, node, started=True))


SAME = "all pods in a single pod group should have the same .spec.schedulerName set, got: koord-numa and other"
MATCH = "all pods in a single pod group should match the priority of the pod group, got: 9 and 10"

VALIDATION: dict[str, tuple[GangSpec, list[Pod], list[Pod], str]] = {
    "same scheduler": (GangSpec(2), [], [pod("p1"), pod("p2")], ""),
    "two schedulers": (GangSpec(2), [], [pod("p1"), pod("p2", scheduler="other")], SAME),
    "same priority": (GangSpec(2, priority=10), [], [pod("p1", priority=10), pod("p2", priority=10)], ""),
    "two priorities": (GangSpec(2, priority=10), [], [pod("p1", priority=9), pod("p2", priority=10)], MATCH),
    "another priority than the group": (
        GangSpec(2, priority=9),
        [],
        [pod("p1", priority=10), pod("p2", priority=10)],
        MATCH,
    ),
    "as scheduled pods": (GangSpec(2, priority=10), [pod("p2", priority=10)], [pod("p1", priority=10)], ""),
    "another scheduler than scheduled pods": (GangSpec(2), [pod("p2", scheduler="other")], [pod("p1")], SAME),
    "another priority than scheduled pods": (
        GangSpec(2, priority=10),
        [pod("p2", priority=9)],
        [pod("p1", priority=10)],
        MATCH,
    ),
}


@pytest.mark.parametrize(("spec", "scheduled", "waiting", "why"), list(VALIDATION.values()), ids=list(VALIDATION))
async def test_validation(spec: GangSpec, scheduled: list[Pod], waiting: list[Pod], why: str) -> None:
    world = make_world(make_node("a"), settings=PROFILES)
    group(world, spec)
    runs(world, *scheduled)
    world.waits(*waiting)
    await world.settle()
    assert placed(world) == ([] if why else [it.key.name for it in waiting])
    if why:
        assert world.pending(waiting[0]).message == why


UNKNOWN = 'waiting for pod\'s pod group "pg" to appear in scheduling queue'
FEW = "waiting for minCount pods from a gang to appear in scheduling queue"
PRE_ENQUEUE: dict[str, tuple[GangSpec | None, int, int, str]] = {
    "no pod group": (None, 3, 0, UNKNOWN),
    "basic policy": (GangSpec(basic=True), 1, 0, ""),
    "too few pods": (GangSpec(3), 2, 0, FEW),
    "as many pods as needed": (GangSpec(3), 3, 0, ""),
    "more pods": (GangSpec(3), 4, 0, ""),
    "assigned pods count": (GangSpec(3), 1, 2, ""),
    "too few with assigned pods": (GangSpec(4), 1, 2, FEW),
    "the minimal count is assigned": (GangSpec(2), 1, 2, ""),
}


@pytest.mark.parametrize(("spec", "waiting", "assigned", "why"), list(PRE_ENQUEUE.values()), ids=list(PRE_ENQUEUE))
async def test_pre_enqueue(spec: GangSpec | None, waiting: int, assigned: int, why: str) -> None:
    world = make_world(make_node("a"))
    if spec is not None:
        group(world, spec)
    runs(world, *(pod(f"r{number}") for number in range(assigned)))
    pods = [pod(f"p{number}") for number in range(waiting)]
    world.waits(*pods)
    if why:
        assert world.pending(pods[-1]).message.startswith(why)
    await world.settle()
    assert len(placed(world)) == (0 if why else waiting)


OTHER = GangKey(Dialect.KUBERNETES, "default", "another")
FOREIGN = GangKey(Dialect.KUBERNETES, "foo", "pg")
HINTS: dict[str, tuple[Callable[[World], None], bool]] = {
    "a pod of the group": (lambda world: world.waits(pod("p3")), True),
    "an assigned pod of the group": (lambda world: runs(world, pod("p3")), True),
    "a pod of another namespace": (lambda world: world.waits(pod("p3", key=FOREIGN)), False),
    "a pod of another group": (lambda world: world.waits(pod("p3", key=OTHER)), False),
    "another group": (lambda world: group(world, GangSpec(1), OTHER), False),
    "a group of another namespace": (lambda world: group(world, GangSpec(1), FOREIGN), False),
    "a smaller minimal count": (lambda world: group(world, GangSpec(2), event="MODIFIED"), True),
    "the same minimal count": (lambda world: group(world, GangSpec(3), event="MODIFIED"), False),
    "a larger minimal count": (lambda world: group(world, GangSpec(4), event="MODIFIED"), False),
}


@pytest.mark.parametrize(("event", "queued"), list(HINTS.values()), ids=list(HINTS))
async def test_queueing_hints(event: Callable[[World], None], queued: bool) -> None:
    world = make_world(make_node("a"))
    group(world, GangSpec(3))
    world.waits(pod("p1"), pod("p2"))
    await world.settle()
    event(world)
    await world.settle()
    assert ("p1" in placed(world)) is queued


ALGORITHM: dict[str, tuple[GangSpec, int, list[int], list[str]]] = {
    "all pods are feasible": (GangSpec(3), 0, [2, 2, 2], ["p0", "p1", "p2"]),
    "one pod too many, the minimal count is met": (GangSpec(2), 0, [2, 9, 2], ["p0", "p2"]),
    "one pod too many, the minimal count is not met": (GangSpec(3), 0, [2, 9, 2], []),
    "no pod is feasible": (GangSpec(1), 0, [9, 9], []),
    "basic: those that fit": (GangSpec(basic=True), 0, [2, 9, 2], ["p0", "p2"]),
    "basic: none fits": (GangSpec(basic=True), 0, [9, 9], []),
    "assigned pods count": (GangSpec(3), 2, [2, 9], ["p0"]),
    "assigned pods are too few": (GangSpec(4), 2, [2, 9], []),
    "the minimal count is assigned": (GangSpec(2), 2, [9, 2], ["p1"]),
    "together too large": (GangSpec(2), 0, [5, 5], []),
}


@each_row(("spec", "assigned", "cpus", "expected"), list(ALGORITHM.values()), ids=list(ALGORITHM))
async def test_algorithm(spec: GangSpec, assigned: int, cpus: list[int], expected: list[str]) -> None:
    world = make_world(make_node("a", cpu=8))
    group(world, spec)
    runs(world, *(pod(f"r{number}") for number in range(assigned)))
    world.waits(*(pod(f"p{number}", cpu) for number, cpu in enumerate(cpus)))
    await world.settle()
    assert placed(world) == expected


RACKS = {"p0": "p", "p1": "p", "q0": "q", "q1": "q"}
PLACEMENTS: dict[str, tuple[dict[str, int], dict[str, str], int, list[int], set[str]]] = {
    "the rack that takes all": ({"p0": 2, "q0": 4}, {}, 2, [2, 2], {"q"}),
    "the rack that takes more": ({"p0": 4, "q0": 6}, {}, 2, [2, 2, 2], {"q"}),
    "no rack takes all": ({"p0": 2, "q0": 2}, {}, 2, [2, 2], set()),
    "the rack of running pods": ({"p0": 8, "q0": 3}, {"r0": "q0"}, 2, [2], {"q"}),
    "the rack of running pods is full": ({"p0": 8, "q0": 1}, {"r0": "q0"}, 2, [2], set()),
    "running pods in two racks": ({"p0": 8, "q0": 8}, {"r0": "p0", "r1": "q0"}, 3, [2], set()),
    "several nodes of a rack": ({"p0": 4, "p1": 4, "q0": 4}, {}, 2, [4, 4], {"p"}),
    "a node without the label": ({"p0": 2, "x": 16}, {}, 2, [2, 2], set()),
}


@pytest.mark.parametrize(
    ("nodes", "running", "count", "cpus", "racks"), list(PLACEMENTS.values()), ids=list(PLACEMENTS)
)
async def test_topology_placements(
    nodes: dict[str, int], running: dict[str, str], count: int, cpus: list[int], racks: set[str]
) -> None:
    made = [
        make_node(name, cpu=cpu, labels={"rack": RACKS[name]} if name in RACKS else {}) for name, cpu in nodes.items()
    ]
    world = make_world(*made)
    group(world, GangSpec(count, levels=(TopologyLevel("rack"),)))
    for name, node in running.items():
        runs(world, pod(name), node=node)
    world.waits(*(pod(f"w{number}", cpu) for number, cpu in enumerate(cpus)))
    await world.settle()
    assert {node[0] for name, node in world.nodes_of().items() if node} == racks


ONLY, RUNNING, ONCE = MatchPolicy.ONLY_WAITING, MatchPolicy.WAITING_AND_RUNNING, MatchPolicy.ONCE_SATISFIED
KOORDINATOR = GangKey(Dialect.KOORDINATOR, "default", "gang")
SETS: dict[tuple[int, int], set[MatchPolicy]] = {
    (4, 0): {ONLY, RUNNING, ONCE},
    (3, 0): set(),
    (3, 1): {ONLY, RUNNING, ONCE},  # binds were interrupted (deviation gang-completed)
    (1, 3): {ONLY, RUNNING, ONCE},  # a member was lost (deviation gang-completed)
    (1, 4): {RUNNING, ONCE},
    (3, 4): {RUNNING, ONCE},
    (4, 4): {ONLY, RUNNING, ONCE},
}
"""Waiting and bound members of a gang of four, and the match policies of Koordinator under which the waiting members are placed."""


@each_row(("waiting", "running"), SETS)
@each_row("policy", MatchPolicy)
@each_row("mode", GangMode)
async def test_match_policies_and_modes(mode: GangMode, policy: MatchPolicy, waiting: int, running: int) -> None:
    spec = GangSpec(4, match_policy=policy, mode=mode)
    needs_all = policy in SETS[waiting, running] and (policy is ONLY or running < 4)
    for room in (waiting, waiting - 1) if needs_all else (waiting,):
        world = make_world(make_node("a", cpu=room), make_node("b"))
        in_gang = [pod(f"p{number}", key=KOORDINATOR) for number in range(waiting + running)]
        members = [replace(it, request=replace(it.request, gang=GangRef(KOORDINATOR, spec))) for it in in_gang]
        runs(world, *members[waiting:], node="b")
        runs(world, pod("other", 8 - running, key=OTHER), node="b")
        world.engine.groups.tick()
        world.waits(*members[:waiting])
        await world.settle()
        is_placed = policy in SETS[waiting, running] and room == waiting
        assert len(placed(world)) == (waiting if is_placed else 0), room
