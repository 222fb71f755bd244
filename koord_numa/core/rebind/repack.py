"""Everybody seated anew, as places to start a search from. Nothing here minds whether a pod is worse off: the search repairs that."""

from collections.abc import Iterable, Iterator

from koord_numa.core.cpus.ask import CpuAsk
from koord_numa.core.cpus.take import take_cpus
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.rebind.layout import Arrangement, NodeLayout
from koord_numa.core.rebind.place_pod import place
from koord_numa.core.vocabulary import NumaAllocateStrategy


def repackings(board: NodeLayout) -> Iterator[Arrangement]:
    """
    Everybody seated anew: in the documented order, largest first, and first those that cross no NUMA border today.

    Last comes what the proposal itself describes: one after the other in that order, as if they were new. Tenants whose CPUs per
    NUMA node are fixed come before the others.
    """
    everyone = range(len(board.tenants))
    in_order = sorted(everyone, key=lambda i: (board.tenants[i].order, i))
    by_size = sorted(everyone, key=lambda i: (-len(board.tenants[i].cpus), board.tenants[i].order, i))
    keeping = sorted(by_size, key=lambda i: board.qualities_now[i].numa_nodes > 1)
    for order in (in_order, by_size, keeping):
        if (seats := _placed(board, _tied_first(board, order))) is not None:
            yield seats
    if (seats := _taken(board, _tied_first(board, in_order))) is not None:
        yield seats


def _tied_first(board: NodeLayout, order: list[int]) -> list[int]:
    return sorted(order, key=lambda index: board.tenants[index].per_numa is None)


def _placed(board: NodeLayout, order: Iterable[int]) -> Arrangement | None:
    seats, free = [0] * len(board.tenants), board.usable
    for index in order:
        bits = place(board, seats, index, free)
        if bits is None:
            return None
        seats[index] = bits
        free &= ~bits
    return tuple(seats)


def _taken(board: NodeLayout, order: Iterable[int]) -> Arrangement | None:
    """As new pods get their CPUs, the fullest NUMA node first."""
    seats, free = [0] * len(board.tenants), board.usable
    for index in order:
        tenant = board.tenants[index]
        parts = [(free, len(tenant.cpus))]
        if tenant.per_numa is not None:
            parts = [(free & board.machine.numa_bits[numa], count) for numa, count in tenant.per_numa.items()]
        for here, count in parts:
            ask = CpuAsk(count, tenant.bind, tenant.exclusive, NumaAllocateStrategy.MOST_ALLOCATED)
            taken = take_cpus(ask, board.machine, CpuSet(here))
            if not isinstance(taken, CpuSet):
                return None
            seats[index] |= taken.bits
        free &= ~seats[index]
    return tuple(seats)
