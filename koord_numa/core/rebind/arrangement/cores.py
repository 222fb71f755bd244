"""
The cores of a machine asked about as a whole: which are touched by a set of CPUs, which are contained in it.

Theory. Cores whose CPU ids lie alike (``0,1`` and ``2,3``; or ``0,64`` and ``1,65``) have one *shape*: the offsets from their first
CPU. Shifting a set by an offset lays those CPUs over the first ones, so that one integer operation asks all cores of a shape at
once. Regular machines have one shape, hybrid ones two; with more it only takes longer. A set of cores is a set of first CPUs.
"""

from dataclasses import dataclass

from koord_numa.core.bit_sets import lowest
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet


@dataclass(frozen=True, slots=True)
class Cores:
    """Per shape the first CPUs of its cores, and the offsets of their CPUs."""

    shapes: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def most(self) -> int:
        """CPUs of the largest core; 0 without any."""
        return len(self.shapes[0][1]) if self.shapes else 0

    def touched(self, bits: int) -> int:
        """Cores with at least one CPU in the set."""
        found = 0
        for firsts, offsets in self.shapes:
            anywhere = 0
            for offset in offsets:
                anywhere |= bits >> offset
            # ``firsts`` cuts off what other shapes' CPUs have shifted there.
            found |= anywhere & firsts
        return found

    def whole(self, bits: int) -> int:
        """Cores with all CPUs in the set."""
        found = 0
        for firsts, offsets in self.shapes:
            everywhere = firsts
            for offset in offsets:
                everywhere &= bits >> offset
            found |= everywhere
        return found

    def cpus(self, cores: int) -> int:
        """All CPUs of these cores."""
        bits = 0
        for firsts, offsets in self.shapes:
            here = cores & firsts
            for offset in offsets:
                bits |= here << offset
        return bits

    def fill(self, cores: int, count: int) -> int:
        """The CPUs of as many of these cores as fit into ``count`` CPUs: large cores first, then the lowest."""
        bits = 0
        # Shapes are in the order of their size, largest first.
        for firsts, offsets in self.shapes:
            chosen = lowest(cores & firsts, count // len(offsets))
            count -= chosen.bit_count() * len(offsets)
            for offset in offsets:
                bits |= chosen << offset
        return bits

    def one_each(self, cores: int, pool: int) -> int:
        """The lowest CPU of the pool on each of these cores."""
        bits = 0
        for firsts, offsets in self.shapes:
            left = cores & firsts
            for offset in offsets:
                found = left & pool >> offset
                bits |= found << offset
                left &= ~found
        return bits


def cores_of(machine: CpuTopology) -> Cores:
    """The cores of a machine by shape; remembered with it."""
    known: Cores | None = machine.derived.get(Cores)
    if known is None:
        known = machine.derived[Cores] = _by_shape(machine)
    return known


def _by_shape(machine: CpuTopology) -> Cores:
    shapes: dict[tuple[int, ...], int] = {}
    for core in machine.cores:
        first, *_ = cpus = tuple(CpuSet(core.bits))
        offsets = tuple(cpu - first for cpu in cpus)
        shapes[offsets] = shapes.get(offsets, 0) | 1 << first
    # Largest shape first, which ``most`` and ``fill`` rely on; the offsets make the order total.
    largest_first = sorted(shapes.items(), key=lambda shape: (-len(shape[0]), shape))
    return Cores(tuple((firsts, offsets) for offsets, firsts in largest_first))
