"""The decision about a pod with many affinity terms is made in turns of bounded work, and other pods are decided between the turns."""

import asyncio
from collections.abc import Callable
from types import ModuleType

import pytest

from koord_numa.core.kubelet.state import spend
from koord_numa.core.objects.constraints import (
    LabelSelector,
    NodeTerm,
    Operator,
    PodTerm,
    PreferredPodTerm,
    Requirement,
    SpreadConstraint,
)
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import Container, Pod
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner, KubeletPolicy
from koord_numa.core.scheduling import filters
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.value_objects import replace
from koord_numa.engine.ranking import node_ranking
from koord_numa.engine.ranking.node_ranking import Undecided
from koord_numa.engine.ranking.pod_counts import Namespaces, PodKind, SelectedByTerms, TermGroup
from tests.engine.world import World, bound, make_node, make_pod, make_topology, make_world

UNDECIDED = Undecided.UNDECIDED
TERMS = 60
STEPS = 300
"""Steps of a turn in these tests: five kinds of placed pods."""


def term(number: int, value: str) -> PodTerm:
    """A term that selects every pod without this value."""
    selector = LabelSelector((Requirement("app", Operator.NOT_IN, (value,)),))
    return PodTerm("kubernetes.io/hostname", selector, ("default",))


def large_pod(name: str, terms: int = TERMS) -> Pod:
    """A pod with preferred terms that no other pod has."""
    pod = make_pod(name, cpu=10, memory=0)
    wishes = tuple(PreferredPodTerm(1 + at % 9, term(at, f"{name}-{at}")) for at in range(terms))
    constraints = replace(pod.request.constraints, preferred_affinity=wishes)
    return replace(pod, request=replace(pod.request, constraints=constraints))


