"""
How many of the devices in use may be near each NUMA node, by what is known of each of them and of those that are free.

Theory. As many devices are near a NUMA node as its zone counts, in use or free. Of the free ones no more are near it than those of which
it is not known that they are near others only (``given_back.py``), and at least those that surely are.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from koord_numa.core.kubelet.inference.hypothesis import SOMEONE, Hypothesis
from koord_numa.core.kubelet.sharing.reach import Counts, Reach, without


@dataclass(frozen=True, slots=True)
class Bounds:
    """
    By NUMA node how many of the devices in use are near it at least and at most, beside those that surely are; how many in all at least
    and at most.
    """

    low: dict[int, int]
    high: dict[int, int]
    fewest: int
    most: int

    @classmethod
    def of(cls, one: Hypothesis, name: str) -> Self:
        """Of one resource in a hypothesis."""
        shared = one.sharing[name]
        held = held_reaches(one, name)
        free = without(shared.counts, (reach.must for reach in held.values()))
        count = shared.total - len(held)
        told = one.sums.get(name)
        known = told.held if told is not None else frozenset()
        gone = [each for each in known if each not in held]
        low, high = {}, {}
        for numa, there in free.items():
            able = {each for each, reach in held.items() if reach.may >> numa & 1}
            more = told.more.get(numa, 0) if told is not None else 0
            # Each device that is gone had at most one of what was told.
            least = max(0, more - len(gone), there - count)
            most = min(there, len(able - known) + min(more, len(able & known)))
            high[numa] = max(0, most)
            low[numa] = min(high[numa], least)
        if told is not None and not gone and all(reach.exact or each in known for each, reach in held.items()):
            return cls(low, high, sum(told.more.values()), sum(told.more.values()))
        # The devices that are left are near some NUMA node each.
        room = max(0, sum(free.values()) - count)
        fewest, widest = _widths(held.values())
        return cls(low, high, max(sum(low.values()), fewest), min(room, widest))

    def ways(self, most: int) -> list[dict[int, int]] | None:
        """Every way to choose numbers; ``None`` for more than ``most``."""
        return vectors(self.low, self.high, self.fewest, min(self.most, sum(self.high.values())), most)


def held_reaches(one: Hypothesis, name: str) -> dict[tuple[str, int], Reach]:
    """The devices in use of one resource, by the uid of their pod, ``SOMEONE`` for those of unlocated pods, and their place."""
    return {
        (uid, place): reach
        for uid in (*one.state.pods, SOMEONE)
        for (resource, place), reach in one.reach.get(uid, {}).items()
        if resource == name
    }


def _widths(reaches: Iterable[Reach]) -> tuple[int, int]:
    """How many NUMA nodes devices are near beside those that they surely are near, at least and at most."""
    fewest = most = 0
    for reach in reaches:
        beside = reach.width - reach.must.bit_count() if reach.width else 0
        fewest += beside
        most += beside if reach.width else reach.may.bit_count()
    return fewest, most


def vectors(low: Counts, high: Counts, fewest: int, limit: int, most: int) -> list[dict[int, int]] | None:
    """Every way to choose numbers between two bounds that add up to between ``fewest`` and ``limit``; ``None`` for more than ``most``."""
    found: list[dict[int, int]] = [{}]
    for at, numa in enumerate(low):
        rest = list(low)[at + 1 :]
        most_later, least_later = sum(high[other] for other in rest), sum(low[other] for other in rest)
        found = [
            {**way, numa: each}
            for way in found
            for each in range(low[numa], high[numa] + 1)
            if sum(way.values()) + each + least_later <= limit and sum(way.values()) + each + most_later >= fewest
        ]
        if len(found) > most:
            return None
    return found
