"""
Exclusivity of NUMA nodes: pods on a single NUMA node and pods that span several keep away from one another.

It compares sets with what is on the NUMA nodes already; who counts as what is for the ledger's readers to say.
"""

from collections.abc import Callable, Iterable
from enum import Enum

from koord_numa.core.numa.hints import Hint
from koord_numa.core.objects.vocabulary import NUMA_PREFERRED, NUMA_REQUIRED, NumaExclusive
from koord_numa.core.value_objects import ValueObject


class NumaUse(Enum):
    """Who uses a NUMA node: no pod, only pods that sit on it alone, or some pod that spans several."""

    IDLE = "idle"
    SINGLE = "single"
    SHARED = "shared"


class NumaOccupancy(ValueObject, gc=False):
    """The NUMA nodes used by single-NUMA pods only, and those used by a pod that spans several. By NUMA id, not by position."""

    single: int = 0
    shared: int = 0

    @classmethod
    def of(cls, uses: Iterable[tuple[int, NumaUse]]) -> "NumaOccupancy":
        """From pairs of NUMA id and use."""
        single = shared = 0
        for numa, use in uses:
            if use is NumaUse.SINGLE:
                single |= 1 << numa
            # An idle NUMA node has no pods of either kind and keeps none away.
            elif use is NumaUse.SHARED:
                shared |= 1 << numa
        return cls(single, shared)

    def others(self, size: int) -> int:
        """The NUMA nodes with pods of the other kind, seen from a pod on ``size`` NUMA nodes."""
        return self.shared if size == 1 else self.single

    def disturbs(self, mask: int) -> bool:
        """Would a pod on this set share a NUMA node with pods of the other kind?"""
        return bool(mask & self.others(mask.bit_count()))


UNUSED = NumaOccupancy()


class Exclusivity(ValueObject, gc=False):
    """What a pod asks for (``singleNUMANodeExclusive``) and whom it would meet."""

    wish: NumaExclusive = NumaExclusive.NONE
    occupancy: NumaOccupancy = UNUSED

    def denied(self, size: int) -> int:
        """``Required``: NUMA nodes that no preferred set of this size may contain. As Koordinator's checkExclusivePolicy."""
        return self.occupancy.others(size) if self.wish is NUMA_REQUIRED else 0

    def allows(self, mask: int) -> bool:
        """May this set be preferred?"""
        return not mask & self.denied(mask.bit_count())

    def score(self, mask: int, score: int) -> int:
        """``Preferred``: a hint on such a set is made with score 0. From the pod-level NUMA policy proposal, "Hint"; inert upstream."""
        return 0 if self.wish is NUMA_PREFERRED and self.occupancy.disturbs(mask) else score

    def scoring(self, score_of: Callable[[int], int]) -> Callable[[int], int]:
        """As ``score`` of what ``score_of`` says of a set."""
        if self.wish is not NUMA_PREFERRED:
            return score_of
        return lambda mask: self.score(mask, score_of(mask))

    def undisturbed(self, masks: list[int]) -> list[int]:
        """``Preferred``: the sets where no pod of the other kind is, if there is any such set; else all of them."""
        if self.wish is not NUMA_PREFERRED:
            return masks
        # A preference never empties the choice: with no undisturbed set the pod goes where it disturbs.
        return [mask for mask in masks if not self.occupancy.disturbs(mask)] or masks

    def scored(self, hint: Hint) -> Hint:
        """The hint as it is to be made under this wish."""
        return hint if hint.mask is None else hint._replace(score=self.score(hint.mask, hint.score))


UNCONSTRAINED = Exclusivity()
