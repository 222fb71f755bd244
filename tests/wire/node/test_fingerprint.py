"""Fingerprints of pod sets, against the values that podfingerprint documents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.fingerprint import comparable, fingerprint
from tests.tables import each_row

KNOWN = {
    "none": ([], "pfp0v001ef46db3751d8e999"),
    "one pod": ([("namespace1", "pod1")], "pfp0v0019e0420efb37746c6"),
}


@pytest.mark.parametrize(("pods", "expected"), KNOWN.values(), ids=KNOWN.keys())
def test_known_values(pods: list[tuple[str, str]], expected: str) -> None:
    assert fingerprint(pods) == expected


pods = st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=6)


@given(found=pods)
def test_order_does_not_matter_and_the_text_is_comparable(found: list[tuple[str, str]]) -> None:
    assert fingerprint(found) == fingerprint(found[::-1]) == fingerprint(sorted(found))
    assert comparable(fingerprint(found))


def test_repetition_matters() -> None:
    assert fingerprint([("a", "b")]) != fingerprint([("a", "b")] * 2)


@each_row(
    "text", ["", "pfp0v002ef46db3751d8e999", "pfp0v001ef46", "sha256:ef46db3751d8e999", "pfp0v001EF46DB3751D8E999"]
)
def test_what_cannot_be_compared(text: str) -> None:
    assert not comparable(text)
