"""Every pod placed again, as places to start a search from. Nothing here minds whether a pod is worse off: the search repairs that."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from koord_numa.core.cpus.cpu_request import CpuRequest
from koord_numa.core.cpus.take import take_cpus
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import NumaAllocateStrategy
from koord_numa.core.ordering import repacking_order
from koord_numa.core.rebind.arrangement.layout import Arrangement, NodeLayout
from koord_numa.core.rebind.place_pod import place

_PREFERRED: Final = 8
"""So many of the largest pods are placed before all others, each in one repacking."""


def repackings(layout: NodeLayout) -> Iterator[Arrangement]:
    """
    Every pod placed again: in the documented order, largest first, and first those that cross no NUMA border today.

    Last comes what the proposal itself describes: one after the other in that order, as if they were new. Pods whose CPUs per
    NUMA node are fixed come before the others.
    """
    in_order = list(layout.in_order)
    by_size = _by_size(layout)
    keeping = sorted(by_size, key=lambda i: layout.qualities_now[i].numa_nodes > 1)
    for order in (in_order, by_size, keeping):
        if (assigned := _placed(layout, _numa_bound_first(layout, order))) is not None:
            yield assigned
    if (assigned := _taken(layout, _numa_bound_first(layout, in_order))) is not None:
        yield assigned


def largest_first_but_one(layout: NodeLayout) -> Iterator[Arrangement]:
    """Every pod placed again, the largest first but for one of the larger ones, which comes before all others: one after the other."""
    by_size = _by_size(layout)
    for position in range(1, min(len(by_size), _PREFERRED)):
        order = [by_size[position], *by_size[:position], *by_size[position + 1 :]]
        if (assigned := _placed(layout, _numa_bound_first(layout, order))) is not None:
            yield assigned


def _by_size(layout: NodeLayout) -> list[int]:
    return sorted(range(len(layout.pods)), key=largest_first(layout))


def largest_first(layout: NodeLayout) -> Callable[[int], tuple[object, ...]]:
    """Sort key of pods by their index: larger ones first."""
    return lambda index: repacking_order(len(layout.pods[index].cpus), layout.pods[index].order, index)


def _numa_bound_first(layout: NodeLayout, order: list[int]) -> list[int]:
    # Those tied to NUMA nodes have the least choice, so they choose first.
    return sorted(order, key=lambda index: layout.pods[index].cpus_per_numa is None)


def _placed(layout: NodeLayout, order: Iterable[int]) -> Arrangement | None:
    assigned, free = [0] * len(layout.pods), layout.usable
    for index in order:
        bits = place(layout, assigned, index, free)
        if bits is None:
            # An order that leaves one pod without CPUs is no start.
            return None
        assigned[index] = bits
        free &= ~bits
    return tuple(assigned)


def _taken(layout: NodeLayout, order: Iterable[int]) -> Arrangement | None:
    """As new pods get their CPUs, the fullest NUMA node first."""
    assigned, free = [0] * len(layout.pods), layout.usable
    for index in order:
        pinned = layout.pods[index]
        parts = [(free, len(pinned.cpus))]
        if pinned.cpus_per_numa is not None:
            parts = [(free & layout.machine.numa_bits[numa], count) for numa, count in pinned.cpus_per_numa.items()]
        for here, count in parts:
            request = CpuRequest(count, pinned.bind, pinned.exclusive, NumaAllocateStrategy.MOST_ALLOCATED)
            taken = take_cpus(request, layout.machine, CpuSet(here))
            if not isinstance(taken, CpuSet):
                return None
            assigned[index] |= taken.bits
        free &= ~assigned[index]
    return tuple(assigned)
