"""
Budgets for the CEL selectors of claims, over all decisions.

Pods of one namespace whose claims ask for the same share a budget, whatever the claims are called. A budget that is used up pauses:
nothing more is evaluated for such pods until the pause ends, and each pause is twice as long as the one before. Answers that are known by
then are kept, so claims that are only large make progress.
"""

from dataclasses import dataclass, field
from typing import Final

from cachetools import LRUCache

from koord_numa.core.claims.budget import SELECTOR_LIMITS, SelectorBudget
from koord_numa.core.claims.resource_claim import PodClaims
from koord_numa.ports import Clock

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0
"""Seconds."""
REMEMBERED: Final = 10_000
"""Budgets. One that is forgotten begins anew."""


@dataclass(slots=True)
class ClaimBudget:
    """The budget of pods that ask for the same. ``until`` is when its pause ends, 0 while it does not pause."""

    budget: SelectorBudget
    pauses: int = 0
    until: float = 0.0


@dataclass(slots=True)
class ClaimBudgets:
    """All budgets. ``used`` counts how often one was used up."""

    clock: Clock
    used: int = 0
    # By hash: the claims themselves may be megabytes of text.
    _budgets: LRUCache[int, ClaimBudget] = field(default_factory=lambda: LRUCache(maxsize=REMEMBERED))

    def __len__(self) -> int:
        return len(self._budgets)

    def of(self, namespace: str, claims: PodClaims) -> ClaimBudget:
        """The budget of pods with such claims, filled again when its pause has ended."""
        key = hash((namespace, claims.to_allocate, claims.extended))
        found = self._budgets.get(key)
        if found is None:
            names = ", ".join(claim.name for claim in claims.to_allocate)
            found = self._budgets[key] = ClaimBudget(SelectorBudget(names))
        elif found.until and self.clock() >= found.until:
            found.budget.left, found.until = SELECTOR_LIMITS.claim, 0.0
        return found

    def note_used(self, found: ClaimBudget) -> None:
        """Begin a pause if the budget is used up and does not pause already."""
        if not found.budget.used or found.until:
            return
        found.until = self.clock() + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(found.pauses, 16))
        found.pauses += 1
        self.used += 1
