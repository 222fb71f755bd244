"""
How many CPUs of its init containers a later container gets again on a NUMA node that was entirely free, whatever the kubelet's options.

Theory. Until a container keeps CPUs for itself, all containers with one hint choose from the same CPUs, here all of one NUMA node. The
kubelet goes through places from large to small and in ascending order (``takeByTopologyNUMAPacked`` in cpu_assignment.go), so that the
smaller of two choices is part of the larger one. Packing into cores and distribute-cpus-across-cores take the first CPUs of one order.
prefer-align-cpus-by-uncorecache does so where all uncore caches are of one size; where one is smaller a container of its size takes
that one, and a larger container may leave it out. So the choices are made on NUMA nodes with caches of every size, the last of which
may be smaller.

CPU ids are taken to be numbered as Linux does, core by core or thread by thread.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.cpus.kubelet_packed import pack
from koord_numa.core.cpus.static_options import StaticOptions

THREADS: Final = (1, 2, 4, 8)
"""Of a core."""

MOST_CORES: Final = 16
"""Of one uncore cache, where a NUMA node has several."""

MOST_CPUS: Final = 128
"""Of larger NUMA nodes nothing is said."""

_BY_CACHE: Final = StaticOptions(prefer_align_uncore=True)


def overlap_on_whole_node(size: int, inits: tuple[int, ...], needed: int) -> tuple[int, int] | None:
    """
    The least and the most CPUs that a container of ``needed`` gets of those of init containers that got so many CPUs before it.

    ``size`` is how many CPUs their NUMA node has; all of them were free before the first. ``None`` where nothing is known.
    """
    return _bounds(size, tuple(sorted({*inits})), needed) if size <= MOST_CPUS else None


@lru_cache(maxsize=4096)
def _bounds(size: int, inits: tuple[int, ...], needed: int) -> tuple[int, int]:
    held = [0] * len(_machines(size))
    for count in inits:
        held = [before | bits for before, bits in zip(held, _choices(size, count), strict=True)]
    again = [(before & bits).bit_count() for before, bits in zip(held, _choices(size, needed), strict=True)]
    return min(again), max(again)


@lru_cache(maxsize=1024)
def _choices(size: int, count: int) -> tuple[int, ...]:
    """The bits of so many CPUs, as they are chosen on each of the machines."""
    return tuple(pack(machine, machine.bits, count, _BY_CACHE) for machine in _machines(size))


@lru_cache(maxsize=32)
def _machines(size: int) -> tuple[CpuTopology, ...]:
    """NUMA nodes of so many CPUs with cores and uncore caches of all sizes."""
    return tuple(
        machine for threads in THREADS if not size % threads for machine in _with_caches(size // threads, threads)
    )


def _with_caches(cores: int, threads: int) -> Iterator[CpuTopology]:
    for share in {cores, *range(1, min(cores, MOST_CORES) + 1)}:
        rows = [(cpu, cpu // threads, 0, 0, cpu // threads // share) for cpu in range(cores * threads)]
        yield cpu_topology_of(rows)
