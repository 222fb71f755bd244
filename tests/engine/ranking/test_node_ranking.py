"""Remembered rankings and sweeps answer exactly as asking every node does, whatever changes in between."""

from functools import partial
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.constraints import LabelSelector, Operator, Requirement
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, NumaSpec, NumaSpread, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Unschedulable
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuOwner,
    KubeletPolicy,
    NodeScoring,
    NumaPolicy,
    NumaSpreadMode,
    NumaSpreadScope,
    ScoringType,
)
from koord_numa.core.scheduling import filters, scorers
from koord_numa.core.scheduling.filters import ClusterEvent, ScoredPlacement, decide, evaluate, evaluate_alone
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.scheduling.scorers import SCORERS, Scorer
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import DELETED, Cache
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.ranking import score_bounds, selector
from koord_numa.engine.ranking.node_ranking import NodeRanking
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.score_bounds import NO, ScoreBounds
from koord_numa.engine.ranking.selector import profile_of
from koord_numa.settings import ProfileSettings, ScoringStrategy
from tests.engine.clusters import GIB, placed_anyhow, random_node, random_pod, random_request, random_topology

STRATEGIES = tuple(ScoringType)
FEWEST = NodeScoring.FEWEST_NUMA_NODES
METHODS = st.sampled_from(tuple(NodeScoring))


class Lab:
    """A cluster state with its columns, changed at random."""

    def __init__(self, seed: int, strategy: ScoringType, method: NodeScoring = FEWEST, nodes: int = 12) -> None:
        self.dice = Random(seed)
        self.columns = NodeTable()
        self.state = Cache(lambda _event, record, _pod: self.columns.changed(record))
        self.rules: Profile = profile_of(
            ProfileSettings(scoring_strategy=ScoringStrategy(type=strategy), node_scoring=method)
        )
        self.requests = [random_request(self.dice) for _ in range(5)]
        self.count = 0
        for _ in range(nodes):
            self.change_node()
        for _ in range(3 * nodes):
            self.change_pod()

    def change_node(self) -> None:
        """A node comes, changes or goes, with or without its topology."""
        dice, name = self.dice, f"node-{self.dice.randint(0, 19)}"
        node = random_node(dice, name)
        event = DELETED if dice.random() < 0.1 else None
        self.state.observe_node(event, node)
        if dice.random() < 0.7:
            self.state.observe_topology(DELETED if dice.random() < 0.1 else None, random_topology(dice, node))

    def change_pod(self) -> None:
        """A pod is counted, changes or goes."""
        dice = self.dice
        pod = random_pod(dice, f"pod-{dice.randint(0, 60)}", self.requests)
        placed = placed_anyhow(dice, pod, f"node-{dice.randint(0, 19)}")
        self.state.observe_pod(DELETED if dice.random() < 0.3 else None, placed)

    def place(self, request: PodRequest) -> None:
        """Count one more pod as the engine would."""
        verdict = self.by_asking_everyone(request)
        if isinstance(verdict, Placement):
            self.count += 1
            self.state.hold(random_pod(self.dice, f"new-{self.count}", [request]), verdict)

    def by_asking_everyone(self, request: PodRequest) -> Placement | Unschedulable:
        """The specification."""
        seen = [record.candidate() for record in self.state.nodes.values()]
        return decide(
            scheduling_request(request, self.rules), [candidate for candidate in seen if candidate], self.rules
        )


@given(seed=st.integers(0, 2**32), strategy=st.sampled_from(STRATEGIES), method=METHODS)
def test_a_sweep_never_says_less_than_a_node_does(seed: int, strategy: ScoringType, method: NodeScoring) -> None:
    lab = Lab(seed, strategy, method)
    lab.columns.refresh()
    rows = np.arange(len(lab.columns), dtype=np.int64)
    for request in lab.requests:
        ask = scheduling_request(request, lab.rules)
        bounds = ScoreBounds(ask, lab.rules, lab.columns).bounds(rows)
        for row, bound in enumerate(bounds):
            candidate = lab.columns.candidate(row)
            answer = None if candidate is None else evaluate(ask, candidate, lab.rules)
            if isinstance(answer, ScoredPlacement):
                assert answer.score <= bound
            elif answer is None:
                assert bound < 0


