"""Masks, their order, the distances in them; providers and the store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import UNKNOWN_DISTANCE
from koord_numa.core.numa.hints import (
    closest,
    mask_of,
    masks_of_size,
    numa_ids,
    spread,
)


def test_masks_of_a_size_are_lexicographic_in_the_ids() -> None:
    assert masks_of_size(0b1111, 2) == (0b0011, 0b0101, 0b1001, 0b0110, 0b1010, 0b1100)
    assert masks_of_size(1 << 63 | 1 << 7, 1) == (1 << 7, 1 << 63)
    assert masks_of_size(0b11, 3) == ()


@given(st.sets(st.integers(0, 63)))
def test_a_mask_is_its_ids(ids: set[int]) -> None:
    assert list(numa_ids(mask_of(ids))) == sorted(ids)


TWO_SOCKETS = {(a, b): 10 if a == b else 12 if a // 2 == b // 2 else 32 for a in range(4) for b in range(4)}


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        pytest.param([0b0110, 0b0011, 0b1100], 0b0011, id="same socket, smaller number on a tie"),
        pytest.param([0b0110, 0b1001], 0b0110, id="equally far: smaller number"),
        pytest.param([0b1100, 0b0101], 0b1100, id="closer beats smaller"),
    ],
)
def test_the_closest_set(masks: list[int], expected: int) -> None:
    assert closest(masks, TWO_SOCKETS) == expected
    assert closest(masks * 40, TWO_SOCKETS) == expected  # by matrix


def test_distances_are_summed_both_ways_and_missing_is_far() -> None:
    assert spread(0b11, {(0, 0): 10, (0, 1): 15, (1, 0): 21}) == 46 + UNKNOWN_DISTANCE
