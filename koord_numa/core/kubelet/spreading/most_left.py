"""
The most CPUs that init containers of a pod leave held if CPUs are packed into cores of two threads at most, whatever is in use.

Theory. All containers of a pod that have one hint choose from the same CPUs, free and reusable ones (``cpu_assignment.py``): free
cores in one order, so that the smaller of two choices is part of the larger, then single CPUs. On one NUMA node these come in one order,
too. Of several NUMA nodes the one with the fewest free CPUs comes first, and that depends on how many cores were taken: a single CPU beside
free cores may be any. So what is left follows from the numbers but for how many cores are free and partly used, and all these are tried.

Example: ``init 6, sidecar 2, app 3`` anywhere. The sidecar gets a core of the init container, the app another one, and perhaps a single CPU
that the init container has not: 2 CPUs stay held.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from koord_numa.core.kubelet.core_use import held_of_ones, ways_of_pairs
from koord_numa.core.kubelet.cpu_manager import Takes

MOST_TRIED: Final = 32
"""Of pods with more CPUs in all nothing is said."""

MOST_STATES: Final = 1_000
"""So many uses of cores are told apart."""

_Core = tuple[bool, bool]
"""A core with both threads free or reusable: which of them are reusable."""

_Use = tuple[tuple[_Core, ...], tuple[bool, ...]]
"""
Cores in the order in which they are taken, and single CPUs, whose core has no other one left, in that in which they are taken once no whole
core is left: which are reusable.
"""


@lru_cache(maxsize=4096)
def most_left(takes: Takes, *, in_order: bool) -> int | None:
    """
    The most CPUs that init containers of a pod hold in the end beside those of its other containers, where all chose from one place;
    ``None`` where nothing is known.

    ``in_order``: the place is one NUMA node, where single CPUs come in one order. Larger numbers of free cores and of single CPUs than the
    containers can tell apart are as good as those that are tried.
    """
    takes = tuple(each for each in takes if each[1])
    wanted = sum(count for _, count in takes)
    if wanted > MOST_TRIED:
        return None
    starts = [
        (cores, single) for cores in range(wanted // 2 + len(takes) + 1) for single in range(wanted + len(takes) + 1)
    ]
    pairs = _left_in_order(starts, takes) if in_order else _left_in_any(starts, takes)
    return None if pairs is None else max(pairs, held_of_ones(takes))


def _left_in_order(starts: list[tuple[int, int]], takes: Takes) -> int | None:
    most = 0
    for cores, single in starts:
        ways = ways_of_pairs(cores, single, takes, in_order=True)
        if ways is None:
            return None
        most = max(most, *(held for held, _ in ways), 0)
    return most


def _left_in_any(starts: list[tuple[int, int]], takes: Takes) -> int | None:
    uses: set[_Use] = {(((False, False),) * cores, (False,) * single) for cores, single in starts}
    most = 0
    for at, (init, count) in enumerate(takes):
        after: set[_Use] = set()
        # Where nothing more is known of the order, those that follow take over nothing.
        more = sum(number for again, number in takes[at + 1 :] if again)
        for use in uses:
            for other, is_known in _after(use, count, init=init):
                if is_known:
                    after.add(other)
                else:
                    most = max(most, _held(other) + more)
            if len(after) > MOST_STATES:
                return None
        uses = after
    return max(most, *map(_held, uses), 0)


def _held(use: _Use) -> int:
    cores, singles = use
    return sum(map(sum, cores)) + sum(singles)


def _after(use: _Use, count: int, *, init: bool) -> Iterator[tuple[_Use, bool]]:
    """
    After one more container, and whether the order of the rest is still the same: whole cores first, then single CPUs.

    Where whole cores are left a single CPU may be any, or one of the next core, as the number of cores that were taken changes which NUMA
    node has the fewest free CPUs. Where none is left single CPUs come in one order. A container that keeps the first of an order leaves the
    rest of it as it was: the NUMA node that had the fewest free CPUs has fewer then. One that keeps any other single CPU may not.
    """
    cores, singles = use
    taken, left = cores[: count // 2], cores[count // 2 :]
    rest = count - 2 * len(taken)
    kept = (*((True, True),) * len(taken), *left) if init else left
    if not rest:
        yield (kept, singles), True
    elif rest > 1:
        if rest <= len(singles):
            yield (kept, ((True,) * rest if init else ()) + singles[rest:]), True
    else:
        for place in range(len(singles)):
            yield (kept, (*singles[:place], *((True,) if init else ()), *singles[place + 1 :])), init
        if left:
            (_, other), others = left[0], left[1:]
            if init:
                yield ((*kept[: len(taken)], (True, other), *others), singles), True
            else:
                yield (others, (*singles, other)), False
