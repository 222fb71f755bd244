"""
Hints: sets of NUMA nodes that could serve a resource, as bit masks, and the order of sets.

Providers create hints, the merge chooses a hint, and policies admit pods.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import combinations
from typing import Final, NamedTuple

from koord_numa.core.bit_sets import members


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
