"""Numbers of devices near NUMA nodes: which there can be, how they are dealt out, and what two kinds of exporters say of those in use."""

from itertools import combinations_with_replacement, product

import pytest

from koord_numa.core.kubelet.sharing.counts import MOST_STEPS, Ways
from koord_numa.core.kubelet.sharing.reach import Reach, SharedPool, Wiring, deal, left_of, possible, without

NUMA = 3
MASKS = range(1, 1 << NUMA)


def counts(masks: tuple[int, ...] | list[int]) -> dict[int, int]:
    return {numa: sum(mask >> numa & 1 for mask in masks) for numa in range(NUMA)}


@pytest.mark.parametrize("count", range(4))
def test_devices_with_given_numbers_exist_exactly_where_the_rule_says(count: int) -> None:
    there = {tuple(counts(masks).values()) for masks in combinations_with_replacement(MASKS, count)}
    for numbers in product(range(count + 2), repeat=NUMA):
        assert possible(dict(enumerate(numbers)), count) is (numbers in there), numbers


@pytest.mark.parametrize("wiring", list(Wiring))
def test_devices_are_dealt_out_with_the_numbers_that_are_asked_for(wiring: Wiring) -> None:
    for masks in combinations_with_replacement(MASKS, 4):
        dealt = deal(counts(masks), len(masks), wiring=wiring)
        assert counts(dealt) == counts(masks)
        assert all(dealt)


def test_what_is_left_of_a_wiring_is_the_wiring_without_what_is_taken() -> None:
    pool = SharedPool({0: 2, 1: 2, 2: 2}, 3)
    assert sorted(left_of(pool, [0b101], Wiring.RING)) == [0b011, 0b110]
    # A device that a ring has not makes it another wiring.
    assert counts(left_of(pool, [0b111], Wiring.RING)) == {0: 1, 1: 1, 2: 1}
    assert without(pool.counts, [0b101]) == {0: 1, 1: 2, 2: 1}


def ways(reaches: list[Reach], used: dict[int, int], *, in_full: bool) -> list[list[Reach]]:
    search = Ways([((f"p{at}", ("gpu", at)), reach) for at, reach in enumerate(reaches)], in_full)
    search.share(0, used, {})
    assert search.complete
    return [list(way.values()) for way in search.found]


def test_an_exporter_that_counts_in_full_names_the_numa_nodes_of_one_device() -> None:
    one = Reach(0b001, 0b110)
    assert ways([one], {0: 1, 1: 0, 2: 1}, in_full=True) == [[Reach(0b101, 0, 2)]]
    assert ways([one], {0: 1, 1: 0, 2: 0}, in_full=True) == [[Reach(0b001, 0, 1)]]
    assert ways([one], {0: 0, 1: 1, 2: 1}, in_full=True) == []


def test_of_two_devices_only_the_sum_is_known() -> None:
    both = [Reach(0b001, 0b110), Reach(0b001, 0b110)]
    found = ways(both, {0: 2, 1: 1, 2: 0}, in_full=True)
    assert sorted([way[0].must, way[1].must] for way in found) == [[0b001, 0b011], [0b011, 0b001]]


def test_an_exporter_that_counts_on_the_last_numa_node_tells_the_width() -> None:
    one = Reach(0b001, 0b110)
    assert ways([one], {0: 0, 1: 2, 2: 0}, in_full=False) == [[Reach(0b011, 0, 2, 0b010)]]
    # Last is the NUMA node of the hint: the other one stays open.
    assert ways([one], {0: 2, 1: 0, 2: 0}, in_full=False) == [[Reach(0b001, 0b110, 2, 0b001)]]
    assert ways([one], {0: 0, 1: 1, 2: 0}, in_full=False) == []


@pytest.mark.parametrize("used", list(product(range(4), repeat=NUMA)))
def test_every_way_to_share_counts_out_is_found(used: tuple[int, ...]) -> None:
    """Looking ahead saves steps, and loses none: compared with all masks that three devices may have."""
    reaches = [Reach(0b001, 0b110), Reach(0b010), Reach(0, 0b111)]
    masks = [[mask for mask in MASKS if not (one.must & ~mask or mask & ~(one.must | one.may))] for one in reaches]
    there = [list(each) for each in product(*masks) if counts(each) == dict(enumerate(used))]
    found = ways(reaches, dict(enumerate(used)), in_full=True)
    assert sorted([each.must for each in way] for way in found) == sorted(there)


@pytest.mark.parametrize("in_full", [True, False])
def test_counts_that_no_devices_explain_are_found_out_soon(in_full: bool) -> None:
    """An exporter that counts in the other manner shows more on one NUMA node than devices are near it."""
    reaches = [Reach(1 << numa, 0xFF ^ 1 << numa) for numa in range(8)]
    used = dict.fromkeys(range(8), 2) | ({7: 9} if in_full else {7: 1, 0: -1})
    search = Ways([((f"p{at}", ("gpu", at)), reach) for at, reach in enumerate(reaches)], in_full)
    search.share(0, used, {})
    assert search.complete
    assert not search.found
    assert search.steps > MOST_STEPS - 10


def test_a_search_that_takes_too_long_ends_and_says_so() -> None:
    """Each device counts one or two, on either NUMA node: in too many ways to find each of them wrong."""
    reaches = [Reach(0b11) for _ in range(18)]
    search = Ways([((f"p{at}", ("gpu", at)), reach) for at, reach in enumerate(reaches)], in_full=False)
    search.share(0, {0: 17, 1: 19}, {})
    assert not search.complete
    assert not search.found
