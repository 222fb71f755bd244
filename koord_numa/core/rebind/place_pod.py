"""CPU selection for one pod that moves: on one NUMA node, or on as few as possible."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from koord_numa.core.cpuset import each, lowest
from koord_numa.core.objects.vocabulary import CpuExclusivePolicy
from koord_numa.core.ordering import emptiest_first
from koord_numa.core.rebind.layout import NodeLayout

_PAIR: Final = 2


def choose_cpus(layout: NodeLayout, index: int, free: int, counts: Mapping[int, int], away: int = 0) -> int | None:
    """
    Return the bits of ``counts[numa]`` CPUs on each NUMA node out of ``free``, or None when there are not enough.

    CPUs in ``away`` (near pods with the same exclusive policy) are used only if other CPUs do not suffice. Among equal
    choices the pod keeps its current CPUs.
    """
    choose = _spread if layout.pods[index].spreads else _full
    mine, bits = layout.now[index], 0
    for numa, count in counts.items():
        here = free & layout.machine.numa_bits.get(numa, 0)
        if here.bit_count() < count:
            return None
        # Only if CPUs outside ``away`` suffice: a mix would cause the same conflicts and also split cores.
        quiet = here & ~away
        bits |= choose(layout, quiet if quiet.bit_count() >= count else here, mine, count)
    return bits


def exclusive_neighbours(layout: NodeLayout, index: int, assigned: Sequence[int]) -> int:
    """Return the CPUs on cores (or NUMA nodes) that other pods of the same exclusive policy use."""
    policy = layout.pods[index].exclusive
    if policy is CpuExclusivePolicy.NONE:
        return 0
    others = 0
    for other, pinned in enumerate(layout.pods):
        if other != index and pinned.exclusive is policy:
            others |= assigned[other]
    if policy is CpuExclusivePolicy.PCPU_LEVEL:
        return layout.cores.cpus(layout.cores.touched(others))
    away = 0
    for bits in layout.machine.numa_bits.values():
        if bits & others:
            away |= bits
    return away


def _full(layout: NodeLayout, here: int, mine: int, count: int) -> int:
    """Choose whole cores first, own cores before others. The remainder comes from broken cores if they suffice."""
    cores = layout.cores
    whole = cores.whole(here)
    own, partly = whole & cores.whole(mine), whole & cores.touched(mine)
    bits, left = 0, count
    # Own whole cores, partly held cores, other cores: CPUs that the pod keeps need no migration.
    for group in (own, partly & ~own, whole & ~partly):
        if left and group:
            taken = cores.fill(group, left)
            bits |= taken
            left -= taken.bit_count()
    if not left:
        return bits
    # With at most two CPUs per core there are no parts to choose between.
    rest = _spread if cores.most <= _PAIR else _pieces
    return bits | rest(layout, here & ~bits, mine, left)


def _pieces(layout: NodeLayout, here: int, mine: int, count: int) -> int:
    """Choose parts of cores: the smallest part that holds the remainder, broken cores before whole cores."""
    rest = []
    for first in each(layout.cores.touched(here)):
        core = layout.cores.cpus(first)
        rest.append((core, core & here))
    bits, left = 0, count
    while left:
        best = min(
            rest,
            key=lambda pair: (
                pair[1].bit_count() < left,
                # Sort key: sufficient parts, broken cores, small parts, own CPUs, and the CPU bits for a deterministic
                # order.
                pair[1] == pair[0],
                pair[1].bit_count(),
                -(pair[1] & mine).bit_count(),
                pair[1],
            ),
        )
        rest.remove(best)
        part = lowest(best[1] & mine, left)
        part |= lowest(best[1] & ~mine, left - part.bit_count())
        bits |= part
        left -= part.bit_count()
    return bits


def _spread(layout: NodeLayout, here: int, mine: int, count: int) -> int:
    """
    Choose one CPU per core: broken cores before whole cores, own cores first among them.

    Then choose second CPUs, and so on.
    """
    cores = layout.cores
    bits, left = 0, count
    while left:
        rest = here & ~bits
        # Recomputed in each round: second CPUs are taken only after one CPU of every core.
        touched, whole, own = cores.touched(rest), cores.whole(rest), cores.touched(rest & mine)
        broken = touched & ~whole
        for group in (broken & own, broken & ~own, whole & own, whole & ~own):
            if left and group:
                chosen = lowest(group, left)
                bits |= cores.one_each(chosen & own, rest & mine) | cores.one_each(chosen & ~own, rest)
                left -= chosen.bit_count()
    return bits


Counts = dict[int, int]
"""Number of CPUs to take on each NUMA node."""


def place(layout: NodeLayout, assigned: Sequence[int], index: int, free: int) -> int | None:
    """
    Return the bits for one pod beside the other pods in ``assigned``, or None if there are not enough.

    ``free`` must include its own CPUs.
    """
    away = exclusive_neighbours(layout, index, assigned)
    best: tuple[int, int] | None = None
    for counts in _choices(layout, index, free, away):
        bits = choose_cpus(layout, index, free, counts, away)
        if bits is None:
            continue
        regression = layout.shape_of(index, bits).regression
        if best is None or regression < best[0]:
            best = (regression, bits)
        # No regression is the best result. Later choices span more NUMA nodes.
        if not regression:
            break
    return None if best is None else best[1]


def _choices(layout: NodeLayout, index: int, free: int, away: int) -> Iterator[Counts]:
    """
    Yield CPU counts per NUMA node.

    A tied pod has fixed counts. Other pods get the best single NUMA node, then few NUMA nodes without regression, then
    any few NUMA nodes.
    """
    pinned = layout.pods[index]
    if pinned.cpus_per_numa is not None:
        yield dict(pinned.cpus_per_numa)
        return
    single = best_single(layout, index, free, away)
    if single is not None:
        yield {single: len(pinned.cpus)}
    yield from fewest(layout, index, free)
    if (rest := _drained(layout, index, free)) is not None:
        yield rest


def best_single(layout: NodeLayout, index: int, free: int, away: int) -> int | None:
    """
    Return the single NUMA node with the smallest regression, then fewest split cores, fewest conflicts and least room,
    or None.
    """
    count = len(layout.pods[index].cpus)
    # Tightest NUMA node first, so that the first harmless choice is the result.
    rooms = sorted(
        (room, numa) for numa, bits in layout.machine.numa_bits.items() if (room := (free & bits).bit_count()) >= count
    )
    best: tuple[int, ...] | None = None
    for room, numa in rooms:
        taken = choose_cpus(layout, index, free, {numa: count}, away)
        if taken is not None and layout.keeps_policy(index, taken):
            sits = layout.shape_of(index, taken)
            key = (sits.regression, sits.split_cores, (taken & away).bit_count(), room, numa)
            best = key if best is None else min(best, key)
            if not any(key[:3]):
                break  # the remaining NUMA nodes have more room
    return None if best is None else best[-1]


def fewest(layout: NodeLayout, index: int, free: int) -> Iterator[Counts]:
    """
    Yield CPU counts over two NUMA nodes, then three and so on, most useful NUMA nodes first, without more split cores
    than now.
    """
    # Ordered by usable instead of free CPUs: CPUs of broken cores count little.
    numas = emptiest_first({numa: useful(layout, index, free, (numa,)) for numa in layout.machine.numa_bits})
    for number in range(2, len(numas) + 1):
        counts = over(layout, index, free, numas[:number])
        if counts is not None:
            yield counts


def useful(layout: NodeLayout, index: int, free: int, numas: Iterable[int]) -> int:
    """Return the number of free CPUs on the NUMA nodes that the pod can use without more split cores than now."""
    easy = loose = 0
    for numa in numas:
        here = free & layout.machine.numa_bits[numa]
        fitting = _fitting(layout, index, here)
        easy += fitting
        loose += here.bit_count() - fitting
    # Split cores that the pod already has permit as many loose CPUs.
    return easy + min(loose, layout.qualities_now[index].split_cores)


def over(layout: NodeLayout, index: int, free: int, numas: Sequence[int]) -> Counts | None:
    """
    Return the CPUs to take on each NUMA node with at most as many split cores as now, or None when there are not
    enough.
    """
    left, slack = len(layout.pods[index].cpus), layout.qualities_now[index].split_cores
    counts, loose = {}, {}
    for numa in numas:
        here = free & layout.machine.numa_bits[numa]
        fitting = _fitting(layout, index, here)
        counts[numa] = min(left, fitting)
        loose[numa] = here.bit_count() - fitting
        left -= counts[numa]
    # Whole cores on all NUMA nodes first, then loose CPUs, which ``slack`` limits.
    for numa in numas:
        more = min(left, slack, loose[numa])
        counts[numa] += more
        left -= more
        slack -= more
    return None if left else {numa: count for numa, count in counts.items() if count}


def _fitting(layout: NodeLayout, index: int, here: int) -> int:
    """Return the number of CPUs in the preferred shape of the pod: one per core, or those of whole cores."""
    cores = layout.cores
    if layout.pods[index].spreads:
        return cores.touched(here).bit_count()
    return cores.cpus(cores.whole(here)).bit_count()


def _drained(layout: NodeLayout, index: int, free: int) -> Counts | None:
    """Return counts of any CPUs over as few NUMA nodes as possible, or None when there are not enough."""
    counts: Counts = {}
    left = len(layout.pods[index].cpus)
    numa_bits = layout.machine.numa_bits
    for numa in emptiest_first({numa: (bits & free).bit_count() for numa, bits in numa_bits.items()}):
        taken = min(left, (numa_bits[numa] & free).bit_count())
        if taken:
            counts[numa] = taken
            left -= taken
    return None if left else counts
