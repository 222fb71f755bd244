"""
The kubelet's CPU manager with policy static (``cpumanager/policy_static.go``): topology hints, and the CPUs of a container.

Free and reusable CPUs are CPU bits that the caller keeps. With invented CPU ids, the second half bounds how many CPUs of its init
containers a later container of a pod reuses (``docs/kubelet-model.md``).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.cpus import NotEnoughCpus
from koord_numa.core.cpus.kubelet_assignment import assign, pack
from koord_numa.core.cpus.kubelet_options import StaticOptions
from koord_numa.core.cpuset import CpuSet, lowest
from koord_numa.core.explain import cpus_text
from koord_numa.core.kubelet.demand import SMT_ALIGNMENT, UNEXPECTED_ADMISSION, AdmitRejection
from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.numa import Counted, HintRule, mask_of, numa_ids
from koord_numa.core.value_objects import ValueObject, value_object

Cpu = tuple[int, int]
"""A core, and the index of one of its two threads."""

Takes = tuple[tuple[bool, int], ...]
"""For every container with exclusive CPUs, in order: whether it is an init container, and its number of CPUs."""

MAX_CPUS: Final = 128
"""Largest sum of a pod's exclusive CPUs, or size of a NUMA node, for which reuse is bounded. Bounds the tables and the time."""

_THREADS: Final = (1, 2, 4, 8)
"""Possible threads per core."""

_MAX_CORES_PER_CACHE: Final = 16
"""Largest uncore cache, in cores, on a NUMA node with several caches."""

_ALIGN_BY_CACHE: Final = StaticOptions(prefer_align_uncore=True)


class CpuReuse(Enum):
    """
    The CPUs that a container gets if init containers of its pod have left CPUs in the NUMA nodes of its hint.

    The kubelet takes from free and reusable CPUs together, by topology alone. With invented CPU ids ``MOST`` and ``LEAST`` are
    bounds.
    """

    BY_ID = "by id"  # as the kubelet
    MOST = "most"  # reusable CPUs first
    LEAST = "least"  # free CPUs first: what is left restricts the pod longest


class Earlier(ValueObject):
    """
    The CPUs that the previous containers of the same pod took from the NUMA nodes of ``mask``.

    ``mask`` is ``None`` if they had no hint and took CPUs of all NUMA nodes. ``free`` is the number of CPUs that were free there before
    the first container.
    """

    mask: int | None
    free: int
    takes: Takes


InitTake = tuple[int, int | None, int]
"""The number of CPUs of an init container, the mask of its hint, and the CPU bits."""


