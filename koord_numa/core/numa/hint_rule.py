"""
Hints as a rule instead of a list: the sets of NUMA nodes that could serve a resource, and the preferred ones.

The kubelet's managers enumerate every mask into a list of hints. A ``HintRule`` evaluates single masks, so a merge only
evaluates the few masks that can win.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import comb
from typing import Final

from koord_numa.core.numa.common_masks import WIDEST_TABLE, common_masks
from koord_numa.core.numa.counted import Counted
from koord_numa.core.numa.hints import Hint, masks_of_size
from koord_numa.core.value_objects import ValueObject

_LOOKED_AT: Final = 500
"""Above this number of masks of a size, masks are not evaluated one by one."""

EVERY_MASK: Final = 64
"""Maximum width of a set of NUMA nodes."""


class HintRule(ValueObject):
    """
    The hints of a resource over the NUMA nodes in ``nodes``.

    ``fits`` returns whether a mask could serve the request now. ``size`` is the smallest number of NUMA nodes that
    could serve it on an empty machine: fitting masks of exactly that size are preferred, and those of ``also``
    (``align-by-socket``). ``grows``: every superset of a fitting mask fits. ``candidates`` are the only masks that may
    fit, by size, if there are few. ``counted`` is equivalent to ``fits`` by arithmetic. A rule without a fitting mask
    is false, like the kubelet's empty list of hints.
    """

    nodes: int
    size: int
    fits: Callable[[int], bool]
    also: Callable[[int], bool] | None = None
    grows: bool = True
    candidates: Sequence[int] | None = None
    counted: Counted | None = None

    def __bool__(self) -> bool:
        # A rule that grows is satisfiable exactly if its widest mask is. Other rules need a search.
        if self.grows:
            return bool(self.nodes) and self.fits(self.nodes)
        for size in range(1, self.nodes.bit_count() + 1):
            for mask in self._of_size(size):
                if self.fits(mask):
                    return True
        return False

    def prefers(self, mask: int) -> bool:
        """Return whether this mask is a preferred hint."""
        if mask & ~self.nodes or not mask:
            return False
        # ``fits`` last, since it may add amounts. The size is a single machine instruction.
        return (mask.bit_count() == self.size or (self.also is not None and self.also(mask))) and self.fits(mask)

    def preferred(self) -> Iterator[int]:
        """Return all preferred masks, narrowest first."""
        # ``also`` may include masks of any size, so all sizes are listed.
        if (also := self.also) is not None:
            sizes = range(1, self.nodes.bit_count() + 1)
            masks = (mask for size in sizes for mask in self._of_size(size) if size == self.size or also(mask))
            return (mask for mask in masks if self.fits(mask))
        if self.counted is not None and self._are_many(self.size):
            return iter(common_masks([self.counted], self.size))
        return (mask for mask in self._of_size(self.size) if self.fits(mask))

    def hints(self, widest: int = EVERY_MASK) -> Iterator[Hint]:
        """Yield the equivalent list, up to sets of ``widest`` NUMA nodes: by size, then lexicographic in the ids."""
        # The order of the kubelet's IterateBitMasks, on which ties depend.
        for size in range(1, min(widest, self.nodes.bit_count()) + 1):
            for mask in self._of_size(size):
                if self.fits(mask):
                    yield Hint(mask, size == self.size or (self.also is not None and self.also(mask)))

    def _are_many(self, size: int) -> bool:
        """Return whether a table of all sums is cheaper than evaluating every mask of this size."""
        width = self.nodes.bit_count()
        return self.candidates is None and width <= WIDEST_TABLE and comb(width, size) > _LOOKED_AT

    def _of_size(self, size: int) -> Iterable[int]:
        if self.candidates is None:
            return masks_of_size(self.nodes, size)
        return [mask for mask in self.candidates if mask.bit_count() == size]

    @property
    def narrowest(self) -> int:
        """Return the size of the smallest mask that could serve the request now, 0 if there is none."""
        if self.counted is not None:
            return self.counted.narrowest
        # Rules without arithmetic are few and narrow: the first hint has the smallest size by the order above.
        return next((mask.bit_count() for mask, *_ in self.hints() if mask), 0)


IMPOSSIBLE: Final = HintRule(nodes=0, size=0, fits=lambda _: False)
"""No set of NUMA nodes is possible: the kubelet's empty list of hints."""
