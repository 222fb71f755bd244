"""Quantities as Kubernetes reads them, and as we write them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.resources import amount, format_amount, parse_quantity, supply
from tests.tables import each_row


@each_row(
    ("text", "value"),
    [
        pytest.param("0", Fraction(0), id="zero"),
        pytest.param("2500m", Fraction(5, 2), id="milli"),
        pytest.param("8Gi", Fraction(8 * 2**30), id="binary"),
        pytest.param("1.5Ki", Fraction(1536), id="binary-fraction"),
        pytest.param("3k", Fraction(3000), id="decimal"),
        pytest.param("1E", Fraction(10**18), id="exa-is-no-exponent"),
        pytest.param("1Ei", Fraction(2**60), id="exbi"),
        pytest.param("1e3", Fraction(1000), id="exponent"),
        pytest.param("12E-1", Fraction(6, 5), id="negative-exponent"),
        pytest.param("1e+2", Fraction(100), id="signed-exponent"),
        pytest.param(".5", Fraction(1, 2), id="no-leading-digit"),
        pytest.param("5.", Fraction(5), id="no-trailing-digit"),
        pytest.param("-1", Fraction(-1), id="negative"),
        pytest.param("+1", Fraction(1), id="signed"),
        pytest.param("100n", Fraction(1, 10**7), id="nano"),
        pytest.param("7u", Fraction(7, 10**6), id="micro"),
        pytest.param(4, Fraction(4), id="json-integer"),
        pytest.param(0.1, Fraction(1, 10), id="json-number"),
    ],
)
def test_parse(text: str | int | float, value: Fraction) -> None:
    assert parse_quantity(text) == value


@each_row(
    "text",
    ["", "1 Gi", "Gi", "1gi", "1KI", "1e", "1e999", "0x10", "1_000", ".", "1.2.3", "NaN", "\u0661", True, None, [1]],
)
def test_what_is_no_quantity_is_named(text: object) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)  # type: ignore[arg-type]  # whatever JSON holds


@each_row(
    ("resource", "text", "asked", "there"),
    [
        pytest.param("cpu", "1.5", 1500, 1500, id="exact"),
        pytest.param("cpu", "100u", 1, 0, id="less-than-a-milli-cpu"),
        pytest.param("memory", "1500m", 2, 1, id="less-than-a-byte"),
        pytest.param("memory", "1Gi", 2**30, 2**30, id="bytes"),
        pytest.param("example.com/gpu", "2", 2, 2, id="pieces"),
    ],
)
def test_requests_round_up_and_supplies_down(resource: str, text: str, asked: int, there: int) -> None:
    assert (amount(resource, text), supply(resource, text)) == (asked, there)


@each_row(
    ("resource", "value", "text"),
    [
        pytest.param("cpu", 2500, "2500m", id="milli"),
        pytest.param("cpu", 4000, "4", id="whole-cpus"),
        pytest.param("memory", 8 * 2**30, "8Gi", id="gibi"),
        pytest.param("memory", 1536, "1536", id="the-largest-exact-unit-none"),
        pytest.param("memory", 1536 * 1024, "1536Ki", id="kibi"),
        pytest.param("hugepages-2Mi", 2**21, "2Mi", id="hugepages"),
        pytest.param("example.com/gpu", 1024, "1024", id="pieces-have-no-unit"),
        pytest.param("memory", 0, "0", id="nothing"),
    ],
)
def test_canonical_text(resource: str, value: int, text: str) -> None:
    assert format_amount(resource, value) == text


@given(st.sampled_from(["cpu", "memory", "hugepages-1Gi", "example.com/gpu"]), st.integers(0, 2**60))
def test_text_and_back(resource: str, value: int) -> None:
    text = format_amount(resource, value)
    assert (amount(resource, text), supply(resource, text)) == (value, value)
