"""
The kubelet's CPU manager, policy static: which NUMA nodes could serve exclusive CPUs, and which CPUs a container gets.

Works on CPU bits that its caller keeps; the order of CPUs inside a NUMA node set is ``cpu_assignment.py``.

How many CPUs of its init containers a later container of a pod gets again, where only numbers of CPUs are known.

Theory. All containers that share a NUMA node choose from the same free and reusable CPUs, by topology alone: as many free cores as the need
allows in ascending order, then single CPUs, those of partly used cores first (``cpu_assignment.py``). On cores of one thread a
container gets its init container's CPUs again. On cores of two an odd number ends in a single CPU of a partly used core, which an even
number leaves out. So what is got again follows from the numbers but for how many cores are partly used, and of these all numbers are tried.

Example: ``init 1, app 2``. With no core partly used the init container breaks one, and the app gets it whole. Otherwise the init container
gets the other thread of a used core, the app a free core, and the CPU of the init container stays held beside it.

How many CPUs of its init containers a later container gets again on a NUMA node that was entirely free, whatever the kubelet's options.

Theory. Until a container keeps CPUs for itself, all containers with one hint choose from the same CPUs, here all of one NUMA node. The
kubelet goes through places from large to small and in ascending order (``takeByTopologyNUMAPacked`` in cpu_assignment.go), so that the
smaller of two choices is part of the larger one. Packing into cores and distribute-cpus-across-cores take the first CPUs of one order.
prefer-align-cpus-by-uncorecache does so where all uncore caches are of one size; where one is smaller a container of its size takes
that one, and a larger container may leave it out. So the choices are made on NUMA nodes with caches of every size, the last of which
may be smaller.

CPU ids are taken to be numbered as Linux does, core by core or thread by thread.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from typing import Final

from koord_numa.core.bit_sets import lowest
from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.cpus.cpu_request import NotEnoughCpus
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.cpu_assignment import assign, pack
from koord_numa.core.kubelet.demand import SMT_ALIGNMENT, UNEXPECTED_ADMISSION, AdmitRejection
from koord_numa.core.kubelet.options import StaticOptions
from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.numa.counted import Counted
from koord_numa.core.numa.hint_rule import HintRule
from koord_numa.core.numa.hints import mask_of, numa_ids
from koord_numa.core.value_objects import ValueObject, value_object

Cpu = tuple[int, int]
"""A core, and which of its two threads."""


Takes = tuple[tuple[bool, int], ...]
"""For every container with exclusive CPUs, in order: is it an init container, and how many CPUs it gets."""


class CpuReuse(Enum):
    """
    Which CPUs a container gets where an init container of its pod left some in the NUMA nodes of its hint.

    The kubelet takes from free and reusable CPUs together, by topology alone. Where CPU ids are unknown the two ends bound what it does.
    """

    BY_ID = "by id"  # as the ids say
    MOST = "most"  # reusable CPUs first: the least is left behind
    LEAST = "least"  # free CPUs first: the most is left behind, and confines the pod longest


class Earlier(ValueObject):
    """
    What containers of the pod being admitted have taken so far of the NUMA nodes of ``mask``, which had ``free`` CPUs free before the
    first. ``None``: of all of them, without a hint.
    """

    mask: int | None
    free: int
    takes: Takes


InitTake = tuple[int, int | None, int]
"""How many CPUs an init container got, by a hint of which mask, and their bits."""


class CpuStock(ValueObject):
    """
    CPUs at one moment, as bits: ``free`` ones, and ``reusable`` ones left by init containers of the pod being admitted.

    ``earlier`` is ``None`` where its containers have taken CPUs by different hints. ``same_pool`` is what its init containers were given
    since a container last kept CPUs for itself: free and reusable CPUs together have been the same since. ``exact``: just so many CPUs are
    free; else they are a bound.
    """

    node: KubeletNode
    free: int
    reusable: int = 0
    earlier: Earlier | None = None
    same_pool: tuple[InitTake, ...] = ()
    exact: bool = True

    def hints(self, needed: int) -> HintRule:
        """
        Where ``needed`` CPUs could come from.

        Every reusable CPU must be inside; the preferred size counts all CPUs, busy and reserved ones too
        (generateCPUTopologyHints in the kubelet's cpumanager/policy_static.go).
        """
        machine = self.node.machine
        whole = _whole(machine)
        totals, size = whole.totals, whole.fewest(needed)
        free = {numa: (self.free & machine.numa_bits[numa]).bit_count() for numa in totals}
        pinned = machine.numa_of(CpuSet(self.reusable)) if self.reusable else 0
        # Reusable CPUs are the pod's already; only what is beyond them has to be free.
        missing = needed - self.reusable.bit_count()

        def fits(mask: int) -> bool:
            return not pinned & ~mask and sum([free[numa] for numa in numa_ids(mask)]) >= missing

        also = None
        if self.node.static_options.align_by_socket:
            # Rounded as in the kubelet's isHintSocketAligned: a machine with sockets of unequal size uses the average.
            per_socket = len(totals) // len(machine.socket_bits)
            sockets = -(-size // per_socket) if per_socket else 0

            def also(mask: int) -> bool:
                return self._sockets(mask).bit_count() == sockets

        return HintRule(nodes=whole.nodes, size=size, fits=fits, also=also, counted=Counted(free, missing, pinned))

    def take(self, needed: int, mask: int | None, reuse: CpuReuse = CpuReuse.BY_ID) -> int | AdmitRejection:
        """
        The CPUs that a container gets, as bits: as many as possible inside ``mask``, the rest anywhere.

        As Allocate in the kubelet's cpumanager/policy_static.go; with full-pcpus-only the number of free whole cores is
        checked first, without counting reusable CPUs and regardless of NUMA nodes.
        """
        # With full-pcpus-only the check comes before alignment and knows no reusable CPUs, so that it may refuse what would fit.
        rejection = self._check_whole_cores(needed)
        if rejection is not None:
            return rejection
        pool = self.free | self.reusable
        if needed > pool.bit_count():
            return AdmitRejection(UNEXPECTED_ADMISSION, f"needed {needed} exclusive CPUs, free {pool.bit_count()}")
        if reuse is not CpuReuse.BY_ID and (again := self._same_as_before(needed, mask)):
            return again
        # Without a hint nothing is aligned: the pool is used as a whole.
        near = self.near(mask)
        count_near = min(needed, near.bit_count())
        if reuse is not CpuReuse.BY_ID and self.reusable and (mask is None or count_near == needed):
            if self._takes_same_first(needed, mask):
                reuse = CpuReuse.MOST
            elif (bounds := self._overlap(needed, mask)) is not None:
                return self._take_again(near, needed, bounds[0] if reuse is CpuReuse.LEAST else bounds[1])
        aligned = self._take_from(near, count_near, reuse)
        if isinstance(aligned, AdmitRejection) or count_near == needed:
            return aligned
        others = self._take_from(pool & ~aligned, needed - count_near, reuse)
        return others if isinstance(others, AdmitRejection) else aligned | others

    def near(self, mask: int | None) -> int:
        """The free and reusable CPUs that a hint of this mask puts first."""
        return (self.free | self.reusable) & self._aligned(mask) if mask is not None else 0

    def _same_as_before(self, needed: int, mask: int | None) -> int:
        """
        The CPUs of an init container that chose as many from the same pool by a hint that puts the same CPUs first; 0 where there is none.

        Which CPUs are taken follows from pool, number and the CPUs put first alone, whatever the options and the CPU ids (allocateCPUs in
        the kubelet's cpumanager/policy_static.go, which offers free and reusable CPUs together).
        """
        offered = ((count, self._offers_same(near, mask), bits) for count, near, bits in self.same_pool)
        return next((bits for count, same, bits in offered if count == needed and same), 0)

    def _overlap(self, needed: int, mask: int | None) -> tuple[int, int] | None:
        """How many of the reusable CPUs are taken at least and at most; ``None`` where that is not known."""
        earlier = self.earlier
        if earlier is None or earlier.mask != mask or not _is_one(mask):
            return None
        if (size := self._whole_node(earlier)) is not None:
            return overlap_on_whole_node(size, tuple(count for _, count in earlier.takes), needed)
        return overlap(earlier.free, (*earlier.takes, (False, needed))) if self.node.packs else None

    def _whole_node(self, earlier: Earlier) -> int | None:
        """The size of the one NUMA node of this hint if all of its CPUs were free, and containers have not kept any since."""
        # A bound says nothing of one CPU that may be in use, which may let the choices be others.
        if not self.exact or self.node.static_options.align_by_socket or not all(init for init, _ in earlier.takes):
            return None
        size = self._aligned(earlier.mask or 0).bit_count()
        return size if earlier.free == size else None

    def _takes_same_first(self, needed: int, mask: int | None) -> bool:
        """
        Does the container get what its init containers had before anything else?

        It chooses from the CPUs that they chose from, by the same order. Whole cores come in ascending order, so that of two choices the
        smaller one is part of the larger. Where single CPUs may be left over they are not (``cpu_overlap``).
        """
        if not self.node.takes_whole_cores or self.earlier is None or self.earlier.mask != mask:
            return False
        if _is_one(mask):
            return True
        # From one NUMA node's size on free NUMA nodes are taken as a whole and first, which also turns the order of the others round.
        smallest = min(bits.bit_count() for bits in self.node.machine.numa_bits.values() if bits)
        most = max(needed, *(count for _, count in self.earlier.takes))
        return not self.node.deals_over_numa and most < smallest

    def _take_again(self, pool: int, count: int, again: int) -> int | AdmitRejection:
        """``count`` of the CPUs in ``pool``, as near to ``again`` of them reusable ones as there are enough others."""
        held, others = pool & self.reusable, pool & ~self.reusable
        again = max(count - others.bit_count(), min(again, held.bit_count()))
        chosen, rest = self._assign(held, again), self._assign(others, count - again)
        if isinstance(chosen, AdmitRejection) or isinstance(rest, AdmitRejection):
            return chosen if isinstance(chosen, AdmitRejection) else rest
        return chosen | rest

    def _take_from(self, pool: int, count: int, reuse: CpuReuse) -> int | AdmitRejection:
        """``count`` of the CPUs in ``pool``; first those that ``reuse`` puts first."""
        if reuse is CpuReuse.BY_ID or not self.reusable:
            return self._assign(pool, count)
        first = pool & self.reusable if reuse is CpuReuse.MOST else pool & ~self.reusable
        most = min(count, first.bit_count())
        chosen = self._assign(first, most)
        if isinstance(chosen, AdmitRejection):
            return chosen
        rest = self._assign(pool & ~first, count - most)
        return rest if isinstance(rest, AdmitRejection) else chosen | rest

    def after(self, bits: int, mask: int | None, *, init: bool, is_first: bool) -> Earlier | None:
        """What is known for the next container of the pod after one has got these CPUs by a hint of ``mask``."""
        from_here = self.free | self.reusable if mask is None else self.near(mask)
        if bits & ~from_here:
            return None  # under best-effort a hint may be narrower than what is taken
        if is_first:
            return Earlier(mask, from_here.bit_count(), ((init, bits.bit_count()),))
        if self.earlier is None or self.earlier.mask != mask:
            return None
        return Earlier(mask, self.earlier.free, (*self.earlier.takes, (init, bits.bit_count())))

    def _check_whole_cores(self, needed: int) -> AdmitRejection | None:
        rule = self.node.whole_cores
        if rule is None:
            return None
        if needed % rule.threads:
            return AdmitRejection(SMT_ALIGNMENT, f"{needed} CPUs are not a multiple of {rule.threads} per core")
        # A reserved CPU spoils the core that it is on. Where cores are unknown each spoils one CPU more than itself.
        whole = max(0, (self.free & ~rule.spoiled).bit_count() - rule.unlocated)
        if needed > whole:
            return AdmitRejection(SMT_ALIGNMENT, f"needed {needed} CPUs on whole cores, free {whole}")
        return None

    def _assign(self, pool: int, count: int) -> int | AdmitRejection:
        if not count:
            return 0
        if not self.node.ids_are_real and count <= pool.bit_count() and self._is_on_one_numa(pool):
            return lowest(pool, count)  # of made-up CPUs it matters only how many there are on a NUMA node
        chosen = assign(self.node.machine, CpuSet(pool), count, self.node.static_options)
        if isinstance(chosen, NotEnoughCpus):
            return AdmitRejection(UNEXPECTED_ADMISSION, f"{count} of {pool.bit_count()} exclusive CPUs: {chosen.why}")
        return chosen.bits

    def _is_on_one_numa(self, pool: int) -> bool:
        return 0 in [pool & ~bits for bits in self.node.machine.numa_bits.values()]

    def _aligned(self, mask: int) -> int:
        machine = self.node.machine
        if self.node.static_options.align_by_socket:
            return sum(machine.socket_bits[socket] for socket in numa_ids(self._sockets(mask)))
        return sum([machine.numa_bits.get(numa, 0) for numa in numa_ids(mask)])

    def _offers_same(self, one: int | None, other: int | None) -> bool:
        """Do hints of these masks put the same CPUs first? With ``align-by-socket`` all that name the same sockets do."""
        if one == other or one is None or other is None or not self.node.static_options.align_by_socket:
            return one == other
        return self._sockets(one) == self._sockets(other)

    def _sockets(self, mask: int) -> int:
        known = _whole(self.node.machine).sockets
        found = known.get(mask)
        if found is None:
            found = known[mask] = _sockets_of(self.node.machine, mask)
        return found


Dealing = Callable[[CpuStock, int, int | None], int]
"""Which CPUs a container gets instead of these, as bits, by a hint of this mask."""


def _sockets_of(machine: CpuTopology, mask: int) -> int:
    """The sockets, as a mask, that have CPUs on any of these NUMA nodes."""
    here = 0
    for numa in numa_ids(mask):
        here |= machine.numa_bits.get(numa, 0)
    return mask_of(socket for socket, bits in machine.socket_bits.items() if bits & here)


def _is_one(mask: int | None) -> bool:
    return mask is not None and mask.bit_count() == 1


@value_object
class _WholeMachine:
    """
    ``totals`` has the CPUs of each NUMA node that has any, ``nodes`` is the mask of these, ``reach[n]`` what the n + 1 largest have.
    ``sockets`` keeps the sockets of sets of NUMA nodes that were asked for.

    NUMA nodes without CPUs (memory only) are in no CPU hint.
    """

    totals: Mapping[int, int]
    nodes: int
    reach: tuple[int, ...]
    sockets: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    def fewest(self, needed: int) -> int:
        """How many NUMA nodes it takes at least to gather so many CPUs; all of them when they never do."""
        return min(bisect_left(self.reach, needed) + 1, len(self.reach))


def _whole(machine: CpuTopology) -> _WholeMachine:
    """Worked out once for a machine, as it is asked for in every admission."""
    found: _WholeMachine | None = machine.derived.get(_WholeMachine)
    if found is None:
        totals = {numa: bits.bit_count() for numa, bits in machine.numa_bits.items() if bits}
        reach = tuple(accumulate(sorted(totals.values(), reverse=True)))
        found = machine.derived[_WholeMachine] = _WholeMachine(totals, mask_of(totals), reach)
    return found


MOST_CPUS: Final = 128
"""Of pods with more CPUs in all nothing is said."""


def overlap(free: int, takes: Takes) -> tuple[int, int] | None:
    """
    The least and the most CPUs that the last of these containers gets of those that init containers before it hold.

    ``free`` is what their NUMA node had free before the first of them. ``None`` where nothing is known. Cores have one thread or two.
    """
    wanted = sum(count for _, count in takes)
    if wanted > MOST_CPUS or not takes:
        return None
    return _bounds(min(free, 2 * wanted + 8 * len(takes)), wanted, takes)


@lru_cache(maxsize=4096)
def _bounds(free: int, wanted: int, takes: Takes) -> tuple[int, int]:
    found = [_overlap_of_ones(takes)]
    for cores, single in _arrangements(free, wanted, len(takes)):
        again = _overlap_of_pairs(cores, single, takes)
        if again is not None:
            found.append(again)
    return min(found), max(found)


def _overlap_of_ones(takes: Takes) -> int:
    """With one thread a core: containers get the lowest CPUs, so those of init containers first."""
    reusable = again = 0
    for init, count in takes:
        again = min(count, reusable)
        reusable = max(reusable, count) if init else reusable - again
    return again


def _arrangements(free: int, wanted: int, containers: int) -> Iterator[tuple[int, int]]:
    """
    Numbers of free cores and of cores with one thread free; more than are wanted are as good as those.

    Of the latter each container takes one while cores are left, more only where there are few cores. Some more may be free than is known.
    """
    enough = wanted // 2 + containers
    for single in range(2 * containers + 2):
        yield enough, single
        if single < free:
            yield min((free - single) // 2, enough), single
    for cores in range(min(enough, free // 2) + 1):
        yield cores, min(free - 2 * cores, wanted + containers)


def _overlap_of_pairs(cores: int, single: int, takes: Takes) -> int | None:
    """With two threads a core; ``None`` where there are too few CPUs for these containers."""
    # Cores in ascending order; a core with one thread free has an odd CPU only.
    free = {(core, thread) for core in range(cores) for thread in (0, 1)}
    free |= {(cores + place, 1) for place in range(single)}
    reusable: set[tuple[int, int]] = set()
    again: set[tuple[int, int]] = set()
    for init, count in takes:
        pool = free | reusable
        if count > len(pool):
            return None
        chosen = _packed(pool, count)
        again = chosen & reusable
        free -= chosen
        reusable = reusable | chosen if init else reusable - chosen
    return len(again)


def _packed(pool: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """The kubelet's choice on one NUMA node: free cores, then single CPUs of the most used cores, lowest first."""
    whole = sorted({core for core, _ in pool if (core, 0) in pool and (core, 1) in pool})[: count // 2]
    chosen = {(core, thread) for core in whole for thread in (0, 1)}
    rest = pool - chosen
    singles = sorted(rest, key=lambda cpu: (((cpu[0], 1 - cpu[1]) in rest), cpu))
    return chosen | set(singles[: count - len(chosen)])


THREADS: Final = (1, 2, 4, 8)
"""Of a core."""


MOST_CORES: Final = 16
"""Of one uncore cache, where a NUMA node has several."""


MOST_NODE_CPUS: Final = 128
"""Of larger NUMA nodes nothing is said."""


_BY_CACHE: Final = StaticOptions(prefer_align_uncore=True)


def overlap_on_whole_node(size: int, inits: tuple[int, ...], needed: int) -> tuple[int, int] | None:
    """
    The least and the most CPUs that a container of ``needed`` gets of those of init containers that got so many CPUs before it.

    ``size`` is how many CPUs their NUMA node has; all of them were free before the first. ``None`` where nothing is known.
    """
    return _whole_node_bounds(size, tuple(sorted({*inits})), needed) if size <= MOST_NODE_CPUS else None


@lru_cache(maxsize=4096)
def _whole_node_bounds(size: int, inits: tuple[int, ...], needed: int) -> tuple[int, int]:
    held = [0] * len(_machines(size))
    for count in inits:
        held = [before | bits for before, bits in zip(held, _whole_node_choices(size, count), strict=True)]
    again = [(before & bits).bit_count() for before, bits in zip(held, _whole_node_choices(size, needed), strict=True)]
    return min(again), max(again)


@lru_cache(maxsize=1024)
def _whole_node_choices(size: int, count: int) -> tuple[int, ...]:
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
