"""Room for a rebind: reserved room is not used, and steps are compared with the initial places of all pods."""

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.claims import PodResourceClaim
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Assignment, NumaSpec, Pod, PodKey
from koord_numa.core.objects.vocabulary import NumaExclusive, NumaPolicy, QosClass
from koord_numa.core.preempt.dry_run import Nominee
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.plan import Move, RebindPlan, plan_rebind
from koord_numa.core.state.ledger import holding_of
from koord_numa.core.value_objects import replace
from koord_numa.engine.rebind.context import layout_of_node, obstacle, pods_kept_by_claims
from koord_numa.settings import load_settings
from tests.core.rebind.nodes import layout, pinned
from tests.engine.world import World, bound, make_node, make_pod, make_topology, make_world
from tests.tables import each_row

NODE: Node = make_node("node", cpu=16)
"""CPUs 0-7 and 8-15 on two NUMA nodes, siblings side by side."""


def seated(name: str, cpus: str, spec: NumaSpec = NumaSpec(), **changes: object) -> Pod:
    """A pod with these CPUs of its own."""
    held = CpuSet.parse(cpus)
    pod = make_pod(name, cpu=1000 * len(held))
    request = replace(pod.request, qos=QosClass.LSR, numa=spec)
    return bound(replace(pod, request=request), NODE.name, assignment=Assignment(cpus=held), **changes)


def world_of(*pods: Pod, settings: str = "") -> World:
    """One node with these pods."""
    world = make_world(NODE, settings=settings)
    world.engine.handlers.topologies.observe("ADDED", make_topology(NODE.name, cores=4))
    for pod in pods:
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    return world


def seen(world: World) -> NodeLayout:
    """The layout of the node."""
    found = layout_of_node(world.engine.cache, NODE.name, world.engine.settings)
    assert isinstance(found, NodeLayout), found
    return found


def planned(world: World) -> dict[str, str]:
    """Return the planned moves with their targets."""
    plan: RebindPlan = plan_rebind(seen(world))
    return {move.pod.name: str(move.after) for move in plan.moves}


CROSSING = seated("crossing", "6-9")
THEIRS = seated("theirs", "10-15", scheduler="other")
LEAVING = seated("leaving", "0-3", deleting=True)
WAITING = make_pod("waiting", cpu=6000)
KEPT = Nominee(WAITING, holding_of(WAITING, Assignment(cpus=CpuSet.parse("0-5"))))
"""It is to get what the leaving pod has, and two free CPUs beside it."""


def test_pods_with_claims_are_left_alone() -> None:
    """Their CPUs were chosen beside the devices of their claims, which are immutable."""
    assert planned(world_of(CROSSING)) != {}
    claiming = replace(CROSSING, resource_claims=(PodResourceClaim("gpu", "claim"),))
    world = world_of(claiming)
    assert planned(world) == {}
    assert pods_kept_by_claims(world.engine.cache, NODE.name) == 1


def test_a_node_whose_cpus_are_claims_is_not_repacked() -> None:
    world = world_of(CROSSING)
    world.engine.cache.set_cpus_by_claim(NODE.name, by_claim=True)
    found = layout_of_node(world.engine.cache, NODE.name, world.engine.settings)
    assert isinstance(found, str)
    assert "an allocated claim is immutable" in found


def test_room_kept_for_a_pod_awaiting_departures_is_left() -> None:
    world = world_of(CROSSING, THEIRS, LEAVING)
    assert planned(world) == {"crossing": "4-7"}
    world.engine.cache.nominate(NODE.name, KEPT)
    assert planned(world) == {}
    world.engine.cache.withdraw(NODE.name, WAITING.key.uid)
    assert planned(world) == {"crossing": "4-7"}


def test_room_kept_after_the_plan_ends_the_rebind() -> None:
    world = world_of(CROSSING, THEIRS, LEAVING)
    before, move = seen(world), Move(CROSSING.key, CpuSet.parse("6-9"), CpuSet.parse("4-7"))
    assert obstacle(seen(world), before, move) == ""
    world.engine.cache.nominate(NODE.name, KEPT)
    assert obstacle(seen(world), before, move) == "CPUs 4-5 were given to another pod, or are kept for one"


def test_a_nominee_that_is_there_by_now_is_a_pod_like_any_other() -> None:
    arrived = seated("waiting", "1-2")
    world = world_of(arrived)
    world.engine.cache.nominate(NODE.name, KEPT)
    assert [one.key.name for one in seen(world).pods] == ["waiting"]


SINGLE = NumaSpec(NumaPolicy.SINGLE_NUMA_NODE)

WISHES = [
    pytest.param(NumaSpec(), "", NumaExclusive.NONE, id="names-no-policy"),
    pytest.param(SINGLE, "", NumaExclusive.REQUIRED, id="default"),
    pytest.param(SINGLE, "singleNUMANodeExclusive: Preferred", NumaExclusive.PREFERRED, id="configured"),
    pytest.param(replace(SINGLE, exclusive=NumaExclusive.PREFERRED), "", NumaExclusive.PREFERRED, id="its-own"),
]


@each_row(("spec", "profile", "wish"), WISHES)
def test_the_policy_to_be_apart_is_known(spec: NumaSpec, profile: str, wish: NumaExclusive) -> None:
    text = "apiVersion: koord-numa.io/v1alpha1\nkind: KoordNumaConfiguration\n"
    settings = f"{text}profiles: [{{schedulerName: koord-numa, {profile}}}]\n" if profile else ""
    load_settings(settings)
    world = world_of(seated("a", "0-1", spec), settings=settings)
    assert [one.numa_exclusive for one in seen(world).pods] == [wish]


def move(name: str, before: str, after: str) -> Move:
    """One step."""
    return Move(PodKey("default", name, name), CpuSet.parse(before), CpuSet.parse(after))


PLANNED = layout("1x2x4x2", pinned("a", "0-1"), pinned("b", "2-3"), pinned("c", "8-9"), cpu_limit={0: 2})
"""NUMA node 0 has room for two CPUs and is overdrawn with four: it may not be drawn further."""

LEFT = layout("1x2x4x2", pinned("a", "10-11"), pinned("b", "2-3"), pinned("c", "8-9"), cpu_limit={0: 2})
"""After the first step: ``a`` has left it."""

OBSTACLES = [
    pytest.param(LEFT, "", id="what-one-step-has-gained-another-may-use"),
    pytest.param(
        replace(LEFT, fixed=CpuSet.parse("0")),
        "CPUs 0 were given to another pod, or are kept for one",
        id="taken",
    ),
    pytest.param(
        replace(LEFT, cpu_limit={0: 1}),
        "new pods leave no room for default/c on CPUs 0-1",
        id="another-pod-came",
    ),
    pytest.param(
        replace(LEFT, pods=LEFT.pods[:2]), "pod default/c is gone or may no longer be moved", id="it-has-gone"
    ),
    pytest.param(
        layout("1x2x4x2", pinned("c", "8,10")), "pod default/c was changed by another writer", id="it-was-changed"
    ),
    pytest.param(layout("1x2x2x2", pinned("c", "8-9")), "the CPUs of the node have changed", id="another-machine"),
    pytest.param("there is no node node", "there is no node node", id="no-node"),
]


@each_row(("now", "why"), OBSTACLES)
def test_what_stands_in_the_way_of_a_step(now: NodeLayout | str, why: str) -> None:
    assert obstacle(now, PLANNED, move("c", "8-9", "0-1")) == why
