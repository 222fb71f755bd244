"""Sets of logical CPUs, NUMA nodes and devices as single integers: union, difference and count cost one machine operation."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, Self

from koord_numa.core.value_objects import ValueObject


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


MAX_CPU: Final = 4096
"""Largest accepted CPU id, as in the cpuset parser of Koordinator and the kubelet."""


class CpuSet(ValueObject, gc=False):
    """An immutable set of logical CPU ids. Its text is a Linux cpu list: ``0-3,8``."""

    bits: int = 0  # bit i is CPU i

    @classmethod
    def of(cls, cpus: Iterable[int]) -> Self:
        """Return the set of these ids. Repetitions are allowed. Raises ``ValueError`` for a negative id."""
        bits = 0
        for cpu in cpus:
            bits |= 1 << cpu
        return cls(bits)

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Parse a cpu list such as ``0-3,8``. The empty text is the empty set.

        Raises ``ValueError`` with the wrong item: a word, a negative or reversed range, an id above ``MAX_CPU``, an
        empty item.
        """
        bits = 0
        if not text:
            return cls(0)
        for item in text.split(","):
            first, dash, last = item.partition("-")
            if not _is_number(first) or (dash and not _is_number(last)):
                raise ValueError(f"{item[:40]!r} is neither a CPU id nor a range")
            low, high = int(first), int(last if dash else first)
            if high > MAX_CPU or low > MAX_CPU:
                raise ValueError(f"CPU id in {item[:40]!r} is above {MAX_CPU}")
            if high < low:
                raise ValueError(f"range {item[:40]!r} is reversed")
            bits |= ((1 << (high - low + 1)) - 1) << low
        return cls(bits)

    def __iter__(self) -> Iterator[int]:
        """Yield the CPUs in ascending order, so that every pick is deterministic."""
        bits = self.bits
        while bits:
            low = bits & -bits
            yield low.bit_length() - 1
            bits ^= low

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def __contains__(self, cpu: object) -> bool:
        return isinstance(cpu, int) and cpu >= 0 and bool(self.bits >> cpu & 1)

    def __or__(self, other: "CpuSet") -> "CpuSet":
        return CpuSet(self.bits | other.bits)

    def __and__(self, other: "CpuSet") -> "CpuSet":
        return CpuSet(self.bits & other.bits)

    def __sub__(self, other: "CpuSet") -> "CpuSet":
        return CpuSet(self.bits & ~other.bits)

    def __xor__(self, other: "CpuSet") -> "CpuSet":
        return CpuSet(self.bits ^ other.bits)

    def __le__(self, other: "CpuSet") -> bool:
        """Return whether every CPU of this set is in the other set."""
        return not self.bits & ~other.bits

    def __str__(self) -> str:
        """Return the cpu list: ascending, runs of two or more as ``a-b``."""
        parts: list[str] = []
        bits, base = self.bits, 0
        while bits:
            gap = (bits & -bits).bit_length() - 1
            bits >>= gap
            run = (~bits & (bits + 1)).bit_length() - 1
            start = base + gap
            parts.append(str(start) if run == 1 else f"{start}-{start + run - 1}")
            bits >>= run
            base = start + run
        return ",".join(parts)


def _is_number(text: str) -> bool:
    return 0 < len(text) <= 9 and text.isascii() and text.isdigit()


EMPTY: Final = CpuSet()