def full_world(kinds: int) -> World:
    """Two nodes with pods of different labels."""
    world = make_world(
        *(make_node(f"node-{at}", cpu=99, labels={"kubernetes.io/hostname": f"node-{at}"}) for at in range(2))
    )
    for at in range(kinds):
        placed = bound(make_pod(f"placed-{at}", 10, 0, labels=(("app", f"a{at}"),)), f"node-{at % 3 // 2}")
        world.engine.handlers.bound_pods.observe(None, placed)
    return world


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small turns, so that few pods need many."""
    monkeypatch.setattr(node_ranking, "TURN_STEPS", STEPS)


def test_a_large_decision_takes_turns_and_ends_as_in_one_go() -> None:
    world, other = full_world(100), full_world(100)
    pod = large_pod("large")
    request_class = world.engine.classes.of(pod)
    assert request_class is not None
    turns = 0
    while (answer := world.engine.handle.selector.choose_some(request_class, 64)) is UNDECIDED:
        turns += 1
    assert turns == pytest.approx(100 * TERMS / STEPS, abs=2)
    whole = other.engine.handle.selector.choose(other.engine.classes.of(pod) or request_class)
    assert isinstance(answer, Placement)
    assert answer == whole


def test_a_turn_does_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    world = full_world(100)
    request_class = world.engine.classes.of(large_pod("large"))
    assert request_class is not None
    compared: list[int] = []
    weigh = SelectedByTerms.weigh

    def counting(it: SelectedByTerms, kind: PodKind, namespaces: Namespaces) -> int:
        compared.append(it.steps(kind))
        return weigh(it, kind, namespaces)

    monkeypatch.setattr(SelectedByTerms, "weigh", counting)
    while world.engine.handle.selector.choose_some(request_class, 64) is UNDECIDED:
        assert sum(compared) < STEPS + TERMS
        compared.clear()


def kubelet_owned_world(*names: str) -> World:
    """A world of kubelet-owned nodes whose evaluations may be continued later."""
    world = make_world(*(make_node(name) for name in names))
    world.engine.cache.on_unfinished = lambda: None
    for name in names:
        kubelet = KubeletConfig(KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static")
        topology = replace(make_topology(name), owner=CpuOwner.KUBELET, machine=None, kubelet=kubelet)
        world.engine.handlers.topologies.observe("ADDED", topology)
    return world


def with_many_steps(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[str]:
    """Let every evaluation by this function take 160 steps and reject the pod. Return the list of evaluated nodes."""
    evaluated = list[str]()

    def refuse(_: object, seen: NodeSnapshot, *__: object) -> Rejection:
        evaluated.append(seen.node.name)
        spend(160)
        return Rejection(Reason.KUBELET_ALIGNMENT, "not yet")

    monkeypatch.setattr(module, name, refuse)
    return evaluated


def test_many_states_of_a_kubelet_count_like_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"node-{at}" for at in range(6)]
    world = kubelet_owned_world(*names)
    evaluated = with_many_steps(monkeypatch, node_ranking, "evaluate_alone")
    request_class = world.engine.classes.of(make_pod("pod"))
    assert request_class is not None
    turns = []
    while world.engine.handle.selector.choose_some(request_class, 64) is UNDECIDED:
        turns.append(len(evaluated))
    assert sorted(evaluated) == names
    assert turns == [2, 4]  # 160 steps count like 40 nodes


def test_an_explanation_takes_turns_after_many_states(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"node-{at}" for at in range(6)]
    world = kubelet_owned_world(*names)
    evaluated = with_many_steps(monkeypatch, node_ranking, "evaluate_alone")
    request_class = world.engine.classes.of(make_pod("pod", cpu=10_000_000))
    assert request_class is not None
    selector = world.engine.handle.selector
    assert selector.choose_some(request_class, 64) is None  # the sums of the nodes suffice
    assert not evaluated
    turns = []
    while not selector.explain_some(request_class, 64):
        turns.append(len(evaluated))
    assert sorted(evaluated) == names
    assert turns == [2, 4]  # 160 steps count like 40 nodes


def test_a_comparison_of_nodes_ends_after_many_states(monkeypatch: pytest.MonkeyPatch) -> None:
    world, pod = kubelet_owned_world("node-0", "node-1", "node-2"), make_pod("pod")
    selector = world.engine.handle.selector
    request_class = world.engine.classes.of(pod)
    assert request_class is not None
    placed = selector.choose(request_class)
    assert placed is not None
    assert len(selector.compare(request_class, pod, placed.node, 2)) == 3
    evaluated = with_many_steps(monkeypatch, filters, "evaluate")
    assert selector.compare(request_class, pod, placed.node, 2).keys() == {placed.node}
    assert evaluated == [placed.node]


def test_pods_that_come_and_go_between_turns_are_counted() -> None:
    world = full_world(100)
    request_class = world.engine.classes.of(large_pod("large"))
    assert request_class is not None
    selector, handlers = world.engine.handle.selector, world.engine.handlers.bound_pods
    for at in range(20):
        assert selector.choose_some(request_class, 64) is UNDECIDED or at > 5
        gone = bound(make_pod(f"placed-{at}", 10, 0, labels=(("app", f"a{at}"),)), f"node-{at % 3 // 2}")
        handlers.observe("DELETED", gone)
        handlers.observe(None, bound(make_pod(f"new-{at}", 10, 0, labels=(("app", f"n{at}"),)), "node-1"))
    while selector.choose_some(request_class, 64) is UNDECIDED:
        pass
    group = TermGroup((wish.term, wish.weight) for wish in request_class.request.constraints.preferred_affinity)
    pods = world.engine._node_table.pods
    before = pods.count(SelectedByTerms(group)).rows.tolist()
    pods._counts.clear()
    assert pods.count(SelectedByTerms(group)).rows.tolist() == before


async def until(done: Callable[[], bool]) -> None:
    """Give way to the engine until then."""
    for _ in range(100_000):
        if done():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


def with_node_terms(name: str, parts: int) -> Pod:
    """A pod that names labels that no node has, in each of its terms."""
    terms = tuple(NodeTerm((Requirement("app", Operator.IN, (f"{name}-{at}",)),)) for at in range(parts))
    pod = make_pod(name, cpu=10, memory=0)
    return replace(pod, request=replace(pod.request, constraints=replace(pod.request.constraints, node_terms=terms)))


def with_spread(name: str, parts: int) -> Pod:
    """A pod with constraints that no other pod has."""
    spread = tuple(
        SpreadConstraint("kubernetes.io/hostname", 1, at % 2 == 0, term(at, f"{name}-{at}").selector)
        for at in range(parts)
    )
    pod = make_pod(name, cpu=10, memory=0)
    return replace(pod, request=replace(pod.request, constraints=replace(pod.request.constraints, spread=spread)))


def with_containers(name: str, parts: int) -> Pod:
    """A pod of many containers."""
    cpu = 1 + len(name) + int(name.removeprefix("large-"))
    containers = tuple(Container(f"c{at}", ContainerKind.APP, {"cpu": cpu, "memory": 1}) for at in range(parts))
    pod = make_pod(name)
    return replace(pod, request=replace(pod.request, containers=containers))


def with_terms(name: str, parts: int) -> Pod:
    """A pod with preferred terms."""
    return large_pod(name, parts)


@pytest.mark.parametrize("make", [with_node_terms, with_spread, with_containers])
def test_few_nodes_are_evaluated_in_a_turn(make: Callable[[str, int], Pod], monkeypatch: pytest.MonkeyPatch) -> None:
    """A node takes longer for a larger pod."""
    world = make_world(*(make_node(f"node-{at:02}", cpu=1) for at in range(40)))
    request_class = world.engine.classes.of(make("large-1", 500))
    assert request_class is not None
    evaluated: list[int] = []
    turns: list[int] = []
    evaluate = node_ranking.NodeRanking._evaluate

    def counting(it: node_ranking.NodeRanking, row: int) -> None:
        evaluated.append(row)
        evaluate(it, row)

    monkeypatch.setattr(node_ranking.NodeRanking, "_evaluate", counting)
    selector, limit = world.engine.handle.selector, request_class.slice
    while selector.choose_some(request_class, limit) is UNDECIDED or not selector.explain_some(request_class, limit):
        turns.append(len(evaluated))
        evaluated.clear()
    assert max(turns) <= 4
    assert sum(turns) + len(evaluated) == 40


@pytest.mark.parametrize("make", [with_terms, with_node_terms, with_spread, with_containers])
async def test_an_ordinary_pod_waits_few_turns_beside_200_large_pods(
    make: Callable[[str, int], Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_ranking, "TURN_STEPS", 1000)
    world = full_world(20)
    turns: list[int] = []
    begun = node_ranking.NodeRanking.choose_some

    def counting(
        it: node_ranking.NodeRanking, limit: int, images: tuple[str, ...] = ()
    ) -> Placement | Undecided | None:
        turns.append(1)
        return begun(it, limit, images)

    monkeypatch.setattr(node_ranking.NodeRanking, "choose_some", counting)
    world.waits(*(make(f"large-{number}", 100) for number in range(200)))
    running = asyncio.create_task(world.engine.run())
    await until(lambda: len(turns) >= 5)
    turns.clear()
    world.waits(make_pod("innocent", cpu=20))
    await until(lambda: bool(world.nodes_of()["innocent"]))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(turns) <= 4  # one of the large pod that is under way, and its own
