"""Facts in any order, repeated, late and early: in the end the state is what the final objects say."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletAllocation, Node, NodeResourceTopology
from koord_numa.core.objects.request import Assignment, Pod
from koord_numa.core.objects.verdicts import Placement, Reason
from koord_numa.core.objects.vocabulary import CpuOwner, NumaPolicy
from koord_numa.core.scheduling.filters import ClusterEvent
from koord_numa.core.state.ledger import Ledger, holding_of
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import DELETED, Cache
from koord_numa.engine.cache.node_info import NodeInfo
from tests.engine.clusters import placed_anyhow, random_node, random_pod, random_topology
from tests.engine.world import bound, list_into, make_node, make_pod, make_topology
from tests.tables import each_row


class RecordingListener:
    """Remembers what a state reported."""

    def __init__(self) -> None:
        self.changes: list[tuple[ClusterEvent | None, str]] = []

    def __call__(self, event: ClusterEvent | None, info: NodeInfo, pod: Pod | None) -> None:
        self.changes.append((event, info.name))


def new_state() -> tuple[Cache, list[tuple[ClusterEvent | None, str]]]:
    heard = RecordingListener()
    return Cache(heard), heard.changes


Picture = dict[str, tuple[Node | None, NodeResourceTopology | None, Ledger, dict[str, Pod]]]


def picture(state: Cache) -> Picture:
    """Everything the state believes, without how it came to believe it."""
    return {name: (r.node, r.published, r.ledger, r.pods) for name, r in state.nodes.items()}


def play(seed: int, events: int) -> tuple[Cache, Cache]:
    """Random events; returns the state after them, and the one built from the final objects alone."""
    dice, (state, _) = Random(seed), new_state()
    nodes: dict[str, Node] = {}
    topologies: dict[str, NodeResourceTopology] = {}
    pods: dict[str, Pod] = {}
    names = [f"node-{i}" for i in range(12)]
    for _ in range(events):
        kind = dice.randint(0, 5)
        name, gone = dice.choice(names), dice.random() < 0.25
        repeats = dice.choice((1, 1, 1, 2))
        if kind == 0:
            node = random_node(dice, name)
            for _ in range(repeats):
                state.observe_node(DELETED if gone else dice.choice(("ADDED", "MODIFIED", None)), node)
            nodes.pop(name, None) if gone else nodes.update({name: node})
        elif kind == 1:
            topology = random_topology(dice, random_node(dice, name))
            for _ in range(repeats):
                state.observe_topology(DELETED if gone else "MODIFIED", topology)
            topologies.pop(name, None) if gone else topologies.update({name: topology})
        elif kind < 5:
            pod = placed_anyhow(dice, random_pod(dice, f"pod-{dice.randint(0, 80)}"), name)
            for _ in range(repeats):
                state.observe_pod(DELETED if gone else "MODIFIED", pod)
            pods.pop(pod.key.uid, None) if gone else pods.update({pod.key.uid: pod})
        elif dice.random() < 0.1:
            dice.choice(
                (
                    lambda: list_into(state, nodes=nodes.values()),
                    lambda: list_into(state, topologies=topologies.values()),
                    lambda: list_into(state, pods=pods.values()),
                )
            )()
    built, _ = new_state()
    list_into(built, pods=pods.values())
    list_into(built, topologies=topologies.values())
    list_into(built, nodes=nodes.values())
    return state, built


@each_row("seed", range(5))
def test_a_thousand_events_end_where_the_final_objects_begin(seed: int) -> None:
    state, built = play(seed, 1000)
    assert picture(state) == picture(built)
    assert state.node_of == built.node_of


@given(seed=st.integers(0, 2**32), events=st.integers(1, 120))
def test_any_events_end_where_the_final_objects_begin(seed: int, events: int) -> None:
    state, built = play(seed, events)
    assert picture(state) == picture(built)


def test_a_missed_deletion_is_made_good_by_the_next_list() -> None:
    state, _ = new_state()
    list_into(state, nodes=[make_node("stays"), make_node("goes")])
    list_into(state, pods=[make_pod("stays", node="stays"), make_pod("goes", node="stays")])
    list_into(state, topologies=[make_topology("stays"), make_topology("goes")])
    list_into(state, nodes=[make_node("stays")])
    list_into(state, pods=[make_pod("stays", node="stays")])
    list_into(state, topologies=[make_topology("stays")])
    expected, _ = new_state()
    expected.observe_node(None, make_node("stays"))
    expected.observe_topology(None, make_topology("stays"))
    expected.observe_pod(None, make_pod("stays", node="stays"))
    assert picture(state) == picture(expected)


PLACEMENT = Placement(node="node", cpus=CpuSet.parse("0-1"), numa=((0, {"cpu": 2000}),))


def test_a_list_older_than_a_bind_keeps_the_pod() -> None:
    state, _ = new_state()
    state.observe_node(None, make_node("node"))
    state.hold(make_pod("pod"), PLACEMENT)
    list_into(state, pods=[])
    assert state.nodes["node"].ledger.cpus == CpuSet.parse("0-1")


def test_an_assumed_pod_seen_bound_counts_by_its_annotation() -> None:
    state, _ = new_state()
    state.observe_node(None, make_node("node"))
    state.hold(make_pod("pod"), PLACEMENT)
    seen = bound(make_pod("pod"), "node", assignment=Assignment(cpus=CpuSet.parse("2-3")))
    state.observe_pod("ADDED", seen)
    assert (state.assumed, state.nodes["node"].ledger) == ({}, Ledger.of([holding_of(seen)]))


def test_an_assumed_pod_that_is_seen_elsewhere_gives_back_here() -> None:
    state, _ = new_state()
    for name in ("node", "other"):
        state.observe_node(None, make_node(name))
    state.hold(make_pod("pod"), PLACEMENT)
    seen = bound(make_pod("pod"), "other")
    state.observe_pod("ADDED", seen)
    assert picture(state)["node"][2] == Ledger()
    assert picture(state)["other"][2] == Ledger.of([holding_of(seen)])


def test_a_failed_assumption_is_released_unless_the_pod_is_seen() -> None:
    state, _ = new_state()
    state.observe_node(None, make_node("node"))
    with pytest.raises(RuntimeError), state.assume(make_pod("lost"), PLACEMENT):
        raise RuntimeError
    assert state.node_of == {}
    assumption = state.assume(make_pod("seen"), PLACEMENT)
    assumption.__enter__()
    state.observe_pod("ADDED", bound(make_pod("seen"), "node"))
    assert not assumption.__exit__(RuntimeError, RuntimeError(), None)
    assert state.node_of == {"uid-seen": "node"}


def test_assumed_kubelet_answers_count_until_the_pod_is_gone() -> None:
    state, _ = new_state()
    state.observe_node(None, make_node("node"))
    state.hold(make_pod("pod"), replace(PLACEMENT, cpus=CpuSet()))
    state.observe_pod("ADDED", bound(make_pod("pod"), "node"))
    state.observe_pod("MODIFIED", bound(make_pod("pod"), "node", started=True))
    assert state.nodes["node"].ledger.numa == {0: {"cpu": 2000}}
    state.observe_pod("DELETED", bound(make_pod("pod"), "node"))
    assert state.nodes["node"].ledger == Ledger()


def test_a_topology_of_a_former_node_is_ignored() -> None:
    state, _ = new_state()
    state.observe_topology(None, make_topology("node"))
    state.observe_node(None, make_node("node", uid="uid-new"))
    assert state.nodes["node"].topology is None
    state.observe_topology(None, replace(make_topology("node"), node_uid="uid-new"))
    assert state.nodes["node"].topology is not None


def test_an_unchanged_topology_changes_only_its_age() -> None:
    """The scheduler allocates the CPUs of this node. A kubelet's topology, or one that is waited for, counts as a change if it is newer."""
    state, changes = new_state()
    first = replace(make_topology("node"), resource_version="1")
    state.observe_node(None, make_node("node"))
    state.observe_topology(None, first)
    info = state.nodes["node"]
    changes.clear()
    revision, seen, state.clock = info.revision, info.candidate(), lambda: 60.0
    state.observe_topology("MODIFIED", replace(first, resource_version="2"))
    assert (changes, info.revision, info.candidate()) == ([], revision, seen)
    assert info.topology is not None
    assert (info.topology_seen, info.version, info.topology.resource_version) == (60.0, "2", "2")
    state.clock = lambda: 90.0
    state.observe_topology("MODIFIED", replace(first, resource_version="2"))
    assert info.topology_seen == 60.0

    state.observe_topology("MODIFIED", replace(first, resource_version="3", numa_policy=NumaPolicy.RESTRICTED))
    assert changes == [(ClusterEvent.TOPOLOGY_CHANGED, "node")]
    state.observe_pod("ADDED", bound(make_pod("pod"), "node"))  # it is not shown yet
    changes.clear()
    state.observe_topology("MODIFIED", replace(first, resource_version="4", numa_policy=NumaPolicy.RESTRICTED))
    assert changes == [(ClusterEvent.TOPOLOGY_CHANGED, "node")]

    kubelets = replace(first, owner=CpuOwner.KUBELET, machine=None)
    state.observe_topology("MODIFIED", kubelets)
    changes.clear()
    state.observe_topology("MODIFIED", replace(kubelets, resource_version="5"))
    assert changes == [(ClusterEvent.TOPOLOGY_CHANGED, "node")]


