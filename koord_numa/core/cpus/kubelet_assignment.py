"""
The CPUs that the kubelet's static CPU manager takes out of a pool (``cpumanager/cpu_assignment.go``).

``assign`` chooses between two algorithms. The packed one fills whole NUMA nodes, sockets, uncore caches and cores before it takes single
CPUs. The distributed one takes an even share from as few NUMA nodes as possible. Which pools a container may use is decided in
``cpu_manager.py``.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from math import floor, inf, sqrt
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import NotEnoughCpus, TopologyDomain, layout_of
from koord_numa.core.cpus.kubelet_options import StaticOptions
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.ordering import emptiest_first, fullest_first
from koord_numa.core.value_objects import ValueObject

_MAX_COMBINATIONS: Final = 20_000
"""Combinations of NUMA nodes per size that are judged: all combinations of up to 16 NUMA nodes. A kubelet with more would not finish."""

_MAX_SUBSETS: Final = 4_096
"""Ways to distribute the remainder of one combination: all subsets of up to 12 NUMA nodes."""


# Candidate states differ in few places, so that most assignments repeat.
@lru_cache(maxsize=2_048)
def assign(machine: CpuTopology, available: CpuSet, count: int, options: StaticOptions) -> CpuSet | NotEnoughCpus:
    """Return the CPUs for a container with ``count`` exclusive CPUs (takeByTopology in policy_static.go)."""
    if options.distribute_across_numa:
        return take_distributed(machine, available, count, options.group(machine), options)
    return take_packed(machine, available, count, options)


def take_packed(machine: CpuTopology, available: CpuSet, count: int, options: StaticOptions) -> CpuSet | NotEnoughCpus:
    """Take exactly ``count`` of the available CPUs, packed. Only the options about cores and uncore caches have an effect."""
    free = available.bits & machine.bits
    if count > free.bit_count():
        return NotEnoughCpus(count, free.bit_count())
    return CpuSet(pack(machine, free, count, options))


def pack(machine: CpuTopology, free: int, count: int, options: StaticOptions) -> int:
    """
    Return ``count`` of the CPU bits in ``free``, which has at least as many (takeByTopologyNUMAPacked).

    Domains with the fewest free CPUs come first. NUMA nodes are filled before sockets if the machine has at least as many sockets as NUMA
    nodes, else after them. Every step takes as many whole units as fit and leaves the rest to the next, finer step. Unlike in the kubelet,
    a CPU that is not free is never taken, where cores differ in size.
    """
    if count < 1:
        return 0
    accumulator = _Accumulator(machine, free, count)
    for step in _packing_steps(accumulator, options):
        for cpus in step:
            accumulator.take(cpus)
            if accumulator.need < 1:
                return accumulator.taken
    return accumulator.taken


def _by_free(domains: Iterable[TopologyDomain], free: int) -> list[TopologyDomain]:
    """Return the domains with free CPUs: those with the fewest first, then by id."""
    by_id = {domain.id: domain for domain in domains if domain.bits & free}
    return [
        by_id[id_] for id_ in fullest_first({id_: (domain.bits & free).bit_count() for id_, domain in by_id.items()})
    ]


class _Accumulator:
    """The state of one packed assignment (cpuAccumulator). All sets are CPU bits."""

    __slots__ = ("free", "layout", "machine", "need", "numa_first", "taken")

    def __init__(self, machine: CpuTopology, free: int, need: int) -> None:
        self.machine = machine
        self.layout = layout_of(machine)
        self.numa_first = machine.counts.sockets >= machine.counts.numa
        self.free = free
        self.need = need
        self.taken = 0

    def take(self, bits: int) -> None:
        self.free &= ~bits
        self.taken |= bits
        self.need -= bits.bit_count()

    def outer(self) -> list[TopologyDomain]:
        """Return the domains of the outer level with free CPUs, in the order of the kubelet."""
        return _by_free(self.layout.numas if self.numa_first else self.layout.sockets, self.free)

    def inner(self) -> list[TopologyDomain]:
        """Return the domains of the inner level with free CPUs, grouped by the domains of the outer level."""
        domains = self.layout.sockets if self.numa_first else self.layout.numas
        return [
            domain
            for outer in self.outer()
            for domain in _by_free([inner for inner in domains if inner.bits & outer.bits & self.free], self.free)
        ]

    def numas(self) -> list[TopologyDomain]:
        return self.outer() if self.numa_first else self.inner()

    def sockets(self) -> list[TopologyDomain]:
        return self.inner() if self.numa_first else self.outer()

    def uncores(self) -> list[TopologyDomain]:
        """Return the uncore caches with free CPUs, grouped by NUMA node."""
        return [
            uncore
            for numa in self.numas()
            for uncore in _by_free([u for u in self.layout.uncores if u.bits & numa.bits & self.free], self.free)
        ]


def _packing_steps(accumulator: _Accumulator, options: StaticOptions) -> Iterator[Iterable[int]]:
    """Yield the steps, coarsest first. A step sees what the steps before it have left."""
    levels = (accumulator.outer, accumulator.inner)
    # A NUMA node is free if all of its own CPUs are; a socket is free if as many CPUs are free as the average socket has.
    sizes = (None, accumulator.machine.cpus_per_socket)
    for domains, size in zip(levels, sizes if accumulator.numa_first else reversed(sizes), strict=True):
        yield _whole_domains(accumulator, domains(), size)
    if options.prefer_align_uncore:
        yield _uncore_aligned(accumulator)
    # distribute-cpus-across-cores takes CPUs by id and no whole cores, so that siblings come last.
    if options.distribute_across_cores:
        yield _single_cpus_by_socket(accumulator)
    else:
        yield _whole_cores(accumulator)
        yield _single_cpus_by_core(accumulator)


def _whole_domains(accumulator: _Accumulator, domains: Sequence[TopologyDomain], size: int | None) -> Iterator[int]:
    """Yield free domains that are no larger than the need. ``size`` is the average size of a domain where that decides."""
    for domain in domains:
        free = domain.bits & accumulator.free
        if free.bit_count() == (size or domain.bits.bit_count()) <= accumulator.need:
            yield free


def _uncore_aligned(accumulator: _Accumulator) -> Iterator[int]:
    """Yield free uncore caches, then all of the rest from one uncore cache if it has enough (takeUncoreCache)."""
    size = accumulator.machine.cpus_per_uncore
    for uncore in accumulator.uncores():
        if accumulator.need >= size:
            # Listed again, because caches that were taken as a whole have no free CPUs.
            yield from _whole_domains(accumulator, accumulator.uncores(), None)
        part = _partial_uncore(accumulator, uncore)
        if part.bit_count() == accumulator.need:
            yield part


def _partial_uncore(accumulator: _Accumulator, uncore: TopologyDomain) -> int:
    """Return the free CPUs of the lowest cores that can hold the need (takePartialUncore)."""
    threads = max(1, accumulator.machine.threads_per_core)
    cores = [free for core in uncore.cores if (free := core & accumulator.free)]
    bits = sum(cores[: -(-accumulator.need // threads)])
    # For an odd need the kubelet drops one sibling.
    if threads > 1 and accumulator.need % 2 and bits.bit_count() > accumulator.need:
        bits ^= 1 << bits.bit_length() - 1
    return bits


def _whole_cores(accumulator: _Accumulator) -> Iterator[int]:
    """Yield free cores in ascending order. A core is free if as many CPUs are free as the average core has."""
    threads = accumulator.machine.threads_per_core
    for domain in accumulator.inner():
        for core in domain.cores:
            free = core & accumulator.free
            if free.bit_count() == threads <= accumulator.need:
                yield free
        if accumulator.need < threads:
            return


def _single_cpus_by_core(accumulator: _Accumulator) -> Iterator[int]:
    """Yield CPUs, those of the cores with the fewest free CPUs first."""
    for domain in accumulator.inner():
        cores = {index: free for index, core in enumerate(domain.cores) if (free := core & accumulator.free)}
        for index in fullest_first({index: free.bit_count() for index, free in cores.items()}):
            for cpu in CpuSet(cores[index]):
                yield 1 << cpu


def _single_cpus_by_socket(accumulator: _Accumulator) -> Iterator[int]:
    """Yield the CPUs of every socket by id."""
    for domain in accumulator.sockets():
        for cpu in CpuSet(domain.bits & accumulator.free):
            yield 1 << cpu


def take_distributed(
    machine: CpuTopology, available: CpuSet, count: int, group: int, options: StaticOptions
) -> CpuSet | NotEnoughCpus:
    """
    Take exactly ``count`` of the available CPUs in multiples of ``group``, distributed over NUMA nodes (takeByTopologyNUMADistributed).

    For k = fewest possible, fewest + 1, ... NUMA nodes, every combination of k NUMA nodes is judged by the standard deviation of the CPUs
    that would stay free per NUMA node. Every member gives the even share, and the remainder is taken from some of the members in turn. The
    first combination with the lowest deviation is used. Without a usable combination, or if ``count`` is no multiple of ``group``, the CPUs
    are packed. Unlike in the kubelet, a combination never changes while it is judged, and a round that distributes nothing ends the
    distribution (``docs/deviations.md``).
    """
    # The kubelet rejects uncore alignment together with distribution.
    packing = StaticOptions(distribute_across_cores=options.distribute_across_cores)
    free = available.bits & machine.bits
    if count % group or not 0 < count <= free.bit_count():
        return take_packed(machine, available, count, packing)
    distribution = _Distribution(machine, free, count, group)
    for size in distribution.sizes():
        choice = distribution.best(size)
        if choice is not None:
            return _take_choice(machine, free, choice, packing)
    return take_packed(machine, available, count, packing)


class _EvenShare(ValueObject):
    """CPUs to take from every NUMA node: the even share of the members, then one more group from each NUMA node of ``remainder``."""

    share: int
    members: tuple[int, ...]
    group: int
    remainder: tuple[int, ...]  # NUMA ids


def _take_choice(machine: CpuTopology, free: int, choice: _EvenShare, packing: StaticOptions) -> CpuSet:
    taken = 0
    shares = [(numa, choice.share) for numa in choice.members] + [(numa, choice.group) for numa in choice.remainder]
    for numa, count in shares:
        taken |= pack(machine, machine.numa_bits[numa] & free & ~taken, count, packing)
    return CpuSet(taken)


class _Distribution:
    """
    One request for distributed CPUs: the free CPUs per NUMA node, and the balance of a choice.

    The sum of the CPUs that stay free is the same for every combination, so the sum of squares orders the combinations. It is rounded to
    the kubelet's three decimals, because equal balances are a tie there. Neighboring NUMA nodes with equally many free CPUs are
    interchangeable, so one of the combinations that swap them is judged.
    """

    __slots__ = ("_balances", "count", "free", "group", "machine", "mean", "total")

    def __init__(self, machine: CpuTopology, free: int, count: int, group: int) -> None:
        # NUMA nodes without free CPUs are no candidates and not part of the mean.
        by_numa = {numa.id: n for numa in layout_of(machine).numas if (n := (numa.bits & free).bit_count())}
        self.machine = machine
        self.free: Mapping[int, int] = {numa: by_numa[numa] for numa in _in_packed_order(machine, free, by_numa)}
        self.count = count
        self.group = group
        self.total = free.bit_count() - count
        self.mean = _three_decimals(self.total / len(self.free))
        self._balances: dict[int, float] = {}

    def sizes(self) -> range:
        """
        Return the numbers of NUMA nodes to try, from the fewest that could hold the request if they were empty.

        The bound uses the size of the machine and not the free CPUs, as in the kubelet.
        """
        groups = -(-self.machine.counts.cpus // self.group)
        per_numa = -(-groups // len(layout_of(self.machine).numas))
        needed = self.count // self.group
        return range(-(-needed // per_numa), min(needed, len(self.free)) + 1)

    def best(self, size: int) -> _EvenShare | None:
        """Return the first combination of ``size`` NUMA nodes with the lowest balance, or ``None`` if none has enough CPUs."""
        share = self.count // size // self.group * self.group
        ids = tuple(self.free)
        emptiest = set(emptiest_first(self.free)[:size])
        # If the NUMA nodes with the most free CPUs have too few, every combination of this size has.
        if not self._has_enough(tuple(emptiest), share):
            return None
        candidates = chain(
            (
                tuple(ids[index] for index in indexes)
                for indexes in islice(representatives(tuple(self.free.values()), size), _MAX_COMBINATIONS)
            ),
            # Only of use if the limit is reached before a combination with enough CPUs.
            (tuple(numa for numa in ids if numa in emptiest),),
        )
        lowest = inf
        best: _EvenShare | None = None
        for members in candidates:
            if not self._has_enough(members, share):
                continue
            balance, remainder = self._distribute_remainder(members, share, lowest)
            if balance < lowest:
                lowest, best = balance, _EvenShare(share, members, self.group, remainder)
            # The comparison is strict, so that no later combination replaces a balance of 0.
            if not lowest:
                break
        return best

    def _has_enough(self, members: Sequence[int], share: int) -> bool:
        groups = sum(self.free[numa] // self.group for numa in members)
        return groups * self.group >= self.count and min(self.free[numa] for numa in members) >= share

    def _distribute_remainder(self, members: Sequence[int], share: int, lowest: float) -> tuple[float, tuple[int, ...]]:
        """Return the lowest balance after the remainder is taken from some of the members, and from which."""
        left = dict(self.free)
        for numa in members:
            left[numa] -= share
        squares = sum(n * n for n in left.values())
        groups = (self.count - share * len(members)) // self.group
        if not groups:
            return self._balance(squares), ()
        spare = {numa: left[numa] for numa in members if left[numa] >= self.group}
        # Lower bound: no choice is better than to take every group from the NUMA node with the most free CPUs.
        lower_bound = self._balance(squares - _largest_decrease(spare, self.group, groups))
        if lower_bound >= lowest:
            return inf, ()
        best: tuple[float, tuple[int, ...]] = (inf, ())
        for subset in islice(_subsets(spare), _MAX_SUBSETS):
            taken_from, decrease = _take_in_turn(subset, spare, self.group, groups)
            if len(taken_from) == groups and (balance := self._balance(squares - decrease)) < best[0]:
                best = (balance, taken_from)
                if balance <= lower_bound:
                    break
        return best

    def _balance(self, squares: int) -> float:
        """Return the standard deviation of the free CPUs per NUMA node, from their sum of squares, as the kubelet rounds it."""
        balance = self._balances.get(squares)
        if balance is None:
            n = len(self.free)
            variance = (squares - 2 * self.mean * self.total + n * self.mean * self.mean) / n
            # The rounded mean can make the variance slightly negative.
            balance = self._balances[squares] = _three_decimals(sqrt(max(0.0, variance)))
        return balance


def _in_packed_order(machine: CpuTopology, free: int, by_numa: Mapping[int, int]) -> list[int]:
    """Return the NUMA ids in the order of the packed algorithm (numaFirst, socketsFirst)."""
    if machine.counts.sockets >= machine.counts.numa:
        return fullest_first(by_numa)
    by_socket = {socket: (bits & free).bit_count() for socket, bits in machine.socket_bits.items()}
    socket_of = {numa.id: numa.socket for numa in layout_of(machine).numas}
    return [
        numa
        for socket in fullest_first(by_socket)
        for numa in fullest_first({numa: n for numa, n in by_numa.items() if socket_of[numa] == socket})
    ]


def _subsets(spare: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """Yield the non-empty subsets of these NUMA nodes, the largest first."""
    ids, free = tuple(spare), tuple(spare.values())
    for size in range(len(ids), 0, -1):
        for indexes in representatives(free, size):
            yield tuple(ids[index] for index in indexes)


def _take_in_turn(
    members: Sequence[int], spare: Mapping[int, int], group: int, groups: int
) -> tuple[tuple[int, ...], int]:
    """
    Take one group from every member in turn. Return from which members, and the decrease of the sum of squares.

    The decrease per group is n² - (n - group)² = group * (2n - group), where n is what the NUMA node has before.
    """
    taken_from: list[int] = []
    decrease = 0
    turn = 0
    able: Sequence[int] = members
    while len(taken_from) < groups and able:
        for numa in able[: groups - len(taken_from)]:
            decrease += group * (2 * (spare[numa] - turn * group) - group)
            taken_from.append(numa)
        turn += 1
        able = [numa for numa in able if spare[numa] >= (turn + 1) * group]
    return tuple(taken_from), decrease


def _largest_decrease(spare: Mapping[int, int], group: int, groups: int) -> int:
    """Return the largest decrease of the sum of squares: every group comes from the NUMA node with the most free CPUs."""
    left = list(spare.values())
    decrease = 0
    for _ in range(groups if left else 0):
        index = max(range(len(left)), key=left.__getitem__)
        decrease += group * (2 * left[index] - group)
        left[index] -= group
    return decrease


def _three_decimals(value: float) -> float:
    # Go's math.Round rounds halves away from zero, Python's round() to even. Balances are not negative.
    return floor(value * 1000 + 0.5) / 1000


def representatives(kinds: Sequence[Hashable], size: int) -> Iterator[tuple[int, ...]]:
    """
    Yield combinations of ``size`` indexes in lexicographic order, without those that swap neighbors of equal kind.

    Of a run of equal neighbors a combination always contains the first ones. A kind in two separate runs counts as two kinds.
    """
    chosen: list[int] = []

    def extend(start: int) -> Iterator[tuple[int, ...]]:
        if len(chosen) == size:
            yield tuple(chosen)
            return
        # The upper bound leaves enough indexes for the rest of the combination.
        for index in range(start, len(kinds) - (size - len(chosen)) + 1):
            if index > start and kinds[index] == kinds[index - 1]:
                continue
            chosen.append(index)
            yield from extend(index + 1)
            chosen.pop()

    return extend(0)
