"""The bound of the NUMA score under LeastNUMANodes: never below the score, and close enough that few nodes are asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.objects.node import Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuOwner,
    NodeScoring,
    NumaAllocateStrategy,
    NumaPolicy,
    QosClass,
    ScoringType,
)
from koord_numa.core.scheduling.filters import ScoredPlacement, evaluate, evaluate_alone
from koord_numa.core.scheduling.request import scheduling_request
from koord_numa.core.value_objects import replace
from koord_numa.engine.ranking.node_ranking import NodeRanking
from koord_numa.engine.ranking.score_bounds import ScoreBounds
from tests.engine.clusters import GIB, random_node, random_topology
from tests.engine.ranking.test_node_ranking import Lab

LEAST = NodeScoring.LEAST_NUMA_NODES


def two_numa_nodes(node: Node) -> NodeResourceTopology:
    """Two NUMA nodes of eight CPUs, which the scheduler gives out."""
    share = {"cpu": 8000, "memory": 16 * GIB}
    machine = regular_topology(2, 1, 4, 2)
    zones = tuple(Zone(numa, share, share, share) for numa in machine.numa_ids)
    return NodeResourceTopology(node.name, CpuOwner.SCHEDULER, zones=zones, machine=machine, node_uid=node.uid)


class Strategies(Lab):
    """As ``Lab``, with nodes and pods that say over which NUMA nodes CPUs are spread, and nodes on which no default aligns."""

    def change_node(self) -> None:
        node = random_node(self.dice, f"node-{self.dice.randint(0, 19)}")
        if self.dice.random() < 0.3:
            node = replace(node, strategy=self.dice.choice(tuple(NumaAllocateStrategy)))
        if self.dice.random() < 0.3:
            node = replace(node, numa_policy=None)
        self.state.observe_node(None, node)
        self.state.observe_topology(None, random_topology(self.dice, node))


@given(seed=st.integers(0, 2**32), strategy=st.sampled_from(tuple(ScoringType)))
def test_no_node_scores_more_than_its_bound(seed: int, strategy: ScoringType) -> None:
    lab = Strategies(seed, strategy, LEAST)
    lab.columns.refresh()
    rows = np.arange(len(lab.columns), dtype=np.int64)
    for request in lab.requests:
        spread = replace(request, numa=replace(request.numa, strategy=lab.dice.choice((None, *NumaAllocateStrategy))))
        ask = scheduling_request(spread, lab.rules)
        for row, bound in enumerate(ScoreBounds(ask, lab.rules, lab.columns).bounds(rows)):
            candidate = lab.columns.candidate(row)
            answer = None if candidate is None else evaluate(ask, candidate, lab.rules)
            if isinstance(answer, ScoredPlacement):
                assert answer.score <= bound


@pytest.mark.parametrize(
    "policy", [pytest.param(NumaPolicy.BEST_EFFORT, id="by-policy"), pytest.param(None, id="by-default")]
)
def test_only_nodes_that_can_win_are_asked(policy: NumaPolicy | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty nodes, two NUMA nodes each; a pod that needs both of them has the same bound everywhere, and the first node reaches it."""
    lab = Lab(1, ScoringType.MOST_ALLOCATED, LEAST, nodes=0)
    for number in range(40):
        node = Node(
            f"n{number:02}",
            f"n{number:02}",
            allocatable={"cpu": 16_000, "memory": 32 * GIB, "pods": 10},
            numa_policy=policy,
        )
        lab.state.observe_node(None, node)
        lab.state.observe_topology(None, two_numa_nodes(node))
    asked = []

    def counting(*arguments: object) -> object:
        asked.append(arguments)
        return evaluate_alone(*arguments)  # type: ignore[arg-type]  # handed on as they come

    monkeypatch.setattr("koord_numa.engine.ranking.node_ranking.evaluate_alone", counting)
    amounts = {"cpu": 12_000, "memory": GIB}
    request = PodRequest((Container("c", ContainerKind.APP, amounts, amounts),), qos=QosClass.LSR)
    chosen = NodeRanking(scheduling_request(request, lab.rules), lab.rules, lab.columns).choose()
    assert chosen is not None
    assert (chosen.node, chosen.mask, len(asked)) == ("n00", 3, 1)
