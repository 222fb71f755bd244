"""
How many CPUs of its init containers a later container of a pod gets again, where only numbers of CPUs are known.

Theory. All containers that share a NUMA node choose from the same free and reusable CPUs, by topology alone: as many free cores as the need
allows in ascending order, then single CPUs, those of partly used cores first (``core/cpus/kubelet_packed``). On cores of one thread a
container gets its init container's CPUs again. On cores of two an odd number ends in a single CPU of a partly used core, which an even
number leaves out. So what is got again follows from the numbers but for how many cores are partly used, and of these all numbers are tried.

Example: ``init 1, app 2``. With no core partly used the init container breaks one, and the app gets it whole. Otherwise the init container
gets the other thread of a used core, the app a free core, and the CPU of the init container stays held beside it.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

Takes = tuple[tuple[bool, int], ...]
"""For every container with exclusive CPUs, in order: is it an init container, and how many CPUs it gets."""

MOST_CPUS: Final = 128
"""Of pods with more CPUs in all nothing is said."""


def overlap(free: int, takes: Takes) -> tuple[int, int] | None:
    """
    The least and the most CPUs that the last of these containers gets of those that init containers before it hold.

    ``free`` is what their NUMA node had free before the first of them. ``None`` where nothing is known. Cores have one thread or two.
    """
    wanted = sum(count for _, count in takes)
    if wanted > MOST_CPUS or not takes:
        return None
    return _bounds(min(free, 2 * wanted + 8 * len(takes)), wanted, takes)


@lru_cache(maxsize=4096)
def _bounds(free: int, wanted: int, takes: Takes) -> tuple[int, int]:
    found = [_overlap_of_ones(takes)]
    for cores, single in _arrangements(free, wanted, len(takes)):
        again = _overlap_of_pairs(cores, single, takes)
        if again is not None:
            found.append(again)
    return min(found), max(found)


def _overlap_of_ones(takes: Takes) -> int:
    """With one thread a core: containers get the lowest CPUs, so those of init containers first."""
    reusable = again = 0
    for init, count in takes:
        again = min(count, reusable)
        reusable = max(reusable, count) if init else reusable - again
    return again


def _arrangements(free: int, wanted: int, containers: int) -> Iterator[tuple[int, int]]:
    """
    Numbers of free cores and of cores with one thread free; more than are wanted are as good as those.

    Of the latter each container takes one while cores are left, more only where there are few cores. Some more may be free than is known.
    """
    enough = wanted // 2 + containers
    for single in range(2 * containers + 2):
        yield enough, single
        if single < free:
            yield min((free - single) // 2, enough), single
    for cores in range(min(enough, free // 2) + 1):
        yield cores, min(free - 2 * cores, wanted + containers)


def _overlap_of_pairs(cores: int, single: int, takes: Takes) -> int | None:
    """With two threads a core; ``None`` where there are too few CPUs for these containers."""
    # Cores in ascending order; a core with one thread free has an odd CPU only.
    free = {(core, thread) for core in range(cores) for thread in (0, 1)}
    free |= {(cores + place, 1) for place in range(single)}
    reusable: set[tuple[int, int]] = set()
    again: set[tuple[int, int]] = set()
    for init, count in takes:
        pool = free | reusable
        if count > len(pool):
            return None
        chosen = _packed(pool, count)
        again = chosen & reusable
        free -= chosen
        reusable = reusable | chosen if init else reusable - chosen
    return len(again)


def _packed(pool: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """The kubelet's choice on one NUMA node: free cores, then single CPUs of the most used cores, lowest first."""
    whole = sorted({core for core, _ in pool if (core, 0) in pool and (core, 1) in pool})[: count // 2]
    chosen = {(core, thread) for core in whole for thread in (0, 1)}
    rest = pool - chosen
    singles = sorted(rest, key=lambda cpu: (((cpu[0], 1 - cpu[1]) in rest), cpu))
    return chosen | set(singles[: count - len(chosen)])
