"""
Numbers by row, and which row has the largest: the largest of each block of rows is remembered.

Changing a number looks at one block, finding the largest at one block and at the list of blocks.
"""

from typing import Final

import numpy as np

from koord_numa.engine.zone_columns import Ints

BLOCK: Final = 512
"""Rows in a block: about the root of 50,000, and one look at so many numbers costs hardly more than the call."""


class Peaks:
    """Rows begin with ``nothing``, a negative number."""

    def __init__(self, nothing: int) -> None:
        self._nothing = nothing
        self._numbers: Ints = np.full((0, BLOCK), nothing, dtype=np.int64)
        self._flat: Ints = self._numbers.reshape(-1)
        self._peaks: Ints = np.full(0, nothing, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._flat)

    def __setitem__(self, row: int, number: int) -> None:
        self._flat[row] = number
        block = row // BLOCK
        self._peaks[block] = self._numbers[block].max()

    def resize(self, size: int) -> None:
        """Have room for at least ``size`` rows; nothing is taken away."""
        missing = -(-size // BLOCK) - len(self._peaks)
        if missing > 0:
            self._numbers = np.concatenate([self._numbers, np.full((missing, BLOCK), self._nothing, dtype=np.int64)])
            self._flat = self._numbers.reshape(-1)
            self._peaks = np.concatenate([self._peaks, np.full(missing, self._nothing, dtype=np.int64)])

    def put(self, rows: Ints, numbers: Ints) -> None:
        """Change many rows at once."""
        self._flat[rows] = numbers
        if len(rows) >= len(self._peaks):  # all over the place: looking at every block is faster than finding out which
            self._numbers.max(axis=1, out=self._peaks)
            return
        blocks = np.unique(rows // BLOCK)
        self._peaks[blocks] = self._numbers[blocks].max(axis=1)

    def highest(self) -> int | None:
        """The first row with the largest number; ``None`` when all are negative."""
        if not len(self._peaks):
            return None
        block = int(self._peaks.argmax())
        if self._peaks[block] < 0:
            return None
        return block * BLOCK + int(self._numbers[block].argmax())
