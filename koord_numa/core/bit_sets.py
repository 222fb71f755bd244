"""Sets of small numbers as bits of an integer: NUMA nodes, CPUs, devices."""

from collections.abc import Iterator, Sequence
from functools import lru_cache


@lru_cache(maxsize=8192)
def members(bits: int) -> tuple[int, ...]:
    """Return the numbers in the set, ascending."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return tuple(found)


def each(bits: int) -> Iterator[int]:
    """Yield every member as a set of its own, ascending."""
    while bits:
        low = bits & -bits
        yield low
        bits ^= low


def lowest(bits: int, count: int) -> int:
    """Return the ``count`` smallest members, or all members if there are fewer."""
    if bits.bit_count() <= count:
        return bits
    rest = bits
    for _ in range(count):
        rest &= rest - 1
    return bits ^ rest


def from_each(groups: Sequence[int], count: int) -> Iterator[int]:
    """
    Yield every choice of ``count`` members of these disjoint sets.

    Takes the lowest members of each set, since members of a set are equivalent.
    """
    if not count:
        yield 0
    elif groups:
        for number in range(min(count, groups[0].bit_count()), -1, -1):
            for others in from_each(groups[1:], count - number):
                yield lowest(groups[0], number) | others
