"""
Ways to change an arrangement a little, from the cheapest to the widest. Each names its subjects and what it makes of one.

Whether a neighbour is allowed and better is decided by the search; nothing here looks at figures, only at who sits badly.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from koord_numa.core.rebind.board import Arrangement, Board
from koord_numa.core.rebind.pick import neighbours_to_avoid, seat
from koord_numa.core.rebind.repack import best_single, reseat, widest_first


@dataclass(frozen=True, slots=True)
class Way:
    """One kind of change: to whom (tenants' indices, or NUMA ids) it may apply, and the arrangements that it leads to."""

    subjects: Callable[[Board, Arrangement], list[int]]
    neighbours: Callable[[Board, Arrangement, int], Iterator[Arrangement]]


def _crossing(board: Board, current: Arrangement) -> list[int]:
    """Movable tenants on several NUMA nodes, in the order of reallocation."""
    return [
        index
        for index in _in_order(board)
        if board.tenants[index].per_numa is None and board.numa_nodes(index, current[index]) > 1
    ]


def _badly_seated(board: Board, current: Arrangement) -> list[int]:
    """Tenants with split cores or conflicts."""
    qualities = board.qualities(current)
    return [index for index in _in_order(board) if qualities[index].split_cores or qualities[index].conflicts]


def _everyone(board: Board, _: Arrangement) -> list[int]:
    return _in_order(board)


def _every_numa(board: Board, _: Arrangement) -> list[int]:
    return list(board.machine.numa_ids)


def _moved(board: Board, current: Arrangement, index: int) -> Iterator[Arrangement]:
    """One tenant seated anew: on any single NUMA node, on fewer than now, or differently where it is."""
    free = board.free(current) | current[index]
    away = neighbours_to_avoid(board, index, current)
    for counts in _targets(board, current, index):
        bits = seat(board, board.tenants[index], free, counts, away)
        if bits is not None and bits != current[index]:
            yield _replaced(current, index, bits)


def _targets(board: Board, current: Arrangement, index: int) -> Iterator[dict[int, int]]:
    tenant = board.tenants[index]
    held = _counts(board, current[index])
    if tenant.per_numa is not None:
        yield held
        return
    count, free = len(tenant.cpus), board.free(current) | current[index]
    for numa, here in board.machine.numa_bits.items():
        if (here & free).bit_count() >= count:
            yield {numa: count}
    fewest = widest_first(board, free, count)
    if fewest is not None and 1 < len(fewest) < len(held):
        yield fewest
    if len(held) > 1:
        yield held


def _compacted(board: Board, current: Arrangement, numa: int) -> Iterator[Arrangement]:
    """All tenants of one NUMA node seated anew there, with the same number of CPUs each; even sizes first, then as ordered."""
    here = board.machine.numa_bits[numa]
    members = [index for index in _in_order(board) if current[index] & here]
    for order in (members, sorted(members, key=lambda i: (current[i] & here).bit_count() % 2)):
        seats = [bits & ~here for bits in current]
        for index in order:
            count = (current[index] & here).bit_count()
            away = neighbours_to_avoid(board, index, tuple(seats))
            bits = seat(board, board.tenants[index], board.free(seats), {numa: count}, away)
            if bits is None:
                return
            seats[index] |= bits
        yield tuple(seats)


def _with_room_made(board: Board, current: Arrangement, index: int) -> Iterator[Arrangement]:
    """A crossing tenant gathered on one NUMA node; tenants in its way are seated elsewhere, as few as possible."""
    count = len(board.tenants[index].cpus)
    free = board.free(current) | current[index]
    for numa, here in board.machine.numa_bits.items():
        guests = [
            (other, (bits & here).bit_count())
            for other, bits in enumerate(current)
            if other != index and bits & here and board.tenants[other].per_numa is None
        ]
        for ejected in _ejections(guests, count - (free & here).bit_count()):
            seats = list(current)
            for gone in (index, *ejected):
                seats[gone] = 0
            gathered = seat(board, board.tenants[index], board.free(seats), {numa: count})
            if gathered is None:
                continue
            seats[index] = gathered
            largest_first = sorted(ejected, key=lambda i: (-len(board.tenants[i].cpus), board.tenants[i].order, i))
            if all(reseat(board, seats, guest) for guest in largest_first):
                yield tuple(seats)


def _ejections(guests: Sequence[tuple[int, int]], missing: int) -> Iterator[tuple[int, ...]]:
    """Small sets of guests that together give ``missing`` CPUs: the smallest one, the tightest pair, then the largest ones."""
    if missing <= 0:
        return
    ascending = sorted(guests, key=lambda guest: (guest[1], guest[0]))
    yield from ((index,) for index, size in [g for g in ascending if g[1] >= missing][:2])
    pairs = [
        (first + second, one, other)
        for (one, first), (other, second) in combinations(ascending, 2)
        if first < missing and second < missing and first + second >= missing
    ]
    yield from ((one, other) for _, one, other in sorted(pairs)[:2])
    taken: list[int] = []
    for index, size in reversed(ascending):
        if missing > 0:
            taken.append(index)
            missing -= size
    if len(taken) > 2 and missing <= 0:
        yield tuple(taken)


def _exchanged(board: Board, current: Arrangement, index: int) -> Iterator[Arrangement]:
    """A badly seated tenant takes the NUMA node of another one, which is seated where it fits best afterwards."""
    count = len(board.tenants[index].cpus)
    for other, bits in enumerate(current):
        if other == index or board.tenants[other].per_numa is not None or board.tenants[index].per_numa is not None:
            continue
        seats = list(current)
        seats[index] = seats[other] = 0
        free = board.free(seats)
        for numa in _counts(board, bits):
            if (free & board.machine.numa_bits[numa]).bit_count() < count:
                continue
            taken = seat(board, board.tenants[index], free, {numa: count})
            if taken is None:
                continue
            trial = list(seats)
            trial[index] = taken
            rest = best_single(board, trial, other)
            if rest is not None:
                trial[other] = rest
                yield tuple(trial)


WAYS: Final = (
    Way(_crossing, _moved),
    Way(_crossing, _with_room_made),
    Way(_every_numa, _compacted),
    Way(_badly_seated, _moved),
    Way(_crossing, _exchanged),
    Way(_everyone, _moved),
    Way(_badly_seated, _exchanged),
)


def _in_order(board: Board) -> list[int]:
    return sorted(range(len(board.tenants)), key=lambda i: (board.tenants[i].order, i))


def _counts(board: Board, bits: int) -> dict[int, int]:
    return {numa: count for numa, here in board.machine.numa_bits.items() if (count := (bits & here).bit_count())}


def _replaced(current: Arrangement, index: int, bits: int) -> Arrangement:
    return (*current[:index], bits, *current[index + 1 :])