def test_two_owners_of_one_cpu_bar_the_node_until_one_is_gone() -> None:
    state, _ = new_state()
    state.observe_node(None, make_node("node"))
    given = KubeletAllocation("default", "static", "uid-static", CpuSet.parse("1-2"), managed_by_kubelet=True)
    state.observe_topology(None, replace(make_topology("node"), kubelet_pods=(given,)))
    seen = bound(make_pod("ours"), "node", assignment=Assignment(cpus=CpuSet.parse("0-1")))
    state.observe_pod(None, seen)
    candidate = state.nodes["node"].candidate()
    assert candidate is not None
    assert candidate.barred is not None
    assert (candidate.barred.reason, candidate.barred.detail) == (
        Reason.UNTRUSTED,
        "CPUs 1 belong to default/ours by its resource-status and to default/static by the kubelet's static policy",
    )
    state.observe_pod(DELETED, seen)
    candidate = state.nodes["node"].candidate()
    assert candidate is not None
    assert candidate.barred is None


def test_only_what_matters_is_reported() -> None:
    state, changes = new_state()
    node, pod = make_node("node"), bound(make_pod("pod"), "node")
    state.observe_node("ADDED", node)
    state.observe_node("MODIFIED", node)
    state.observe_pod("ADDED", pod)
    state.observe_pod("MODIFIED", replace(pod, resource_version="2", started=True))
    state.observe_pod("DELETED", pod)
    state.observe_pod("DELETED", pod)
    assert changes == [
        (ClusterEvent.NODE_ADDED, "node"),
        (ClusterEvent.POD_BOUND, "node"),
        (ClusterEvent.CAPACITY_FREED, "node"),
    ]


def test_a_changed_label_of_a_placed_pod_reaches_the_ledger() -> None:
    """numa-spread selects placed pods by the labels that the ledger carries."""
    state, _ = new_state()
    state.observe_node(None, make_node("n"))
    pod = bound(make_pod("p"), "n")

    def labeled(app: str) -> Pod:
        labels = (("app", app),)
        return replace(pod, labels=labels, request=replace(pod.request, labels=labels))

    state.observe_pod(None, labeled("prefill"))
    revision = state.nodes["n"].revision
    state.observe_pod(None, labeled("decode"))
    holding = state.nodes["n"].ledger.holdings[pod.key.uid]
    assert holding.request is not None
    assert holding.request.labels == (("app", "decode"),)
    # Remembered answers of the node are outdated.
    assert state.nodes["n"].revision > revision