class CpuStock(ValueObject):
    """
    The CPUs at one moment of an admission, as bits: ``free`` CPUs, and CPUs that init containers of the pod left as ``reusable``.

    ``earlier`` is ``None`` where containers of the pod took CPUs by different hints. ``same_pool`` are the takes of init containers since a
    container last kept CPUs, during which the union of free and reusable CPUs was constant. ``exact`` is false where the free CPUs are a
    bound.
    """

    node: KubeletNode
    free: int
    reusable: int = 0
    earlier: Earlier | None = None
    same_pool: tuple[InitTake, ...] = ()
    exact: bool = True

    def hints(self, count: int) -> HintRule:
        """
        Return the hints for ``count`` CPUs (generateCPUTopologyHints).

        A mask must include all reusable CPUs. The preferred size counts all CPUs, busy and reserved CPUs included.
        """
        machine = self.node.machine
        sizes = _sizes(machine)
        size = sizes.fewest(count)
        free = {numa: (self.free & machine.numa_bits[numa]).bit_count() for numa in sizes.by_numa}
        pinned = machine.numa_of(CpuSet(self.reusable)) if self.reusable else 0
        missing = count - self.reusable.bit_count()

        def fits(mask: int) -> bool:
            return not pinned & ~mask and sum([free[numa] for numa in numa_ids(mask)]) >= missing

        also = None
        if self.node.static_options.align_by_socket:
            # isHintSocketAligned divides by the average number of NUMA nodes per socket.
            per_socket = len(sizes.by_numa) // len(machine.socket_bits)
            sockets = -(-size // per_socket) if per_socket else 0

            def also(mask: int) -> bool:
                return self._sockets(mask).bit_count() == sockets

        return HintRule(nodes=sizes.nodes, size=size, fits=fits, also=also, counted=Counted(free, missing, pinned))

    def take(self, count: int, mask: int | None, reuse: CpuReuse = CpuReuse.BY_ID) -> int | AdmitRejection:
        """
        Return the CPU bits of a container: as many CPUs as possible inside ``mask``, the rest anywhere (Allocate, allocateCPUs).

        With full-pcpus-only the free whole cores are checked first, on all NUMA nodes and without reusable CPUs.
        """
        rejection = self._check_whole_cores(count)
        if rejection is not None:
            return rejection
        pool = self.free | self.reusable
        if count > pool.bit_count():
            return AdmitRejection(
                UNEXPECTED_ADMISSION,
                f"needed {count} exclusive CPU{'' if count == 1 else 's'}, free {pool.bit_count()}",
            )
        if reuse is not CpuReuse.BY_ID and (cpus := self._same_as_before(count, mask)):
            return cpus
        aligned = self.near(mask)
        count_aligned = min(count, aligned.bit_count())
        if reuse is not CpuReuse.BY_ID and self.reusable and (mask is None or count_aligned == count):
            if self._takes_same_first(count, mask):
                reuse = CpuReuse.MOST
            elif (bounds := self._reuse_bounds(count, mask)) is not None:
                return self._take_reused(aligned, count, bounds[0] if reuse is CpuReuse.LEAST else bounds[1])
        first = self._take_from(aligned, count_aligned, reuse)
        if isinstance(first, AdmitRejection) or count_aligned == count:
            return first
        rest = self._take_from(pool & ~first, count - count_aligned, reuse)
        return rest if isinstance(rest, AdmitRejection) else first | rest

    def partition(self, pool: int, count: int) -> int:
        """Return the CPU bits of a container as a slice of the CPUs that its pod holds as a whole (AllocatePod)."""
        cpus = self._assign(pool, count)
        return 0 if isinstance(cpus, AdmitRejection) else cpus

    def near(self, mask: int | None) -> int:
        """Return the free and reusable CPUs that the CPU manager takes first under a hint with this mask."""
        return (self.free | self.reusable) & self._aligned(mask) if mask is not None else 0

    def _same_as_before(self, count: int, mask: int | None) -> int:
        """
        Return the CPUs of an init container that took as many CPUs from the same pool by an equivalent hint, else 0.

        allocateCPUs offers free and reusable CPUs together, so that the result follows from the pool, the count and the CPUs put first.
        """
        for init_count, init_mask, cpus in self.same_pool:
            if init_count == count and self._puts_same_first(init_mask, mask):
                return cpus
        return 0

    def _reuse_bounds(self, count: int, mask: int | None) -> tuple[int, int] | None:
        """Return the fewest and the most reusable CPUs that are taken, or ``None`` if that is not known."""
        earlier = self.earlier
        if earlier is None or earlier.mask != mask or not _is_single(mask):
            return None
        size = self._aligned(mask or 0).bit_count()
        was_empty = earlier.free == size and all(init for init, _ in earlier.takes)
        # Where free CPUs are a bound, one of them may be in use, which may change the choices.
        if self.exact and was_empty and not self.node.static_options.align_by_socket:
            return reuse_on_empty_numa(size, tuple(init for _, init in earlier.takes), count)
        return reuse_by_counts(earlier.free, (*earlier.takes, (False, count))) if self.node.packs else None

    def _takes_same_first(self, count: int, mask: int | None) -> bool:
        """
        Return whether the container reuses the CPUs of its init containers before it takes free CPUs.

        Whole cores are taken in ascending order. Of two choices from the same CPUs, the smaller is then part of the larger.
        """
        if not self.node.takes_whole_cores or self.earlier is None or self.earlier.mask != mask:
            return False
        if _is_single(mask):
            return True
        # A count of at least one NUMA node's size takes free NUMA nodes as a whole first, which reverses the order of the rest.
        smallest = min(bits.bit_count() for bits in self.node.machine.numa_bits.values() if bits)
        largest = max(count, *(init for _, init in self.earlier.takes))
        return not self.node.distributes_across_numa and largest < smallest

    def _take_reused(self, pool: int, count: int, reused: int) -> int | AdmitRejection:
        """Take ``count`` CPUs of the pool with ``reused`` reusable CPUs among them, or as many as are necessary and possible."""
        reusable, others = pool & self.reusable, pool & ~self.reusable
        reused = max(count - others.bit_count(), min(reused, reusable.bit_count()))
        first, rest = self._assign(reusable, reused), self._assign(others, count - reused)
        if isinstance(first, AdmitRejection) or isinstance(rest, AdmitRejection):
            return first if isinstance(first, AdmitRejection) else rest
        return first | rest

    def _take_from(self, pool: int, count: int, reuse: CpuReuse) -> int | AdmitRejection:
        """Take ``count`` CPUs of the pool, in the order of ``reuse``."""
        if reuse is CpuReuse.BY_ID or not self.reusable:
            return self._assign(pool, count)
        return self._take_reused(pool, count, count if reuse is CpuReuse.MOST else 0)

    def after(self, bits: int, mask: int | None, *, init: bool, is_first: bool) -> Earlier | None:
        """Return ``earlier`` for the next container, after a container took these CPUs by a hint of ``mask``."""
        offered = self.free | self.reusable if mask is None else self.near(mask)
        # Under best-effort a hint may have fewer CPUs than are taken.
        if bits & ~offered:
            return None
        if is_first:
            return Earlier(mask, offered.bit_count(), ((init, bits.bit_count()),))
        if self.earlier is None or self.earlier.mask != mask:
            return None
        return Earlier(mask, self.earlier.free, (*self.earlier.takes, (init, bits.bit_count())))

    def _check_whole_cores(self, count: int) -> AdmitRejection | None:
        rule = self.node.whole_cores
        if rule is None:
            return None
        if count % rule.threads:
            return AdmitRejection(
                SMT_ALIGNMENT,
                f"{cpus_text(count)} {'is' if count == 1 else 'are'} not a multiple of {rule.threads} per core",
            )
        free = max(0, (self.free & ~rule.spoiled).bit_count() - rule.unlocated)
        if count > free:
            return AdmitRejection(SMT_ALIGNMENT, f"needed {cpus_text(count)} on whole cores, free {free}")
        return None

    def _assign(self, pool: int, count: int) -> int | AdmitRejection:
        if not count:
            return 0
        machine = self.node.machine
        # Of CPUs with invented ids, only their number per NUMA node matters.
        if (
            not self.node.ids_are_real
            and count <= pool.bit_count()
            and 0 in [pool & ~bits for bits in machine.numa_bits.values()]
        ):
            return lowest(pool, count)
        chosen = assign(machine, CpuSet(pool), count, self.node.static_options)
        if isinstance(chosen, NotEnoughCpus):
            return AdmitRejection(UNEXPECTED_ADMISSION, f"{count} of {pool.bit_count()} exclusive CPUs: {chosen.why}")
        return chosen.bits

    def _aligned(self, mask: int) -> int:
        """Return the CPUs of the NUMA nodes of ``mask``, with align-by-socket the CPUs of their sockets (getAlignedCPUs)."""
        machine = self.node.machine
        if self.node.static_options.align_by_socket:
            return sum(machine.socket_bits[socket] for socket in numa_ids(self._sockets(mask)))
        return sum([machine.numa_bits.get(numa, 0) for numa in numa_ids(mask)])

    def _puts_same_first(self, mask: int | None, other: int | None) -> bool:
        """Return whether the CPU manager takes the same CPUs first under hints with these masks."""
        if mask == other or mask is None or other is None or not self.node.static_options.align_by_socket:
            return mask == other
        return self._sockets(mask) == self._sockets(other)

    def _sockets(self, mask: int) -> int:
        """Return the mask of the sockets with CPUs on any of these NUMA nodes."""
        machine = self.node.machine
        known = _sizes(machine).sockets
        sockets = known.get(mask)
        if sockets is None:
            cpus = sum(machine.numa_bits.get(numa, 0) for numa in numa_ids(mask))
            sockets = known[mask] = mask_of(socket for socket, bits in machine.socket_bits.items() if bits & cpus)
        return sockets


ChooseCpus = Callable[[CpuStock, int, int | None], int]
"""Replaces the CPU bits that a container gets by a hint of this mask. Follows other ways to distribute CPUs over NUMA nodes."""


def _is_single(mask: int | None) -> bool:
    return mask is not None and mask.bit_count() == 1


@value_object
class _Sizes:
    """
    The sizes of a machine's NUMA nodes, computed once per machine. NUMA nodes without CPUs are in no CPU hint.

    ``by_numa`` are the CPUs per NUMA node, ``nodes`` is the mask of these NUMA nodes, ``largest[i]`` the sum of the i + 1 largest.
    ``sockets`` caches the sockets of masks.
    """

    by_numa: Mapping[int, int]
    nodes: int
    largest: tuple[int, ...]
    sockets: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    def fewest(self, count: int) -> int:
        """Return the smallest number of NUMA nodes with ``count`` CPUs, or the number of all NUMA nodes if they have too few."""
        return min(bisect_left(self.largest, count) + 1, len(self.largest))


def _sizes(machine: CpuTopology) -> _Sizes:
    sizes: _Sizes | None = machine.derived.get(_Sizes)
    if sizes is None:
        by_numa = {numa: bits.bit_count() for numa, bits in machine.numa_bits.items() if bits}
        largest = tuple(accumulate(sorted(by_numa.values(), reverse=True)))
        sizes = machine.derived[_Sizes] = _Sizes(by_numa, mask_of(by_numa), largest)
    return sizes


def reuse_by_counts(free: int, takes: Takes) -> tuple[int, int] | None:
    """
    Bound how many CPUs of earlier init containers the last container gets, on one NUMA node with cores of one or two threads.

    ``free`` is the number of free CPUs before the first container. ``None`` means not known. All containers choose from the same CPUs by
    topology alone: free cores in ascending order, then single CPUs, of partly used cores first. So the result follows from the counts and
    from the number of partly used cores, of which all possible numbers are tried.

    Example: ``init 1, app 2``. With no partly used core the init container breaks a core, and the app gets this core. Otherwise the init
    container gets the free thread of a used core and the app a free core, so that the CPU of the init container stays held.
    """
    wanted = sum(count for _, count in takes)
    if wanted > MAX_CPUS or not takes:
        return None
    return _bounds_by_counts(min(free, 2 * wanted + 8 * len(takes)), wanted, takes)


@lru_cache(maxsize=4096)
def _bounds_by_counts(free: int, wanted: int, takes: Takes) -> tuple[int, int]:
    reused = [_reused_with_one_thread(takes)]
    for cores, single in _core_counts(free, wanted, len(takes)):
        count = _reused_with_two_threads(cores, single, takes)
        if count is not None:
            reused.append(count)
    return min(reused), max(reused)


def _reused_with_one_thread(takes: Takes) -> int:
    """Return the reused CPUs on cores of one thread, where containers get the lowest CPUs."""
    reusable = reused = 0
    for init, count in takes:
        reused = min(count, reusable)
        reusable = max(reusable, count) if init else reusable - reused
    return reused


def _core_counts(free: int, wanted: int, containers: int) -> Iterator[tuple[int, int]]:
    """
    Yield possible numbers of free cores and of cores with one free thread. Numbers above the need of the containers are equivalent.

    A container uses at most one partly used core while free cores are left. The sum may exceed ``free`` by a few CPUs.
    """
    enough = wanted // 2 + containers
    for single in range(2 * containers + 2):
        yield enough, single
        if single < free:
            yield min((free - single) // 2, enough), single
    for cores in range(min(enough, free // 2) + 1):
        yield cores, min(free - 2 * cores, wanted + containers)


def _reused_with_two_threads(cores: int, single: int, takes: Takes) -> int | None:
    """Return the reused CPUs on cores of two threads, or ``None`` if the containers need more CPUs."""
    free = {(core, thread) for core in range(cores) for thread in (0, 1)}
    free |= {(cores + index, 1) for index in range(single)}
    reusable: set[Cpu] = set()
    reused: set[Cpu] = set()
    for init, count in takes:
        pool = free | reusable
        if count > len(pool):
            return None
        chosen = _packed(pool, count)
        reused = chosen & reusable
        free -= chosen
        reusable = reusable | chosen if init else reusable - chosen
    return len(reused)


def _packed(pool: set[Cpu], count: int) -> set[Cpu]:
    """Return the packed choice on one NUMA node: free cores, then single CPUs, of partly used cores first."""
    whole = sorted({core for core, _ in pool if (core, 0) in pool and (core, 1) in pool})[: count // 2]
    chosen = {(core, thread) for core in whole for thread in (0, 1)}
    rest = pool - chosen
    singles = sorted(rest, key=lambda cpu: (((cpu[0], 1 - cpu[1]) in rest), cpu))
    return chosen | set(singles[: count - len(chosen)])


def reuse_on_empty_numa(size: int, inits: tuple[int, ...], count: int) -> tuple[int, int] | None:
    """
    Return the minimum and maximum of reused CPUs: a container of ``count`` CPUs follows init containers of ``inits`` CPUs.

    The bounds hold for all options of the kubelet. ``None`` means not known. All ``size`` CPUs of the NUMA node were free before the first
    container, and all containers choose from all of them.

    Packing and distribute-cpus-across-cores take CPUs in one order, so that the smaller choice is part of the larger one. With
    prefer-align-cpus-by-uncorecache this fails if a cache is smaller. The choices are therefore made on NUMA nodes with caches of every
    size, of which the last may be smaller. CPU ids are numbered as by Linux.
    """
    return _bounds_on_empty_numa(size, tuple(sorted({*inits})), count) if size <= MAX_CPUS else None


@lru_cache(maxsize=4096)
def _bounds_on_empty_numa(size: int, inits: tuple[int, ...], count: int) -> tuple[int, int]:
    held = [0] * len(_machines(size))
    for init in inits:
        held = [before | bits for before, bits in zip(held, _choices(size, init), strict=True)]
    reused = [(before & bits).bit_count() for before, bits in zip(held, _choices(size, count), strict=True)]
    return min(reused), max(reused)


@lru_cache(maxsize=1024)
def _choices(size: int, count: int) -> tuple[int, ...]:
    """Return the CPUs (as bits) that the kubelet takes for ``count`` CPUs, for each machine of ``_machines``."""
    return tuple(pack(machine, machine.bits, count, _ALIGN_BY_CACHE) for machine in _machines(size))


@lru_cache(maxsize=32)
def _machines(size: int) -> tuple[CpuTopology, ...]:
    """Return machines of one NUMA node with ``size`` CPUs: one for each size of cores and uncore caches."""
    return tuple(
        machine for threads in _THREADS if not size % threads for machine in _with_caches(size // threads, threads)
    )


def _with_caches(cores: int, threads: int) -> Iterator[CpuTopology]:
    for cores_per_cache in {cores, *range(1, min(cores, _MAX_CORES_PER_CACHE) + 1)}:
        rows = [(cpu, cpu // threads, 0, 0, cpu // threads // cores_per_cache) for cpu in range(cores * threads)]
        yield cpu_topology_of(rows)
