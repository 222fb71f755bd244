"""
Raw scores of the nodes that fit, brought to 0 to 100 by what those nodes offer: kube-scheduler's ``NormalizeScore`` of its soft
preferences.

Each function takes the raw scores of *all nodes that fit* (an integer array, one element a node) and returns as many points, truncated as
there. The best of the nodes that fit earns 100 whatever its raw score: nothing saturates, and one unit of a preference decides between two
nodes that are otherwise alike.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MAX_SCORE: Final = 100
MISSING: Final = -(1 << 40)
"""The raw score of a node that a preference cannot judge, because it lacks a topology label: it earns nothing."""


def as_given(raw: Ints) -> Ints:
    """Raw scores that are 0 to 100 by themselves, whatever other nodes offer (plugins without ``ScoreExtensions``)."""
    return raw


def most_first(raw: Ints) -> Ints:
    """100 for the highest raw score, the others in proportion; all 0 when none has any (``DefaultNormalizeScore``)."""
    highest = int(raw.max(initial=0))
    # Integer division, as DefaultNormalizeScore truncates.
    return raw * MAX_SCORE // highest if highest > 0 else np.zeros_like(raw)


def fewest_first(raw: Ints) -> Ints:
    """100 for a raw score of 0, less in proportion to the highest one (``DefaultNormalizeScore``, reversed)."""
    return MAX_SCORE - most_first(raw)


def between_extremes(raw: Ints) -> Ints:
    """0 for the lowest, 100 for the highest raw score; all 0 when they are equal (``interpodaffinity/scoring.go``)."""
    if not len(raw):
        return raw
    lowest, highest = int(raw.min()), int(raw.max())
    if lowest == highest:
        return np.zeros_like(raw)
    # Floating point as there, so that the truncated points are the same.
    return (MAX_SCORE * ((raw - lowest).astype(np.float64) / (highest - lowest))).astype(np.int64)


def least_crowded(raw: Ints) -> Ints:
    """
    100 for the least crowded node, the others by how far they are from the extremes; 0 where the raw score is ``MISSING``
    (``podtopologyspread/scoring.go``: ignored nodes). All labelled nodes earn 100 when none is crowded at all.
    """
    labelled = raw[raw != MISSING]
    if not len(labelled):
        # ``MISSING`` would be the lowest by far and flatten all other scores, so that it is left out first.
        return np.zeros_like(raw)
    lowest, highest = int(labelled.min()), int(labelled.max())
    # Inverted within the same range, as upstream: MaxNodeScore * (max + min - score) / max.
    points = np.full_like(raw, MAX_SCORE) if highest == 0 else MAX_SCORE * (highest + lowest - raw) // highest
    points[raw == MISSING] = 0
    return points