@example(seed=413, strategy=ScoringType.LEAST_ALLOCATED, method=NodeScoring.FEWEST_NUMA_NODES)  # a NUMA node in debt
@given(seed=st.integers(0, 2**32), strategy=st.sampled_from(STRATEGIES), method=METHODS)
def test_a_remembered_ranking_answers_as_asking_everyone(seed: int, strategy: ScoringType, method: NodeScoring) -> None:
    lab = Lab(seed, strategy, method)
    rankings = [
        (request, NodeRanking(scheduling_request(request, lab.rules), lab.rules, lab.columns))
        for request in lab.requests
    ]
    for _ in range(25):
        request, ranking = lab.dice.choice(rankings)
        found, expected = ranking.choose(), lab.by_asking_everyone(request)
        if isinstance(expected, Placement):
            assert found == expected
        else:
            assert found is None
            told = {name: (no.reason, no.message) for name, no in ranking.explain().rejections.items()}
            assert told == {name: (no.reason, no.message) for name, no in expected.rejections.items()}
        for _ in range(lab.dice.randint(0, 6)):
            lab.dice.choice((lab.change_node, lab.change_pod, partial(lab.place, request)))()


def test_a_new_scorer_is_a_function_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_name(_ask: object, seen: NodeSnapshot, _placement: object, _profile: object) -> int:
        return int(seen.node.name.removeprefix("node-")) * 37 % 101

    rows = (*SCORERS, Scorer("new", "New", 3_000, by_name))
    for module in (scorers, filters, score_bounds, selector):
        monkeypatch.setattr(module, "SCORERS", rows)
    monkeypatch.setattr(filters, "_NAMES", tuple(row.name for row in rows))
    chosen = set[str]()
    for seed in range(6):
        lab = Lab(seed, ScoringType.MOST_ALLOCATED)
        for request in lab.requests:
            ranking = NodeRanking(scheduling_request(request, lab.rules), lab.rules, lab.columns)
            expected = lab.by_asking_everyone(request)
            assert ranking.choose() == (expected if isinstance(expected, Placement) else None)
            chosen |= {expected.node} if isinstance(expected, Placement) else set()
            lab.place(request)
    assert len(chosen) > 3


APPS = ("prefill", "decode")


def of_app(request: PodRequest, app: str, dice: Random) -> PodRequest:
    """The request of a workload whose pods are spread or packed inside nodes."""
    wish = NumaSpread(
        LabelSelector((Requirement("app", Operator.IN, (app,)),)),
        request.namespace,
        dice.choice(tuple(NumaSpreadScope)),
        dice.choice(tuple(NumaSpreadMode)),
        dice.random() < 0.5,
    )
    return replace(request, labels=(("app", app),), numa_spread=wish)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), method=METHODS)
def test_rankings_of_spread_workloads_follow_changed_labels(seed: int, method: NodeScoring) -> None:
    lab = Lab(seed, ScoringType.MOST_ALLOCATED, method)
    dice = lab.dice
    requests = [of_app(request, app, dice) for request in lab.requests[:2] for app in APPS]
    rankings = [
        (request, NodeRanking(scheduling_request(request, lab.rules), lab.rules, lab.columns)) for request in requests
    ]
    for _ in range(15):
        request, ranking = dice.choice(rankings)
        expected = lab.by_asking_everyone(request)
        assert ranking.choose() == (expected if isinstance(expected, Placement) else None)
        lab.place(request)
        pods = [pod for name in sorted(lab.state.nodes) for pod in lab.state.nodes[name].pods.values()]
        if pods and dice.random() < 0.5:
            pod, labels = dice.choice(pods), (("app", dice.choice(APPS)),)
            lab.state.observe_pod(None, replace(pod, labels=labels, request=replace(pod.request, labels=labels)))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.value)
