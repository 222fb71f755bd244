"""Which rows changed, in the order in which they did: who remembers results about rows re-reads those after the position it has seen."""

from array import array
from typing import Final

import numpy as np

from koord_numa.engine.ranking.columns.distinct import distinct
from koord_numa.engine.ranking.columns.node_numbers import Ints

MANY: Final = 256
"""Of so many changes it pays to leave out the rows that are there more than once."""


class Journal:
    """Keeps at least the last changes, as many as there are rows; who was here before them looks at everything."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._start = 0  # the position of the first one

    @property
    def position(self) -> int:
        """The position after the last change."""
        return self._start + len(self._rows)

    def add(self, row: int, rows: int) -> None:
        """This row changed, of so many that there are."""
        self._rows.append(row)
        # Half at once, so that cutting costs a constant share of the appends; readers behind the cut start over.
        if len(self._rows) > 4 * rows + 1024:
            cut = len(self._rows) // 2
            del self._rows[:cut]
            self._start += cut

    def changes_since(self, position: int) -> Ints | None:
        """
        The rows that changed since a position, in the order of their changes: one that changed twice may be there twice. ``None`` when that
        is too long ago to know.
        """
        if position < self._start:
            return None
        # A copy: the journal cannot grow while its memory is looked at.
        rows = np.frombuffer(self._rows[position - self._start :], dtype=np.int64)
        return rows if len(rows) < MANY else distinct(rows)
