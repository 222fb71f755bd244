"""Profiles of the settings, in the words of the core."""

from collections.abc import Mapping

from koord_numa.core.allocate import AllocateOptions, NumaScoring, WithoutTopology
from koord_numa.core.objects.vocabulary import NumaAllocateStrategy, ScoringType
from koord_numa.core.scheduling.request import Profile
from koord_numa.core.scheduling.scorers import PREFERENCES, SCORERS
from koord_numa.settings import NodesWithoutTopology, ProfileSettings, ScoringStrategy


def profile_of(profile: ProfileSettings) -> Profile:
    """What a profile says, in the words of the core."""
    weights = profile.score_weights
    return Profile(
        allocate=AllocateOptions(
            bind=profile.default_cpu_bind_policy,
            numa_policy=profile.default_numa_policy,
            exclusive=profile.single_numa_node_exclusive,
            strategy=_default_strategy(profile.numa_scoring_strategy),
            scoring=NumaScoring(profile.numa_scoring_strategy.type, _weights(profile.numa_scoring_strategy)),
            restricted=profile.restricted_policy,
            without_topology=_WITHOUT_TOPOLOGY[profile.nodes_without_topology],
        ),
        node_scoring=profile.node_scoring,
        scoring=profile.scoring_strategy.type,
        weights=_weights(profile.scoring_strategy),
        kubelet_options=profile.unknown_kubelet_options,
        # Settings name a weight for every scorer, so that a row without one fails here and not in a decision.
        score_weights={row.name: getattr(weights, row.name) for row in (*SCORERS, *PREFERENCES)},
    )


def _default_strategy(strategy: ScoringStrategy) -> NumaAllocateStrategy:
    """As Koordinator: nodes that name no strategy follow the NUMA scoring."""
    if strategy.type is ScoringType.MOST_ALLOCATED:
        return NumaAllocateStrategy.MOST_ALLOCATED
    return NumaAllocateStrategy.LEAST_ALLOCATED


def _weights(strategy: ScoringStrategy) -> dict[str, int]:
    return {resource.name: resource.weight for resource in strategy.resources}


_WITHOUT_TOPOLOGY: Mapping[NodesWithoutTopology, WithoutTopology] = {
    NodesWithoutTopology.REFUSE: WithoutTopology.REFUSE,
    NodesWithoutTopology.PERMISSIVE: WithoutTopology.PERMIT,
}
