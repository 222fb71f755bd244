"""A table in one test fails with each row that fails, and runs all of them."""

import asyncio

import pytest

from tests.tables import each_row


def test_failures_name_their_rows_and_the_other_rows_run() -> None:
    ran = []

    @each_row(("number", "square"), [pytest.param(1, 1, id="one"), pytest.param(2, 5, id="two"), (3, 8), (4, 16)])
    @each_row("sign", "+-")
    def squares(number: int, square: int, sign: str) -> None:
        ran.append(f"{sign}{number}")
        assert number * number == square

    with pytest.raises(ExceptionGroup) as failed:
        squares()
    assert ran == ["+1", "-1", "+2", "-2", "+3", "-3", "+4", "-4"]
    assert [error.__notes__ for error in failed.value.exceptions] == [["row two"], ["row 2: 3, 8"]]
    inner = failed.value.exceptions[0]
    assert isinstance(inner, ExceptionGroup)
    assert [error.__notes__ for error in inner.exceptions] == [["row 0: '+'"], ["row 1: '-'"]]


def test_an_option_selects_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr("tests.tables.only", ["b"])

    @each_row("word", ["a", "b"], ids=["first a", "second b"])
    def words(word: str) -> None:
        ran.append(word)

    words()
    assert ran == ["b"]


async def test_rows_of_a_coroutine_run_in_one_loop() -> None:
    loops = []

    @each_row("number", [1, 2, 3])
    async def even(number: int) -> None:
        loops.append(asyncio.get_running_loop())
        assert number % 2 == 0

    with pytest.raises(ExceptionGroup, match="2 of 3 rows"):
        await even()
    assert loops == [asyncio.get_running_loop()] * 3
