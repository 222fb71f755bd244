"""
Where to seat one tenant: on the single NUMA node that suits it best, or over as few as it takes.

It looks for seats that leave the tenant no worse off than today, and falls back on the least harmful. Others' seats stay.
"""

from collections.abc import Iterable, Iterator, Sequence

from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.pick import neighbours_to_avoid, seat

Counts = dict[int, int]
"""How many CPUs to take on each NUMA node."""


def place(board: NodeLayout, seats: Sequence[int], index: int, free: int) -> int | None:
    """Bits for one tenant among the others' ``seats``; ``None`` when there are not enough. Its own seat must be in ``free``."""
    away = neighbours_to_avoid(board, index, seats)
    best: tuple[int, int] | None = None
    for counts in _choices(board, index, free, away):
        bits = seat(board, index, free, counts, away)
        if bits is None:
            continue
        harm = board.seat(index, bits).harm
        if best is None or harm < best[0]:
            best = (harm, bits)
        if not harm:
            break
    return None if best is None else best[1]


def _choices(board: NodeLayout, index: int, free: int, away: int) -> Iterator[Counts]:
    """The CPUs per NUMA node that a tenant is tied to; else its best single NUMA node, fewest without harm, and fewest at all."""
    tenant = board.tenants[index]
    if tenant.per_numa is not None:
        yield dict(tenant.per_numa)
        return
    single = best_single(board, index, free, away)
    if single is not None:
        yield {single: len(tenant.cpus)}
    yield from fewest(board, index, free)
    if (rest := _drained(board, index, free)) is not None:
        yield rest


def best_single(board: NodeLayout, index: int, free: int, away: int) -> int | None:
    """The NUMA node on which the tenant is harmed least, splits fewest cores, disturbs nobody exclusive and leaves least room."""
    count = len(board.tenants[index].cpus)
    rooms = sorted(
        (room, numa) for numa, bits in board.machine.numa_bits.items() if (room := (free & bits).bit_count()) >= count
    )
    best: tuple[int, ...] | None = None
    for room, numa in rooms:
        taken = seat(board, index, free, {numa: count}, away)
        if taken is not None and board.keeps_policy(index, taken):
            sits = board.seat(index, taken)
            key = (sits.harm, sits.split_cores, (taken & away).bit_count(), room, numa)
            best = key if best is None else min(best, key)
            if not any(key[:3]):
                break  # those that follow have more room
    return None if best is None else best[-1]


def fewest(board: NodeLayout, index: int, free: int) -> Iterator[Counts]:
    """CPUs over two NUMA nodes, then three and so on, those where the tenant finds most; only without more split cores than today."""
    numas = sorted(board.machine.numa_bits, key=lambda numa: (-useful(board, index, free, (numa,)), numa))
    for number in range(2, len(numas) + 1):
        counts = over(board, index, free, numas[:number])
        if counts is not None:
            yield counts


def useful(board: NodeLayout, index: int, free: int, numas: Iterable[int]) -> int:
    """How many free CPUs of these NUMA nodes the tenant can use without splitting more cores than today."""
    easy = loose = 0
    for numa in numas:
        here = free & board.machine.numa_bits[numa]
        fitting = _fitting(board, index, here)
        easy += fitting
        loose += here.bit_count() - fitting
    return easy + min(loose, board.qualities_now[index].split_cores)


def over(board: NodeLayout, index: int, free: int, numas: Sequence[int]) -> Counts | None:
    """How many CPUs to take on each of these NUMA nodes, split cores as today at most; ``None`` when there are not enough."""
    left, slack = len(board.tenants[index].cpus), board.qualities_now[index].split_cores
    counts, loose = {}, {}
    for numa in numas:
        here = free & board.machine.numa_bits[numa]
        fitting = _fitting(board, index, here)
        counts[numa] = min(left, fitting)
        loose[numa] = here.bit_count() - fitting
        left -= counts[numa]
    for numa in numas:
        more = min(left, slack, loose[numa])
        counts[numa] += more
        left -= more
        slack -= more
    return None if left else {numa: count for numa, count in counts.items() if count}


def _fitting(board: NodeLayout, index: int, here: int) -> int:
    """CPUs in the shape that the tenant wants: one of each core, or those of whole cores."""
    cores = board.cores
    if board.tenants[index].spreads:
        return cores.touched(here).bit_count()
    return cores.cpus(cores.whole(here)).bit_count()


def _drained(board: NodeLayout, index: int, free: int) -> Counts | None:
    """CPUs of any kind over as few NUMA nodes as possible."""
    counts: Counts = {}
    left = len(board.tenants[index].cpus)
    numa_bits = board.machine.numa_bits
    for numa in sorted(numa_bits, key=lambda numa: (-(numa_bits[numa] & free).bit_count(), numa)):
        taken = min(left, (numa_bits[numa] & free).bit_count())
        if taken:
            counts[numa] = taken
            left -= taken
    return None if left else counts
