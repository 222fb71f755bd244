"""Scores from published zones where the scheduler-plugins' own code has no answer: gaps between ids, nothing asked, one resource."""

import pytest

from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuOwner,
    KubeletPolicy,
    KubeletScope,
    KubeQos,
    ScoringType,
)
from koord_numa.core.resources import ResourceList
from koord_numa.core.score.node_scores import score_zones
from koord_numa.core.value_objects import replace
from tests.tables import each_row

GI = 1 << 30
MOST, LEAST, BALANCED, FEWEST = (
    ScoringType.MOST_ALLOCATED,
    ScoringType.LEAST_ALLOCATED,
    ScoringType.BALANCED_ALLOCATION,
    ScoringType.LEAST_NUMA_NODES,
)


def published(scope: KubeletScope, *ids: int) -> NodeResourceTopology:
    """Zones of 8 CPUs and 64Gi with these ids."""
    free = {"cpu": 8000, "memory": 64 * GI}
    return NodeResourceTopology(
        node="n",
        owner=CpuOwner.KUBELET,
        zones=tuple(Zone(numa, free, free, free) for numa in ids),
        kubelet=KubeletConfig(topology_policy=KubeletPolicy.SINGLE_NUMA_NODE, topology_scope=scope),
    )


def pod(*requests: ResourceList) -> PodRequest:
    return PodRequest(tuple(Container(f"c{i}", ContainerKind.APP, one, one) for i, one in enumerate(requests)))


WEIGHTS = {"cpu": 1, "memory": 1}
TWO, CPU_ONLY = {"cpu": 2000, "memory": 16 * GI}, {"cpu": 2000}


@each_row("scope", list(KubeletScope))
@each_row(
    ("ids", "asks", "strategy", "score"),
    [
        pytest.param((2, 40), (TWO,), MOST, 25, id="gaps-most"),
        pytest.param((2, 40), (TWO,), LEAST, 75, id="gaps-least"),
        pytest.param((2, 40), (TWO,), BALANCED, 100, id="gaps-balanced"),
        pytest.param((2, 40), (TWO,), FEWEST, 94, id="gaps-fewest"),
        pytest.param((0, 1), (CPU_ONLY,), BALANCED, 100, id="one-resource-is-in-balance"),
        pytest.param((0, 1), ({},), BALANCED, 100, id="nothing-asked-is-in-balance"),
        pytest.param((0, 1), ({},), MOST, 0, id="nothing-asked-fills-nothing"),
        pytest.param((0, 1), ({},), FEWEST, 100, id="nothing-asked-needs-no-numa-node"),
        pytest.param((), (TWO,), MOST, 0, id="no-zones"),
    ],
)
def test_scores_without_a_crash(
    scope: KubeletScope, ids: tuple[int, ...], asks: tuple[ResourceList, ...], strategy: ScoringType, score: int
) -> None:
    topology = published(scope, *ids)
    assert score_zones(pod(*asks), KubeQos.GUARANTEED, topology, strategy, WEIGHTS) == score


def test_a_pod_without_containers_is_scored_too() -> None:
    topology = published(KubeletScope.CONTAINER, 0, 1)
    assert {s: score_zones(pod(), KubeQos.GUARANTEED, topology, s, WEIGHTS) for s in ScoringType} == {
        MOST: 0,
        LEAST: 0,
        BALANCED: 0,
        FEWEST: 100,
    }


@pytest.mark.parametrize("strategy", [MOST, LEAST, BALANCED])
def test_unlisted_resources_weigh_nothing(strategy: ScoringType) -> None:
    topology = published(KubeletScope.CONTAINER, 0, 1)
    listed = {"cpu": 1}
    with_memory = score_zones(pod(TWO), KubeQos.GUARANTEED, topology, strategy, listed)
    assert with_memory == score_zones(pod(CPU_ONLY), KubeQos.GUARANTEED, topology, strategy, listed)


def test_zones_that_cannot_hold_the_request_do_not_count() -> None:
    """The smallest score of the zones that could be picked: upstream leaves out zones that score 0 (KEP-119 takes all)."""
    full = {"cpu": 1000, "memory": 0}
    topology = published(KubeletScope.CONTAINER, 0, 1)
    crowded = replace(topology, zones=(*topology.zones, Zone(2, full, full, full)))
    scores = [score_zones(pod(TWO), KubeQos.GUARANTEED, one, MOST, WEIGHTS) for one in (topology, crowded)]
    assert scores == [25, 25]
