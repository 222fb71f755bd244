"""
Hints: sets of NUMA nodes that could serve a resource, as bit masks, and their order.

Providers create hints, the merge chooses a hint, and policies admit pods.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np

from koord_numa.core.cpu_topology import UNKNOWN_DISTANCE
from koord_numa.core.cpuset import members


class Hint(NamedTuple):
    """
    A set of NUMA nodes that could serve a resource, or the merged set for all resources.

    ``mask`` has bit i for NUMA node i. ``None`` is "any". ``preferred``: no smaller set could ever serve it.
    Koordinator adds ``unsatisfied`` (the request would not completely fit) and ``score`` (decides between equally
    narrow sets).
    """

    mask: int | None
    preferred: bool
    unsatisfied: bool = False
    score: int = 0


ANYWHERE: Final = Hint(None, preferred=True)
NOWHERE: Final = Hint(None, preferred=False, unsatisfied=True)


@lru_cache(maxsize=1024)
def mask_of_ids(numa_ids: tuple[int, ...]) -> int:
    """Return the mask of a machine's NUMA nodes. Cached, since there are few different tuples."""
    return mask_of(numa_ids)


def mask_of(numa_ids: Iterable[int]) -> int:
    """Return the mask of these NUMA nodes."""
    mask = 0
    for numa in numa_ids:
        mask |= 1 << numa
    return mask


numa_ids: Final = members
"""Return the NUMA nodes of a set, ascending."""


@lru_cache(maxsize=1024)
def masks_of_size(nodes: int, size: int) -> tuple[int, ...]:
    """Return all sets of ``size`` of ``nodes``, lexicographic in the ids: {0,1} {0,2} {1,2}. As bitmask.IterateBitMasks."""
    return tuple(sum(bits) for bits in combinations([1 << numa for numa in numa_ids(nodes)], size))


Distances = Mapping[tuple[int, int], int]
"""ACPI SLIT distance from the first to the second NUMA node. ``UNKNOWN_DISTANCE`` for absent pairs, as in ``CpuTopology``."""

# Below this number of sets, creating two arrays costs more than the plain sums.
_WORTH_A_MATRIX: Final = 64


def closest(masks: Sequence[int], distances: Distances) -> int:
    """
    Return the set with the smallest average distance, then the numerically smallest, of equally wide sets.

    The average is over all ordered pairs, including each NUMA node with itself (the kubelet's numa_info.go). For sets
    of the same size, sums have the same order as averages and are exact. Raises ``ValueError`` without any mask.
    """
    sums = _sums_by_matrix(masks, distances) if len(masks) > _WORTH_A_MATRIX else [spread(m, distances) for m in masks]
    return min(zip(sums, masks, strict=True))[1]


def spread(mask: int, distances: Distances) -> int:
    """Return the sum of the distances over all ordered pairs of NUMA nodes in the set, including each with itself."""
    # Most sets have one member.
    if mask and not mask & (mask - 1):
        numa = mask.bit_length() - 1
        return distances.get((numa, numa), UNKNOWN_DISTANCE)
    ids = numa_ids(mask)
    return sum([distances.get((a, b), UNKNOWN_DISTANCE) for a in ids for b in ids])


def spreads(masks: Sequence[int], distances: Distances) -> list[int]:
    """Return ``spread`` of each of these sets."""
    single = [mask.bit_length() - 1 for mask in masks if mask and not mask & (mask - 1)]
    if len(single) == len(masks):
        return [distances.get((numa, numa), UNKNOWN_DISTANCE) for numa in single]
    return [spread(mask, distances) for mask in masks]


def _sums_by_matrix(masks: Sequence[int], distances: Distances) -> list[int]:
    everything = 0
    for mask in masks:
        everything |= mask
    ids = list(numa_ids(everything))
    members = np.array([[mask >> numa & 1 for numa in ids] for mask in masks], dtype=np.int64)
    costs = np.array([[distances.get((a, b), UNKNOWN_DISTANCE) for b in ids] for a in ids], dtype=np.int64)
    # Shape (masks, ids) @ (ids, ids) = (masks, ids): row m has the distance from the members of m to every id. The
    # product keeps only members.
    sums: list[int] = ((members @ costs) * members).sum(axis=1).tolist()
    return sums
