"""
Which CPUs the kubelet's static CPU manager hands out of a pool, by its options. Who may get any is not decided here.

The kubelet's packed assignment of CPUs: whole NUMA nodes and sockets first, then whole uncore caches and cores, then single CPUs.

Theory. Places are visited in the order of their free CPUs, the fullest first, level inside level: by NUMA node and then by
socket when a machine has at least as many sockets as NUMA nodes, else the other way round. Every step takes as many whole
units as the need allows and leaves the rest to the next, finer one. As the kubelet's cpu_assignment.go
(``takeByTopologyNUMAPacked``), except that a CPU which is not free is never taken, whatever the averages say.

The kubelet's distribution of CPUs over NUMA nodes: as few NUMA nodes as can hold the request, each giving an even share.

Theory. For k = fewest, fewest + 1, … NUMA nodes, every combination of k is judged by how balanced the whole machine would be
afterwards: each member gives the even share, and what remains is dealt out, group by group in turn, to some of the members.
The balance is the standard deviation of what stays free per NUMA node; the first combination with the lowest wins. As
the kubelet's cpu_assignment.go (``takeByTopologyNUMADistributed``), but combinations are immutable, so that none turns
into another one, and a round that deals nothing ends the dealing instead of going on forever.

The sum of what stays free is the same for every combination, so the sum of squares orders them; it is rounded to the
kubelet's three decimals before it is compared, because equal balances are a tie there. NUMA nodes with as many free CPUs
are interchangeable, so only one of the combinations that swap them is looked at.

Combinations without those that differ only by swapping interchangeable neighbours. Knows nothing about what is combined.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from math import floor, sqrt
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import NotEnoughCpus
from koord_numa.core.cpus.layout import TopologyDomain, layout_of
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.options import StaticOptions
from koord_numa.core.ordering import emptiest_first, fullest_first


@lru_cache(maxsize=2_048)
def assign(machine: CpuTopology, available: CpuSet, count: int, options: StaticOptions) -> CpuSet | NotEnoughCpus:
    """
    The CPUs that the kubelet takes for a container of ``count`` whole CPUs.

    As ``takeByTopology`` in the kubelet's policy_static.go: distribution over NUMA nodes excludes uncore alignment. Remembered, as replays
    and questions choose from the same CPUs in many states that differ elsewhere.
    """
    if options.distribute_across_numa:
        return take_distributed(machine, available, count, options.group(machine), options)
    return take_packed(machine, available, count, options)


def take_packed(machine: CpuTopology, available: CpuSet, count: int, options: StaticOptions) -> CpuSet | NotEnoughCpus:
    """Take exactly ``count`` of the available CPUs; of the options, spreading over cores and uncore alignment matter."""
    free = available.bits & machine.bits
    if count > free.bit_count():
        return NotEnoughCpus(count, free.bit_count())
    return CpuSet(pack(machine, free, count, options))


def pack(machine: CpuTopology, free: int, count: int, options: StaticOptions) -> int:
    """The same on CPU bits, where at least ``count`` are known to be free."""
    if count < 1:
        return 0
    # A new accumulator a call: the kubelet's newCPUAccumulator carries nothing over between containers.
    packing = _Packing(machine, free, count)
    for step in _steps(packing, options):
        for cpus in step:
            packing.take(cpus)
            if packing.need < 1:
                return packing.taken
    # Unreachable while ``count`` CPUs are free, as single CPUs are the last step.
    return packing.taken


def _by_free(places: Sequence[TopologyDomain], free: int) -> list[TopologyDomain]:
    """Those of the places that have free CPUs, the fullest (fewest free) first, then by id."""
    counts = {place.id: (place.bits & free).bit_count() for place in places if place.bits & free}
    known = {place.id: place for place in places}
    return [known[place] for place in fullest_first(counts)]


class _Packing:
    """The state of one assignment; all sets are CPU bits."""

    __slots__ = ("free", "layout", "machine", "need", "numa_first", "taken")

    def __init__(self, machine: CpuTopology, free: int, need: int) -> None:
        self.machine = machine
        self.layout = layout_of(machine)
        # On machines with several NUMA nodes a socket the NUMA node is the smaller unit, and levels swap.
        self.numa_first = machine.counts.sockets >= machine.counts.numa
        self.free = free
        self.need = need
        self.taken = 0

    def take(self, bits: int) -> None:
        """Move CPUs from free to taken."""
        self.free &= ~bits
        self.taken |= bits
        self.need -= bits.bit_count()

    def outer(self) -> list[TopologyDomain]:
        """The places of the outer level."""
        return _by_free(self.layout.numas if self.numa_first else self.layout.sockets, self.free)

    def inner(self) -> list[TopologyDomain]:
        """The places of the inner level, outer place by outer place."""
        places = self.layout.sockets if self.numa_first else self.layout.numas
        return [
            place
            for outer in self.outer()
            for place in _by_free([p for p in places if p.bits & outer.bits & self.free], self.free)
        ]

    def numas(self) -> list[TopologyDomain]:
        """NUMA nodes in the order of their level."""
        return self.outer() if self.numa_first else self.inner()

    def sockets(self) -> list[TopologyDomain]:
        """Sockets in the order of their level."""
        return self.inner() if self.numa_first else self.outer()


def _steps(packing: _Packing, options: StaticOptions) -> Iterator[Iterable[int]]:
    """What to take, coarsest first; each step sees what the ones before it left."""
    levels = (packing.outer, packing.inner)
    # ``None``: NUMA nodes count by their own size, sockets by the machine's average, as in the kubelet.
    sizes = (None, packing.machine.cpus_per_socket)
    for places, size in zip(levels, sizes if packing.numa_first else reversed(sizes), strict=True):
        yield _whole_places(packing, places(), size)
    if options.prefer_align_uncore:
        yield _uncore_aligned(packing)
    # distribute-cpus-across-cores skips whole cores, and takes CPUs by id, so that siblings come last.
    if not options.distribute_across_cores:
        yield _whole_cores(packing)
        yield _single_cpus_by_core(packing)
    else:
        yield _single_cpus_by_socket(packing)


def _whole_places(packing: _Packing, places: Sequence[TopologyDomain], size: int | None) -> Iterator[int]:
    """Completely free places no larger than the need. A socket counts as free by the machine's average size."""
    for place in places:
        mine = place.bits & packing.free
        # A chained comparison: the place is completely free, and not larger than the need.
        if mine.bit_count() == (size or place.bits.bit_count()) <= packing.need:
            yield mine


