"""Claims of groups: shared by members before they have devices, claims of PodGroups, and one channel for each node."""

from typing import Any

import pytest

from koord_numa.core.objects.claims import PodResourceClaim, ResourceClaim
from koord_numa.core.objects.gangs import Dialect, GangKey, GangRef, GangSpec, GroupClaim, PodGroup
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.value_objects import replace
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.ports import Unavailable
from koord_numa.wire.resource_claims import parse_resource_claim
from tests.core.claims.worlds import claim_object, device, device_class, published, request
from tests.engine.claims.claim_server import FakeClaimWriter
from tests.engine.preemption.world import leaves, make_room, wrote
from tests.engine.world import World, bound, make_node, make_pod, make_world

KEY = GangKey(Dialect.KUBERNETES, "default", "g")
GPUS = {"nodeName": "a"}


def node(name: str, cpu: int = 8) -> Node:
    return make_node(name, cpu=cpu, labels={"kubernetes.io/hostname": name, "rack": name[0]})


def slices(**where: Any) -> list[Any]:
    """One pool of two devices for each place."""
    return [published("gpu", [device("x"), device("y")], pool=pool, **at) for pool, at in where.items()]


def claim(name: str, **changes: Any) -> ResourceClaim:
    return replace(parse_resource_claim(claim_object(request("r", "gpu"), name=name)), version="1", **changes)


def world_of(nodes: list[Node], pools: list[Any], *claims: ResourceClaim) -> tuple[World, FakeClaimWriter]:
    server = FakeClaimWriter(ClaimLister(lambda: None, lambda _key: None))
    world = make_world(*nodes, claim_writer=server)
    lister = server.lister = world.engine.claims
    lister.replace_slices(pools)
    lister.replace_classes([device_class("gpu")])
    for each in claims:
        lister.observe_claim(None, each)
    lister.synced()
    return world, server


def members(count: int, *entries: PodResourceClaim, cpu: int = 2000) -> list[Pod]:
    pods = (make_pod(f"m{number}", cpu=cpu, resource_claims=entries) for number in range(count))
    return [replace(pod, request=replace(pod.request, gang=GangRef(KEY))) for pod in pods]


def group(world: World, count: int, *claims: GroupClaim, **changes: Any) -> None:
    world.engine.groups.observe_group("ADDED", PodGroup(KEY, GangSpec(count, claims=claims), uid="uid-g", **changes))


def nodes_of(world: World) -> list[str]:
    return sorted(node for name, node in world.nodes_of().items() if name.startswith("m"))


SHARED = PodResourceClaim("c", "both")
RACK = {
    "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}]}
}
PLACES = {
    "devices of one node": ([node("a"), node("b")], slices(a={"nodeName": "a"}, b={"nodeName": "b"}), 3),
    "the node that holds all": ([node("a", 4), node("b", 6)], slices(a={"nodeName": "a"}, b={"nodeName": "b"}), 3),
    "devices of a rack": ([node("a0", 4), node("a1", 4), node("b0")], slices(rack=RACK), 4),
    "devices of the cluster": ([node("a", 4), node("b", 4)], slices(net={"allNodes": True}), 4),
}


@pytest.mark.parametrize(("nodes", "pools", "count"), list(PLACES.values()), ids=list(PLACES))
async def test_members_share_a_claim_without_devices(nodes: list[Node], pools: list[Any], count: int) -> None:
    world, _ = world_of(nodes, pools, claim("both"))
    group(world, count)
    world.waits(*members(count, SHARED))
    await world.settle()
    assert len(nodes_of(world)) == count
    found = world.engine.claims.claims["default", "both"]
    assert found.allocation is not None
    assert len(found.allocation.results) == 1
    assert sorted(found.reserved_for) == [f"uid-m{number}" for number in range(count)]
    assert not world.engine.claims.assumed


async def test_no_device_is_counted_twice_or_left_behind() -> None:
    world, _ = world_of([node("a", 4)], slices(a={"nodeName": "a"}), claim("both"), claim("own"))
    group(world, 3)
    world.waits(*members(3, SHARED))  # only two fit
    await world.settle()
    assert nodes_of(world) == ["", "", ""]
    assert not world.engine.claims.assumed
    alone = [make_pod(f"p{number}", resource_claims=(PodResourceClaim("c", f"own{number}"),)) for number in range(2)]
    for number in range(2):
        world.engine.claims.observe_claim(None, claim(f"own{number}"))
    world.waits(*alone)
    world.clock.now += 60
    await world.settle()
    assert {name: node for name, node in world.nodes_of().items() if name.startswith("p")} == {"p0": "a", "p1": "a"}


async def test_a_failed_write_fails_all_members() -> None:
    world, server = world_of([node("a")], slices(a={"nodeName": "a"}), claim("both"))
    server.fails = Unavailable("busy")
    group(world, 2)
    world.waits(*members(2, SHARED))
    for _ in range(3):
        await world.step()
    assert nodes_of(world) == ["", ""]
    assert not world.engine.claims.assumed
    server.fails = None
    for _ in range(3):
        world.clock.now += 300
        await world.settle()
    assert nodes_of(world) == ["a", "a"]


MADE = PodResourceClaim("c", "", from_template=True, template="one")
FOR_GROUP = GroupClaim("c", template="one")


