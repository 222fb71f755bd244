"""
Exclusivity of NUMA nodes: pods on a single NUMA node and pods on several avoid each other.

Compares sets with the use of NUMA nodes, which readers of the ledger determine.
"""

from collections.abc import Callable, Iterable
from enum import Enum

from koord_numa.core.numa.hints import Hint
from koord_numa.core.objects.vocabulary import NUMA_PREFERRED, NUMA_REQUIRED, NumaExclusive
from koord_numa.core.value_objects import ValueObject


class NumaUse(Enum):
    """The pods on a NUMA node: none, only pods on this NUMA node alone, or also a pod on several."""

    IDLE = "idle"
    SINGLE = "single"
    SHARED = "shared"


class NumaOccupancy(ValueObject, gc=False):
    """The NUMA nodes used only by single-NUMA pods, and those used by a pod on several. By NUMA id, not by position."""

    single: int = 0
    shared: int = 0

    @classmethod
    def of(cls, uses: Iterable[tuple[int, NumaUse]]) -> "NumaOccupancy":
        """Return the occupancy for pairs of NUMA id and use."""
        single = shared = 0
        for numa, use in uses:
            if use is NumaUse.SINGLE:
                single |= 1 << numa
            # An idle NUMA node has no pods of either kind.
            elif use is NumaUse.SHARED:
                shared |= 1 << numa
        return cls(single, shared)

    def others(self, size: int) -> int:
        """Return the NUMA nodes with pods of the other kind, for a pod on ``size`` NUMA nodes."""
        return self.shared if size == 1 else self.single

    def disturbs(self, mask: int) -> bool:
        """Return whether a pod on this set would share a NUMA node with pods of the other kind."""
        return bool(mask & self.others(mask.bit_count()))


UNUSED = NumaOccupancy()


class NumaExclusivity(ValueObject, gc=False):
    """The exclusivity that a pod requests (``singleNUMANodeExclusive``), and the occupancy of the node."""

    wish: NumaExclusive = NumaExclusive.NONE
    occupancy: NumaOccupancy = UNUSED

    def denied(self, size: int) -> int:
        """Return the NUMA nodes that no preferred set of this size may contain (``Required``). As Koordinator's checkExclusivePolicy."""
        return self.occupancy.others(size) if self.wish is NUMA_REQUIRED else 0

    def allows(self, mask: int) -> bool:
        """Return whether this set may be preferred."""
        return not mask & self.denied(mask.bit_count())

    def score(self, mask: int, score: int) -> int:
        """
        Return the score of a set, 0 if it disturbs other pods (``Preferred``).

        Source: pod-level NUMA policy proposal, "Hint". Upstream does not implement it.
        """
        return 0 if self.wish is NUMA_PREFERRED and self.occupancy.disturbs(mask) else score

    def scoring(self, score_of: Callable[[int], int]) -> Callable[[int], int]:
        """Return ``score_of`` with the rule of ``score`` applied."""
        if self.wish is not NUMA_PREFERRED:
            return score_of
        return lambda mask: self.score(mask, score_of(mask))

    def undisturbed(self, masks: list[int]) -> list[int]:
        """Return the sets without pods of the other kind (``Preferred``). All sets if there is none."""
        if self.wish is not NUMA_PREFERRED:
            return masks
        # A preference never excludes all sets.
        return [mask for mask in masks if not self.occupancy.disturbs(mask)] or masks

    def scored(self, hint: Hint) -> Hint:
        """Return the hint with the score of this exclusivity."""
        return hint if hint.mask is None else hint._replace(score=self.score(hint.mask, hint.score))


UNCONSTRAINED = NumaExclusivity()
