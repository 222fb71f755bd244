"""
How many CPUs of its init containers a later container of a pod gets again, where only numbers of CPUs are known.

Theory. All containers that share a NUMA node choose from the same free and reusable CPUs, by topology alone: as many free cores as the need
allows in ascending order, then single CPUs, those of partly used cores first (``cpu_assignment.py``). On cores of one thread a
container gets its init container's CPUs again. On cores of two an odd number ends in a single CPU of a partly used core, which an even
number leaves out. So what is got again follows from the numbers but for how many cores are partly used, and of these all numbers are tried.

Example: ``init 1, app 2``. With no core partly used the init container breaks one, and the app gets it whole. Otherwise the init container
gets the other thread of a used core, the app a free core, and the CPU of the init container stays held beside it.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations, islice
from typing import Final

from koord_numa.core.kubelet.cpu_manager import MAX_CPUS, Cpu, Takes
from koord_numa.core.value_objects import ValueObject

MOST_WAYS: Final = 64
"""Of places whose cores may be in use in more ways, or in which one pod may be in more, nothing is said."""


_Way = tuple[frozenset[Cpu], frozenset[Cpu], bool]


class CoreUse(ValueObject, gc=False):
    """
    How the cores of a NUMA node, or of a whole machine, are in use by the pods that came since it was empty, none of which has left.

    Each of ``pairs`` is one way on cores of two threads: how many CPUs finished init containers hold beside those of others, and how many
    cores have one thread free. ``ones`` are the former on cores of one thread, ``None`` where they have two. ``lasting`` is what other
    containers hold of ``size`` CPUs.

    Theory. An init container's odd CPU stays behind where it came from a partly used core, which uses that core up: so not every pod can
    have left one. Pods that have left unseen may have made more cores partly used, but no more than the CPUs that they gave back, so that
    as many CPUs at least are free as if they were there (``tests/core/kubelet/test_cpu_overlap.py`` compares with real machines).
    """

    size: int
    pairs: frozenset[tuple[int, int]]
    ones: int | None = 0
    lasting: int = 0

    @classmethod
    def of_empty(cls, size: int, reserved: int, *, even: bool) -> "CoreUse":
        """With so many CPUs that are reserved, on any cores; ``even``: may cores have two threads?"""
        free = size - reserved
        pairs = ((0, single) for single in range(reserved % 2, min(reserved, free) + 1, 2))
        return cls(free, frozenset(pairs if even else ()))

    def after(self, takes: Takes, *, in_order: bool) -> "CoreUse | None":
        """
        After one more pod; ``None`` where there are too many ways.

        ``in_order``: in one place partly used cores come first, the lowest of them before others. Of several places the one with the fewest
        free CPUs comes first, so that it may be any of them, or a free core.
        """
        if sum(count for _, count in takes) > MAX_CPUS:
            return None
        found: set[tuple[int, int]] = set()
        for held, single in self.pairs:
            cores, odd = divmod(self.size - self.lasting - held - single, 2)
            if cores >= 0 and not odd:
                ways = ways_of_pairs(cores, single, takes, in_order=in_order)
                if ways is None:
                    return None
                found.update((held + more, left) for more, left in ways)
        if len(found) > MOST_WAYS:
            return None
        ones = None if self.ones is None else self.ones + held_of_ones(takes)
        lasting = sum(count for init, count in takes if not init)
        return CoreUse(self.size, frozenset(found), ones, self.lasting + lasting)

    def with_cores_of(self, threads: int) -> "CoreUse":
        """The same on cores of one thread, or of two."""
        ones = threads == 1
        return CoreUse(self.size, frozenset() if ones else self.pairs, self.ones if ones else None, self.lasting)

    @property
    def held(self) -> tuple[int, int] | None:
        """The least and the most CPUs that finished init containers hold beside those of others; ``None`` where no way is left."""
        found = [held for held, _ in self.pairs] + ([] if self.ones is None else [self.ones])
        return (min(found), max(found)) if found else None

    @property
    def least_free(self) -> int:
        """So many CPUs are free at least."""
        return self.size - self.lasting - max(self.ones or 0, *(held for held, _ in self.pairs), 0)


def held_of_ones(takes: Takes) -> int:
    """What init containers hold in the end on cores of one thread, or where CPUs are taken in one order."""
    reusable = 0
    for init, count in takes:
        reusable = max(reusable, count) if init else max(0, reusable - count)
    return reusable


@lru_cache(maxsize=4096)
def ways_of_pairs(cores: int, single: int, takes: Takes, *, in_order: bool) -> frozenset[tuple[int, int]] | None:
    """
    What init containers hold in the end, and how many cores have one thread free then, in each way in which CPUs may be taken; ``None``
    where there are too many.
    """
    wanted = sum(count for _, count in takes)
    # More cores than are wanted stay as they are.
    few, some = min(cores, wanted // 2 + len(takes)), min(single, wanted + len(takes))
    free = {(core, thread) for core in range(few) for thread in (0, 1)} | {(few + place, 1) for place in range(some)}
    # The CPUs that are free, those that init containers leave, and whether the only partly used core was the first choice.
    ways = {(frozenset(free), frozenset[Cpu](), False)}
    for init, count in takes:
        ways = set(_after_one(ways, count, init=init, in_order=in_order))
        if len(ways) > MOST_WAYS:
            return None
    return frozenset((len(reusable), single - some + len(_singles(left))) for left, reusable, _ in ways)


def _after_one(ways: Iterable[_Way], count: int, *, init: bool, in_order: bool) -> Iterator[_Way]:
    for left, reusable, single_first in ways:
        pool = left | reusable
        singles = _singles(pool)
        for chosen in _choices(pool, count, in_order=in_order or (single_first and len(singles) == 1)):
            if init:
                # The place that had it is the one with the fewest free CPUs for the next container as well: all choose from the same.
                took = len(singles) == 1 and count % 2 == 1 and singles[0] in chosen
                yield left - chosen, reusable | chosen, single_first or took
            else:
                yield left - chosen, reusable - chosen, False


def _singles(pool: frozenset[Cpu]) -> list[Cpu]:
    """The CPUs whose sibling is not among them, lowest first."""
    return sorted(cpu for cpu in pool if (cpu[0], 1 - cpu[1]) not in pool)


def _choices(pool: frozenset[Cpu], count: int, *, in_order: bool) -> Iterator[frozenset[Cpu]]:
    """Which CPUs the kubelet may choose; none where there are too few."""
    if count > len(pool):
        return
    whole = sorted({core for core, _ in pool if (core, 0) in pool and (core, 1) in pool})
    first = frozenset((core, thread) for core in whole[: count // 2] for thread in (0, 1))
    rest, singles = count - len(first), _singles(pool)
    if rest <= len(singles):
        some = [singles[:rest]] if in_order else islice(combinations(singles, rest), MOST_WAYS + 1)
        yield from (first | frozenset(each) for each in some)
    if rest == 1 and len(whole) > count // 2 and not (in_order and singles):
        yield first | {(whole[count // 2], 0)}
