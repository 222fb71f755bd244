"""
What NFD's counts tell of each of several devices in use: it counts a device as often as it is near NUMA nodes, but all on one of them.

Which device is counted where is open as a rule, and the ways to share the counts out may be thousands. What all of them have in common
takes no more than the counts that may be left after each device: from the first one on those that can be reached, from the last one back
those that lead to nothing left. A device may be counted so where one leads from the former to the latter.

Example: three devices near NUMA node 0 and others, counts of 2 on NUMA nodes 1, 2 and 3. Each device is near two NUMA nodes: 0 and another.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from koord_numa.core.bit_sets import each as each_of
from koord_numa.core.kubelet.sharing.reach import Counts, Reach
from koord_numa.core.value_objects import replace

MOST_LEFT: Final = 2_000
"""So many counts that may be left after one device are looked at."""

Holder = TypeVar("Holder")

Option = tuple[int, int]
"""Where a device is counted, as a mask, and how often."""

_Left = tuple[int, ...]


def counted_on_last(held: Mapping[Holder, Reach], used: Counts) -> dict[Holder, Reach] | None:
    """
    These devices with what all ways to share the counts out have in common, ``used`` by NUMA id.

    As they are where there are too many counts to look at; ``None`` where the counts are of no such devices.
    """
    options = _options(tuple(reach.key for reach in held.values()), tuple(used.items()))
    if options is None:
        return dict(held)
    if not all(options):
        return None
    return {each: _known(reach, ways) for (each, reach), ways in zip(held.items(), options, strict=True)}


def ways_of(reach: Reach, used: Counts) -> Iterator[Option]:
    """Each way in which a device may be counted, of so many counts."""
    most = (reach.must | reach.may).bit_count()
    for last in each_of(reach.last or reach.must | reach.may):
        least = (reach.must | last).bit_count()
        for width in (reach.width,) if reach.width else range(least, most + 1):
            if least <= width <= used.get(last.bit_length() - 1, 0):
                yield last, width


@lru_cache(maxsize=1024)
def _options(
    keys: Sequence[tuple[int, int, int, int]], used: Sequence[tuple[int, int]]
) -> tuple[frozenset[Option], ...] | None:
    """How each device may be counted; ``None`` where there are too many counts to look at."""
    counts, ids = dict(used), [numa for numa, _ in used]
    ways = [list(ways_of(Reach(*key), counts)) for key in keys]
    least = [min((width for _, width in each), default=0) for each in ways]
    most = [max((width for _, width in each), default=0) for each in ways]
    reached: list[set[_Left]] = [{tuple(counts.values())}]
    for at, each in enumerate(ways):
        after = {_less(left, ids.index(last.bit_length() - 1), width) for left in reached[-1] for last, width in each}
        fewest, rest = sum(least[at + 1 :]), sum(most[at + 1 :])
        reached.append({left for left in after if min(left) >= 0 and fewest <= sum(left) <= rest})
        if len(reached[-1]) > MOST_LEFT:
            return None
    found: list[frozenset[Option]] = []
    leads = {left for left in reached[-1] if not any(left)}
    for before, each in zip(reversed(reached[:-1]), reversed(ways), strict=True):
        steps = [
            (left, way)
            for left in before
            for way in each
            if _less(left, ids.index(way[0].bit_length() - 1), way[1]) in leads
        ]
        leads = {left for left, _ in steps}
        found.append(frozenset(way for _, way in steps))
    return tuple(reversed(found))


def _less(left: _Left, place: int, count: int) -> _Left:
    return (*left[:place], left[place] - count, *left[place + 1 :])


def _known(reach: Reach, ways: frozenset[Option]) -> Reach:
    must, may, lasts = -1, 0, 0
    for last, width in ways:
        mask = reach.must | last
        must &= mask
        # One more than these are there only where it is counted more often.
        may |= mask | (reach.may if width > mask.bit_count() else 0)
        lasts |= last
    widths = {width for _, width in ways}
    return replace(
        reach, must=must, may=may & ~must, width=widths.pop() if len(widths) == 1 else reach.width, last=lasts
    )
