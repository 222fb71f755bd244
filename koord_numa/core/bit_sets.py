"""Sets of small numbers as bits of one integer: NUMA nodes, CPUs, devices."""

from collections.abc import Iterator
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


def each(bits: int) -> Iterator[int]:
    """The members, each as a set of its own, ascending."""
    while bits:
        low = bits & -bits
        yield low
        bits ^= low


def lowest(bits: int, count: int) -> int:
    """The ``count`` smallest members, all of them where there are no more."""
    if bits.bit_count() <= count:
        return bits
    rest = bits
    for _ in range(count):
        rest &= rest - 1
    return bits ^ rest
