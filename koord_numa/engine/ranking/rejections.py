"""Refusals of one request class by row: many nodes refuse in the same words, so the words are kept once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.engine.ranking.columns.distinct import distinct
from koord_numa.engine.ranking.columns.node_numbers import Bools, Ints

DETAILED: Final = 64
"""Of so many nodes the numbers are kept too; the others' refusals keep only the sentence that is counted."""

SPARE: Final = 256
"""Sentences that no node says any more and that are not worth a sweep."""

UNKNOWN: Final = -1


Bars = Callable[[str], Rejection | None]
"""Why this class may not go to a node, apart from what the node itself says. When an answer changes, the row must count as changed."""


def no_bars(_node: str) -> Rejection | None:
    """Every node may be asked."""
    return None


@dataclass(slots=True)
class RejectionTable:
    """What was last heard of each row. Bounded: details of a few rows, one shared object for the rest."""

    # int64[table rows]: the index into ``_words`` of what each row said last.
    _codes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _words: list[Rejection] = field(default_factory=list)
    _code_of: dict[tuple[Reason, str, bool], int] = field(default_factory=dict)
    _detailed: dict[int, Rejection] = field(default_factory=dict)  # what is forgotten has the code ``UNKNOWN``
    _forgot: bool = False  # may some of it be forgotten?
    _most_words: int = SPARE

    def resize(self, rows: int) -> None:
        """Make room for rows that have said nothing yet."""
        grown = np.full(rows, UNKNOWN, dtype=np.int64)
        grown[: len(self._codes)] = self._codes
        self._codes = grown

    def add(self, row: int, rejection: Rejection) -> None:
        """Remember a refusal."""
        words = (rejection.reason, rejection.message, rejection.resolvable)
        code = self._code_of.get(words)
        if code is None:
            # Swept when the number has doubled since the last sweep, so that sweeps cost a constant share of what is added.
            if len(self._words) >= self._most_words:
                self._drop_unused()
            code = self._code_of[words] = len(self._words)
            # Without details: one object serves all rows that say the same.
            self._words.append(Rejection(rejection.reason, rejection.message, resolvable=rejection.resolvable))
        if self._forgot and len(self._detailed) >= DETAILED:
            self._detailed = {row: kept for row, kept in self._detailed.items() if self._codes[row] != UNKNOWN}
            self._forgot = False
        self._detailed.pop(row, None)
        if len(self._detailed) < DETAILED:
            self._detailed[row] = rejection
        self._codes[row] = code

    def get(self, row: int) -> Rejection | None:
        """The refusal of a row, ``None`` when none is known."""
        code = int(self._codes[row])
        return None if code == UNKNOWN else self._detailed.get(row) or self._words[code]

    def unknown(self, rows: int) -> Bools:
        """Of which of the first rows is no refusal known?"""
        unknown: Bools = self._codes[:rows] == UNKNOWN
        return unknown

    def forget(self, rows: Ints | int) -> None:
        """These nodes changed: their refusals hold no longer."""
        if not self._words:
            return  # no row has been refused yet
        self._codes[rows] = UNKNOWN
        self._forgot = True

    def clear(self) -> None:
        """Forget everything."""
        self._codes[:] = UNKNOWN
        self._detailed.clear()

    def _drop_unused(self) -> None:
        """Sentences may quote taints and labels, which change for ever: those that no row says now are forgotten."""
        used = distinct(self._codes[self._codes != UNKNOWN])
        renumbered = np.full(len(self._words) + 1, UNKNOWN, dtype=np.int64)  # the last place is that of UNKNOWN itself
        renumbered[used] = np.arange(len(used))
        # An array of indices as a translation table; -1 picks its last entry, which is UNKNOWN.
        self._codes = renumbered[self._codes]
        self._words = [self._words[code] for code in used.tolist()]
        self._code_of = {(each.reason, each.message, each.resolvable): code for code, each in enumerate(self._words)}
        self._most_words = 2 * len(self._words) + SPARE
