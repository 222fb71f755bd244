"""
Hints: sets of NUMA nodes that could serve a resource, as bit masks, and the orders in which sets are listed.

It holds words only; who gives hints is the providers' business, which hint wins the merge's, who is admitted the policies'.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import combinations
from typing import Final, NamedTuple

from koord_numa.core.bit_sets import members


class Hint(NamedTuple):
    """
    A set of NUMA nodes that could serve one resource, or the merged set for all of them.

    ``mask`` has bit i for NUMA node i; ``None`` is "any". ``preferred``: no smaller set could ever serve it. Koordinator adds
    ``unsatisfied`` (the request would not wholly fit) and ``score`` (decides between equally narrow sets).
    """

    mask: int | None
    preferred: bool
    unsatisfied: bool = False
    score: int = 0


ANYWHERE: Final = Hint(None, preferred=True)
NOWHERE: Final = Hint(None, preferred=False, unsatisfied=True)


@lru_cache(maxsize=1024)
def mask_of_ids(numa_ids: tuple[int, ...]) -> int:
    """As ``mask_of``, of the NUMA nodes of a machine: the same few tuples again and again."""
    return mask_of(numa_ids)


def mask_of(numa_ids: Iterable[int]) -> int:
    """The set of these NUMA nodes."""
    mask = 0
    for numa in numa_ids:
        mask |= 1 << numa
    return mask


numa_ids: Final = members
"""The NUMA nodes of a set, ascending."""


@lru_cache(maxsize=1024)
def masks_of_size(nodes: int, size: int) -> tuple[int, ...]:
    """All sets of ``size`` out of ``nodes``, lexicographic in the ascending ids: {0,1} {0,2} {1,2}. As bitmask.IterateBitMasks."""
    return tuple(sum(bits) for bits in combinations([1 << numa for numa in numa_ids(nodes)], size))
