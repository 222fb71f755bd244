"""
The kubelet's distribution of CPUs over NUMA nodes: as few NUMA nodes as can hold the request, each giving an even share.

Theory. For k = fewest, fewest + 1, … NUMA nodes, every combination of k is judged by how balanced the whole machine would be
afterwards: each member gives the even share, and what remains is dealt out, group by group in turn, to some of the members.
The balance is the standard deviation of what stays free per NUMA node; the first combination with the lowest wins. As
the kubelet's cpu_assignment.go (``takeByTopologyNUMADistributed``), but combinations are immutable, so that none turns
into another one, and a round that deals nothing ends the dealing instead of going on forever.

The sum of what stays free is the same for every combination, so the sum of squares orders them; it is rounded to the
kubelet's three decimals before it is compared, because equal balances are a tie there. NUMA nodes with as many free CPUs
are interchangeable, so only one of the combinations that swap them is looked at.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import floor, sqrt
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import NotEnoughCpus
from koord_numa.core.cpus.kubelet_packed import pack, take_packed
from koord_numa.core.cpus.layout import layout_of
from koord_numa.core.cpus.representatives import representatives
from koord_numa.core.cpus.static_options import StaticOptions
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.ordering import emptiest_first, fullest_first

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
