"""What NFD's counts tell of each of several devices, against every way to share them out, one by one."""

from collections.abc import Iterator
from random import Random

import pytest

from koord_numa.core.kubelet.sharing.last_named import Option, counted_on_last, ways_of
from koord_numa.core.kubelet.sharing.narrowing import narrowed
from koord_numa.core.kubelet.sharing.reach import Reach

NUMA = 4


def every_way(reaches: list[Reach], left: dict[int, int]) -> Iterator[tuple[Option, ...]]:
    if not reaches:
        if not any(left.values()):
            yield ()
        return
    for last, width in ways_of(reaches[0], left):
        numa = last.bit_length() - 1
        for others in every_way(reaches[1:], {**left, numa: left[numa] - width}):
            yield ((last, width), *others)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_told_of_each_device_is_what_all_ways_have_in_common(seed: int) -> None:
    dice = Random(seed)
    masks = [dice.randint(1, (1 << NUMA) - 1) for _ in range(dice.randint(1, 5))]
    used = dict.fromkeys(range(NUMA), 0)
    for mask in masks:
        numa = dice.choice([numa for numa in range(NUMA) if mask >> numa & 1])
        used[numa] += mask.bit_count()
    reaches = [_partly_known(mask, dice) for mask in masks]
    found = counted_on_last(dict(enumerate(reaches)), used)
    assert found is not None
    ways = list(every_way(reaches, used))
    for at, (mask, reach) in enumerate(zip(masks, reaches, strict=True)):
        known, options = found[at], {way[at] for way in ways}
        # Of the truth nothing is ruled out, and of what every way says nothing is left open.
        assert known.must & ~mask == 0
        assert mask & ~(known.must | known.may) == 0
        assert known.last == _union(last for last, _ in options)
        assert known.width == (options.copy().pop()[1] if len({width for _, width in options}) == 1 else reach.width)


def _partly_known(mask: int, dice: Random) -> Reach:
    low = mask & -mask
    return Reach(low, (1 << NUMA) - 1 & ~low) if dice.random() < 0.7 else Reach(mask, 0, mask.bit_count())


def _union(masks: Iterator[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def test_seven_devices_that_are_counted_twice_on_seven_numa_nodes_are_near_two_each() -> None:
    """Thousands of ways to say which of them is counted where; each of them says so."""
    held = {numa: Reach(1 << numa, 0xFF & ~(1 << numa)) for numa in range(7)}
    found = counted_on_last(held, {0: 0, **dict.fromkeys(range(1, 8), 2)})
    assert found is not None
    assert {reach.width for reach in found.values()} == {2}


def test_counts_that_no_devices_can_have_are_told() -> None:
    assert counted_on_last({0: Reach(0b01, 0b10)}, {0: 3, 1: 0}) is None


def test_a_device_is_not_near_a_numa_node_whose_devices_others_hold() -> None:
    held = {"a": Reach(0b001, 0b110), "b": Reach(0b010, 0b101), "c": Reach(0b010, 0b101)}
    assert narrowed(held, {0: 2, 1: 2, 2: 2}) == {"a": Reach(0b001, 0b100)}


def test_a_device_that_is_near_all_that_it_can_be_near_is_known() -> None:
    assert narrowed({"a": Reach(0b011, 0b100, 2)}, {0: 2, 1: 2, 2: 2}) == {"a": Reach(0b011, 0, 2)}
