"""The merges equal the walk through all combinations, tie-breaks included."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.numa.hints import ANYWHERE, NOWHERE, Hint, mask_of
from koord_numa.core.numa.merge import merge_scored, reachable_masks
from koord_numa.core.numa.policies import NumaExclusivity, NumaOccupancy
from koord_numa.core.objects.vocabulary import NumaExclusive
from tests.core.numa import random_hints
from tests.core.numa.enumeration import koordinator_merge, kubelet_merge, merge
from tests.tables import each_row

FOUR = 0b1111


def hints(*masks: int, preferred: bool = True) -> list[Hint]:
    return [Hint(mask, preferred) for mask in masks]


@each_row(
    ("lists", "expected"),
    [
        pytest.param([], Hint(FOUR, True), id="no provider"),
        pytest.param([[ANYWHERE], [ANYWHERE]], Hint(FOUR, True), id="no preference"),
        pytest.param([[]], Hint(FOUR, False), id="nothing left to merge"),
        pytest.param([[NOWHERE], hints(1)], Hint(1, False), id="impossible resource makes the rest not preferred"),
        pytest.param([hints(2, 1), [ANYWHERE]], Hint(1, True), id="smaller number among equally narrow"),
        pytest.param([hints(0b1001, 0b0110)], Hint(0b0110, True), id="number order is not lexicographic order"),
        pytest.param([hints(3), hints(1)], Hint(1, False), id="a subset of what the other prefers is not preferred"),
        pytest.param([hints(1), hints(2)], Hint(FOUR, False), id="disjoint sets merge into nothing"),
        pytest.param([hints(1, 3), hints(3)], Hint(3, True), id="preferred beats narrower"),
        pytest.param(
            [hints(0b0111, 0b1111), hints(0b1011)], Hint(0b1011, False), id="not preferred: the most demanding width"
        ),
        pytest.param(
            [hints(0b0111), hints(0b1110, 0b1001)], Hint(0b0110, False), id="not preferred: else the next narrower one"
        ),
        pytest.param(
            [hints(0b0001, 0b1111, preferred=False), hints(0b1110)],
            Hint(0b1110, False),
            id="not preferred: wide results count too",
        ),
    ],
)
def test_kubelet_merge_by_hand(lists: list[list[Hint]], expected: Hint) -> None:
    assert merge(lists, FOUR) == expected


def test_closest_sets_win_only_among_equally_narrow_ones() -> None:
    distances = {(a, b): 10 if a == b else 12 if {a, b} == {2, 3} else 20 for a, b in product(range(4), repeat=2)}
    assert merge([hints(0b0011, 0b1100)], FOUR, distances) == Hint(0b1100, True)
    assert merge([hints(0b0011, 0b1100, 0b0001)], FOUR, distances) == Hint(0b0001, True)


@each_row(
    ("lists", "expected"),
    [
        pytest.param([], Hint(FOUR, True), id="no provider"),
        pytest.param([[Hint(1, True, score=1), Hint(2, True, score=5)]], Hint(2, True, score=5), id="score decides"),
        pytest.param(
            [[Hint(0b1001, True, score=9), Hint(0b0110, True, score=1)]],
            Hint(0b0110, True, score=1),
            id="a smaller number met later beats a better score",
        ),
        pytest.param(
            [[Hint(0b0110, True, score=1), Hint(0b1001, True, score=9)]],
            Hint(0b1001, True, score=9),
            id="met earlier it does not",
        ),
        pytest.param([hints(3), hints(1)], Hint(1, False, unsatisfied=True), id="narrower than a hint is unsatisfied"),
        pytest.param(
            [[Hint(0b0111, False, score=4)], [Hint(0b1110, False, score=3)]],
            Hint(0b0110, False, unsatisfied=True),
            id="only hints equal to the result score",
        ),
        pytest.param([[Hint(FOUR, False)]], Hint(FOUR, False), id="the start stays unless something scores"),
        pytest.param([[Hint(FOUR, False, True, 2)]], Hint(FOUR, False, True, 2), id="and here it scores"),
    ],
)
def test_koordinator_merge_by_hand(lists: list[list[Hint]], expected: Hint) -> None:
    assert merge_scored(lists, FOUR) == expected


@given(st.data())
def test_kubelet_merge_equals_the_walk(data: st.DataObject) -> None:
    nodes = mask_of(data.draw(random_hints.IDS))
    lists = data.draw(random_hints.lists(nodes))
    distances = data.draw(st.none() | random_hints.distances(nodes))
    assert merge(lists, nodes, distances) == kubelet_merge(lists, nodes, distances)


@given(st.data())
def test_koordinator_merge_equals_the_walk(data: st.DataObject) -> None:
    nodes = mask_of(data.draw(random_hints.IDS))
    lists = data.draw(random_hints.lists(nodes))
    occupancy = NumaOccupancy(data.draw(random_hints.subsets(nodes)), data.draw(random_hints.subsets(nodes)))
    denied = NumaExclusivity(data.draw(st.sampled_from(NumaExclusive)), occupancy).denied
    assert merge_scored(lists, nodes, denied) == koordinator_merge(lists, nodes, denied)


@given(st.data())
def test_the_order_of_resources_and_hints_is_irrelevant(data: st.DataObject) -> None:
    nodes = mask_of(data.draw(random_hints.IDS))
    lists = data.draw(random_hints.lists(nodes))
    shuffled = data.draw(st.permutations([data.draw(st.permutations(hints)) for hints in lists]))
    assert merge(shuffled, nodes) == merge(lists, nodes)


@given(st.data())
def test_tabulated_and_pairwise_intersections_agree(data: st.DataObject) -> None:
    """Seventeen NUMA nodes are beyond the table; on their first five both ways must find the same sets."""
    lists = data.draw(random_hints.lists(0b11111))
    named = [[hint for hint in hints if hint.mask is not None] or [Hint(0b11111, False)] for hints in lists]
    named.append([Hint(0b11111, False)])
    assert reachable_masks(named, 2**17 - 1) == reachable_masks(named, 0b11111)


def test_counts_of_combinations_never_overflow() -> None:
    """Sixty-four resources with two hints each have 2^64 combinations, which a machine integer takes for none."""
    twice = [Hint(0b001, False), Hint(0b011, False)]
    assert reachable_masks([*[twice] * 63, [Hint(0b001, False), Hint(0b101, False)]], 0b111) == [0b001]
    everything = [Hint(mask, False) for mask in range(1, 256)]
    assert reachable_masks([everything] * 30, 255) == list(range(1, 256))
