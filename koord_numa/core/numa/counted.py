"""
A counted resource: it accepts every set of NUMA nodes whose free amounts add up to the needed amount.

Sets are not enumerated: sixteen NUMA nodes have 65,535. Independent of policies and other resources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.value_objects import value_object

Flags = NDArray[np.bool_]

_WIDEST_KEPT: Final = 10
"""Maximum NUMA nodes for a cached matrix of sets. A table of 8 NUMA nodes takes 20 microseconds with it and 100 without."""

_EXACT: Final = 2**56
"""Amounts below this fit into a 64-bit sum over 64 NUMA nodes. Larger amounts are added as Python integers."""


@value_object
class Counted:
    """
    Accepts the sets within ``free`` that contain ``covering`` and whose free amounts reach ``needed``.

    ``covering`` are mandatory NUMA nodes, such as those of a pod's reusable init CPUs. Amounts are not negative. An
    instance that accepts no set is false, like an empty list of hints.
    """

    free: Mapping[int, int]  # NUMA id -> free amount; ineligible NUMA nodes are absent
    needed: int
    covering: int = 0
    nodes: int = field(init=False, compare=False)

    # The instance is frozen, so the derived mask is set directly. It is read for every evaluated mask.
    def __post_init__(self) -> None:
        nodes = 0
        for numa in self.free:
            nodes |= 1 << numa
        object.__setattr__(self, "nodes", nodes)

    def __bool__(self) -> bool:
        return self.accepts(self.nodes)

    def accepts(self, mask: int) -> bool:
        """Return whether this set of NUMA nodes could serve the request now."""
        if mask & ~self.nodes or self.covering & ~mask or not mask:
            return False
        return sum(free for numa, free in self.free.items() if mask >> numa & 1) >= self.needed

    @property
    def narrowest(self) -> int:
        """Return the size of the smallest set that could serve the request now, 0 if there is none."""
        if not self:
            return 0
        # Mandatory NUMA nodes count even if they add nothing. Only the others are chosen, largest first.
        taken = [free for numa, free in self.free.items() if self.covering >> numa & 1]
        others = sorted((free for numa, free in self.free.items() if not self.covering >> numa & 1), reverse=True)
        missing, size = self.needed - sum(taken), len(taken)
        for free in others:
            if missing <= 0 and size:
                break
            missing -= free
            size += 1
        return size

    def table(self, ids: Sequence[int]) -> Flags:
        """Return whether each set is accepted. Entry s is the set of the NUMA nodes ``ids[i]`` with bit i in s. 2^len(ids) entries."""
        width = len(ids)
        if 0 <= self.needed < _EXACT and width <= _WIDEST_KEPT and ids == tuple(range(width)):
            masks, members = _masks_of(width)
            frees = [min(self.free.get(numa, 0), self.needed) for numa in ids]
            within = (masks & ~(self.nodes & (1 << width) - 1) == 0) & (masks & self.covering == self.covering)
            accepted: Flags = within & (members @ np.array(frees, dtype=np.int64) >= self.needed)
            accepted[0] = False
            return accepted
        # Beyond int64 the dtype is ``object``: Python integers are exact, only slower.
        exact = 0 <= self.needed < _EXACT
        sums = np.zeros(1, dtype=np.int64 if exact else object)
        allowed = np.ones(1, dtype=np.bool_)
        for numa in ids:
            # Amounts above the need are irrelevant, and limiting them keeps sums small.
            free = min(self.free.get(numa, 0), max(self.needed, 0))
            sums = np.concatenate((sums, sums + free))
            without = not self.covering >> numa & 1
            allowed = np.concatenate((allowed & without, allowed & (numa in self.free)))
        result: Flags = allowed & (sums >= self.needed).astype(np.bool_)
        # The empty set reaches a need of 0 but is not a set of NUMA nodes.
        if not self.covering & ~sum(1 << numa for numa in ids):
            result[0] = False
            return result
        return np.zeros_like(result)


@lru_cache(maxsize=_WIDEST_KEPT + 1)
def _masks_of(width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all sets of ``width`` NUMA nodes as masks, and as rows of 0 and 1."""
    masks = np.arange(1 << width, dtype=np.int64)
    return masks, masks[:, None] >> np.arange(width) & 1


def fewest_that_reach(amounts: Mapping[int, int], needed: int) -> int:
    """Return the smallest number of NUMA nodes whose amounts reach ``needed``, or all if they do not. At least one."""
    gathered = 0
    for count, amount in enumerate(sorted(amounts.values(), reverse=True), start=1):
        gathered += amount
        if gathered >= needed:
            return count
    return len(amounts)
