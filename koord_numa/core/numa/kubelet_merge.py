"""
The kubelet's merge of the hints of all resources to a set of NUMA nodes, independent of policies.

The kubelet iterates over every combination of one hint per resource and keeps the best. Its comparison is a total
order, so the winner can be looked up. A preferred result needs a set that every resource prefers: an intersection of
lists. Only without such a set, different sets are combined, and then only the possible intersections matter, not the
number of their combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from koord_numa.core.numa.hints import (
    WIDEST_TABLE,
    Distances,
    Hint,
    HintRule,
    Takes,
    closest,
    hints_of,
    mask_of,
    numa_ids,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Merged sets that are possible if one hint is taken of every resource.
#
# A merged set is the intersection of one set of every resource. The number of combinations is the product of the lists'
# lengths, but there are at most 2^n sets. Each list is a 0/1 array over all sets. Every entry is replaced by the sum over
# its supersets, the arrays are multiplied by entry, and the sums are undone. The result is the number of combinations
# with this intersection, for every set: n·2^n additions per resource, regardless of the lists' lengths. Below
# ``NARROWEST_TABLE`` and above ``WIDEST_TABLE`` NUMA nodes, sets are intersected pair by pair, without duplicates.

Counts: TypeAlias = "NDArray[np.int64]"

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
    import numpy as np

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
    import numpy as np

    sums, signs = np.ones((1, 1)), np.ones((1, 1))
    for _ in range(nodes):
        sums = np.block([[sums, np.zeros_like(sums)], [sums, sums]])
        signs = np.block([[signs, np.zeros_like(signs)], [-signs, signs]])
    return sums, signs


def _by_table(takes: Sequence[Takes], ids: tuple[int, ...]) -> list[int]:
    import numpy as np

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
    import numpy as np

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


def merge(takes: Sequence[Takes], nodes: int, distances: Distances | None = None) -> Hint:
    """
    Return the best hint for all resources on a machine with the NUMA nodes ``nodes``.

    With ``distances``, the closest of equally narrow sets wins, else the numerically smallest. As HintMerger in
    topologymanager/policy.go.
    """
    # Most machines have a set that all resources prefer, and the look-up is much cheaper than all intersections.
    return preferred_hint(takes, nodes, distances) or compromise(takes, nodes, distances)


def preferred_hint(takes: Sequence[Takes], nodes: int, distances: Distances | None = None) -> Hint | None:
    """Return the merged hint if a set of NUMA nodes is preferred by every resource, else ``None``."""
    level = narrowest(preferred_masks(takes, nodes))
    return Hint(_choose(level, distances), preferred=True) if level else None


def preferred_by_rules(rules: Sequence[HintRule], widest: int, distances: Distances | None = None) -> Hint | None:
    """Return ``preferred_hint`` if every resource has a rule, for sets of up to ``widest`` NUMA nodes. Lists only the first rule."""
    first, others = rules[0], rules[1:]
    level: list[int] = []
    size = widest + 1
    for mask in first.preferred():
        width = mask.bit_count()
        # Narrow sets come first: sets wider than the best so far are skipped.
        if width > min(size, widest):
            break
        for rule in others:
            if not rule.prefers(mask):
                break
        else:
            level = [*level, mask] if width == size else [mask]
            size = width
            if size == 1 and distances is None:
                break  # single NUMA nodes are listed in ascending order
    return Hint(_choose(level, distances), preferred=True) if level else None


def compromise(takes: Sequence[Takes], nodes: int, distances: Distances | None = None) -> Hint:
    """
    Return the merged hint without a set that all resources prefer: the best intersection of one hint per resource.

    Its width is that of the narrowest hint of the resource that needs most NUMA nodes, as far as it is possible. If
    nothing can be merged, the result is all NUMA nodes.
    """
    # ``takes`` may have only empty intersections, such as {0} and {1}. The kubelet then returns its default affinity.
    reachable = reachable_masks(takes, nodes)
    if not reachable:
        return Hint(nodes, preferred=False)
    size = best_size({mask.bit_count() for mask in reachable}, max(map(_narrowest_of, takes), default=0))
    return Hint(_choose([mask for mask in reachable if mask.bit_count() == size], distances), preferred=False)


def nothing_denied(_: int) -> int:
    """Return the empty mask: no NUMA node is denied for any size."""
    return 0


def preferred_masks(takes: Sequence[Takes], nodes: int, denied: Callable[[int], int] = nothing_denied) -> set[int]:
    """
    Return the non-empty sets that every resource prefers. A resource that prefers "any" matches each of them.

    If all prefer "any", the result includes the set of all NUMA nodes. ``denied`` returns NUMA nodes that sets of a
    size must not contain.
    """
    listed: list[set[int | None]] = []
    rules: list[HintRule] = []
    for take in takes:
        if isinstance(take, HintRule):
            rules.append(take)
        else:
            listed.append({hint[0] for hint in take if hint[1]})
    # A list that prefers "any" restricts nothing, so it is omitted from the intersection.
    strict = [masks for masks in listed if None not in masks]
    found: Iterable[int]
    if strict:
        shared = [mask for mask in set.intersection(*strict) if mask is not None]
        found = (mask for mask in shared if _all_prefer(mask, rules))
    elif rules:
        # The memory manager gives one rule for all its resources.
        others = [rule for rule in rules if rule is not rules[0]]
        found = (mask for mask in rules[0].preferred() if _all_prefer(mask, others))
    else:
        found = (nodes, *(mask for masks in listed for mask in masks if mask is not None))
    # Masks are first restricted to the machine's NUMA nodes: hints may contain others.
    return {mask & nodes for mask in found if mask & nodes and not mask & denied(mask.bit_count())}


def _all_prefer(mask: int, rules: Sequence[HintRule]) -> bool:
    return all(rule.prefers(mask) for rule in rules)


def narrowest(masks: Collection[int]) -> list[int]:
    """Return the masks of the smallest size, ascending."""
    if not masks:
        return []
    size = min(mask.bit_count() for mask in masks)
    return sorted(mask for mask in masks if mask.bit_count() == size)


def _choose(level: Sequence[int], distances: Distances | None) -> int:
    return min(level) if distances is None else closest(level, distances)


def _narrowest_of(take: Takes) -> int:
    if isinstance(take, HintRule):
        return take.narrowest
    return min((mask.bit_count() for mask, *_ in take if mask is not None), default=0)


def best_size(sizes: set[int], wanted: int) -> int:
    """
    Return the winning size of results that are not preferred.

    ``wanted`` is the width of the widest "narrowest" hint of all resources. If it is impossible, the next smaller size
    wins, else the next wider. As HintMerger.compare with bestNonPreferredAffinityCount: a narrower set could not hold
    the most demanding resource.
    """
    if wanted in sizes:
        return wanted
    # As HintMerger.compare: above the wanted size narrower wins, below it wider does.
    return max((size for size in sizes if size < wanted), default=min(sizes))
