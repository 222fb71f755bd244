"""Pods of one workload are spread although they do not ask for it, as by kube-scheduler's default constraints."""

from collections import Counter

import pytest

from koord_numa.core.objects.constraints import (
    LabelSelector,
    Operator,
    Requirement,
    SpreadConstraint,
    Workload,
    WorkloadKey,
    WorkloadKind,
)
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Reason
from koord_numa.core.value_objects import replace
from koord_numa.engine.scheduler import Source
from tests.engine.world import World, bound, make_node, make_pod, make_world

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
WEB = LabelSelector((Requirement("app", Operator.IN, ("web",)),))
SET = WorkloadKey(WorkloadKind.REPLICA_SET, "default", "web")
SERVICE = WorkloadKey(WorkloadKind.SERVICE, "default", "web")


def host(name: str, zone: str = "") -> Node:
    return make_node(name, cpu=32, memory=128, labels={HOST: name} | ({ZONE: zone} if zone else {}))


def web(name: str, **changes: object) -> Pod:
    pod = make_pod(name, cpu=100, memory=0, labels=(("app", "web"),), controller=SET)
    return replace(pod, request=replace(pod.request, labels=pod.labels), **changes)  # type: ignore[arg-type]  # named fields


def world_of(*nodes: Node, key: WorkloadKey | None = SET, settings: str = "") -> World:
    world = make_world(*nodes, settings=settings)
    if key is not None:
        world.engine.workloads.observe("ADDED", Workload(key, WEB))
    return world


async def placed(world: World, count: int, **changes: object) -> Counter[str]:
    for number in range(count):
        world.waits(web(f"web-{number}", **changes))
        await world.settle()
    return Counter(node for name, node in world.nodes_of().items() if name.startswith("web-"))


@pytest.mark.parametrize("key", [SET, SERVICE, WorkloadKey(WorkloadKind.STATEFUL_SET, "default", "web")])
async def test_the_pods_of_a_workload_are_spread_over_hosts(key: WorkloadKey) -> None:
    found = await placed(world_of(*(host(f"n{i}") for i in range(3)), key=key), 9, controller=key)
    assert found == {"n0": 3, "n1": 3, "n2": 3}


async def test_pods_of_no_workload_fill_a_node() -> None:
    assert await placed(world_of(*(host(f"n{i}") for i in range(3)), key=None), 9) == {"n0": 9}


async def test_zones_count_beside_hosts() -> None:
    nodes = [host("a0", "a"), host("a1", "a"), host("a2", "a"), host("b0", "b")]
    found = await placed(world_of(*nodes), 8)
    assert found["b0"] > max(found["a0"], found["a1"], found["a2"])


async def test_nodes_without_a_zone_are_compared_by_their_hosts() -> None:
    found = await placed(world_of(host("a0", "a"), host("none"), host("b0", "b")), 9)
    assert min(found[name] for name in ("a0", "b0", "none")) >= 2


async def test_the_pods_own_constraints_replace_the_defaults() -> None:
    own = SpreadConstraint("rack", 1, hard=False, selector=WEB)
    world = world_of(host("n0"), host("n1"))
    for number in range(4):
        pod = web(f"web-{number}")
        demands = replace(pod.request.constraints, spread=(own,))
        world.waits(replace(pod, request=replace(pod.request, constraints=demands)))
        await world.settle()
    assert set(world.nodes_of().values()) == {"n0"}


@pytest.mark.parametrize(
    "settings",
    [
        "profiles: [{podTopologySpread: {defaultingType: List}}]",
        "profiles: [{scoreWeights: {defaultSpread: 0}}]",
    ],
)
async def test_it_can_be_switched_off(settings: str) -> None:
    found = await placed(world_of(host("n0"), host("n1"), settings=settings), 4)
    assert found == {"n0": 4}


LISTED = """profiles: [{podTopologySpread: {defaultingType: List, defaultConstraints: [
    {topologyKey: topology.kubernetes.io/zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]}}]"""


@pytest.mark.parametrize(("settings", "needed"), [("", False), (LISTED, True)])
def test_what_may_refuse_nodes_is_waited_for(settings: str, needed: bool) -> None:
    engine = make_world(synced=False, settings=settings).engine
    assert (Source.WORKLOADS in engine.missing) is needed


async def test_listed_constraints_hold_for_the_pods_of_a_workload() -> None:
    world = make_world(host("a0", "a"), host("b0", "b"), host("none"), settings=LISTED)
    world.engine.workloads.observe("ADDED", Workload(SET, WEB))
    assert await placed(world, 4) == {"a0": 2, "b0": 2}
    world.waits(make_pod("other"))
    await world.settle()
    assert world.nodes_of()["other"]
    found = world.engine.dry_run(web("more"))
    assert found is not None
    assert getattr(found["none"], "reason", None) is Reason.SPREAD


async def test_waiting_pods_learn_of_a_service_that_comes_later() -> None:
    world = world_of(host("n0"), host("n1"), key=None)
    world.engine.handlers.bound_pods.observe(None, bound(web("there"), "n0"))
    world.lease.held = False
    world.waits(web("web-0"))
    await world.settle()
    before = world.engine.handle.pending.get("uid-web-0")
    assert before is not None
    former = before.request_class
    world.engine.workloads.observe("ADDED", Workload(SERVICE, WEB))
    assert before.request_class is not former
    world.lease.held = True
    await world.settle()
    assert world.nodes_of()["web-0"] == "n1"


def test_what_is_gone_selects_nothing() -> None:
    world = world_of(host("n0"))
    workloads, pod = world.engine.workloads, web("web")
    assert workloads.selector_for(pod) == WEB
    workloads.replace(WorkloadKind.SERVICE, [Workload(SERVICE, WEB)])
    workloads.replace(WorkloadKind.REPLICA_SET, [])
    assert workloads.selector_for(pod) == WEB
    workloads.observe("DELETED", Workload(SERVICE, WEB))
    assert workloads.selector_for(pod) is None


async def test_a_change_elsewhere_wakes_no_pod_that_only_prefers() -> None:
    world = world_of(host("n0"))
    world.waits(replace(web("huge"), request=replace(make_pod("huge", cpu=64000).request, labels=(("app", "web"),))))
    await world.settle()
    pending = world.engine.handle.pending.get("uid-huge")
    assert pending is not None
    tried = pending.attempts
    world.engine.handlers.bound_pods.observe(None, bound(web("there"), "n0"))
    world.clock.now += 60
    await world.settle()
    assert pending.attempts == tried
    assert not isinstance(world.engine.queue.verdict(pending), Placement)
