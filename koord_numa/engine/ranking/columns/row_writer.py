"""Writes Python integers into a row of a NumPy table: ``struct`` takes half of the time that NumPy takes to convert a list."""

from collections.abc import Iterable
from struct import Struct

import numpy as np
from numpy.typing import NDArray


class RowWriter:
    """Of one table, ``int64[rows, lines]`` without gaps, from ``first`` up to ``last``. A table that is replaced needs another writer."""

    def __init__(self, table: NDArray[np.int64], first: int = 0, last: int | None = None) -> None:
        lines = table.shape[1]
        self._memory = table.data.cast("B")
        self._pack_into = Struct(f"{(lines if last is None else last) - first}q").pack_into
        self._row, self._first = lines * table.itemsize, first * table.itemsize

    def write(self, row: int, values: Iterable[int]) -> None:
        """As many values as there are lines. Raises ``struct.error`` for more or fewer, and for what 64 bits do not hold."""
        self._pack_into(self._memory, row * self._row + self._first, *values)
