"""Pods that care for other pods or for volumes: rules as kube-scheduler's, and the same answer as asking every node."""

from collections.abc import Callable
from random import Random
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.constraints import (
    Constraints,
    LabelSelector,
    NodeTerm,
    Operator,
    PodTerm,
    PreferredPodTerm,
    Requirement,
    SpreadConstraint,
)
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Reason, Unschedulable
from koord_numa.core.objects.volumes import PersistentVolume, PersistentVolumeClaim
from koord_numa.core.scheduling.filters import decide, evaluate, evaluate_alone
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.listers import PodIndex, VolumeLister
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.containment import NodeBackoff
from koord_numa.engine.queue.pending_pod import RequestClasses
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.selector import Limits, Listers, NodeSelection
from koord_numa.settings import BackoffSettings, Settings
from tests.engine.clusters import random_node, random_pod, random_topology
from tests.engine.world import World, bound, make_node, make_pod, make_world


def app(*names: str) -> LabelSelector:
    return LabelSelector((Requirement("app", Operator.IN, names),))


def near(*names: str, key: str = "zone") -> PodTerm:
    return PodTerm(key, app(*names), ("default",))


def demanding(name: str, labelled: str = "", **demands: object) -> Pod:
    pod = make_pod(name, labels=(("app", labelled),) if labelled else ())
    constraints = Constraints(**demands)  # type: ignore[arg-type]  # demands are named fields
    return replace(pod, request=replace(pod.request, constraints=constraints, labels=pod.labels))


def zones(*names: str) -> World:
    return make_world(*(make_node(f"node-{name}", labels={"zone": name}) for name in names))


async def test_anti_affinity_of_placed_pods_repels_pods_without_terms() -> None:
    world = zones("a", "b")
    world.engine.handlers.bound_pods.observe(None, bound(demanding("lonely", anti_affinity=(near("web"),)), "node-a"))
    world.waits(demanding("web", "web"), demanding("other", "db"))
    await world.settle()
    assert world.nodes_of() == {"web": "node-b", "other": "node-a"}


async def test_waiting_pods_change_class_with_a_new_matching_term() -> None:
    world = zones("a")
    world.lease.held = False
    world.waits(demanding("web", "web"))
    await world.settle()
    world.engine.handlers.bound_pods.observe(None, bound(demanding("lonely", anti_affinity=(near("web"),)), "node-a"))
    world.lease.held = True
    await world.settle()
    assert world.nodes_of() == {"web": ""}
    world.engine.handlers.bound_pods.observe(
        "DELETED", bound(demanding("lonely", anti_affinity=(near("web"),)), "node-a")
    )
    world.clock.now += 60
    await world.settle()
    assert world.nodes_of() == {"web": "node-a"}


async def test_affinity_goes_where_its_friends_are() -> None:
    world = zones("a", "b", "c")
    world.engine.handlers.bound_pods.observe(None, bound(demanding("friend", "db"), "node-c"))
    world.waits(demanding("web", affinity=(near("db"),)))
    await world.settle()
    assert world.nodes_of() == {"web": "node-c"}


async def test_preferences_pull_and_push() -> None:
    world = zones("a", "b", "c")
    world.engine.handlers.bound_pods.observe(None, bound(demanding("friend", "db"), "node-b"))
    world.waits(
        demanding("to", preferred_affinity=(PreferredPodTerm(100, near("db")),)),
    )
    await world.settle()
    assert world.nodes_of() == {"to": "node-b"}


async def test_spread_keeps_the_skew_within_its_limit() -> None:
    world = zones("a", "b", "c")
    spread = (SpreadConstraint("zone", 1, hard=True, selector=app("web")),)
    for number in range(6):
        world.waits(demanding(f"web-{number}", "web", spread=spread))
        await world.settle()
    assert sorted(world.nodes_of().values()) == ["node-a", "node-a", "node-b", "node-b", "node-c", "node-c"]


async def test_a_bound_volume_decides_and_an_unknown_one_waits() -> None:
    world = zones("a", "b")
    world.waits(demanding("pod", claims=("data",)))
    await world.settle()
    assert world.nodes_of() == {"pod": ""}
    room = world.engine.volumes
    room.claims.observe("ADDED", PersistentVolumeClaim("default", "data", volume="pv", bound=True))
    in_b = NodeTerm(labels=(Requirement("zone", Operator.IN, ("b",)),))
    room.volumes.observe("ADDED", PersistentVolume("pv", node_terms=(in_b,)))
    room.synced()
    world.clock.now += 60
    await world.settle()
    assert world.nodes_of() == {"pod": "node-b"}


async def test_what_is_not_supported_is_refused_with_its_name() -> None:
    world = zones("a")
    world.waits(demanding("pod", unsupported=("resourceClaims",)))
    await world.settle()
    verdict = world.engine.queue.verdict(world.engine.handle.pending.get("uid-pod"))
    assert verdict is not None
    assert [no.reason for no in verdict.rejections.values()] == [Reason.UNSUPPORTED]
    assert "koord-numa does not support: resourceClaims" in world.engine.explain("uid-pod")


T = TypeVar("T")


def sometimes(dice: Random, chance: float, make: Callable[[], T]) -> tuple[T, ...]:
    return (make(),) if dice.random() < chance else ()


