"""Rows are written in place: the table itself has the numbers, and no other row changes."""

import struct

import numpy as np
import pytest

from koord_numa.engine.ranking.node_numbers import RowWriter


def test_a_row_has_the_numbers_from_the_first_line_on() -> None:
    table = np.zeros((3, 4), dtype=np.int64)
    RowWriter(table, 1).write(1, [1 << 52, -(1 << 50), 7])
    assert table.tolist() == [[0] * 4, [0, 1 << 52, -(1 << 50), 7], [0] * 4]


@pytest.mark.parametrize("values", [[1], [1, 2, 3], [1 << 63, 0]], ids=["too few", "too many", "beyond 64 bits"])
def test_a_row_is_written_as_a_whole_or_not_at_all(values: list[int]) -> None:
    table = np.zeros((2, 2), dtype=np.int64)
    with pytest.raises(struct.error):
        RowWriter(table).write(0, values)
    assert not table.any()
