"""Scores of nodes for placements: Koordinator's published examples, A + B, and the pod-level policy's formula."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.allocation.allocate import AllocateOptions, allocate
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import NodeScoring, NumaPolicy, QosClass, ScoringType
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.score.least_numa_nodes import PlacedPod
from koord_numa.core.score.node_scores import (
    METHODS,
    Strategy,
    score_cpu_allocation,
    score_node,
    score_numa_topology,
    score_orchestration,
)
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import GI, held, node, pod
from tests.tables import each_row

MOST, LEAST = Strategy(ScoringType.MOST_ALLOCATED), Strategy(ScoringType.LEAST_ALLOCATED)
BALANCED = Strategy(ScoringType.BALANCED_ALLOCATION)
CPU_ONLY = Strategy(ScoringType.MOST_ALLOCATED, {"cpu": 1})
SINGLE, RESTRICTED = NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED
UNASKED = AllocateOptions(numa_policy=NumaPolicy.NONE)


def placed(request: PodRequest, where: Inventory, holdings: Sequence[Holding] = ()) -> PlacedPod:
    ledger = Ledger.of(holdings)
    answer = allocate(request, where, ledger, UNASKED)
    assert isinstance(answer, Placement)
    return PlacedPod(answer, effective_requests(request), where, ledger)


BIG = node("2x1x26x2", memory=128 * GI)
LSR = QosClass.LSR


@each_row(
    ("request_", "where", "holdings", "strategy", "score"),
    [
        pytest.param(pod(4000, qos=LSR), node(), (), CPU_ONLY, 25, id="4-of-16"),
        pytest.param(pod(16000, qos=LSR), node(), (), CPU_ONLY, 100, id="16-of-16"),
        pytest.param(pod(2000, qos=LSR), node(), (), CPU_ONLY, 12, id="2-of-16"),
        pytest.param(pod(16000, qos=LSR), node("2x2x4x2"), (), CPU_ONLY, 50, id="16-of-32"),
        pytest.param(pod(21000, 40 * GI, limit=22000, numa=SINGLE), BIG, (), MOST, 35, id="single-numa"),
        pytest.param(
            pod(21000, 40 * GI, limit=22000, numa=SINGLE),
            node("1x1x32x2", memory=128 * GI),
            (),
            MOST,
            31,
            id="one-numa-node",
        ),
        pytest.param(pod(50000, 40 * GI, limit=51000, numa=RESTRICTED), BIG, (), MOST, 63, id="restricted"),
        pytest.param(
            pod(4000, 40 * GI, limit=5000, numa=SINGLE),
            BIG,
            (held("a", numa={0: {"cpu": 4000, "memory": 8 * GI}}),),
            MOST,
            19,
            id="shared",
        ),
        *(
            pytest.param(
                pod(4000, 40 * GI, qos=LSR, numa=SINGLE),
                BIG,
                (held("a", f"0-{count - 1}", {0: {"cpu": 1000 * count, "memory": 40 * GI}}),),
                MOST,
                score,
                id=f"node-wide-cpus-{count}",
            )
            for count, score in ((4, 23), (8, 27), (16, 34))
        ),
    ],
)
def test_koordinators_examples(
    request_: PodRequest, where: Inventory, holdings: Sequence[Holding], strategy: Strategy, score: int
) -> None:
    assert score_node(NodeScoring.KOORDINATOR, placed(request_, where, holdings), strategy) == score


def amplified(cpu: int, memory: int, ratio: float) -> Inventory:
    """A node of ``cpu`` amplified CPUs; its zones are of no interest here."""
    count = int(cpu / ratio)
    return replace(
        node(f"1x1x{count // 2}x2"),
        zones=(),
        allocatable={"cpu": 1000 * cpu, "memory": memory * GI},
        ratios={"cpu": ratio},
        node_ratios={"cpu": ratio},
    )


NODES = (amplified(32, 40, 1), amplified(128, 60, 2), amplified(64, 40, 2))
SHARE, OWN = pod(8000, 16 * GI, limit=9000), pod(8000, 16 * GI, qos=LSR)
SHARING = held("x", cpu=20000, memory=4 * GI)
OWNING = held("x", "0-19", cpu=20000, memory=4 * GI)


@each_row(
    ("request_", "existing", "strategy", "scores"),
    [
        pytest.param(SHARE, (), MOST, (32, 16, 26), id="share"),
        pytest.param(OWN, (), MOST, (32, 19, 32), id="own"),
        pytest.param(SHARE, (OWNING,), MOST, (68, 35), id="share-beside-own"),
        pytest.param(OWN, (SHARING,), MOST, (68, 30), id="own-beside-share"),
        pytest.param(OWN, (OWNING,), MOST, (68, 38), id="own-beside-own"),
        pytest.param(SHARE, (SHARING,), LEAST, (31, 72), id="least-share-beside-share"),
        pytest.param(SHARE, (OWNING,), LEAST, (31, 64), id="least-share-beside-own"),
        pytest.param(OWN, (SHARING,), LEAST, (31, 68), id="least-own-beside-share"),
        pytest.param(OWN, (OWNING,), LEAST, (31, 61), id="least-own-beside-own"),
    ],
)
def test_koordinators_amplified_examples(
    request_: PodRequest, existing: Sequence[Holding], strategy: Strategy, scores: tuple[int, ...]
) -> None:
    got = [score_node(NodeScoring.KOORDINATOR, placed(request_, where, existing), strategy) for where in NODES]
    assert tuple(got[: len(scores)]) == scores


@each_row(
    ("request_", "strategy", "a", "b"),
    [
        pytest.param(pod(4000, 8 * GI, qos=LSR), LEAST, 0, 87, id="no-policy-one-of-eight"),
        pytest.param(pod(4000, 16 * GI, qos=LSR, numa=SINGLE), LEAST, 62, 87, id="one-of-eight"),
        pytest.param(pod(12000, 16 * GI, qos=LSR, numa=RESTRICTED), LEAST, 56, 75, id="two-of-eight"),
        pytest.param(pod(12000, 16 * GI, qos=LSR, numa=RESTRICTED), MOST, 43, 25, id="two-of-eight-most"),
        pytest.param(pod(4000, 32 * GI, qos=LSR, numa=SINGLE), BALANCED, 100, 100, id="balanced"),
        pytest.param(pod(4000, 16 * GI, limit=5000, numa=SINGLE), LEAST, 62, 0, id="ls-has-no-b"),
    ],
)
def test_a_and_b(request_: PodRequest, strategy: Strategy, a: int, b: int) -> None:
    """Eight NUMA nodes of eight CPUs and 64Gi each."""
    it = placed(request_, node("2x4x4x2"))
    assert (score_numa_topology(it, strategy), score_cpu_allocation(it, strategy)) == (a, b)
    assert score_orchestration(it, strategy) == (a + b) // 2


def test_the_pod_level_score_prefers_fewer_then_fuller_nodes() -> None:
    empty = node(memory=64 * GI)
    one = placed(pod(4000, 32 * GI, limit=5000, numa=SINGLE), empty)
    fuller = placed(
        pod(4000, 32 * GI, limit=5000, numa=SINGLE),
        empty,
        (held("a", numa={0: {"cpu": 4000}}), held("b", numa={1: {"cpu": 4000}})),
    )
    two = placed(pod(12000, 64 * GI, limit=13000, numa=RESTRICTED), empty)
    assert [score_node(NodeScoring.POD_LEVEL_POLICY, it, LEAST) for it in (one, fuller, two)] == [95, 98, 87]


def test_without_numa_nodes_a_plus_b_is_nothing() -> None:
    where = Inventory("n", allocatable={"cpu": 8000, "memory": GI})
    it = placed(pod(1500, GI, limit=2000), where)
    assert score_orchestration(it, LEAST) == 0


@given(st.lists(st.integers(0, 200), min_size=1))
def test_a_constant_scale_keeps_the_order_of_normalized_scores(sums: list[int]) -> None:
    normalised = [100 * one // max(1, *sums) for one in sums]
    ours = [one // 2 for one in sums]
    assert all(ours[i] <= ours[k] for i, a in enumerate(normalised) for k, b in enumerate(normalised) if a < b)


@given(
    st.sampled_from(list(NodeScoring)),
    st.sampled_from([strategy for strategy in ScoringType if strategy is not ScoringType.LEAST_NUMA_NODES]),
    st.integers(1, 32),
    st.sampled_from([SINGLE, RESTRICTED, NumaPolicy.BEST_EFFORT, NumaPolicy.NONE]),
)
def test_every_score_is_0_to_100(method: NodeScoring, strategy: ScoringType, cpus: int, policy: NumaPolicy) -> None:
    """On a node of 16 CPUs on each of two NUMA nodes."""
    where, request = node("2x1x8x2"), pod(1000 * cpus, GI, qos=LSR, numa=policy)
    answer = allocate(request, where, Ledger(), UNASKED)
    if isinstance(answer, Placement):
        placed_there = PlacedPod(answer, effective_requests(request), where, Ledger())
        assert 0 <= score_node(method, placed_there, Strategy(strategy)) <= 100


def test_every_method_has_a_row() -> None:
    assert set(METHODS) == set(NodeScoring)
