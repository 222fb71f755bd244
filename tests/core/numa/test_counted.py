"""Resources that are merely counted: what a set of NUMA nodes holds, by arithmetic, and as rules that merge like their lists."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.numa.hints import (
    Counted,
    Hint,
    HintRule,
    Takes,
    common_masks,
    fewest_that_reach,
    hints_of,
    mask_of,
    masks_of_size,
    numa_ids,
)
from koord_numa.core.objects.vocabulary import KubeletPolicy
from tests.core.numa import random_hints
from tests.core.numa.enumeration import kubelet_merge, merge
from tests.core.numa.kubelet_decisions import decide_kubelet
from tests.tables import each_row

ALL = 64


@st.composite
def counted(draw: st.DrawFn, nodes: int) -> Counted:
    """Some NUMA nodes may be left out, some demanded."""
    free = {numa: draw(st.integers(0, 6)) for numa in numa_ids(nodes) if draw(st.integers(0, 5))}
    covering = draw(st.just(0) | random_hints.subsets(nodes))
    return Counted(free, draw(st.integers(0, 20)), covering)


@st.composite
def rules(draw: st.DrawFn, nodes: int) -> HintRule:
    """As the kubelet's CPU manager makes them; the preferred size may be out of reach."""
    family = draw(counted(nodes))
    return HintRule(family.nodes, draw(st.integers(0, 4)), family.accepts, counted=family)


def listed(takes: Takes) -> Sequence[Hint]:
    return list(hints_of(takes, ALL))


@each_row(
    ("needed", "fewest"),
    [
        pytest.param(1, 1, id="one is enough"),
        pytest.param(8, 1, id="exactly the largest"),
        pytest.param(9, 2, id="the two largest"),
        pytest.param(15, 3, id="everything"),
        pytest.param(99, 3, id="never enough"),
    ],
)
def test_the_fewest_numa_nodes_are_the_largest(needed: int, fewest: int) -> None:
    assert fewest_that_reach({0: 3, 1: 8, 5: 4}, needed) == fewest


@given(st.data())
def test_every_view_of_a_family_tells_the_same(data: st.DataObject) -> None:
    nodes = mask_of(data.draw(random_hints.IDS))
    rule = data.draw(rules(nodes))
    family = rule.counted
    assert family is not None
    ids = tuple(numa_ids(nodes))
    hints = listed(rule)
    accepted = {hint.mask for hint in hints}
    assert bool(family) == bool(hints)
    assert family.narrowest == min(((hint.mask or 0).bit_count() for hint in hints), default=0)
    table = family.table(ids)
    for squeezed in range(2 ** len(ids)):
        mask = mask_of(ids[i] for i in numa_ids(squeezed))
        assert family.accepts(mask) == (mask in accepted) == bool(table[squeezed])
        assert rule.prefers(mask) == (Hint(mask, preferred=True) in hints)


@given(st.data())
def test_counted_resources_merge_like_their_lists(data: st.DataObject) -> None:
    nodes = mask_of(data.draw(random_hints.IDS))
    families = data.draw(st.lists(rules(nodes).filter(bool), min_size=1, max_size=2))
    others = data.draw(st.lists(random_hints.hints(nodes), max_size=1))
    distances = data.draw(st.none() | random_hints.distances(nodes))
    takes: list[Takes] = data.draw(st.permutations([*families, *others]))
    assert merge(takes, nodes, distances) == kubelet_merge([listed(one) for one in takes], nodes, distances)


@given(st.data())
def test_policies_decide_alike_on_counts_and_lists(data: st.DataObject) -> None:
    nodes = mask_of(data.draw(random_hints.IDS))
    families = data.draw(st.lists(rules(nodes), min_size=1, max_size=3))
    for policy in KubeletPolicy:
        by_arithmetic = decide_kubelet(policy, [{f"r{i}": one for i, one in enumerate(families)}], nodes)
        by_list = decide_kubelet(policy, [{f"r{i}": listed(one) for i, one in enumerate(families)}], nodes)
        assert by_arithmetic == by_list


@given(st.data())
def test_the_search_on_wide_machines_finds_the_smallest_number(data: st.DataObject) -> None:
    """Twenty NUMA nodes of which fourteen hold nothing: the first six decide, and can be enumerated."""
    filling = dict.fromkeys(range(6, 20), 0)
    families = [
        Counted({**{numa: data.draw(st.integers(0, 9)) for numa in range(6)}, **filling}, needed, covering)
        for needed, covering in data.draw(
            st.lists(st.tuples(st.integers(1, 30), st.sampled_from([0, 0b1, 0b100100])), min_size=1, max_size=3)
        )
    ]
    size = data.draw(st.integers(1, 5))
    enumerated = [mask for mask in masks_of_size(0b111111, size) if all(one.accepts(mask) for one in families)]
    assert common_masks(families, size) == sorted(enumerated)[:1]
    narrow = [Counted({numa: one.free[numa] for numa in range(6)}, one.needed, one.covering) for one in families]
    assert common_masks(narrow, size) == sorted(enumerated)


def test_a_hopeless_knapsack_ends() -> None:
    """Together they ask for a sum of at least one half and of less than it; no bound of a single resource shows that."""
    odd = {numa: 2 * (numa * 7919 % 1009) + 1 for numa in range(64)}
    inverse = {numa: 4096 - amount for numa, amount in odd.items()}
    half = sum(odd.values()) // 2
    families = [Counted(odd, half), Counted(inverse, 32 * 4096 - half + 1)]
    assert common_masks(families, 32) == []


def test_absurd_amounts_are_exact() -> None:
    huge = 10**40
    free = {0: huge, 1: huge - 1, 2: 1}
    assert (Counted(free, 2 * huge).narrowest, Counted(free, 2 * huge - 1).narrowest) == (3, 2)
    assert common_masks([Counted(free, 2 * huge)], 3) == [0b111]
    assert common_masks([Counted(free, 2 * huge - 1)], 2) == [0b011]


@pytest.mark.parametrize("needed", [17, 40, 64])
def test_preferred_masks_of_many_numa_nodes_equal_the_list(needed: int) -> None:
    """Twelve NUMA nodes have 924 masks of six: these come from a table instead."""
    family = Counted({numa: 3 + numa % 5 * 4 for numa in range(12)}, needed)
    rule = HintRule(family.nodes, 6, family.accepts, counted=family)
    assert sorted(rule.preferred()) == sorted(hint.mask or 0 for hint in rule.hints() if hint.preferred)
