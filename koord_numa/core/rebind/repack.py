"""Seating tenants on NUMA nodes: the best single one, several when it must be, and everybody anew."""

from collections.abc import Iterator, Sequence

from koord_numa.core.rebind.board import Arrangement, Board
from koord_numa.core.rebind.pick import neighbours_to_avoid, seat


def repackings(board: Board) -> Iterator[Arrangement]:
    """
    Everybody seated anew: in the documented order, largest first, and first those that cross no NUMA border today.

    Tenants whose CPUs per NUMA node are fixed come first; the others go to the fullest NUMA node that holds them.
    """
    everyone = range(len(board.tenants))
    in_order = sorted(everyone, key=lambda i: (board.tenants[i].order, i))
    by_size = sorted(everyone, key=lambda i: (-len(board.tenants[i].cpus), board.tenants[i].order, i))
    keeping = sorted(by_size, key=lambda i: board.qualities_now[i].numa_nodes > 1)
    for order in (in_order, by_size, keeping):
        seats = [0] * len(board.tenants)
        fixed_first = sorted(order, key=lambda i: board.tenants[i].per_numa is None)
        if all(reseat(board, seats, index) for index in fixed_first):
            yield tuple(seats)


def reseat(board: Board, seats: list[int], index: int) -> bool:
    """Find a place for one tenant among the others' ``seats`` and take it; false when there is none."""
    tenant = board.tenants[index]
    if tenant.per_numa is not None:
        away = neighbours_to_avoid(board, index, tuple(seats))
        bits = seat(board, tenant, board.free(seats), tenant.per_numa, away)
    else:
        bits = best_single(board, seats, index) or over_several(board, seats, index)
    seats[index] = bits or 0
    return bits is not None


def best_single(board: Board, seats: Sequence[int], index: int) -> int | None:
    """Bits on the NUMA node that splits fewest cores, disturbs nobody exclusive, and is left with least room."""
    tenant, free = board.tenants[index], board.free(seats)
    away = neighbours_to_avoid(board, index, tuple(seats))
    best: tuple[tuple[int, int, int, int], int] | None = None
    for numa, here in board.machine.numa_bits.items():
        room = (free & here).bit_count()
        bits = seat(board, tenant, free, {numa: len(tenant.cpus)}, away) if room >= len(tenant.cpus) else None
        if bits is None or not board.keeps_policy(index, bits):
            continue
        key = (board.split_cores(index, bits), (bits & away).bit_count(), room, numa)
        if best is None or key < best[0]:
            best = (key, bits)
    return None if best is None else best[1]


def over_several(board: Board, seats: Sequence[int], index: int) -> int | None:
    """Bits over as few NUMA nodes as possible: those with most room first."""
    free = board.free(seats)
    counts = widest_first(board, free, len(board.tenants[index].cpus))
    return None if counts is None else seat(board, board.tenants[index], free, counts)


def widest_first(board: Board, free: int, count: int) -> dict[int, int] | None:
    """How many CPUs to take per NUMA node when the roomiest are drained first; ``None`` when there are not enough."""
    counts: dict[int, int] = {}
    left = count
    for numa, here in sorted(
        board.machine.numa_bits.items(), key=lambda item: (-(item[1] & free).bit_count(), item[0])
    ):
        taken = min(left, (here & free).bit_count())
        if taken:
            counts[numa] = taken
            left -= taken
    return None if left else counts
