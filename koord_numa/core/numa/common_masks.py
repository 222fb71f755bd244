"""
Find sets of NUMA nodes that several counted resources accept, without lists per resource.

Sets of one size at a time: the policies only need the narrowest size.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.numa.counted import Counted
from koord_numa.core.numa.hints import mask_of, numa_ids

WIDEST_TABLE: Final = 16
"""Maximum NUMA nodes for a table of all sets (65,536)."""

STEPS: Final = 20_000
"""Maximum branches of the search above the table's limit. The sum condition is a knapsack problem in the worst case."""


def common_masks(families: Sequence[Counted], size: int, within: int = -1) -> list[int]:
    """
    Return the sets of ``size`` NUMA nodes in ``within`` that all families accept, ascending. Needs at least one family.

    Above ``WIDEST_TABLE`` NUMA nodes, return only the numerically smallest set, or none if ``STEPS`` branches find
    none.
    """
    nodes = _shared_nodes(families) & within
    # An empty set holds nothing, and there are no sets above the number of shared NUMA nodes.
    if not 0 < size <= nodes.bit_count():
        return []
    ids = numa_ids(nodes)
    if len(ids) > WIDEST_TABLE:
        return _MaskSearch(families, ids).first(size)
    accepted = families[0].table(ids)
    for family in families[1:]:
        accepted = accepted & family.table(ids)
    found: list[int] = np.flatnonzero(accepted & (_sizes(len(ids)) == size)).tolist()
    # Tables are indexed by position. For ids 0…n-1 the position is the id.
    if ids == tuple(range(len(ids))):
        return found
    return [mask_of(ids[i] for i in numa_ids(mask)) for mask in found]


def _shared_nodes(families: Sequence[Counted]) -> int:
    nodes = families[0].nodes
    for family in families:
        nodes &= family.nodes
    return nodes


# One array per machine width, at most 65,536 bytes. Entry s is the number of bits of s.
@lru_cache(maxsize=WIDEST_TABLE + 1)
def _sizes(bits: int) -> NDArray[np.int8]:
    sizes = np.zeros(1, dtype=np.int8)
    for _ in range(bits):
        sizes = np.concatenate((sizes, sizes + np.int8(1)))
    return sizes


class _MaskSearch:
    """
    Depth-first search from the highest NUMA id down, exclusion before inclusion: the first set found is the smallest number.

    A branch is cut if the largest amounts of the remaining NUMA nodes are not enough for a resource.
    """

    def __init__(self, families: Sequence[Counted], ids: Sequence[int]) -> None:
        self.families, self.ids, self.steps = families, ids, STEPS
        self.covering = 0
        for family in families:
            self.covering |= family.covering
        amounts = [[family.free[numa] for numa in ids] for family in families]
        # largest[f][open][count]: the maximum that ``count`` of the first ``open`` NUMA nodes offer of resource f
        self.largest = [
            [list(accumulate(sorted(row[:end], reverse=True), initial=0)) for end in range(len(ids) + 1)]
            for row in amounts
        ]
        self.amounts = list(zip(*amounts, strict=True))

    def first(self, size: int) -> list[int]:
        # A NUMA node that must be covered but is not eligible excludes all sets.
        if self.covering & ~mask_of(self.ids):
            return []
        found = self._descend(len(self.ids), size, [family.needed for family in self.families])
        return [] if found is None else [found]

    def _descend(self, open_ids: int, size: int, missing: list[int]) -> int | None:
        # A limit of branches instead of time, so that the result is the same on every machine.
        self.steps -= 1
        if self.steps < 0 or size > open_ids:
            return None
        # Upper bound: no choice of ``size`` remaining NUMA nodes offers more than the ``size`` largest.
        if any(rows[open_ids][size] < rest for rows, rest in zip(self.largest, missing, strict=True)):
            return None
        if not open_ids:
            return 0
        highest = open_ids - 1
        bit = 1 << self.ids[highest]
        # Excluding high ids first finds the smallest number first, which upstream prefers.
        if not self.covering & bit:
            found = self._descend(highest, size, missing)
            if found is not None:
                return found
        if not size:
            return None
        rests = [rest - amount for rest, amount in zip(missing, self.amounts[highest], strict=True)]
        found = self._descend(highest, size - 1, rests)
        return None if found is None else found | bit
