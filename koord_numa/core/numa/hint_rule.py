"""
Hints by rule instead of by list: which sets of NUMA nodes could serve one resource, and which of them are preferred.

The kubelet's managers enumerate every mask into a list of hints. A ``HintRule`` answers the same questions about one mask at a time, so
that a merge looks only at the few masks that can win.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import comb
from typing import Final

from koord_numa.core.numa.common_masks import WIDEST_TABLE, common_masks
from koord_numa.core.numa.counted import Counted
from koord_numa.core.numa.hints import Hint, masks_of_size
from koord_numa.core.value_objects import ValueObject

_LOOKED_AT: Final = 500
"""More masks of one size than these are not looked at one by one."""

EVERY_MASK: Final = 64
"""No set of NUMA nodes is wider than this."""


class HintRule(ValueObject):
    """
    The hints of one resource over the NUMA nodes in ``nodes``.

    ``fits`` tells whether a mask could serve the request now. ``size`` is the smallest number of NUMA nodes that could serve it on an
    empty machine: fitting masks of exactly that size are preferred, and those that ``also`` names (``align-by-socket``). ``grows``:
    whatever contains a fitting mask fits too. ``candidates`` are the only masks that may fit, by size, where there are few of them;
    ``counted`` says the same as ``fits`` by arithmetic. A rule without any fitting mask is false, like the kubelet's empty list of hints.
    """

    nodes: int
    size: int
    fits: Callable[[int], bool]
    also: Callable[[int], bool] | None = None
    grows: bool = True
    candidates: Sequence[int] | None = None
    counted: Counted | None = None

    def __bool__(self) -> bool:
        # A rule that grows is satisfiable exactly when its widest mask is; any other has to be searched.
        if self.grows:
            return bool(self.nodes) and self.fits(self.nodes)
        for size in range(1, self.nodes.bit_count() + 1):
            for mask in self._of_size(size):
                if self.fits(mask):
                    return True
        return False

    def prefers(self, mask: int) -> bool:
        """Is this mask a hint, and a preferred one?"""
        if mask & ~self.nodes or not mask:
            return False
        # ``fits`` is last, since it may have to add amounts up; the size is one machine instruction.
        return (mask.bit_count() == self.size or (self.also is not None and self.also(mask))) and self.fits(mask)

    def preferred(self) -> Iterator[int]:
        """All preferred masks, narrow ones first."""
        # ``also`` may name masks of any size, so all sizes are listed.
        if (also := self.also) is not None:
            sizes = range(1, self.nodes.bit_count() + 1)
            masks = (mask for size in sizes for mask in self._of_size(size) if size == self.size or also(mask))
            return (mask for mask in masks if self.fits(mask))
        if self.counted is not None and self._are_many(self.size):
            return iter(common_masks([self.counted], self.size))
        return (mask for mask in self._of_size(self.size) if self.fits(mask))

    def hints(self, widest: int = EVERY_MASK) -> Iterator[Hint]:
        """The list that this stands for, up to sets of ``widest`` NUMA nodes: by size, then lexicographic in the ids."""
        # By size and then lexicographic: the order in which the kubelet's IterateBitMasks yields, and on which ties depend.
        for size in range(1, min(widest, self.nodes.bit_count()) + 1):
            for mask in self._of_size(size):
                if self.fits(mask):
                    yield Hint(mask, size == self.size or (self.also is not None and self.also(mask)))

    def _are_many(self, size: int) -> bool:
        """Would a table of all sums be cheaper than a look at every mask of this size?"""
        width = self.nodes.bit_count()
        return self.candidates is None and width <= WIDEST_TABLE and comb(width, size) > _LOOKED_AT

    def _of_size(self, size: int) -> Iterable[int]:
        if self.candidates is None:
            return masks_of_size(self.nodes, size)
        return [mask for mask in self.candidates if mask.bit_count() == size]

    @property
    def narrowest(self) -> int:
        """The size of the smallest mask that could serve the request now; 0 when none can."""
        if self.counted is not None:
            return self.counted.narrowest
        # Rules without arithmetic are few and narrow: the first hint has the smallest size by the order above.
        return next((mask.bit_count() for mask, *_ in self.hints() if mask), 0)


IMPOSSIBLE: Final = HintRule(nodes=0, size=0, fits=lambda _: False)
"""No set of NUMA nodes will do: the kubelet's empty list of hints."""
