"""
Merged sets that are possible if one hint is taken of every resource.

A merged set is the intersection of one set of every resource. The number of combinations is the product of the lists'
lengths, but there are at most 2^n sets. Each list is a 0/1 array over all sets. Every entry is replaced by the sum over
its supersets, the arrays are multiplied by entry, and the sums are undone. The result is the number of combinations
with this intersection, for every set: n·2^n additions per resource, regardless of the lists' lengths. Below
``NARROWEST_TABLE`` and above ``WIDEST_TABLE`` NUMA nodes, sets are intersected pair by pair, without duplicates.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.numa.common_masks import WIDEST_TABLE
from koord_numa.core.numa.hint_providers import Takes, hints_of
from koord_numa.core.numa.hint_rule import HintRule
from koord_numa.core.numa.hints import Hint, mask_of, numa_ids

Counts = NDArray[np.int64]

NARROWEST_TABLE: Final = 6
"""Minimum NUMA nodes for a table instead of pairs of sets. At 4 NUMA nodes a table takes 220 microseconds and pairs take 26."""

WIDEST_MATRIX: Final = 8
"""Maximum NUMA nodes for sums as a product of matrices."""

_EXACT_FLOAT: Final = 2.0**44
"""Maximum combinations for which sums of counts are exact in floats."""

_EXACT: Final = 2**62
"""Upper bound of counts of combinations. Larger counts are reduced to 0 and 1 in between."""


def reachable_masks(takes: Sequence[Takes], nodes: int) -> list[int]:
    """
    Return every non-empty merged set within ``nodes``, ascending.

    Uses a table from ``NARROWEST_TABLE`` to ``WIDEST_TABLE`` NUMA nodes, else intersects the sets of the lists pair by
    pair.
    """
    ids = numa_ids(nodes)
    if NARROWEST_TABLE <= len(ids) <= WIDEST_TABLE:
        return _by_table(takes, ids)
    found = {nodes}
    for dimension in takes:
        # Without duplicates after each resource: at most 2^n sets, regardless of the number of combinations.
        masks = listed_masks(hints_of(dimension), nodes)
        found = {have & mask for have in found for mask in masks}
    return sorted(found - {0})


def listed_masks(hints: Iterable[Hint], nodes: int) -> set[int]:
    """Return the sets that these hints leave of ``nodes``. "Any" leaves all."""
    return {nodes if hint[0] is None else nodes & hint[0] for hint in hints}


def _by_matrix(takes: Sequence[Takes], ids: tuple[int, ...]) -> list[int] | None:
    """
    Return the result of ``_by_table``, with all sums in one matrix product. ``None`` if counts exceed the exact floats.

    At 8 NUMA nodes a table takes 250 microseconds and matrices take 70.
    """
    sums, signs = _matrices(len(ids))
    tables: list[Counts] = []
    for place, dimension in enumerate(takes):
        # The memory manager gives one rule for all its resources.
        tables.append(tables[-1] if place and dimension is takes[place - 1] else _table(dimension, ids))
    flags = np.array(tables, dtype=np.float64)
    if float(np.prod(np.maximum(flags.sum(axis=1), 1.0))) > _EXACT_FLOAT:
        return None
    counts = (flags @ sums).prod(axis=0) @ signs
    found: list[int] = np.flatnonzero(counts[1:] > 0.5).tolist()
    return [mask + 1 for mask in found]


@lru_cache(maxsize=WIDEST_MATRIX + 1)
def _matrices(nodes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the matrix that sums over supersets, and its inverse."""
    sums, signs = np.ones((1, 1)), np.ones((1, 1))
    for _ in range(nodes):
        sums = np.block([[sums, np.zeros_like(sums)], [sums, sums]])
        signs = np.block([[signs, np.zeros_like(signs)], [-signs, signs]])
    return sums, signs


def _by_table(takes: Sequence[Takes], ids: tuple[int, ...]) -> list[int]:
    if takes and len(ids) <= WIDEST_MATRIX and ids == tuple(range(len(ids))):
        found_by_matrix = _by_matrix(takes, ids)
        if found_by_matrix is not None:
            return found_by_matrix
    total: Counts | None = None
    combinations = 1
    last: Takes | None = None
    for dimension in takes:
        # The memory manager gives one rule for all its resources.
        if dimension is not last:
            sets = _table(dimension, ids)
            longest = int(sets.sum())
            sums = _sum_over_supersets(sets)
        last = dimension
        if total is None:
            total = sums
        else:
            # Counts multiply. Before they overflow int64 they are reduced to 0 and 1, which keeps "reachable" exact.
            if combinations * longest >= _EXACT:
                some = (_undo_sums(total) != 0).astype(np.int64)
                combinations = int(some.sum())
                total = _sum_over_supersets(some)
            total = total * sums
        combinations *= longest
    if total is None:
        return [_spread_out(2 ** len(ids) - 1, ids)]
    # Entry 0 is the empty intersection, which is no affinity.
    found: list[int] = np.flatnonzero(_undo_sums(total)[1:]).tolist()
    if ids == tuple(range(len(ids))):
        return [mask + 1 for mask in found]
    return [_spread_out(mask + 1, ids) for mask in found]


def _table(dimension: Takes, ids: tuple[int, ...]) -> Counts:
    if isinstance(dimension, HintRule) and dimension.counted is not None:
        return dimension.counted.table(ids).astype(np.int64)
    masks = listed_masks(hints_of(dimension), mask_of(ids))
    sets = np.zeros(2 ** len(ids), dtype=np.int64)
    if ids != tuple(range(len(ids))):
        masks = {sum(1 << i for i, numa in enumerate(ids) if mask >> numa & 1) for mask in masks}
    sets[list(masks)] = 1
    return sets


def _spread_out(mask: int, ids: tuple[int, ...]) -> int:
    return mask_of(ids[i] for i in numa_ids(mask))


def _sum_over_supersets(counts: Counts) -> Counts:
    sums = counts.copy()
    for half in _halves(len(sums)):
        # Axis 1 is the bit of weight ``half``: [:, 0] are the sets without it, [:, 1] those with it. Each set adds its
        # superset.
        view = sums.reshape(-1, 2, half)
        view[:, 0] += view[:, 1]
    return sums


def _undo_sums(sums: Counts) -> Counts:
    counts = sums.copy()
    for half in _halves(len(counts)):
        # The same steps with the opposite sign. Their order does not matter, since the bits are independent.
        view = counts.reshape(-1, 2, half)
        view[:, 0] -= view[:, 1]
    return counts


@lru_cache(maxsize=WIDEST_TABLE + 1)
def _halves(length: int) -> tuple[int, ...]:
    return tuple(1 << bit for bit in range(length.bit_length() - 1))
