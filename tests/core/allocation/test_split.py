"""Splitting an amount over NUMA nodes: fits exactly when it can, in whole units, as evenly as what is free allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.allocation.numa_offers import split
from tests.tables import each_row


@each_row(
    ("amount", "free", "unit", "shares"),
    [
        pytest.param(0, (5,), 1, (0,), id="nothing"),
        pytest.param(5, (), 1, None, id="none"),
        pytest.param(0, (), 1, (), id="nothing-from-none"),
        pytest.param(4000, (8000, 8000), 1000, (2000, 2000), id="even"),
        pytest.param(5000, (8000, 8000), 1000, (2000, 3000), id="the-later-one-gets-the-rest"),
        pytest.param(3500, (8000, 8000), 1, (1750, 1750), id="milli-cpus"),
        pytest.param(9, (2, 9, 4), 1, (2, 4, 3), id="who-has-less-gives-all"),
        pytest.param(13, (2, 9, 4), 1, (2, 7, 4), id="who-has-most-gives-the-rest"),
        pytest.param(16, (2, 9, 4), 1, None, id="too-much"),
        pytest.param(12, (9, 1, 5, 2), 1, (5, 1, 4, 2), id="not-in-the-order-of-ids"),
        pytest.param(6000, (100, 10000), 1000, (0, 6000), id="no-broken-cpus"),
        pytest.param(8000, (3000, 6000), 4000, None, id="whole-cores-of-four"),
        pytest.param(8000, (4000, 6000), 4000, (4000, 4000), id="whole-cores-fit"),
        pytest.param(3000, (4000, 4000), 2000, None, id="not-whole-cores"),
    ],
)
def test_split(amount: int, free: tuple[int, ...], unit: int, shares: tuple[int, ...] | None) -> None:
    assert split(amount, free, unit) == shares


@given(st.integers(0, 60), st.lists(st.integers(0, 20), max_size=6), st.integers(1, 4))
def test_fits_exactly_when_whole_units_add_up(amount: int, free: list[int], unit: int) -> None:
    shares = split(amount, free, unit)
    fits = amount % unit == 0 and sum(there // unit * unit for there in free) >= amount
    assert (shares is not None) == fits
    if shares is not None:
        assert sum(shares) == amount
        assert all(share % unit == 0 and 0 <= share <= there for share, there in zip(shares, free, strict=True))


@given(st.integers(0, 60), st.lists(st.integers(0, 20), max_size=6), st.integers(1, 4))
def test_no_share_is_smaller_than_another_without_being_empty(amount: int, free: list[int], unit: int) -> None:
    shares = split(amount, free, unit)
    if shares:
        not_empty = [share for share, there in zip(shares, free, strict=True) if there - share >= unit]
        assert all(max(shares) - share <= unit * len(shares) for share in not_empty)


@given(st.integers(0, 60), st.permutations(range(5)), st.lists(st.integers(0, 20), min_size=5, max_size=5, unique=True))
def test_numa_ids_do_not_matter_when_free_amounts_differ(amount: int, order: list[int], free: list[int]) -> None:
    shares = split(amount, free)
    shuffled = split(amount, [free[at] for at in order])
    assert shuffled == (None if shares is None else tuple(shares[at] for at in order))
