"""Refusals of one request class by row: many nodes refuse in the same words, so the words are kept once."""

from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.verdicts import Reason, Rejection

DETAILED: Final = 64
"""Of so many nodes the numbers are kept too; the others' refusals keep only the sentence that is counted."""


@dataclass(slots=True)
class Refusals:
    """What was last heard of each row. Bounded: details of a few rows, one shared object for the rest."""

    _by_row: dict[int, Rejection] = field(default_factory=dict)
    _shared: dict[tuple[Reason, str, bool], Rejection] = field(default_factory=dict)
    _detailed: set[int] = field(default_factory=set)

    def add(self, row: int, rejection: Rejection) -> None:
        """Remember a refusal."""
        if len(self._detailed) < DETAILED:
            self._detailed.add(row)
            self._by_row[row] = rejection
            return
        plain = Rejection(rejection.reason, rejection.message, resolvable=rejection.resolvable)
        words = (plain.reason, plain.message, plain.resolvable)
        self._by_row[row] = self._shared.setdefault(words, plain)

    def get(self, row: int) -> Rejection | None:
        """The refusal of a row, ``None`` when none is known."""
        return self._by_row.get(row)

    def forget(self, row: int) -> None:
        """The node changed: its refusal holds no longer."""
        self._by_row.pop(row, None)
        self._detailed.discard(row)

    def clear(self) -> None:
        """Forget everything."""
        self._by_row.clear()
        self._detailed.clear()
        self._shared.clear()
