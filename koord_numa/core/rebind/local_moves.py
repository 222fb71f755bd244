"""
Ways to change an arrangement a little, from the cheapest to the widest. Each names its subjects and what may be done for one.

Whether a change is allowed and better is decided by the search; nothing here looks at figures, only at who sits badly.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from koord_numa.core.rebind.cores import lowest
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.pick import neighbours_to_avoid, seat
from koord_numa.core.rebind.place_pod import Counts, best_single, over, place, useful
from koord_numa.core.rebind.regression import Changes, Standing

_SETS: Final = 6
"""So many sets of NUMA nodes of one size are tried for a tenant that no single one can hold."""


@dataclass(frozen=True, slots=True)
class LocalMove:
    """One kind of change: to whom (tenants' indices, or NUMA ids) it may apply, and the changes that it tries for one."""

    subjects: Callable[[Standing], list[int]]
    changes: Callable[[Standing, int], Iterator[Changes]]


def _harmed(standing: Standing) -> list[int]:
    """Tenants that are worse off than today."""
    board = standing.board
    qualities = zip(board.qualities(standing.seats), board.qualities_now, strict=True)
    worse = {index for index, (new, old) in enumerate(qualities) if not new.no_worse_than(old)} if standing.harm else ()
    return [index for index in board.in_order if index in worse]


def _crossing(standing: Standing) -> list[int]:
    """Movable tenants on several NUMA nodes."""
    board = standing.board
    return [index for index in board.in_order if _floats(board, index) and _span(standing, index) > 1]


def _badly_seated(standing: Standing) -> list[int]:
    """Tenants with split cores or conflicts."""
    qualities = standing.board.qualities(standing.seats)
    return [index for index in standing.board.in_order if any(qualities[index][1:])]


def _everyone(standing: Standing) -> list[int]:
    return list(standing.board.in_order)


def _every_numa(standing: Standing) -> list[int]:
    return list(standing.board.machine.numa_ids)


def _moved(standing: Standing, index: int) -> Iterator[Changes]:
    """One tenant seated anew: on any single NUMA node, on fewer than now, or differently where it is."""
    board = standing.board
    free = standing.free | standing.seats[index]
    away = neighbours_to_avoid(board, index, standing.seats)
    for counts in _targets(standing, index, free):
        bits = seat(board, index, free, counts, away)
        if bits is not None and bits != standing.seats[index]:
            yield {index: bits}


def _targets(standing: Standing, index: int, free: int) -> Iterator[Counts]:
    board = standing.board
    held = _counts(board, standing.seats[index])
    if not _floats(board, index):
        yield held
        return
    count = len(board.tenants[index].cpus)
    for numa, here in board.machine.numa_bits.items():
        if (here & free).bit_count() >= count:
            yield {numa: count}
    most = _most(standing, index)
    if most > 1:
        roomiest = sorted(board.machine.numa_bits, key=lambda numa: (-useful(board, index, free, (numa,)), numa))
        for number in range(2, most + 1):
            if (counts := over(board, index, free, roomiest[:number])) is not None:
                yield counts
    if len(held) > 1:
        yield held


def _compacted(standing: Standing, numa: int) -> Iterator[Changes]:
    """All tenants of one NUMA node seated anew there, with the same number of CPUs each; even sizes first, then as ordered."""
    board, here = standing.board, standing.board.machine.numa_bits[numa]
    members = [index for index in board.in_order if standing.seats[index] & here]
    for order in (members, sorted(members, key=lambda i: (standing.seats[i] & here).bit_count() % 2)):
        seats = [bits & ~here for bits in standing.seats]
        free = standing.free | board.usable & here
        for index in order:
            away = neighbours_to_avoid(board, index, seats)
            bits = seat(board, index, free, {numa: (standing.seats[index] & here).bit_count()}, away)
            if bits is None:
                return
            seats[index] |= bits
            free &= ~bits
        yield {index: seats[index] for index in members if seats[index] != standing.seats[index]}


def _gathered(standing: Standing, index: int) -> Iterator[Changes]:
    """A crossing tenant gathered on fewer NUMA nodes; tenants in its way are seated elsewhere, as few as possible."""
    board = standing.board
    if not _floats(board, index):
        return
    free, count = standing.free | standing.seats[index], len(board.tenants[index].cpus)
    for numas in _sets(standing, index, free):
        have = useful(board, index, free, numas)
        here = sum(board.machine.numa_bits[numa] for numa in numas)
        guests = [
            (other, gain)
            for other, bits in enumerate(standing.seats)
            if other != index and bits & here and _floats(board, other)
            if (gain := useful(board, index, free | bits, numas) - have)
        ]
        for ejected in _ejections(guests, count - have):
            changes = _reseated(standing, index, numas, ejected)
            if changes is not None:
                yield changes


def _sets(standing: Standing, index: int, free: int) -> Iterator[tuple[int, ...]]:
    """Sets of NUMA nodes that would be better, smallest first: each single one, then those where it finds most."""
    board, count = standing.board, len(standing.board.tenants[index].cpus)
    for number in range(1, _most(standing, index) + 1):
        sets = [
            numas
            for numas in combinations(board.machine.numa_bits, number)
            if useful(board, index, board.usable, numas) >= count
        ]
        if number > 1:
            sets.sort(key=lambda numas: (-useful(board, index, free, numas), numas))
        yield from sets[: _SETS if number > 1 else None]


def _reseated(standing: Standing, index: int, numas: Sequence[int], ejected: Sequence[int]) -> Changes | None:
    board = standing.board
    seats, free = list(standing.seats), standing.free
    for gone in (index, *ejected):
        free |= seats[gone]
        seats[gone] = 0
    counts = over(board, index, free, numas)
    largest_first = sorted(ejected, key=lambda i: (-len(board.tenants[i].cpus), board.tenants[i].order, i))
    for one in (index, *largest_first):
        if one != index:
            bits = place(board, seats, one, free)
        else:
            bits = None if counts is None else seat(board, index, free, counts)
        if bits is None:
            return None
        seats[one] = bits
        free &= ~bits
    return {one: seats[one] for one in (index, *ejected)}


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


def _exchanged(standing: Standing, index: int) -> Iterator[Changes]:
    """A badly seated tenant takes the NUMA node of another one, which is seated where it fits best afterwards."""
    board = standing.board
    if not _floats(board, index):
        return
    count = len(board.tenants[index].cpus)
    for other, bits in enumerate(standing.seats):
        if other == index or not _floats(board, other):
            continue
        free = standing.free | standing.seats[index] | bits
        for numa in _counts(board, bits):
            taken = None
            if (free & board.machine.numa_bits[numa]).bit_count() >= count:
                taken = seat(board, index, free, {numa: count})
            if taken is None or not _is_gain(standing, index, taken):
                continue
            seats = list(standing.seats)
            seats[index], seats[other] = taken, 0
            away = neighbours_to_avoid(board, other, seats)
            home = best_single(board, other, free & ~taken, away)
            if home is not None:
                rest = seat(board, other, free & ~taken, {home: len(board.tenants[other].cpus)}, away)
                if rest is not None:
                    yield {index: taken, other: rest}


def _vacated(standing: Standing, numa: int) -> Iterator[Changes]:
    """Where the largest block became too small: somebody leaves the cores that it lacks for CPUs of broken cores."""
    board, cores = standing.board, standing.board.cores
    here, whole = board.machine.numa_bits[numa], cores.whole(standing.free)
    lacking = board.block_now - (cores.cpus(whole) & here).bit_count()
    broken = standing.free & ~cores.cpus(whole)
    for index in board.in_order if standing.harm and lacking > 0 else ():
        bits = standing.seats[index]
        alone = cores.whole(standing.free | bits) & cores.touched(bits & here)
        left = cores.cpus(lowest(alone, -(-lacking // cores.most)))
        pool = broken & ~left if _floats(board, index) else broken & ~left & here
        count = (bits & left).bit_count()
        taken = lowest(pool & here, count)
        taken |= lowest(pool & ~here, count - taken.bit_count())
        following = bits & ~left | taken
        if count and taken.bit_count() == count and not board.seat(index, following).harm:
            yield {index: following}


LOCAL_MOVES: Final = (
    LocalMove(_harmed, _moved),
    LocalMove(_harmed, _gathered),
    LocalMove(_every_numa, _vacated),
    LocalMove(_crossing, _moved),
    LocalMove(_crossing, _gathered),
    LocalMove(_every_numa, _compacted),
    LocalMove(_badly_seated, _moved),
    LocalMove(_crossing, _exchanged),
    LocalMove(_everyone, _moved),
    LocalMove(_badly_seated, _exchanged),
)


def _floats(board: NodeLayout, index: int) -> bool:
    return board.tenants[index].per_numa is None


def _is_gain(standing: Standing, index: int, bits: int) -> bool:
    """Seen alone, may this be worth that somebody else has to move?"""
    board = standing.board
    new, old = board.seat(index, bits), board.seat(index, standing.seats[index])
    return new.harm <= old.harm and (new[:2] < old[:2] or index in board.concerned)


def _most(standing: Standing, index: int) -> int:
    """How many NUMA nodes a tenant may get: fewer than now, or as many as today if that helps a pod that is worse off."""
    fewer = max(1, _span(standing, index) - 1)
    return max(fewer, standing.board.qualities_now[index].numa_nodes) if standing.harm else fewer


def _span(standing: Standing, index: int) -> int:
    return standing.board.seat(index, standing.seats[index]).numa_nodes


def _counts(board: NodeLayout, bits: int) -> Counts:
    return {numa: count for numa, here in board.machine.numa_bits.items() if (count := (bits & here).bit_count())}
