"""Distances between the NUMA nodes of a set, compared by prefer-closest-numa-nodes for equally wide sets."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from koord_numa.core.cpu_topology import UNKNOWN_DISTANCE
from koord_numa.core.numa.hints import numa_ids

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