def random_demands(dice: Random) -> Constraints:
    """Affinity, anti-affinity, preferences or spread over a few labels and zones."""

    def term() -> PodTerm:
        key = dice.choice(("zone", "kubernetes.io/hostname"))
        return PodTerm(key, app(dice.choice("xyz")), ("default",))

    def preference() -> PreferredPodTerm:
        return PreferredPodTerm(dice.randint(1, 100), term())

    def even() -> SpreadConstraint:
        return SpreadConstraint("zone", 1, hard=dice.random() < 0.5, selector=app(dice.choice("xyz")))

    def by_default() -> tuple[SpreadConstraint, ...]:
        soft = SpreadConstraint(
            "zone", 5, hard=False, selector=app(dice.choice("xyz")), default=True, needs_label=False
        )
        return soft, replace(soft, topology_key="kubernetes.io/hostname", max_skew=3)

    return Constraints(
        affinity=sometimes(dice, 0.2, term),
        anti_affinity=sometimes(dice, 0.3, term),
        preferred_affinity=sometimes(dice, 0.3, preference),
        preferred_anti_affinity=sometimes(dice, 0.3, preference),
        spread=by_default() if dice.random() < 0.2 else sometimes(dice, 0.4, even),
    )


@given(seed=st.integers(0, 2**32))
def test_the_answer_is_that_of_asking_every_node(seed: int) -> None:
    dice, columns = Random(seed), NodeTable()
    state = Cache(lambda _event, info, _pod: columns.changed(info))
    configured = Settings()
    decider = NodeSelection(
        state,
        columns,
        NodeBackoff(BackoffSettings()),
        Listers(
            VolumeLister(lambda: None, state.index, state.node_exists, lambda: 0.0),
            ClaimLister(lambda: None, lambda _: None),
        ),
        Limits(lambda: 0.0, 16),
    )
    classes = RequestClasses(configured, state.index)
    for number in range(10):
        node = random_node(dice, f"node-{number}", cpus=16)
        state.observe_node(None, node)
        if dice.random() < 0.5:
            state.observe_topology(None, random_topology(dice, node))
    for number in range(25):
        pod = random_pod(dice, f"pod-{number}")
        pod = replace(pod, labels=(("app", dice.choice("xyz")),))
        pod = replace(pod, request=replace(pod.request, constraints=random_demands(dice), labels=pod.labels))
        request_class = classes.of(pod)
        assert request_class is not None
        found = decider.decide(request_class)
        candidates = [seen for record in state.nodes.values() if (seen := record.candidate())]
        ask, profile = decider.request_now(request_class), decider.profile_of(request_class)
        expected = decide(ask, candidates, profile)
        if isinstance(found, Placement):
            assert found == expected
            state.hold(pod, found)
        else:
            assert isinstance(expected, Unschedulable)
            assert found.rejections.keys() == expected.rejections.keys()
            for seen in candidates:  # of two refusals either may be told
                refusals = (evaluate(ask, seen, profile), evaluate_alone(ask, seen, profile))
                assert found.rejections[seen.node.name] in refusals


def test_the_index_of_placed_pods_forgets_everything() -> None:
    index, record = PodIndex(), Cache(lambda _event, _info, _pod: None)
    record.observe_node(None, make_node("node"))
    pods = [demanding(f"pod-{i}", anti_affinity=(near("web"),), claims=("data",)) for i in range(3)]
    for pod in pods:
        index.add(record.nodes["node"], pod)
        index.add(record.nodes["node"], pod, pod)
    assert index.pickers(demanding("web", "web")) == frozenset({near("web")})
    assert index.claims() == {("default", "data"): 3}
    for pod in pods:
        index.remove(record.nodes["node"], pod)
    index.take_news()
    assert (index, bool(index._term_index)) == (PodIndex(), False)


def test_unselected_labels_make_no_separate_class() -> None:
    classes = make_world(make_node("node")).engine.classes
    far = Constraints(
        anti_affinity=(near("web"),), spread=(SpreadConstraint("zone", 1, hard=True, selector=app("web")),)
    )

    def member(number: int, labelled: str) -> Pod:
        pod = make_pod(
            f"{labelled}-{number}", labels=(("app", labelled), ("statefulset.kubernetes.io/pod-name", f"{number}"))
        )
        return replace(pod, request=replace(pod.request, constraints=far, labels=pod.labels))

    assert classes.of(member(0, "web")) is classes.of(member(1, "web"))
    assert classes.of(member(0, "web")) is not classes.of(member(0, "db"))


async def test_anti_affinity_of_a_nominated_pod_holds_on_its_node() -> None:
    world = zones("a", "b")
    nominee = replace(demanding("lonely", anti_affinity=(near("web"),)), nominated="node-a", scheduler="other")
    world.engine.handlers.nominated_pods.observe(None, nominee)
    world.waits(demanding("web", "web"), demanding("other", "db"))
    await world.settle()
    assert world.nodes_of() == {"web": "node-b", "other": "node-a"}
    world.engine.handlers.nominated_pods.observe("DELETED", nominee)
    world.waits(demanding("next", "web"))
    await world.settle()
    assert world.nodes_of()["next"] == "node-a"