def _uncore_aligned(packing: _Packing) -> Iterator[int]:
    """Free uncore caches, and then all of the rest out of a single one if that is possible without a leftover."""
    size = packing.machine.cpus_per_uncore
    # Uncores are listed once for the loop and again inside it, because taking whole ones changes what is free.
    for uncore in _uncores(packing):
        if packing.need >= size:
            yield from _whole_places(packing, _uncores(packing), None)
        part = _part_of(packing, uncore)
        if part.bit_count() == packing.need:
            yield part


def _uncores(packing: _Packing) -> list[TopologyDomain]:
    """Uncore caches, NUMA node by NUMA node."""
    return [
        uncore
        for numa in packing.numas()
        for uncore in _by_free([u for u in packing.layout.uncores if u.bits & numa.bits & packing.free], packing.free)
    ]


def _part_of(packing: _Packing, uncore: TopologyDomain) -> int:
    """The free CPUs of the lowest cores that could hold the need; an odd need leaves out one sibling."""
    threads = max(1, packing.machine.threads_per_core)
    cores = [mine for core in uncore.cores if (mine := core & packing.free)]
    bits = sum(cores[: -(-packing.need // threads)])
    # The kubelet drops one sibling for an odd need only (takePartialUncore); an even need ends on a core boundary.
    if threads > 1 and packing.need % 2 and bits.bit_count() > packing.need:
        bits ^= 1 << bits.bit_length() - 1
    return bits


def _whole_cores(packing: _Packing) -> Iterator[int]:
    """Free cores, place by place in ascending order; a core counts as free by the machine's average size."""
    threads = packing.machine.threads_per_core
    for place in packing.inner():
        for core in place.cores:
            mine = core & packing.free
            if mine.bit_count() == threads <= packing.need:
                yield mine
        # Once less than a core is needed, no later place can give one.
        if packing.need < threads:
            return


def _single_cpus_by_core(packing: _Packing) -> Iterator[int]:
    """CPU by CPU, the cores with the fewest free CPUs first."""
    for place in packing.inner():
        cores = {position: mine for position, core in enumerate(place.cores) if (mine := core & packing.free)}
        for position in fullest_first({position: mine.bit_count() for position, mine in cores.items()}):
            for cpu in CpuSet(cores[position]):
                yield 1 << cpu


def _single_cpus_by_socket(packing: _Packing) -> Iterator[int]:
    """CPU by CPU by id inside each socket, which spreads over cores where siblings have distant ids."""
    for place in packing.sockets():
        for cpu in CpuSet(place.bits & packing.free):
            yield 1 << cpu


_UNBALANCED: Final = float("inf")


_SEARCHED: Final = 20_000


_SUBSETS: Final = 4_096
"""Where the search ends: beyond every combination of 16 NUMA nodes and every subset of 12. A kubelet would not come back."""


def take_distributed(
    machine: CpuTopology, available: CpuSet, count: int, group: int, options: StaticOptions
) -> CpuSet | NotEnoughCpus:
    """
    Take exactly ``count`` of the available CPUs, an even share from each of as few NUMA nodes as possible.

    CPUs go in multiples of ``group``. A count that is none, and a request that no combination can serve, is packed instead.
    """
    # Uncore alignment is not passed on: the kubelet refuses the two options together.
    packing = StaticOptions(distribute_across_cores=options.distribute_across_cores)
    free = available.bits & machine.bits
    # As takeByTopologyNUMADistributed: a count that is no multiple of the group falls back to packing.
    if count % group or not 0 < count <= free.bit_count():
        return take_packed(machine, available, count, packing)
    distribution = _Distribution(machine, free, count, group)
    for size in distribution.sizes():
        chosen = distribution.best(size)
        if chosen is not None:
            return _hand_out(machine, free, chosen, packing)
    return take_packed(machine, available, count, packing)


@dataclass(frozen=True, slots=True)
class _Choice:
    """How many CPUs each NUMA node gives: the even share first, then these groups in this order."""

    share: int
    members: tuple[int, ...]
    group: int
    dealt: tuple[int, ...]  # NUMA ids, one for each further group


def _hand_out(machine: CpuTopology, free: int, choice: _Choice, packing: StaticOptions) -> CpuSet:
    taken = 0
    gifts = [(numa, choice.share) for numa in choice.members] + [(numa, choice.group) for numa in choice.dealt]
    for numa, cpus in gifts:
        taken |= pack(machine, machine.numa_bits[numa] & free & ~taken, cpus, packing)
    return CpuSet(taken)


class _Distribution:
    """One request over one machine: what is free per NUMA node, and how balanced a choice leaves it."""

    __slots__ = ("_balances", "count", "free", "group", "machine", "mean", "total")

    def __init__(self, machine: CpuTopology, free: int, count: int, group: int) -> None:
        # NUMA nodes without a free CPU are no candidates, and they are not part of the mean either.
        by_numa = {place.id: n for place in layout_of(machine).numas if (n := (place.bits & free).bit_count())}
        self.machine = machine
        self.free: Mapping[int, int] = {numa: by_numa[numa] for numa in _in_packed_order(machine, free, by_numa)}
        self.count = count
        self.group = group
        self.total = free.bit_count() - count
        self.mean = _three_decimals(self.total / len(self.free))
        self._balances: dict[int, float] = {}

    def sizes(self) -> range:
        # Bounds as in the kubelet: from the machine's size, not from what is free, so that small requests start at one NUMA node.
        """From how few NUMA nodes could hold the request if they were empty, to how many could take part."""
        groups = -(-self.machine.counts.cpus // self.group)
        per_numa = -(-groups // len(layout_of(self.machine).numas))
        needed = self.count // self.group
        return range(-(-needed // per_numa), min(needed, len(self.free)) + 1)

    def best(self, size: int) -> _Choice | None:
        """The first combination of this many NUMA nodes with the lowest balance, ``None`` when none can serve."""
        share = self.count // size // self.group * self.group
        ids = tuple(self.free)
        richest = set(emptiest_first(self.free)[:size])
        # The richest NUMA nodes are the best case: when they cannot serve, no combination of this size can.
        if not self._can_serve(tuple(richest), share):
            return None
        # The last candidate matters only when the search ends before it has met one that can serve.
        candidates = chain(
            (
                tuple(ids[position] for position in positions)
                for positions in islice(representatives(tuple(self.free.values()), size), _SEARCHED)
            ),
            (tuple(numa for numa in ids if numa in richest),),
        )
        lowest = _UNBALANCED
        best: _Choice | None = None
        for members in candidates:
            if not self._can_serve(members, share):
                continue
            balance, dealt = self._deal(members, share, lowest)
            if balance < lowest:
                lowest, best = balance, _Choice(share, members, self.group, dealt)
            # A balance of zero cannot be beaten; the kubelet's strict comparison keeps the first one, too.
            if not lowest:
                break
        return best

    def _can_serve(self, members: Sequence[int], share: int) -> bool:
        groups = sum(self.free[numa] // self.group for numa in members)
        return groups * self.group >= self.count and min(self.free[numa] for numa in members) >= share

    def _deal(self, members: Sequence[int], share: int, lowest: float) -> tuple[float, tuple[int, ...]]:
        """The lowest balance that dealing the remainder to some of the members can reach, and to whom it is dealt."""
        left = dict(self.free)
        for numa in members:
            left[numa] -= share
        squares = sum(n * n for n in left.values())
        groups = (self.count - share * len(members)) // self.group
        if not groups:
            return self._balance(squares), ()
        spare = {numa: left[numa] for numa in members if left[numa] >= self.group}
        # No choice is better than always taking from where most is left.
        # A lower bound by greedy choice, without the rule that dealing goes in turn.
        floor_ = self._balance(squares - _best_gain(spare, self.group, groups))
        if floor_ >= lowest:
            return _UNBALANCED, ()
        best: tuple[float, tuple[int, ...]] = (_UNBALANCED, ())
        for chosen in islice(_subsets(spare), _SUBSETS):
            dealt, gain = _in_turn(chosen, spare, self.group, groups)
            if len(dealt) == groups and (balance := self._balance(squares - gain)) < best[0]:
                best = (balance, dealt)
                if balance <= floor_:
                    break
        return best

    def _balance(self, squares: int) -> float:
        """The population standard deviation of what stays free per NUMA node, from the sum of its squares."""
        known = self._balances.get(squares)
        if known is None:
            n = len(self.free)
            # Var = E(x²) - 2·m·E(x) + m², with the mean rounded to three decimals, as the kubelet rounds it before use.
            variance = (squares - 2 * self.mean * self.total + n * self.mean * self.mean) / n
            # Rounding can make the variance a little less than zero.
            known = self._balances[squares] = _three_decimals(sqrt(max(0.0, variance)))
        return known


def _in_packed_order(machine: CpuTopology, free: int, by_numa: Mapping[int, int]) -> list[int]:
    # As the kubelet's numaFirst and socketsFirst: the smaller unit is ordered inside the larger one.
    if machine.counts.sockets >= machine.counts.numa:
        return fullest_first(by_numa)
    by_socket = {socket: (bits & free).bit_count() for socket, bits in machine.socket_bits.items()}
    homes = {place.id: place.socket for place in layout_of(machine).numas}
    return [
        numa
        for socket in fullest_first(by_socket)
        for numa in fullest_first({numa: n for numa, n in by_numa.items() if homes[numa] == socket})
    ]


def _subsets(spare: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """All of these NUMA nodes but none, largest subsets first."""
    ids, kinds = tuple(spare), tuple(spare.values())
    for size in range(len(ids), 0, -1):
        for positions in representatives(kinds, size):
            yield tuple(ids[position] for position in positions)


def _in_turn(members: Sequence[int], spare: Mapping[int, int], group: int, groups: int) -> tuple[tuple[int, ...], int]:
    # Gain of a group: left² - (left - group)² = group·(2·left - group).
    """Take one group from each member in turn: from whom, and by how much the sum of squares falls."""
    dealt: list[int] = []
    gain = 0
    turn = 0
    able: Sequence[int] = members
    while len(dealt) < groups and able:
        for numa in able[: groups - len(dealt)]:
            gain += group * (2 * (spare[numa] - turn * group) - group)
            dealt.append(numa)
        turn += 1
        able = [numa for numa in able if spare[numa] >= (turn + 1) * group]
    return tuple(dealt), gain


def _best_gain(spare: Mapping[int, int], group: int, groups: int) -> int:
    """The largest possible fall of the sum of squares: every group is taken from where most is left."""
    left = list(spare.values())
    gain = 0
    for _ in range(groups if left else 0):
        position = max(range(len(left)), key=left.__getitem__)
        gain += group * (2 * left[position] - group)
        left[position] -= group
    return gain


def _three_decimals(value: float) -> float:
    # Go's math.Round rounds halves away from zero, Python's ``round`` to even; balances are not negative.
    return floor(value * 1000 + 0.5) / 1000


def representatives(kinds: Sequence[Hashable], size: int) -> Iterator[tuple[int, ...]]:
    """
    Positions of ``size`` items, in lexicographic order, one combination for each way of counting neighbours of a kind.

    Neighbours of equal kind are interchangeable: a combination that skips one and takes the next says nothing new, and
    comes later than the one that takes the first. A kind that appears in two separate runs counts as two kinds.
    """
    chosen: list[int] = []

    def extend(start: int) -> Iterator[tuple[int, ...]]:
        if len(chosen) == size:
            yield tuple(chosen)
            return
        # The upper bound leaves enough items for the rest, so that no branch ends without a combination.
        for position in range(start, len(kinds) - (size - len(chosen)) + 1):
            # Skipping the first of a run and taking its neighbour gives the counts of a combination that came before.
            if position > start and kinds[position] == kinds[position - 1]:
                continue
            chosen.append(position)
            yield from extend(position + 1)
            chosen.pop()

    return extend(0)
