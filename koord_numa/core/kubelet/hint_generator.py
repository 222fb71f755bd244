"""
NUMA node sets by rule instead of by list: which masks would serve one resource, and which of them are preferred.

The kubelet's managers enumerate every mask into a list of hints. A ``Wish`` answers the same questions about one mask at a
time, so that a decision looks only at the few masks that can matter. Follows no manager in particular; they make the wishes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from koord_numa.core.kubelet.kubelet_node import bits_of


@dataclass(frozen=True, slots=True)
class ResourceHints:
    """
    What one resource wants of the NUMA nodes in ``nodes``.

    ``fits`` tells whether a mask could serve the request now. ``size`` is the smallest number of NUMA nodes that could serve
    it on an empty machine: fitting masks of exactly that size are preferred, and those that ``also`` names.
    """

    resource: str
    nodes: int
    size: int
    fits: Callable[[int], bool]
    also: Callable[[int], bool] | None = None

    def prefers(self, mask: int) -> bool:
        """Is a fitting mask also a preferred one?"""
        return mask.bit_count() == self.size or (self.also is not None and self.also(mask))

    def preferred(self) -> Iterator[int]:
        """All fitting, preferred masks."""
        if self.also is not None:
            return (mask for mask, preferred in self.hints() if preferred)
        return (mask for mask in masks_of(self.nodes, self.size) if self.fits(mask))

    def hints(self) -> Iterator[tuple[int, bool]]:
        """Every fitting mask with its preference, narrow ones first: the kubelet's list of hints."""
        for size in range(1, self.nodes.bit_count() + 1):
            for mask in masks_of(self.nodes, size):
                if self.fits(mask):
                    yield mask, self.prefers(mask)

    @property
    def possible(self) -> bool:
        """Does any mask fit?"""
        return next(self.hints(), None) is not None


def impossible(resource: str) -> ResourceHints:
    """No set of NUMA nodes will do: the kubelet's empty list of hints."""
    return ResourceHints(resource, nodes=0, size=0, fits=lambda _: False)


@lru_cache(maxsize=4096)
def masks_of(nodes: int, size: int) -> tuple[int, ...]:
    """All sets of ``size`` of these NUMA nodes, lexicographic in their ascending ids."""
    return tuple(sum(1 << numa for numa in chosen) for chosen in combinations(bits_of(nodes), size))


def fewest(amounts: Sequence[int], needed: int) -> int:
    """How many of these amounts it takes, at least, to reach ``needed``; all of them if they never do. One at least."""
    gathered = 0
    for count, amount in enumerate(sorted(amounts, reverse=True), start=1):
        gathered += amount
        if gathered >= needed:
            return count
    return len(amounts)
