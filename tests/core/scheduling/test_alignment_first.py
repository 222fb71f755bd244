"""A pod with CPUs of its own goes to a node where it fits on the fewest NUMA nodes; load decides among those."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Container, NumaSpec, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    NodeScoring,
    NumaPolicy,
    QosClass,
    ScoringType,
)
from koord_numa.core.scheduling.filters import ScoredPlacement, decide, evaluate
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.score.least_numa_nodes import PlacedPod
from koord_numa.core.score.node_scores import Strategy, score_node
from koord_numa.core.state.inventory import Inventory, NodeSnapshot, candidate, inventory
from koord_numa.core.state.ledger import Holding, Ledger
from tests.engine.world import GIB, make_node, make_topology

CLAIMS: tuple[NodeScoring, ...] = (
    NodeScoring.FEWEST_NUMA_NODES,
    NodeScoring.LEAST_NUMA_NODES,
    NodeScoring.POD_LEVEL_POLICY,
)
"""Methods of which a proposal says that a node that needs more NUMA nodes always scores lower."""


def lsr(cpus: int, policy: NumaPolicy = NumaPolicy.NONE) -> PodRequest:
    amounts = {"cpu": cpus * 1000, "memory": GIB}
    container = Container("app", ContainerKind.APP, amounts, amounts)
    return PodRequest(containers=(container,), qos=QosClass.LSR, numa=NumaSpec(policy))


def machine_of(seen: NodeSnapshot) -> CpuTopology:
    assert isinstance(seen.offer, Inventory)
    assert seen.offer.machine is not None
    return seen.offer.machine


def holding(cpus: CpuSet, machine: CpuTopology) -> Holding:
    counts = {numa: sum(machine.numa_of(CpuSet.of([cpu])) == 1 << numa for cpu in cpus) for numa in machine.numa_ids}
    numa = tuple((numa, {"cpu": 1000 * count}) for numa, count in counts.items() if count)
    return Holding(PodKey("d", "held", "held"), {"cpu": 1000 * len(cpus)}, cpus, numa=numa)


def some_node(name: str, dice: Random, *, sockets: int, cores: int) -> NodeSnapshot:
    """A machine on which some cores are in use, of any fill."""
    topology = make_topology(name, sockets=sockets, numa=dice.choice((1, 2)), cores=cores)
    assert topology.machine is not None
    count = len(topology.machine.cpus)
    offer = inventory(make_node(name, cpu=count, memory=32 * sockets), topology)
    used = dice.choice((0.0, 0.1, 0.5, 0.9))
    cpus = CpuSet.of(cpu for cpu in range(count) if dice.random() < used)
    node = make_node(name, cpu=count, memory=32 * sockets)
    return candidate(node, offer, Ledger.of([holding(cpus, topology.machine)] if cpus else []))


def numa_nodes(seen: NodeSnapshot, placement: Placement) -> int:
    return machine_of(seen).numa_of(placement.cpus).bit_count()


@pytest.mark.parametrize("policy", [NumaPolicy.NONE, NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED])
@pytest.mark.parametrize("method", NodeScoring, ids=lambda method: method.value)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), scoring=st.sampled_from(ScoringType))
def test_the_fewest_numa_nodes_win_over_load(
    policy: NumaPolicy, method: NodeScoring, seed: int, scoring: ScoringType
) -> None:
    dice = Random(seed)
    nodes = [some_node(f"n{at}", dice, sockets=dice.choice((1, 2)), cores=dice.choice((2, 4))) for at in range(4)]
    rules = Profile(node_scoring=method, scoring=scoring)
    ask = scheduling_request(lsr(dice.choice((1, 2, 4, 6, 8, 12)), policy), rules)
    found = {seen.node.name: (seen, evaluate(ask, seen, rules)) for seen in nodes}
    fewest = {
        name: numa_nodes(seen, answer.placement)
        for name, (seen, answer) in found.items()
        if isinstance(answer, ScoredPlacement)
    }
    verdict = decide(ask, nodes, rules)
    assert isinstance(verdict, Placement) == bool(fewest)
    if isinstance(verdict, Placement):
        assert fewest[verdict.node] == min(fewest.values())


@pytest.mark.parametrize("method", CLAIMS, ids=lambda method: method.value)
@given(seed=st.integers(0, 2**32))
def test_more_numa_nodes_score_lower(method: NodeScoring, seed: int) -> None:
    """Topology-aware scheduling, "Score": whatever else is on the nodes."""
    dice = Random(seed)
    rules, scores = Profile(node_scoring=method), {}
    ask = scheduling_request(lsr(dice.choice((4, 8, 12)), NumaPolicy.BEST_EFFORT), rules)
    for at in range(4):
        seen = some_node(f"n{at}", dice, sockets=2, cores=4)
        answer = evaluate(ask, seen, rules)
        if isinstance(answer, ScoredPlacement):
            assert isinstance(seen.offer, Inventory)
            placed = PlacedPod(answer.placement, ask.amounts, seen.offer, seen.ledger)
            scores[at] = (numa_nodes(seen, answer.placement), score_node(method, placed, Strategy()))
    for count, score in scores.values():
        for more, less in scores.values():
            assert count >= more or score > less
