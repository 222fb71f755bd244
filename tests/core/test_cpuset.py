"""CPU sets: text, algebra, order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import EMPTY, MAX_CPU, CpuSet
from tests.tables import each_row

IDS = st.sets(st.integers(0, 300))


@each_row(
    ("text", "cpus"),
    [
        pytest.param("", set(), id="empty"),
        pytest.param("0", {0}, id="one"),
        pytest.param("0-3,8", {0, 1, 2, 3, 8}, id="range-and-one"),
        pytest.param("8,0-1", {0, 1, 8}, id="any-order"),
        pytest.param("1-3,2-5,4", {1, 2, 3, 4, 5}, id="overlaps"),
        pytest.param("7-7", {7}, id="range-of-one"),
        pytest.param(f"{MAX_CPU}", {MAX_CPU}, id="the-largest"),
    ],
)
def test_parse(text: str, cpus: set[int]) -> None:
    assert set(CpuSet.parse(text)) == cpus


@each_row(
    ("text", "message"),
    [
        pytest.param("a", "'a' is neither a CPU id nor a range", id="word"),
        pytest.param("1,", "'' is neither a CPU id nor a range", id="trailing-comma"),
        pytest.param("-1", "'-1' is neither a CPU id nor a range", id="negative"),
        pytest.param("1-2-3", "'1-2-3' is neither a CPU id nor a range", id="two-dashes"),
        pytest.param("1 ", "'1 ' is neither a CPU id nor a range", id="blank"),
        pytest.param("\u0661", "'\u0661' is neither a CPU id nor a range", id="digit-of-another-script"),
        pytest.param("3-1", "range '3-1' is reversed", id="reversed"),
        pytest.param("0-999999999", f"CPU id in '0-999999999' is above {MAX_CPU}", id="too-large"),
        pytest.param("9" * 60, f"'{'9' * 40}' is neither a CPU id nor a range", id="far-too-large"),
    ],
)
def test_what_cannot_be_parsed_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the whole message is compared below)
        CpuSet.parse(text)
    assert str(caught.value) == message


@each_row(
    ("cpus", "text"),
    [
        pytest.param([], "", id="empty"),
        pytest.param([0, 1], "0-1", id="a-run-of-two"),
        pytest.param([5, 3, 4, 9], "3-5,9", id="ascending"),
        pytest.param([63, 64, 65, 200], "63-65,200", id="across-words"),
    ],
)
def test_text(cpus: list[int], text: str) -> None:
    assert str(CpuSet.of(cpus)) == text


def test_negative_ids_are_no_cpus() -> None:
    with pytest.raises(ValueError, match="negative shift count"):
        CpuSet.of([-1])
    assert -1 not in CpuSet.of([0])


@given(IDS)
def test_text_and_back(cpus: set[int]) -> None:
    assert CpuSet.parse(str(CpuSet.of(cpus))) == CpuSet.of(cpus)


@given(IDS, IDS)
def test_it_is_a_set(left: set[int], right: set[int]) -> None:
    a, b = CpuSet.of(left), CpuSet.of(right)
    assert [set(a | b), set(a & b), set(a - b), set(a ^ b)] == [left | right, left & right, left - right, left ^ right]
    assert (len(a), bool(a), a <= b, a == b) == (len(left), bool(left), left <= right, left == right)


@given(IDS)
def test_iteration_is_ascending(cpus: set[int]) -> None:
    assert list(CpuSet.of(cpus)) == sorted(cpus)


def test_membership() -> None:
    assert [cpu in CpuSet.of([1, 70]) for cpu in (0, 1, 70, 71, "1")] == [False, True, True, False, False]
    assert 0 not in EMPTY
