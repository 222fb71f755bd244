"""
A node as a rebind sees it: tenants that hold CPUs of their own, and how good an arrangement of them is.

An arrangement is one CPU bit set per tenant, in the tenants' order. Its *figures* are compared as a whole, in the order in which
the fine-grained CPU orchestration proposal wants a rebind to improve a node: NUMA crossings, split cores, exclusivity
conflicts, then the room that is left in one piece, then how many pods have to move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.rebind.cores import Cores, cores_of
from koord_numa.core.rebind.exclusivity import NOBODY_SETTLED, ExclusivityRules, Settled
from koord_numa.core.rebind.pinned_pod import PinnedPod, Quality
from koord_numa.core.vocabulary import CpuBindPolicy

Arrangement = tuple[int, ...]


class Figures(NamedTuple):
    """An arrangement in numbers; a smaller tuple is a better arrangement."""

    crossings: int  # sum over tenants of NUMA nodes spanned beyond the first
    split_cores: int
    conflicts: int  # exclusivity of CPUs, and of NUMA nodes towards pods of the other kind
    minus_block: int  # minus the CPUs of whole free cores on the NUMA node that has most of them
    minus_free: int  # minus the free CPUs of the NUMA node that has most of them
    moves: int


class Seat(NamedTuple):
    """One tenant on some CPUs, seen alone. ``harm``: by how much it is worse off than today, NUMA nodes and split cores together."""

    numa_nodes: int
    split_cores: int
    harm: int


class Friction(NamedTuple):
    """Conflicts of an arrangement in all, and by how much pods have more of them than today."""

    total: int
    harm: int


@dataclass(frozen=True)
class NodeLayout:
    """
    One node to repack. ``fixed`` are CPUs that nobody may be given: reserved, and those of pods that cannot be moved.

    ``room`` limits, per NUMA node, how many CPUs tenants without ``per_numa`` may hold there; absent means no limit. ``settled``
    says where pods are that cannot be moved. Memos make thousands of evaluations cheap; they never change an answer.
    """

    machine: CpuTopology
    tenants: tuple[PinnedPod, ...]
    fixed: CpuSet = CpuSet()
    room: Mapping[int, int] = field(default_factory=dict)
    settled: Settled = NOBODY_SETTLED
    _figures: dict[Arrangement, Figures] = field(default_factory=dict, init=False, repr=False, compare=False)
    _frictions: dict[Arrangement, Friction] = field(default_factory=dict, init=False, repr=False, compare=False)
    _seats: dict[tuple[int, int], Seat] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def usable(self) -> int:
        """Bits of all CPUs that tenants may hold."""
        return self.machine.bits & ~self.fixed.bits

    @cached_property
    def now(self) -> Arrangement:
        """How tenants sit today."""
        return tuple(tenant.cpus.bits for tenant in self.tenants)

    @cached_property
    def qualities_now(self) -> tuple[Quality, ...]:
        """How well tenants sit today."""
        return self.qualities(self.now)

    @cached_property
    def figures_now(self) -> Figures:
        """Today in numbers."""
        return self.figures(self.now)

    @cached_property
    def block_now(self) -> int:
        """The largest block today."""
        return -self.figures_now.minus_block

    @cached_property
    def in_order(self) -> tuple[int, ...]:
        """Tenants in the order of reallocation."""
        return tuple(sorted(range(len(self.tenants)), key=lambda index: (self.tenants[index].order, index)))

    @cached_property
    def cores(self) -> Cores:
        """The machine's cores."""
        return cores_of(self.machine)

    @cached_property
    def concerned(self) -> frozenset[int]:
        """Tenants of whom it matters to anybody where they sit."""
        return self.company.concerned

    @cached_property
    def company(self) -> ExclusivityRules:
        """Who wants to be alone, and where."""
        return ExclusivityRules(self.machine, self.tenants, self.settled)

    def free(self, arrangement: Sequence[int]) -> int:
        """Bits of the usable CPUs that nobody holds."""
        held = 0
        for bits in arrangement:
            held |= bits
        return self.usable & ~held

    def qualities(self, arrangement: Sequence[int]) -> tuple[Quality, ...]:
        """How well each tenant sits."""
        conflicts, strangers = self.company.conflicts(arrangement), self.company.strangers(arrangement)
        return tuple(
            Quality(*self._shape(index, bits), conflicts.get(index, 0), strangers.get(index, 0))
            for index, bits in enumerate(arrangement)
        )

    def figures(self, arrangement: Sequence[int]) -> Figures:
        """The whole arrangement in numbers."""
        key = tuple(arrangement)
        known = self._figures.get(key)
        if known is None:
            known = self._figures[key] = self._count(key)
        return known

    def _count(self, arrangement: Arrangement) -> Figures:
        seats = [self.seat(index, bits) for index, bits in enumerate(arrangement)]
        block, most = self.largest_block(self.free(arrangement))
        return Figures(
            crossings=sum(max(0, seat.numa_nodes - 1) for seat in seats),
            split_cores=sum(seat.split_cores for seat in seats),
            conflicts=self.friction(arrangement).total,
            minus_block=-block,
            minus_free=-most,
            moves=sum(bits != before for bits, before in zip(arrangement, self.now, strict=True)),
        )

    def friction(self, arrangement: Sequence[int]) -> Friction:
        """Conflicts in all, and how many of them are new to somebody."""
        key = tuple([arrangement[index] for index in self.concerned])
        known = self._frictions.get(key)
        if known is None:
            known = self._frictions[key] = self._rub(arrangement)
        return known

    def _rub(self, arrangement: Sequence[int]) -> Friction:
        total = harm = 0
        for now, counts in (
            (self._conflicts_now, self.company.conflicts(arrangement)),
            (self._strangers_now, self.company.strangers(arrangement)),
        ):
            total += sum(counts.values())
            harm += sum(max(0, count - now.get(index, 0)) for index, count in counts.items())
        disturbed = self.company.disturbed(arrangement)
        return Friction(total + disturbed.bit_count(), harm + (disturbed & ~self._disturbed_now).bit_count())

    def blocks(self, free: int) -> dict[int, int]:
        """Per NUMA node the CPUs of its wholly free cores."""
        whole = self.cores.cpus(self.cores.whole(free))
        return {numa: (whole & bits).bit_count() for numa, bits in self.machine.numa_bits.items()}

    def largest_block(self, free: int) -> tuple[int, int]:
        """The most CPUs of whole free cores, and the most free CPUs, that one NUMA node has."""
        whole = self.cores.cpus(self.cores.whole(free))
        block = most = 0
        for bits in self.machine.numa_bits.values():
            block = max(block, (whole & bits).bit_count())
            most = max(most, (free & bits).bit_count())
        return block, most

    def allows(self, arrangement: Sequence[int]) -> bool:
        """Nobody worse off, counts and required policies kept, room respected, the largest block not smaller."""
        if not all(self.tolerates(index, bits) for index, bits in enumerate(arrangement)):
            return False
        qualities = self.qualities(arrangement)
        if not all(new.no_worse_than(old) for new, old in zip(qualities, self.qualities_now, strict=True)):
            return False
        block, _ = self.largest_block(self.free(arrangement))
        return block >= self.block_now and self.may_pass(arrangement)

    def may_pass(self, arrangement: Sequence[int]) -> bool:
        """May a rebind stand like this between steps, so that a stop leaves no pod in conflict and no NUMA node overdrawn?"""
        return not self.overdrawn(self.free(arrangement)) and not self.friction(arrangement).harm

    def overdrawn(self, free: int) -> int:
        """
        By how many CPUs NUMA nodes are short of what their amounts must have left while these are free.

        Where they are overdrawn today, they may at least not be drawn further.
        """
        numa_bits = self.machine.numa_bits
        return sum(max(0, least - (free & numa_bits[numa]).bit_count()) for numa, least in self._least_free.items())

    @cached_property
    def overdraft(self) -> Mapping[int, int]:
        """Per NUMA node by how many CPUs tenants without ``per_numa`` exceed its room today."""
        floating = [tenant.cpus.bits for tenant in self.tenants if tenant.per_numa is None]
        held = {
            numa: sum((bits & here).bit_count() for bits in floating) for numa, here in self.machine.numa_bits.items()
        }
        return {numa: max(0, held.get(numa, 0) - limit) for numa, limit in self.room.items()}

    @cached_property
    def _least_free(self) -> Mapping[int, int]:
        """Per NUMA node with limited room the CPUs that must stay free: tenants with ``per_numa`` hold as many as today anyway."""
        least = {}
        for numa, limit in self.room.items():
            here = self.machine.numa_bits.get(numa, 0)
            tied = sum((t.cpus.bits & here).bit_count() for t in self.tenants if t.per_numa is not None)
            least[numa] = (self.usable & here).bit_count() - tied - limit - self.overdraft[numa]
        return {numa: count for numa, count in least.items() if count > 0}

    def keeps_policy(self, index: int, bits: int) -> bool:
        """Does this set have the tenant's size, its CPUs per NUMA node and its required policy?"""
        tenant = self.tenants[index]
        if bits.bit_count() != len(tenant.cpus) or bits & ~self.usable:
            return False
        if tenant.per_numa is not None:
            counts = {n: c for n, b in self.machine.numa_bits.items() if (c := (bits & b).bit_count())}
            if counts != {n: c for n, c in tenant.per_numa.items() if c}:
                return False
        if not tenant.required or tenant.bind is CpuBindPolicy.NONE:
            return True
        # A required policy that is violated today (a hand-written cpuset) must at least not get worse.
        return self.seat(index, bits).split_cores <= self.seat(index, tenant.cpus.bits).split_cores

    def tolerates(self, index: int, bits: int) -> bool:
        """Seen alone, is the tenant no worse off on these CPUs? What it has today is always tolerable."""
        if bits == self.now[index]:
            return True
        return not self.seat(index, bits).harm and self.keeps_policy(index, bits)

    def seat(self, index: int, bits: int) -> Seat:
        """One tenant on these CPUs, seen alone."""
        known = self._seats.get((index, bits))
        if known is None:
            spanned, split = self._shape(index, bits)
            before_spanned, before_split = self._shape(index, self.tenants[index].cpus.bits)
            harm = max(0, spanned - before_spanned) + max(0, split - before_split)
            known = self._seats[index, bits] = Seat(spanned, split, harm)
        return known

    def _shape(self, index: int, bits: int) -> tuple[int, int]:
        """NUMA nodes spanned and split cores."""
        spanned = 0
        for here in self.machine.numa_bits.values():
            spanned += here & bits != 0
        touched = self.cores.touched(bits).bit_count()
        if self.tenants[index].spreads:
            return spanned, bits.bit_count() - touched
        return spanned, touched - self.cores.whole(bits).bit_count()

    @cached_property
    def _conflicts_now(self) -> Mapping[int, int]:
        return self.company.conflicts(self.now)

    @cached_property
    def _strangers_now(self) -> Mapping[int, int]:
        return self.company.strangers(self.now)

    @cached_property
    def _disturbed_now(self) -> int:
        return self.company.disturbed(self.now)