def test_most_nodes_are_never_asked(strategy: ScoringType, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(5, strategy)
    asked = 0

    def counting(*arguments: object) -> object:
        nonlocal asked
        asked += 1
        return evaluate_alone(*arguments)  # type: ignore[arg-type]  # handed on as they come

    ranking = NodeRanking(scheduling_request(lab.requests[0], lab.rules), lab.rules, lab.columns)
    ranking.choose()
    monkeypatch.setattr("koord_numa.engine.ranking.node_ranking.evaluate_alone", counting)
    ranking.choose()
    assert asked == 0


def _changed(columns: NodeTable, _event: ClusterEvent | None, record: NodeInfo, _pod: Pod | None) -> None:
    columns.changed(record)


def test_equal_nodes_are_ordered_by_name_not_by_arrival() -> None:
    orders = [["b", "a", "c"], ["c", "b", "a"], ["a", "b", "c"]]
    chosen = []
    for order in orders:
        columns = NodeTable()
        state = Cache(partial(_changed, columns))
        ranking = None
        for name in order:
            node = random_node(Random(1), "same", cpus=16)
            state.observe_node(None, type(node)(name=name, allocatable=node.allocatable))
            request = random_pod(Random(2), "pod", [PodRequest()]).request
            rules = profile_of(ProfileSettings())
            ranking = ranking or NodeRanking(scheduling_request(request, rules), rules, columns)
            ranking.choose()
        verdict = ranking.choose() if ranking else None
        assert isinstance(verdict, Placement)
        chosen.append(verdict.node)
    assert chosen == ["a", "a", "a"]


def kubelets_node(version: str) -> NodeResourceTopology:
    """Two NUMA nodes of eight CPUs, whose kubelet says nothing of how it hands them out."""
    zones = tuple(Zone(numa, *([{"cpu": 8000, "memory": 8 * GIB}] * 3)) for numa in (0, 1))
    kubelet = KubeletConfig(topology_policy=KubeletPolicy.SINGLE_NUMA_NODE)
    return NodeResourceTopology("n", CpuOwner.KUBELET, zones=zones, kubelet=kubelet, resource_version=version)


def guaranteed(cpus: int, policy: NumaPolicy = NumaPolicy.NONE) -> PodRequest:
    """A pod that a static kubelet gives CPUs of its own."""
    amounts = {"cpu": 1000 * cpus, "memory": GIB}
    return PodRequest((Container("c", ContainerKind.APP, amounts, amounts),), numa=NumaSpec(policy))


def test_what_a_kubelet_never_does_needs_no_asking() -> None:
    columns = NodeTable()
    state = Cache(partial(_changed, columns))
    labels = {"kubernetes.io/arch": "amd64"}
    state.observe_node(None, Node("n", labels=labels, allocatable={"cpu": 16000, "memory": 16 * GIB, "pods": 9}))
    state.observe_topology(None, kubelets_node("1"))

    def bound(request: PodRequest) -> int:
        columns.refresh()
        rules = profile_of(ProfileSettings())
        return int(ScoreBounds(scheduling_request(request, rules), rules, columns).bounds(np.array([0]))[0])

    def may(request: PodRequest) -> bool:
        return bound(request) > NO

    assert may(guaranteed(2))
    assert not may(guaranteed(2, NumaPolicy.RESTRICTED))  # this kubelet has another policy
    assert bound(guaranteed(2)) > 0
    assert bound(guaranteed(3)) == 0  # half a core: a pod may find out whether the kubelet minds, which earns no points
    assert not may(guaranteed(9))  # no NUMA node has as many, whatever the kubelet minds
    labels = {**labels, "of": "later"}
    state.observe_node(None, Node("n", labels=labels, allocatable={"cpu": 16000, "memory": 16 * GIB, "pods": 9}))
    assert bound(guaranteed(3)) == 0  # its Node is another one, and the pods there have proved as little as before
    refused = Pod(PodKey("ns", "r", "r"), guaranteed(3), node="n")
    state.observe_pod(None, refused)
    state.observe_pod(None, replace(refused, phase="Failed", reason="SMTAlignmentError"))
    assert not may(guaranteed(3))  # it does
    state.observe_pod(None, Pod(PodKey("ns", "a", "a"), guaranteed(1), node="n", started=True))
    assert bound(guaranteed(3)) > 0  # cores have one thread, for it has been seen to give out one CPU


def kubelets_view(state: Cache) -> KubeletView:
    """Return the view of the kubelet of node ``n``."""
    seen = state.nodes["n"].candidate()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    return seen.offer


def test_a_started_pod_proves_options_of_the_kubelet() -> None:
    changes: list[str] = []
    state = Cache(lambda _event, record, _pod: changes.append(record.name))
    state.observe_node(None, Node("n", labels={"kubernetes.io/arch": "amd64"}, allocatable={"cpu": 16000, "pods": 9}))
    state.observe_topology(None, kubelets_node("1"))
    odd, even = (Pod(PodKey("ns", name, name), guaranteed(cpus), node="n") for name, cpus in (("o", 1), ("e", 2)))
    exploring = replace(Pod(PodKey("ns", "x", "x"), guaranteed(3), node="n"), explores=("full-pcpus-only",))
    for pod in (odd, even, exploring):
        state.observe_pod(None, pod)
    view = kubelets_view(state)
    assert (view.cores.threads, view.explored) == (2, True)
    for pod, news in ((odd, True), (odd, False), (even, True), (exploring, True)):
        changes.clear()
        state.observe_pod(None, replace(pod, started=True))
        assert bool(changes) is news
    view = kubelets_view(state)
    assert (view.cores.threads, view.explored) == (1, False)
