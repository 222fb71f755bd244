"""Edit distance, compared with its textbook definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.vocabulary import QosClass
from koord_numa.wire.errors import closest, is_near, meant, plain
from tests.tables import each_row

WORDS = st.text("abc", max_size=6)


def distance(word: str, other: str) -> int:
    """By the recursive definition, without any bound."""
    if not word or not other:
        return len(word) + len(other)
    return min(
        distance(word[1:], other) + 1,
        distance(word, other[1:]) + 1,
        distance(word[1:], other[1:]) + (word[0] != other[0]),
    )


@given(WORDS, WORDS, st.integers(0, 3))
def test_near_is_the_edit_distance(word: str, other: str, limit: int) -> None:
    assert is_near(word, other, limit) == (distance(word, other) <= limit)


def test_endless_words_are_not_compared() -> None:
    assert not is_near("a" * 10_000, "a" * 10_000 + "b")


@pytest.mark.parametrize(
    ("word", "meant"),
    [("numaPolicy", "numaTopologyPolicy"), ("numa-topology-policy", "numaTopologyPolicy"), ("comment", "")],
)
def test_closest(word: str, meant: str) -> None:
    assert closest(word, ["numaTopologyPolicy", "singleNUMANodeExclusive", "numaAllocateStrategy"]) == meant


def test_separators_and_case_do_not_matter() -> None:
    assert plain("QoS-class_x.y") == "qosclassxy"


@each_row(
    ("word", "found"),
    [
        ("lse", "LSE"),
        ("LS", "LS"),
        ("LSRX", "LSR"),
        ("sytem", "SYSTEM"),
        ("LSX", ""),  # three words are as near
        ("guaranteed", ""),
        ("", ""),
    ],
)
def test_qos_classes(word: str, found: str) -> None:
    assert meant(word, [qos.value for qos in QosClass]) == (f"; did you mean {found}?" if found else "")
