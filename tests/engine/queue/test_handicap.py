"""Pods pay for their own size with their place in the queue."""

from koord_numa.core.objects.constraints import (
    Constraints,
    LabelSelector,
    Operator,
    PodTerm,
    PreferredPodTerm,
    Requirement,
)
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.engine.queue.pending_pod import ORDINARY_SIZE, PLACES_PER_PART, handicap
from tests.engine.world import World, make_node, make_pod, make_world


def large_pod(name: str, terms: int, priority: int = 0) -> Pod:
    """A pod with preferred terms of its own."""
    selectors = (LabelSelector((Requirement(f"{name}-{at}", Operator.EXISTS),)) for at in range(terms))
    wishes = tuple(
        PreferredPodTerm(1, PodTerm("kubernetes.io/hostname", selector, ("default",))) for selector in selectors
    )
    pod = make_pod(name, cpu=10)
    constraints = replace(pod.request.constraints, preferred_affinity=wishes)
    return replace(pod, request=replace(pod.request, constraints=constraints, priority=priority))


def order_of(world: World) -> list[str]:
    """The pods in the order in which they are tried."""
    found = []
    while (pending := world.engine.queue.pop(world.clock.now)) is not None:
        found.append(pending.pod.key.name)
    return found


def test_an_ordinary_pod_precedes_200_earlier_large_pods() -> None:
    world = make_world(make_node("node"))
    world.waits(*(large_pod(f"large-{number}", 100) for number in range(200)), make_pod("innocent", cpu=20))
    order = order_of(world)
    assert order[0] == "innocent"
    assert order[1:] == [f"large-{number}" for number in range(200)]


def test_a_large_pod_is_overtaken_by_a_bounded_number_of_pods() -> None:
    world = make_world(make_node("node"))
    large = large_pod("large", ORDINARY_SIZE + 10)
    places = handicap(large.request)
    assert places <= PLACES_PER_PART * (ORDINARY_SIZE + 10)
    small = [make_pod(f"small-{number}", cpu=100 + number) for number in range(places + 20)]
    world.waits(large, *small)
    assert places - 2 <= order_of(world).index("large") <= places + 2


def test_priority_comes_before_size() -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("ordinary"), large_pod("important", 100, priority=10))
    assert order_of(world) == ["important", "ordinary"]


def test_ordinary_pods_pay_nothing() -> None:
    assert handicap(make_pod("p").request) == 0
    assert handicap(replace(make_pod("p").request, constraints=Constraints(node_selector=(("a", "b"),) * 20))) == 0
