"""Affinity terms that select namespaces by their labels: kube-scheduler's ``namespaceSelector``."""

import pytest

from koord_numa.core.objects.constraints import Constraints, LabelSelector, Namespace, Operator, PodTerm, Requirement
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Reason
from koord_numa.core.value_objects import replace
from koord_numa.engine import Source
from tests.engine.world import World, bound, make_node, make_pod, make_world

A_TEAM = LabelSelector((Requirement("team", Operator.IN, ("a",)),))
WEB = LabelSelector((Requirement("app", Operator.IN, ("web",)),))
TERM = PodTerm("zone", WEB, (), A_TEAM)
"""Pods labelled ``app: web`` of whatever namespace is labelled ``team: a``."""


def pod(name: str, namespace: str, **demands: object) -> Pod:
    """A pod labelled ``app: web``."""
    made = make_pod(name, key=PodKey(namespace, name, f"uid-{name}"), labels=(("app", "web"),))
    constraints = Constraints(**demands)  # type: ignore[arg-type]  # demands are named fields
    return replace(
        made, request=replace(made.request, namespace=namespace, constraints=constraints, labels=made.labels)
    )


def two_zones() -> World:
    """Nodes a and b, each a zone of its own; node a is the first choice of equals."""
    return make_world(make_node("a", labels={"zone": "a"}), make_node("b", labels={"zone": "b"}))


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        pytest.param({"team": "a"}, "b", id="selected"),
        pytest.param({"team": "b"}, "", id="labelled otherwise"),
        pytest.param({}, "", id="not labelled"),
    ],
)
async def test_affinity_follows_pods_of_selected_namespaces(labels: dict[str, str], node: str) -> None:
    world = two_zones()
    world.engine.handlers.namespaces.replace([Namespace("friends", labels)])
    world.engine.handlers.bound_pods.observe(None, bound(pod("friend", "friends"), "b"))
    world.waits(pod("here", "default", affinity=(TERM,)))
    await world.settle()
    assert world.nodes_of() == {"here": node}


async def test_affinity_waits_until_the_namespace_is_labelled() -> None:
    world = two_zones()
    world.engine.handlers.namespaces.replace([Namespace("friends")])
    world.engine.handlers.bound_pods.observe(None, bound(pod("friend", "friends"), "b"))
    world.waits(pod("here", "default", affinity=(TERM,)))
    await world.settle()
    verdict = world.engine.queue.verdict(world.engine.handle.pending.get("uid-here"))
    assert verdict is not None
    assert {refusal.reason for refusal in verdict.rejections.values()} == {Reason.POD_AFFINITY}
    world.clock.now += 60
    world.engine.handlers.namespaces.observe("MODIFIED", Namespace("friends", {"team": "a"}))
    await world.settle()
    assert world.nodes_of() == {"here": "b"}


async def test_anti_affinity_of_placed_pods_selects_namespaces() -> None:
    world = two_zones()
    world.engine.handlers.namespaces.replace([Namespace("rivals", {"team": "a"}), Namespace("others")])
    world.engine.handlers.bound_pods.observe(None, bound(pod("lonely", "default", anti_affinity=(TERM,)), "a"))
    world.waits(pod("rival", "rivals"), pod("other", "others"))
    await world.settle()
    assert world.nodes_of() == {"rival": "b", "other": "a"}


async def test_a_namespace_label_change_reevaluates_a_waiting_pod() -> None:
    world = make_world(make_node("a", labels={"zone": "a"}))
    world.engine.handlers.namespaces.replace([Namespace("rivals", {"team": "a"})])
    world.engine.handlers.bound_pods.observe(None, bound(pod("lonely", "default", anti_affinity=(TERM,)), "a"))
    world.waits(pod("rival", "rivals"))
    await world.settle()
    assert world.nodes_of() == {"rival": ""}
    world.engine.handlers.namespaces.observe("MODIFIED", Namespace("rivals", {"team": "b"}))
    await world.settle()
    assert world.nodes_of() == {"rival": "a"}


async def test_a_list_without_a_namespace_says_that_it_is_gone() -> None:
    world = two_zones()
    heard: list[int] = []
    rooms = world.engine.namespaces
    rooms.on_change = lambda: heard.append(len(world.engine.cache.index.namespaces))
    rooms.replace([Namespace("one", {"x": "1"}), Namespace("two")])
    rooms.replace([Namespace("two"), Namespace("one", {"x": "1"})])
    rooms.observe("MODIFIED", Namespace("two"))
    rooms.replace([Namespace("one", {"x": "2"})])
    rooms.observe("DELETED", Namespace("one"))
    rooms.observe("DELETED", Namespace("one"))
    assert heard == [2, 1, 0]


async def test_nothing_is_decided_before_namespaces_are_known() -> None:
    world = make_world(make_node("a"), synced=False)
    for source in Source:
        if source is not Source.NAMESPACES:
            world.engine.synced(source)
    assert (world.engine.ready, world.engine.missing) == (False, frozenset({Source.NAMESPACES}))
    world.engine.synced(Source.NAMESPACES)
    assert world.engine.ready
