"""One cycle: look, decide, hold, bind; which pods are tried, and on which nodes."""

import pytest

from koord_numa.core.objects.constraints import Constraints, Toleration
from koord_numa.core.objects.verdicts import Reason
from koord_numa.core.value_objects import replace
from tests.engine.binding.test_pre_bind import Step
from tests.engine.world import bound, make_node, make_pod, make_world


async def test_a_pod_is_bound_to_the_fitting_node_with_an_event() -> None:
    world = make_world(make_node("small", cpu=1), make_node("large", cpu=8))
    world.waits(make_pod("pod", cpu=4000))
    await world.settle()
    assert world.nodes_of() == {"pod": "large"}
    assert world.diary.reasons("pod") == ["Scheduled"]
    assert world.diary.events[0][2].startswith(
        "Successfully assigned default/pod to large: no NUMA alignment was attempted"
    )
    assert world.engine.cache.assumed["uid-pod"].confirmed == world.clock.now


async def test_a_pod_that_fits_nowhere_waits_with_numbers() -> None:
    world = make_world(make_node("node", cpu=2))
    world.waits(make_pod("pod", cpu=4000))
    await world.settle()
    world.engine.handlers.nodes.observe("MODIFIED", make_node("node", cpu=3))
    world.clock.now += 300
    await world.settle()
    assert world.diary.reasons("pod") == ["FailedScheduling", "FailedScheduling"]
    sentence = "0/1 nodes are available: 1 Insufficient cpu."
    assert world.diary.events[-1][2].startswith(sentence)
    assert world.engine.explain("uid-pod").startswith(sentence)
    assert world.nodes_of() == {"pod": ""}


async def test_room_that_comes_free_wakes_the_pod_that_waits_for_it() -> None:
    world = make_world(make_node("node", cpu=4))
    first, second = make_pod("first", cpu=3000), make_pod("second", cpu=3000, created=1.0)
    world.waits(first, second)
    await world.settle()
    assert world.nodes_of() == {"first": "node", "second": ""}
    world.engine.handlers.bound_pods.observe("DELETED", bound(first, "node"))
    world.clock.now += 60
    await world.settle()
    assert world.nodes_of() == {"first": "node", "second": "node"}


@pytest.mark.parametrize(
    "changes",
    [
        {"gated": True},
        {"deleting": True},
        {"mirror": True},
        {"node": "node"},
        {"phase": "Failed"},
        {"scheduler": "other"},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_pods_that_are_not_to_be_placed_are_never_tried(changes: dict[str, object]) -> None:
    world = make_world(make_node("node"))
    world.waits(replace(make_pod("pod"), **changes))  # type: ignore[arg-type]  # changes are named fields
    assert world.engine.loop.next_pod() is None


async def test_a_gate_that_is_lifted_lets_the_pod_go() -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("pod", gated=True))
    await world.settle()
    world.engine.handlers.pending_pods.observe("MODIFIED", make_pod("pod"))
    world.server.pods["uid-pod"] = make_pod("pod")
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}


async def test_a_malformed_pod_is_told_and_not_tried() -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("pod", problem="annotation x is not JSON"))
    assert world.engine.loop.next_pod() is None
    assert world.diary.events == [("pod", "FailedScheduling", "the pod is malformed: annotation x is not JSON")]


async def test_nothing_is_decided_or_written_without_the_lease() -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("pod"))
    world.lease.held = False
    assert await world.step() is None
    world.lease.held = True
    pod = world.engine.loop.next_pod()
    assert pod is not None
    world.lease.held = False
    await world.engine.loop.schedule_one(pod)
    assert (world.server.calls, world.ledgers()) == ([], {"node": {}})
    world.lease.held = True
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}


async def test_a_node_that_left_meanwhile_is_not_bound_to() -> None:
    world = make_world(make_node("node"))

    def cordon() -> None:
        world.engine.handlers.nodes.observe("MODIFIED", make_node("node", unschedulable=True))

    world.engine.loop.binding.steps = (Step("cordon", on_do=cordon),)
    world.waits(make_pod("pod"))
    await world.step()
    assert (world.server.calls, world.ledgers()) == ([], {"node": {}})
    world.engine.loop.binding.steps = ()
    world.engine.handlers.nodes.observe("MODIFIED", make_node("node"))
    world.clock.now += 1
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}


async def test_a_pod_that_tolerates_the_cordon_is_bound() -> None:
    """Every pod of a DaemonSet does."""
    world = make_world(make_node("node", unschedulable=True))
    pod = make_pod("pod")
    tolerant = Constraints(tolerations=(Toleration(key="node.kubernetes.io/unschedulable", exists=True),))
    world.waits(replace(pod, request=replace(pod.request, constraints=tolerant)))
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}


async def test_a_pod_that_is_created_anew_is_another_pod() -> None:
    world = make_world(make_node("node"))
    old = make_pod("pod")
    new = replace(old, key=replace(old.key, uid="uid-new"))
    world.waits(old)
    popped = world.engine.loop.next_pod()
    assert popped is not None
    assert popped.pod == old
    world.engine.handlers.pending_pods.observe("DELETED", old)
    world.server.pods.clear()
    world.waits(new)
    await world.engine.loop.schedule_one(popped)
    await world.settle()
    assert {uid: pod.node for uid, pod in world.server.pods.items()} == {"uid-new": "node"}
    assert set(world.ledgers()["node"]) == {"uid-new"}


async def test_a_kubelet_that_refuses_rests_for_that_class_only() -> None:
    world = make_world(make_node("node"))
    refused = make_pod("refused", cpu=2000)
    world.engine.handlers.bound_pods.observe("ADDED", bound(refused, "node"))
    world.engine.handlers.bound_pods.observe(
        "MODIFIED", bound(refused, "node", phase="Failed", reason="TopologyAffinityError")
    )
    world.waits(make_pod("twin", cpu=2000), make_pod("other", cpu=1000))
    await world.settle()
    assert world.nodes_of() == {"twin": "", "other": "node"}
    assert "1 node(s) had a kubelet that recently rejected such a pod" in world.engine.explain("uid-twin")
    assert world.diary.reasons("node") == ["KubeletRefusal"]
    world.clock.now += 31
    world.engine.assumed_pods.end_node_backoffs()
    await world.settle()
    assert world.nodes_of()["twin"] == "node"


async def test_old_refusals_found_at_the_start_say_nothing() -> None:
    world = make_world(make_node("node"), synced=False)
    old = make_pod("old", node="node", phase="Failed", reason="TopologyAffinityError")
    world.engine.handlers.bound_pods.observe(None, old)
    world.waits(make_pod("twin"))
    await world.settle()
    assert world.nodes_of()["twin"] == "node"


async def test_a_locked_node_waits_for_its_rebind() -> None:
    world = make_world(make_node("node"))
    world.engine.lock_node("node", "RebindResource repack works on it")
    world.waits(make_pod("pod"))
    await world.settle()
    assert world.nodes_of() == {"pod": ""}
    verdict = world.engine.queue.verdict(world.engine.handle.pending.get("uid-pod"))
    assert verdict is not None
    assert [rejection.reason for rejection in verdict.rejections.values()] == [Reason.LOCKED]
    world.engine.unlock_node("node")
    world.clock.now += 1
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}
