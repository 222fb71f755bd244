"""Every setting of a profile reaches the decisions."""

import pytest

from koord_numa.core.objects.vocabulary import NodeScoring, NumaAllocateStrategy, ScoringType
from koord_numa.engine.ranking.selector import profile_of
from koord_numa.settings import ProfileSettings, ResourceWeight, ScoringStrategy
from tests.tables import each_row

MEMORY_ONLY = ScoringStrategy(type=ScoringType.LEAST_ALLOCATED, resources=(ResourceWeight(name="memory", weight=3),))


def test_nodes_and_numa_nodes_are_weighed_separately() -> None:
    rules = profile_of(ProfileSettings(numa_scoring_strategy=MEMORY_ONLY))
    assert rules.allocate.scoring is not None
    assert dict(rules.allocate.scoring.weights) == {"memory": 3}
    assert dict(rules.weights) == {"cpu": 1, "memory": 1}


@pytest.mark.parametrize(
    ("strategy", "fills"),
    [
        (ScoringType.MOST_ALLOCATED, NumaAllocateStrategy.MOST_ALLOCATED),
        (ScoringType.LEAST_ALLOCATED, NumaAllocateStrategy.LEAST_ALLOCATED),
        (ScoringType.BALANCED_ALLOCATION, NumaAllocateStrategy.LEAST_ALLOCATED),
    ],
)
def test_the_numa_scoring_orders_cpus_where_no_node_says(strategy: ScoringType, fills: NumaAllocateStrategy) -> None:
    rules = profile_of(ProfileSettings(numa_scoring_strategy=ScoringStrategy(type=strategy)))
    assert rules.allocate.strategy is fills


@each_row("method", list(NodeScoring))
def test_the_method_of_scoring_is_the_configured_one(method: NodeScoring) -> None:
    assert profile_of(ProfileSettings(node_scoring=method)).node_scoring is method
