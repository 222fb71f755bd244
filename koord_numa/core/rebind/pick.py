"""
Placing one pod: given free CPUs and how many to take on each NUMA node, which ones.

Whole cores for pods that want them, one CPU a core for those that spread; in both cases the cores that are broken already
are used up first, so that whole free cores stay for others.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from koord_numa.core.bit_sets import each, lowest
from koord_numa.core.objects.vocabulary import CpuExclusivePolicy
from koord_numa.core.rebind.arrangement.layout import NodeLayout

_PAIR: Final = 2


def choose_cpus(layout: NodeLayout, index: int, free: int, counts: Mapping[int, int], away: int = 0) -> int | None:
    """
    Bits of ``counts[numa]`` CPUs on each NUMA node out of ``free``, or ``None`` when there are not enough.

    CPUs in ``away`` (near others that want to be alone) are used only when the rest does not suffice. Among equals the pod
    keeps what it has.
    """
    choose = _spread if layout.pods[index].spreads else _full
    mine, bits = layout.now[index], 0
    for numa, count in counts.items():
        here = free & layout.machine.numa_bits.get(numa, 0)
        if here.bit_count() < count:
            return None
        # Only if quiet CPUs suffice; a mix would disturb others as much and split the pod's shape too.
        quiet = here & ~away
        bits |= choose(layout, quiet if quiet.bit_count() >= count else here, mine, count)
    return bits


def exclusive_neighbours(layout: NodeLayout, index: int, assigned: Sequence[int]) -> int:
    """CPUs on cores (or NUMA nodes) that other pods of the same exclusive policy sit on."""
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
    """Whole cores first, own ones before others; what is left over comes from broken cores if they suffice."""
    cores = layout.cores
    whole = cores.whole(here)
    own, partly = whole & cores.whole(mine), whole & cores.touched(mine)
    bits, left = 0, count
    # Own whole cores, cores held in part, others: each CPU that the pod keeps is one that need not be migrated.
    for group in (own, partly & ~own, whole & ~partly):
        if left and group:
            taken = cores.fill(group, left)
            bits |= taken
            left -= taken.bit_count()
    if not left:
        return bits
    # With at most two CPUs a core there are no pieces to choose between.
    rest = _spread if cores.most <= _PAIR else _pieces
    return bits | rest(layout, here & ~bits, mine, left)


def _pieces(layout: NodeLayout, here: int, mine: int, count: int) -> int:
    """Parts of cores: the smallest that hold all that is left, broken ones before whole ones, else the smallest ones."""
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
                # Sort key: enough for the rest, broken cores, small parts, own CPUs, and the CPU bits for a repeatable order.
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
    """One CPU from each core: broken cores before whole ones, own ones first among them; then second CPUs, and so on."""
    cores = layout.cores
    bits, left = 0, count
    while left:
        rest = here & ~bits
        # Counted again each round: second CPUs are taken only when every core has given one.
        touched, whole, own = cores.touched(rest), cores.whole(rest), cores.touched(rest & mine)
        broken = touched & ~whole
        for group in (broken & own, broken & ~own, whole & own, whole & ~own):
            if left and group:
                chosen = lowest(group, left)
                bits |= cores.one_each(chosen & own, rest & mine) | cores.one_each(chosen & ~own, rest)
                left -= chosen.bit_count()
    return bits
