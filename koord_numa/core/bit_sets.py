"""Sets of small numbers as bits of one integer: NUMA nodes, CPUs, devices."""

from collections.abc import Iterator, Sequence
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


def from_each(groups: Sequence[int], count: int) -> Iterator[int]:
    """Every way of taking so many members from these sets, which have none in common; of each set the lowest, as its members are alike."""
    if not count:
        yield 0
    elif groups:
        for number in range(min(count, groups[0].bit_count()), -1, -1):
            for others in from_each(groups[1:], count - number):
                yield lowest(groups[0], number) | others
