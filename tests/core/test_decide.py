"""The configured scoring method decides which node wins. Kubelet-owned nodes are scored by published amounts."""

import pytest

from koord_numa.core.kubelet.view import kubelet_view
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, NodeScoring, NumaPolicy, QosClass, ScoringType
from koord_numa.core.scheduling.filters import decide
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.state.inventory import NodeSnapshot, candidate
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import replace
from koord_numa.settings import ScoreWeightSettings
from tests.core.allocation import nodes
from tests.core.allocation.nodes import GI
from tests.tables import each_row

ONLY_NUMA = {**dict.fromkeys(ScoreWeightSettings.model_fields, 0), "numa": 1}
POD = nodes.pod(4000, 4 * GI, qos=QosClass.LSR, numa=NumaPolicy.RESTRICTED)


def ours(name: str, shape: str, used: int = 0) -> NodeSnapshot:
    """A node whose CPUs are ours, with so many GiB used on each of its first two NUMA nodes."""
    offer = replace(nodes.node(shape), node=name)
    ledger = (
        Ledger.of([nodes.held("other", numa={numa: {"memory": used * GI} for numa in (0, 1)})]) if used else Ledger()
    )
    return candidate(Node(name, allocatable=offer.allocatable), offer, ledger)


def kubelets(name: str, cpus: int) -> NodeSnapshot:
    """A node of a kubelet with two free NUMA nodes."""
    free = {"cpu": 1000 * cpus, "memory": 64 * GI}
    published = NodeResourceTopology(
        node=name,
        owner=CpuOwner.KUBELET,
        zones=(Zone(0, free, free, free), Zone(1, free, free, free)),
        kubelet=KubeletConfig(topology_policy=KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static"),
        distances={(0, 0): 10, (0, 1): 21, (1, 0): 21, (1, 1): 10},
    )
    node = Node(name, allocatable={"cpu": 2000 * cpus, "memory": 128 * GI, "pods": 110})
    return candidate(node, kubelet_view(node, published, ()), Ledger())


@each_row(
    ("method", "winner"),
    [
        pytest.param(NodeScoring.FEWEST_NUMA_NODES, "eight", id="equal-so-the-first-name"),
        pytest.param(NodeScoring.CPU_ORCHESTRATION, "used", id="one-of-two-numa-nodes-and-fuller"),
        pytest.param(NodeScoring.KOORDINATOR, "used", id="fuller-numa-node"),
        pytest.param(NodeScoring.POD_LEVEL_POLICY, "used", id="equally-many-then-fuller"),
    ],
)
def test_the_configured_method_decides(method: NodeScoring, winner: str) -> None:
    rules = Profile(node_scoring=method, score_weights=ONLY_NUMA)
    found = decide(scheduling_request(POD, rules), [ours("used", "2x1x4x2", used=32), ours("eight", "2x4x4x2")], rules)
    assert isinstance(found, Placement)
    assert found.node == winner


COUNTING = (NodeScoring.FEWEST_NUMA_NODES, NodeScoring.LEAST_NUMA_NODES)
"""They count NUMA nodes and do not look at how full these are."""


@each_row(
    ("scoring", "winner"),
    [
        pytest.param(ScoringType.MOST_ALLOCATED, "small", id="most-the-fuller-zone"),
        pytest.param(ScoringType.LEAST_ALLOCATED, "large", id="least-the-emptier-zone"),
    ],
)
@each_row("method", [each for each in NodeScoring if each not in COUNTING])
def test_nodes_of_kubelets_are_scored_by_their_zones(method: NodeScoring, scoring: ScoringType, winner: str) -> None:
    rules = Profile(node_scoring=method, scoring=scoring, score_weights=ONLY_NUMA)
    request = nodes.pod(4000, 4 * GI)
    found = decide(scheduling_request(request, rules), [kubelets("large", 32), kubelets("small", 8)], rules)
    assert isinstance(found, Placement)
    assert found.node == winner
