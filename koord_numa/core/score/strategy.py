"""One configured scoring strategy: its type and how much each resource counts. The formulas are in ``filling.py``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord_numa.core.amounts import CPU, MEMORY, Amounts
from koord_numa.core.score.filling import score_filling
from koord_numa.core.vocabulary import ScoringType


@dataclass(frozen=True, slots=True)
class Strategy:
    """A scoring type and a weight per resource."""

    type: ScoringType = ScoringType.LEAST_ALLOCATED
    weights: Mapping[str, int] = field(default_factory=lambda: {CPU: 1, MEMORY: 1})

    def score(self, capacity: Amounts, used: Amounts, wanted: Amounts) -> int:
        """How well ``wanted`` would sit in a capacity that is partly used: 0 to 100."""
        return score_filling(self.type, wanted, capacity, used, self.weights)
