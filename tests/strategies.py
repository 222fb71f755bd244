"""Hypothesis strategies for machines, odd ones among them, and for questions about their CPUs."""

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

from hypothesis import strategies as st

from koord_numa.core.allocation.allocate import cpu_occupancy
from koord_numa.core.cpu_topology import Cpu, CpuTopology
from koord_numa.core.cpus.cpu_request import CpuOccupancy, CpuRequest
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy
from koord_numa.core.state.ledger import Holding, Ledger
from tests.machines import machine

T = TypeVar("T")

BINDS = (CpuBindPolicy.NONE, CpuBindPolicy.DEFAULT, CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS)


# Typed, as False is no 0.
@lru_cache(maxsize=None, typed=True)
def any_of(*values: T) -> st.SearchStrategy[T]:
    """One of these values. Made once for the same ones: inside of a composite, making a strategy costs as much as drawing from it."""
    return st.sampled_from(values)


@st.composite
def regular_machines(draw: st.DrawFn, max_cpus: int = 64) -> CpuTopology:
    """Sockets, NUMA nodes, cores and threads of equal size, numbered either way."""
    sockets, numa = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    threads = draw(any_of(1, 2, 2, 4))
    cores = draw(st.integers(1, max(1, max_cpus // (sockets * numa * threads))))
    return machine(f"{sockets}x{numa}x{cores}x{threads}", draw(any_of("seq", "split")))


@st.composite
def odd_machines(draw: st.DrawFn, max_cores: int = 10) -> CpuTopology:
    """Sparse and shuffled ids, cores of unequal size, unequal NUMA nodes, some without CPUs, core ids that repeat."""
    homes = draw(st.lists(st.sampled_from([0, 1, 2, 5]), min_size=1, max_size=max_cores))
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 3]), min_size=len(homes), max_size=len(homes)))
    ids = iter(draw(st.permutations(range(sum(sizes) + 3))))
    cpus = tuple(
        Cpu(id=next(ids), core=position // 2, numa=numa * 8 + position % 2, socket=numa, uncore=position % 3)
        for position, (numa, size) in enumerate(zip(homes, sizes, strict=True))
        for _ in range(size)
    )
    return CpuTopology(cpus=cpus, numa_ids=(63,))


def machines(max_cpus: int = 64) -> st.SearchStrategy[CpuTopology]:
    """Machines of both kinds."""
    return regular_machines(max_cpus) | odd_machines()


def cpusets_of(some: CpuTopology) -> st.SearchStrategy[CpuSet]:
    """Some of a machine's CPUs: each for itself, or nearly all."""
    ids = [cpu.id for cpu in some.cpus]
    few = st.sets(st.sampled_from(ids)).map(CpuSet.of)
    return few | few.map(lambda cpus: some.all - cpus)


@st.composite
def asks(draw: st.DrawFn, most: int) -> CpuRequest:
    """A request of 1 to ``most`` CPUs with any policies."""
    return CpuRequest(
        count=draw(st.integers(1, max(1, most))),
        bind=draw(any_of(*BINDS)),
        exclusive=draw(any_of(*CpuExclusivePolicy)),
        strategy=draw(any_of(*NumaAllocateStrategy)),
    )


def occupancy_of(held: Iterable[tuple[CpuSet, CpuExclusivePolicy]], limit: int = 1) -> CpuOccupancy:
    """Pods with these CPUs and policies."""
    pods = [
        Holding(PodKey("default", str(number), str(number)), {}, cpus=cpus, exclusive=policy)
        for number, (cpus, policy) in enumerate(held)
    ]
    return cpu_occupancy(Ledger.of(pods), limit)


@st.composite
def occupancies(draw: st.DrawFn, some: CpuTopology) -> CpuOccupancy:
    """CPUs held by others: exclusive ones, and use counts where CPUs may be shared."""
    held = [(draw(cpusets_of(some)), draw(any_of(*CpuExclusivePolicy))) for _ in range(draw(st.integers(0, 3)))]
    return occupancy_of(held, limit=draw(any_of(1, 4)))
