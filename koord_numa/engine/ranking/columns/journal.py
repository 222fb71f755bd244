"""Which rows changed, in the order in which they did: who remembers results about rows re-reads those after the position it has seen."""

from typing import Final

import numpy as np

from koord_numa.engine.ranking.columns.distinct import distinct
from koord_numa.engine.ranking.columns.node_numbers import Ints, longer

MANY: Final = 256
"""Of so many changes it pays to leave out the rows that are there more than once."""


class Journal:
    """Keeps at least the last changes, as many as there are rows; who was here before them looks at everything."""

    def __init__(self) -> None:
        # With room for more. What is written is never changed, so that a view of it holds while the journal grows.
        self._rows: Ints = np.zeros(1024, dtype=np.int64)
        self._count = 0
        self._start = 0  # the position of the first one

    @property
    def position(self) -> int:
        """The position after the last change."""
        return self._start + self._count

    def add(self, row: int, rows: int) -> None:
        """This row changed, of so many that there are."""
        if self._count == len(self._rows):
            self._make_room(rows)
        self._rows[self._count] = row
        self._count += 1

    def changes_since(self, position: int) -> Ints | None:
        """
        The rows that changed since a position, in the order of their changes: one that changed twice may be there twice. ``None`` when that
        is too long ago to know. Not to be changed.
        """
        if position < self._start:
            return None
        rows = self._rows[position - self._start : self._count]
        return rows if len(rows) < MANY else distinct(rows)

    def _make_room(self, rows: int) -> None:
        # Half at once, so that cutting costs a constant share of the appends; readers behind the cut start over.
        if self._count > 4 * rows + 1024:
            cut = self._count // 2
            self._start += cut
            self._count -= cut
            self._rows = longer(self._rows[cut:], len(self._rows))
        else:
            self._rows = longer(self._rows, 2 * len(self._rows))