async def test_the_claim_of_a_group_is_reserved_for_the_group() -> None:
    world, _ = world_of([node("a"), node("b")], slices(a={"nodeName": "a"}, b={"nodeName": "b"}))
    group(world, 3, FOR_GROUP)
    world.waits(*members(3, MADE))
    await world.settle()
    assert nodes_of(world) == ["", "", ""]
    assert "PodGroup default/g: ResourceClaim not created yet" in world.pending(members(1)[0]).message
    world.engine.claims.observe_claim(None, claim("g-c-1", owner="uid-g"))
    group(world, 3, FOR_GROUP, claim_names=(("c", "g-c-1"),))
    world.clock.now += 60
    await world.settle()
    assert len(set(nodes_of(world))) == 1
    assert "" not in nodes_of(world)
    found = world.engine.claims.claims["default", "g-c-1"]
    assert (found.reserved_for, found.reserved_groups) == ((), ("uid-g",))


@pytest.mark.parametrize(
    ("entry", "owner", "placed"),
    [
        (MADE, "uid-g", True),
        (MADE, "uid-other", False),
        (replace(MADE, template="another"), "uid-g", False),
        (replace(MADE, name="d"), "uid-g", False),
    ],
    ids=["the group's", "another owner", "another template", "another name"],
)
async def test_entries_stand_for_the_claim_of_the_group(entry: PodResourceClaim, owner: str, placed: bool) -> None:
    world, _ = world_of([node("a")], slices(a={"nodeName": "a"}), claim("g-c-1", owner=owner))
    group(world, 1, FOR_GROUP, claim_names=(("c", "g-c-1"),))
    world.waits(*members(1, entry))
    await world.settle()
    assert nodes_of(world) == (["a"] if placed else [""])


async def test_a_group_gives_up_devices_that_keep_it_from_other_nodes() -> None:
    """A crash left the claim allocated on a node without room."""
    allocated = claim("g-c-1", owner="uid-g")
    world, _ = world_of([node("a", 2), node("b")], slices(a={"nodeName": "a"}, b={"nodeName": "b"}), allocated)
    class_ = world.engine.classes.of(make_pod("x", resource_claims=(PodResourceClaim("c", "g-c-1"),)))
    assert class_ is not None
    there = world.engine.handle.selector.try_node(class_, "a")
    assert isinstance(there, Placement)
    left = replace(
        allocated,
        version="5",
        allocation=there.allocations[0],
        reserved_groups=("uid-g",),
        other_consumers=1,
        protected=True,
    )
    world.engine.claims.observe_claim(None, left)
    group(world, 2, FOR_GROUP, claim_names=(("c", "g-c-1"),))
    world.waits(*members(2, MADE))
    await world.settle()
    assert nodes_of(world) == ["", ""]
    deallocation = world.engine._deallocation
    assert deallocation is not None
    assert [found.name for found, _ in deallocation._noted.values()] == ["g-c-1"]


async def test_one_channel_for_each_node_spreads_the_members() -> None:
    """Like the channels of a ComputeDomain: every node has one, and every member has a claim for one."""
    pools = [published("gpu", [device("channel-0")], pool=name, nodeName=name) for name in "abc"]
    claims = [claim(f"c{number}", owner=f"uid-m{number}") for number in range(3)]
    world, _ = world_of([node(name) for name in "abc"], pools, *claims)
    group(world, 3)
    pods = [
        replace(pod, resource_claims=(PodResourceClaim("c", f"c{number}", from_template=True, template="channel"),))
        for number, pod in enumerate(members(3))
    ]
    world.waits(*pods)
    await world.settle()
    assert nodes_of(world) == ["a", "b", "c"]


def low(name: str, place: str, cpu: int, priority: int) -> Pod:
    """A pod of lower priority than the group that runs there."""
    pod = make_pod(name, cpu=cpu)
    return bound(replace(pod, request=replace(pod.request, priority=priority), started=True, phase="Running"), place)


async def test_a_group_with_a_shared_claim_evicts_on_one_node() -> None:
    world, _ = world_of(
        [node("a", 4), node("b", 4), node("c", 4)], slices(a={"nodeName": "a"}, b={"nodeName": "b"}), claim("both")
    )
    running = [low("a0", "a", 2000, 3), low("a1", "a", 2000, 3), low("b0", "b", 4000, 5), low("c0", "c", 4000, 0)]
    for pod in running:
        world.server.pods[pod.key.uid] = pod
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    world.engine.handlers.budgets.replace([])
    group(world, 2)
    world.waits(*(replace(pod, request=replace(pod.request, priority=10)) for pod in members(2, SHARED)))
    await make_room(world)
    # Node c has no devices, and the pod of node b has a higher priority.
    evicted = [call for call in wrote(world) if call.startswith("evict")]
    assert sorted(evicted) == ["evict a0", "evict a1"]
    assert {it.node for it in world.engine.handle.nominator} == {"a"}
    assert not world.engine.claims.assumed
    leaves(world, "a0", "a1")
    await make_room(world)
    assert nodes_of(world) == ["a", "a"]
    assert world.engine.claims.claims["default", "both"].allocation is not None


async def test_a_shared_claim_without_any_device_evicts_nobody() -> None:
    world, _ = world_of([node("a", 4)], slices(b={"nodeName": "b"}), claim("both"))
    pod = low("a0", "a", 4000, 0)
    world.server.pods[pod.key.uid] = pod
    world.engine.handlers.bound_pods.observe("ADDED", pod)
    world.engine.handlers.budgets.replace([])
    group(world, 2)
    world.waits(*(replace(each, request=replace(each.request, priority=10)) for each in members(2, SHARED)))
    await make_room(world)
    assert [call for call in wrote(world) if call.startswith(("evict", "nominate"))] == []
