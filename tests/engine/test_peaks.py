"""The largest of many numbers is found however they came."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.engine.peaks import BLOCK, Peaks

NOTHING = -1
SIZE = 3 * BLOCK + 7
ROWS = st.integers(0, SIZE - 1)
NUMBERS = st.integers(-3, 2**62)


@given(st.lists(st.lists(st.tuples(ROWS, NUMBERS), max_size=6), max_size=12))
def test_the_first_of_the_largest_is_found(changes: list[list[tuple[int, int]]]) -> None:
    peaks, plain = Peaks(NOTHING), [NOTHING] * SIZE
    peaks.resize(BLOCK)
    peaks.resize(SIZE)
    for change in changes:
        new = dict(change)
        for row, number in new.items():
            plain[row] = number
        if len(new) == 1:
            ((row, number),) = new.items()
            peaks[row] = number
        else:
            peaks.put(np.array(list(new), dtype=np.int64), np.array(list(new.values()), dtype=np.int64))
        largest = max(plain)
        assert peaks.highest() == (plain.index(largest) if largest >= 0 else None)


def test_without_rows_there_is_no_largest() -> None:
    assert Peaks(NOTHING).highest() is None


def test_rows_are_kept_when_there_is_room_for_more() -> None:
    peaks = Peaks(NOTHING)
    peaks.resize(1)
    peaks[0] = 5
    peaks.resize(10 * BLOCK)
    assert (peaks.highest(), len(peaks)) == (0, 10 * BLOCK)
    peaks.resize(1)
    assert len(peaks) == 10 * BLOCK
