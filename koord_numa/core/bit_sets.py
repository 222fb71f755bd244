"""Sets of small numbers as bits of one integer: NUMA nodes, CPUs, devices."""

from functools import lru_cache


@lru_cache(maxsize=8192)
def members(bits: int) -> tuple[int, ...]:
    """The numbers in the set, ascending."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return tuple(found)


def lowest(bits: int, count: int) -> int:
    """The ``count`` smallest members, all of them where there are no more."""
    rest = bits
    for _ in range(count):
        rest &= rest - 1
    return bits ^ rest
