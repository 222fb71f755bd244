"""Topology hints and the policies that merge them to the NUMA nodes of a pod."""

from koord_numa.core.numa.hints import (
    IMPOSSIBLE,
    Answer,
    Counted,
    Distances,
    Hint,
    HintRule,
    common_masks,
    fewest_that_reach,
    mask_of,
    mask_of_ids,
    masks_of_size,
    numa_ids,
    spreads,
)
from koord_numa.core.numa.policies import (
    KOORDINATOR,
    UNCONSTRAINED,
    Decision,
    NumaExclusivity,
    NumaOccupancy,
    admitted_affinity,
    decide_koordinator,
)

__all__ = [
    "IMPOSSIBLE",
    "KOORDINATOR",
    "UNCONSTRAINED",
    "Answer",
    "Counted",
    "Decision",
    "Distances",
    "Hint",
    "HintRule",
    "NumaExclusivity",
    "NumaOccupancy",
    "admitted_affinity",
    "common_masks",
    "decide_koordinator",
    "fewest_that_reach",
    "mask_of",
    "mask_of_ids",
    "masks_of_size",
    "numa_ids",
    "spreads",
]
