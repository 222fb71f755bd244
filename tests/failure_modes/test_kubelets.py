"""Kubelets that refuse: noticed, counted, said, and no controller runs in circles because of it."""

import pytest

from koord_numa.core.objects.request import CpuBind, Pod
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from koord_numa.core.value_objects import replace
from tests.engine.world import World, bound, make_node, make_pod, make_world

HOUR = 3600


def as_shown(pod: Pod) -> Pod:
    """As the API server shows a bound pod: with its node in the spec, and the policy in force filled in."""
    request = pod.request
    constraints = replace(request.constraints, node_name=pod.node)
    return replace(
        pod, request=replace(request, constraints=constraints, bind=CpuBind(preferred=CpuBindPolicy.FULL_PCPUS))
    )


async def hot_loop(world: World, refusing: set[str], seconds: int) -> tuple[int, list[str]]:
    """
    A ReplicaSet with one pod, kubelets that refuse, and time. Returns how many pods it made and where they were bound.

    The controller makes the next pod as soon as one has failed, as real ones do: the pause can only come from the scheduler.
    """
    made, places, end = 0, [], world.clock.now + seconds
    pod: Pod | None = None
    while world.clock.now < end:
        if pod is None:
            made += 1
            pod = make_pod(f"pod-{made}", 2000)
            world.waits(pod)
        await world.settle()
        node = world.nodes_of()[pod.key.name]
        if node:
            places.append(node)
            world.engine.handlers.bound_pods.observe("ADDED", as_shown(bound(pod, node)))
            if node not in refusing:
                return made, places
            failed = as_shown(bound(pod, node, phase="Failed", reason="UnexpectedAdmissionError"))
            world.engine.handlers.bound_pods.observe("MODIFIED", failed)
            world.server.pods.pop(pod.key.uid)
            pod = None
        else:
            world.clock.now += 1
            world.engine.assumed_pods.end_node_backoffs()
    return made, places


async def test_a_controller_cannot_run_in_circles() -> None:
    world = make_world(make_node("node"))
    made, places = await hot_loop(world, {"node"}, HOUR)
    assert made - 1 == len(places)
    assert 5 <= len(places) <= 12  # rests of 30 s, 1, 2, 4, 8 minutes, then 10 minutes each
    assert world.engine.metrics.refusals == {"UnexpectedAdmissionError": len(places)}


async def test_the_next_pod_goes_to_another_node() -> None:
    world = make_world(make_node("a"), make_node("b"), make_node("c"))
    made, places = await hot_loop(world, {"a", "b"}, HOUR)
    assert (made, places) == (3, ["a", "b", "c"])


@pytest.mark.parametrize(
    "reason", ["TopologyAffinityError", "SMTAlignmentError", "UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory"]
)
async def test_every_refusal_is_counted_once_and_said_on_the_node(reason: str) -> None:
    world = make_world(make_node("node"))
    refused = bound(make_pod("pod"), "node", phase="Failed", reason=reason)
    for _ in range(3):
        world.engine.handlers.bound_pods.observe("MODIFIED", refused)
    assert world.engine.metrics.refusals == {reason: 1}
    assert world.diary.reasons("node") == ["KubeletRefusal"]
    assert reason in world.diary.events[0][2]


@pytest.mark.parametrize("reason", ["Evicted", "", "NodeAffinity"], ids=["evicted", "crashed", "other"])
async def test_other_failures_are_no_refusals(reason: str) -> None:
    world = make_world(make_node("node"))
    world.engine.handlers.bound_pods.observe("MODIFIED", bound(make_pod("pod"), "node", phase="Failed", reason=reason))
    assert not world.engine.metrics.refusals
