"""
Seating one tenant: given free CPUs and how many to take on each NUMA node, which ones.

Whole cores for tenants that want them, one CPU a core for those that spread; in both cases the cores that are broken already
are used up first, so that whole free cores stay for others.
"""

from collections.abc import Mapping

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.rebind.board import Board, Tenant
from koord_numa.core.vocabulary import CpuExclusivePolicy


def seat(board: Board, tenant: Tenant, free: int, counts: Mapping[int, int], away: int = 0) -> int | None:
    """
    Bits of ``counts[numa]`` CPUs on each NUMA node out of ``free``, or ``None`` when there are not enough.

    CPUs in ``away`` (near others that want to be alone) are used only when the rest does not suffice. Among equals the tenant
    keeps what it has.
    """
    bits = 0
    for numa, count in sorted(counts.items()):
        here = free & board.machine.numa_bits.get(numa, 0)
        if here.bit_count() < count:
            return None
        quiet = here & ~away
        chosen = _choose(board, tenant, quiet if quiet.bit_count() >= count else here, numa, count)
        bits |= chosen
    return bits


def neighbours_to_avoid(board: Board, index: int, arrangement: tuple[int, ...]) -> int:
    """CPUs on cores (or NUMA nodes) that other tenants of the same exclusive policy sit on."""
    policy = board.tenants[index].exclusive
    if policy is CpuExclusivePolicy.NONE:
        return 0
    others = 0
    for other, tenant in enumerate(board.tenants):
        if other != index and tenant.exclusive is policy:
            others |= arrangement[other]
    if not others:
        return 0
    if policy is CpuExclusivePolicy.NUMA_NODE_LEVEL:
        units = list(board.machine.numa_bits.values())
    else:
        units = [core for cores in board.cores_on.values() for core in cores]
    away = 0
    for unit in units:
        if unit & others:
            away |= unit
    return away


def _choose(board: Board, tenant: Tenant, here: int, numa: int, count: int) -> int:
    cores = [(core, core & here) for core in board.cores_on[numa] if core & here]
    if tenant.spreads:
        return _spread(cores, tenant.cpus.bits, count)
    return _full(cores, tenant.cpus.bits, count)


def _full(cores: list[tuple[int, int]], mine: int, count: int) -> int:
    """Whole cores first; what is left over comes from the most broken cores that hold it in one piece, then from any."""
    bits, left = 0, count
    whole = [free for full, free in cores if free == full]
    for core in sorted(whole, key=lambda core: (-(core & mine).bit_count(), core)):
        if core.bit_count() <= left:
            bits |= core
            left -= core.bit_count()
    rest = [(full, free & ~bits) for full, free in cores if free & ~bits]
    while left:
        rest.sort(
            key=lambda pair: (
                pair[1].bit_count() < left,
                pair[1] == pair[0],
                pair[1].bit_count(),
                -(pair[1] & mine).bit_count(),
                pair[1],
            )
        )
        _, free = rest.pop(0)
        part = _lowest(free, left, mine)
        bits |= part
        left -= part.bit_count()
    return bits


def _spread(cores: list[tuple[int, int]], mine: int, count: int) -> int:
    """One CPU from each core, cores that are broken already first; then second CPUs, and so on."""
    bits, left = 0, count
    rest = [(full, free) for full, free in cores]
    while left:
        rest.sort(key=lambda pair: (pair[1] == pair[0], -(pair[1] & mine).bit_count(), pair[0]))
        following = []
        for full, free in rest:
            if not left:
                break
            one = _lowest(free, 1, mine)
            bits |= one
            left -= 1
            if free & ~one:
                following.append((full, free & ~one))
        rest = following
    return bits


def _lowest(free: int, count: int, mine: int) -> int:
    """Up to ``count`` CPUs, own ones first, then the lowest ids."""
    bits = 0
    for cpu in sorted(CpuSet(free), key=lambda cpu: (not mine >> cpu & 1, cpu))[:count]:
        bits |= 1 << cpu
    return bits
