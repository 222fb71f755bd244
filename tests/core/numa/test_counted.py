"""Hints by arithmetic are the same hints as in a list, and merge alike."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.numa.common_masks import common_masks, narrowest_common
from koord_numa.core.numa.counted import Counted, counted_by_capacity, counted_by_free, fewest_that_reach
from koord_numa.core.numa.exclusive import Exclusivity, NumaOccupancy
from koord_numa.core.numa.hint_providers import Takes, hints_of
from koord_numa.core.numa.hints import Hint, mask_of, masks_of_size, numa_ids
from koord_numa.core.numa.koordinator_merge import merge_scored
from koord_numa.core.numa.kubelet_merge import merge
from koord_numa.core.numa.policies import decide_kubelet
from koord_numa.core.objects.vocabulary import KubeletPolicy, NumaExclusive
from tests.core.numa import random_hints
from tests.core.numa.enumeration import koordinator_merge, kubelet_merge

ALL = 64


@st.composite
def counted(draw: st.DrawFn, nodes: int) -> Counted:
    """Some NUMA nodes may be left out, some demanded; the preferred size may be out of reach."""
    free = {numa: draw(st.integers(0, 6)) for numa in numa_ids(nodes) if draw(st.integers(0, 5))}
    covering = draw(st.just(0) | random_hints.subsets(nodes))
    return Counted(free, draw(st.integers(0, 20)), draw(st.integers(0, 4)), covering)


def listed(takes: Takes) -> Sequence[Hint]:
    return list(hints_of(takes, ALL))


@pytest.mark.parametrize(
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


def test_the_kubelet_prefers_by_capacity_though_reserved_cpus_make_it_impossible() -> None:
    """32 CPUs on each of two NUMA nodes, one reserved on each: 32 fit an empty NUMA node in theory only."""
    asked = counted_by_capacity({0: 32, 1: 32}, {0: 31, 1: 31}, 32)
    assert list(asked.hints(ALL)) == [Hint(0b11, preferred=False)]


def test_koordinator_prefers_by_what_is_free() -> None:
    assert list(counted_by_free({0: 2, 1: 3, 2: 4}, 5).hints(ALL)) == [
        Hint(0b011, preferred=True),
        Hint(0b101, preferred=True),
        Hint(0b110, preferred=True),
        Hint(0b111, preferred=False),
    ]


def test_no_hint_of_koordinator_contains_a_numa_node_that_lacks_the_resource() -> None:
    assert list(counted_by_free({0: 2, 1: 0, 2: 4}, 5, lacking=0b010).hints(ALL)) == [Hint(0b101, preferred=True)]


def test_hints_cover_what_must_be_reused() -> None:
    assert list(counted_by_capacity({0: 4, 1: 4}, {0: 4, 1: 4}, 2, covering=0b10).hints(ALL)) == [
        Hint(0b10, preferred=True),
        Hint(0b11, preferred=False),
    ]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_every_view_of_a_family_tells_the_same(data: st.DataObject) -> None:
    nodes = mask_of(data.draw(random_hints.IDS))
    family = data.draw(counted(nodes))
    ids = tuple(numa_ids(nodes))
    hints = list(family.hints(ALL))
    accepted = {hint.mask for hint in hints}
    assert bool(family) == bool(hints)
    assert family.narrowest == min((hint.mask or 0).bit_count() for hint in hints) if hints else family.narrowest == 0
    table = family.table(ids)
    for squeezed in range(2 ** len(ids)):
        mask = mask_of(ids[i] for i in numa_ids(squeezed))
        assert family.accepts(mask) == (mask in accepted) == bool(table[squeezed])
        assert family.prefers(mask) == (Hint(mask, preferred=True) in hints)


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_counted_resources_merge_like_their_lists(data: st.DataObject) -> None:
    nodes = mask_of(data.draw(random_hints.IDS))
    families = data.draw(st.lists(counted(nodes).filter(bool), min_size=1, max_size=2))
    others = data.draw(st.lists(random_hints.hints(nodes), max_size=1))
    distances = data.draw(st.none() | random_hints.distances(nodes))
    takes: list[Takes] = data.draw(st.permutations([*families, *others]))
    assert merge(takes, nodes, distances) == kubelet_merge([listed(one) for one in takes], nodes, distances)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_counted_and_scored_resources_merge_like_their_lists(data: st.DataObject) -> None:
    nodes = mask_of(data.draw(random_hints.IDS))
    families = data.draw(st.lists(counted(nodes).filter(bool), min_size=1, max_size=2))
    others = data.draw(st.lists(random_hints.hints(nodes), max_size=1))
    occupancy = NumaOccupancy(data.draw(st.integers(0, nodes)), data.draw(st.integers(0, nodes)))
    denied = Exclusivity(data.draw(st.sampled_from(NumaExclusive)), occupancy).denied
    takes: list[Takes] = data.draw(st.permutations([*families, *others]))
    assert merge_scored(takes, nodes, denied) == koordinator_merge([listed(one) for one in takes], nodes, denied)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_scored_merge_needs_no_lists_of_counted_resources(data: st.DataObject) -> None:
    """Nine NUMA nodes, of which five take part: nothing is listed, the answer is the same."""
    families = data.draw(st.lists(counted(0b11111).filter(bool), min_size=1, max_size=2))
    enumerated = koordinator_merge([listed(one) for one in families], 0b111111111, lambda _: 0)
    assert merge_scored(families, 0b111111111) == enumerated


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_policies_decide_alike_on_counted_resources_and_their_lists(data: st.DataObject) -> None:
    nodes = mask_of(data.draw(random_hints.IDS))
    families = data.draw(st.lists(counted(nodes), min_size=1, max_size=3))
    for policy in KubeletPolicy:
        by_arithmetic = decide_kubelet(policy, [{f"r{i}": one for i, one in enumerate(families)}], nodes)
        by_list = decide_kubelet(policy, [{f"r{i}": listed(one) for i, one in enumerate(families)}], nodes)
        assert by_arithmetic == by_list


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_the_search_on_wide_machines_finds_the_smallest_number(data: st.DataObject) -> None:
    """Twenty NUMA nodes of which fourteen hold nothing: the first six decide, and can be enumerated."""
    filling = dict.fromkeys(range(6, 20), 0)
    families = [
        Counted({**{numa: data.draw(st.integers(0, 9)) for numa in range(6)}, **filling}, needed, 1, covering)
        for needed, covering in data.draw(
            st.lists(st.tuples(st.integers(1, 30), st.sampled_from([0, 0b1, 0b100100])), min_size=1, max_size=3)
        )
    ]
    size = data.draw(st.integers(1, 5))
    enumerated = [mask for mask in masks_of_size(0b111111, size) if all(one.accepts(mask) for one in families)]
    assert common_masks(families, size) == sorted(enumerated)[:1]
    narrow = [Counted({numa: one.free[numa] for numa in range(6)}, one.needed, 1, one.covering) for one in families]
    assert common_masks(narrow, size) == sorted(enumerated)


def test_the_narrowest_common_size_may_be_wider_than_any_alone() -> None:
    """Each fits on one NUMA node, but not on the same one."""
    cpu, memory = counted_by_free({0: 4, 1: 0, 2: 1}, 4), counted_by_free({0: 0, 1: 8, 2: 1}, 8)
    assert narrowest_common([cpu]) == [0b001]
    assert narrowest_common([cpu, memory]) == [0b011]
    assert narrowest_common([cpu, counted_by_free({0: 1, 1: 1, 2: 1}, 9)]) == []


def test_sixty_four_numa_nodes() -> None:
    everything = 2**64 - 1
    cpu = counted_by_capacity(dict.fromkeys(range(64), 8), dict.fromkeys(range(64), 8), 16)
    memory = counted_by_capacity(dict.fromkeys(range(64), 8), {numa: numa // 8 for numa in range(64)}, 14)
    assert decide_kubelet(KubeletPolicy.RESTRICTED, [{"cpu": cpu, "memory": memory}], everything).hint == Hint(
        0b11 << 56, preferred=True
    )
    unequal = counted_by_capacity(dict.fromkeys(range(64), 8), dict.fromkeys(range(64), 8), 17)
    merged = decide_kubelet(KubeletPolicy.BEST_EFFORT, [{"cpu": cpu, "memory": unequal}], everything)
    assert (merged.admitted, merged.hint) == (True, Hint(0b111, preferred=False))


def test_a_hopeless_knapsack_ends() -> None:
    """Together they ask for a sum of at least one half and of less than it; no bound of a single resource shows that."""
    odd = {numa: 2 * (numa * 7919 % 1009) + 1 for numa in range(64)}
    inverse = {numa: 4096 - amount for numa, amount in odd.items()}
    half = sum(odd.values()) // 2
    families = [Counted(odd, half, 32), Counted(inverse, 32 * 4096 - half + 1, 32)]
    assert common_masks(families, 32) == []


def test_absurd_amounts_are_exact() -> None:
    huge = 10**40
    family = counted_by_free({0: huge, 1: huge - 1, 2: 1}, 2 * huge)
    assert narrowest_common([family]) == [0b111]
    assert narrowest_common([counted_by_free({0: huge, 1: huge - 1, 2: 1}, 2 * huge - 1)]) == [0b011]
