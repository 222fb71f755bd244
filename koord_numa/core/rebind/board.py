"""
A node as a rebind sees it: tenants that hold CPUs of their own, and how good an arrangement of them is.

An arrangement is one CPU bit set per tenant, in the tenants' order. Its *figures* are compared as a whole, in the order in which
the fine-grained CPU orchestration proposal wants a rebind to improve a node: NUMA crossings, split cores, exclusivity
conflicts, then the room that is left in one piece, then how many pods have to move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.machine import Machine
from koord_numa.core.request import PodKey
from koord_numa.core.vocabulary import CpuBindPolicy, CpuExclusivePolicy

Arrangement = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tenant:
    """
    A pod whose CPUs may change. ``order`` sorts tenants for reallocation: smaller comes first.

    ``per_numa`` fixes how many CPUs it has on each NUMA node, because it holds memory or devices there; ``None`` lets it move
    between NUMA nodes.
    """

    pod: PodKey
    cpus: CpuSet
    bind: CpuBindPolicy = CpuBindPolicy.FULL_PCPUS
    required: bool = False
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE
    per_numa: Mapping[int, int] | None = None
    order: tuple[int | float | str, ...] = ()

    @property
    def spreads(self) -> bool:
        """Does it want one CPU a core rather than whole cores?"""
        return self.bind is CpuBindPolicy.SPREAD_BY_PCPUS


class Quality(NamedTuple):
    """How well one tenant sits; smaller is better in every part."""

    numa_nodes: int  # NUMA nodes spanned
    split_cores: int  # cores held in part (or, for a tenant that spreads, CPUs beyond the first of a core)
    conflicts: int  # cores or NUMA nodes shared with tenants that want to be alone there

    def no_worse_than(self, other: "Quality") -> bool:
        """In no part worse."""
        return all(mine <= theirs for mine, theirs in zip(self, other, strict=True))


class Figures(NamedTuple):
    """An arrangement in numbers; a smaller tuple is a better arrangement."""

    crossings: int  # sum over tenants of NUMA nodes spanned beyond the first
    split_cores: int
    conflicts: int
    minus_block: int  # minus the CPUs of whole free cores on the NUMA node that has most of them
    minus_free: int  # minus the free CPUs of the NUMA node that has most of them
    moves: int


@dataclass(frozen=True)
class Board:
    """
    One node to repack. ``fixed`` are CPUs that nobody may be given: reserved, and those of pods that cannot be moved.

    ``room`` limits, per NUMA node, how many CPUs tenants without ``per_numa`` may hold there; absent means no limit. Memos make
    the thousands of evaluations of a search cheap; they never change an answer.
    """

    machine: Machine
    tenants: tuple[Tenant, ...]
    fixed: CpuSet = CpuSet()
    room: Mapping[int, int] = field(default_factory=dict)
    _sitting: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict, repr=False, compare=False)
    _footprints: dict[tuple[CpuExclusivePolicy, int], int] = field(default_factory=dict, repr=False, compare=False)
    _figures: dict[Arrangement, Figures] = field(default_factory=dict, repr=False, compare=False)
    _blocks: dict[tuple[int, int], int] = field(default_factory=dict, repr=False, compare=False)

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

    def standing(self, arrangement: Arrangement) -> "Board":
        """The same node with everybody where this arrangement has them."""
        seats = zip(self.tenants, arrangement, strict=True)
        return Board(self.machine, tuple(replace(t, cpus=CpuSet(bits)) for t, bits in seats), self.fixed, self.room)

    def free(self, arrangement: Sequence[int]) -> int:
        """Bits of the usable CPUs that nobody holds."""
        held = 0
        for bits in arrangement:
            held |= bits
        return self.usable & ~held

    def qualities(self, arrangement: Sequence[int]) -> tuple[Quality, ...]:
        """How well each tenant sits."""
        conflicts = self._conflicts(arrangement)
        return tuple(
            Quality(*self._sits(index, bits), conflicts.get(index, 0)) for index, bits in enumerate(arrangement)
        )

    def figures(self, arrangement: Sequence[int]) -> Figures:
        """The whole arrangement in numbers."""
        key = tuple(arrangement)
        known = self._figures.get(key)
        if known is None:
            known = self._figures[key] = self._count(key)
        return known

    def _count(self, arrangement: Arrangement) -> Figures:
        crossings = splits = 0
        for index, bits in enumerate(arrangement):
            numa_nodes, split = self._sits(index, bits)
            crossings += max(0, numa_nodes - 1)
            splits += split
        free = self.free(arrangement)
        block, most = self.largest_block(free)
        moves = sum(bits != before for bits, before in zip(arrangement, self.now, strict=True))
        return Figures(crossings, splits, sum(self._conflicts(arrangement).values()), -block, -most, moves)

    def blocks(self, free: int) -> dict[int, int]:
        """Per NUMA node the CPUs of its wholly free cores."""
        return {numa: self._block(numa, free & bits) for numa, bits in self.machine.numa_bits.items()}

    def largest_block(self, free: int) -> tuple[int, int]:
        """The most CPUs of whole free cores, and the most free CPUs, that one NUMA node has."""
        numa_bits = self.machine.numa_bits
        return (
            max(self.blocks(free).values(), default=0),
            max(((free & bits).bit_count() for bits in numa_bits.values()), default=0),
        )

    def allows(self, arrangement: Sequence[int]) -> bool:
        """Nobody worse off, counts and required policies kept, room respected, the largest block not smaller."""
        for index, bits in enumerate(arrangement):
            if not self.tolerates(index, bits):
                return False
        qualities = self.qualities(arrangement)
        if not all(new.no_worse_than(old) for new, old in zip(qualities, self.qualities_now, strict=True)):
            return False
        block, _ = self.largest_block(self.free(arrangement))
        if block < -self.figures_now.minus_block:
            return False
        return self.has_room(arrangement)

    def may_pass(self, arrangement: Sequence[int]) -> bool:
        """May a rebind stand like this between steps, so that a stop leaves no pod in conflict and no NUMA node overdrawn?"""
        if not self.has_room(arrangement):
            return False
        return all(
            shared <= self.qualities_now[index].conflicts for index, shared in self._conflicts(arrangement).items()
        )

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
        return self._sits(index, bits)[1] <= self._sits(index, tenant.cpus.bits)[1]

    def tolerates(self, index: int, bits: int) -> bool:
        """Seen alone, is the tenant no worse off on these CPUs? What it has today is always tolerable."""
        if bits == self.now[index]:
            return True
        return self.keeps_policy(index, bits) and all(
            new <= old for new, old in zip(self._sits(index, bits), self.qualities_now[index][:2], strict=True)
        )

    def numa_nodes(self, index: int, bits: int) -> int:
        """NUMA nodes that one tenant spans on these CPUs."""
        return self._sits(index, bits)[0]

    def split_cores(self, index: int, bits: int) -> int:
        """Split cores of one tenant on these CPUs."""
        return self._sits(index, bits)[1]

    def _sits(self, index: int, bits: int) -> tuple[int, int]:
        """NUMA nodes spanned and split cores of one tenant on these CPUs."""
        key = (index, bits)
        known = self._sitting.get(key)
        if known is None:
            spanned = [numa for numa, here in self.machine.numa_bits.items() if here & bits]
            parts = [(core, core & bits) for numa in spanned for core in self.cores_on[numa] if core & bits]
            if self.tenants[index].spreads:
                split = bits.bit_count() - len(parts)
            else:
                split = sum(1 for core, part in parts if part != core)
            known = self._sitting[key] = (len(spanned), split)
        return known

    def _conflicts(self, arrangement: Sequence[int]) -> dict[int, int]:
        """Per exclusive tenant the cores or NUMA nodes that another tenant of the same policy sits on, too."""
        found: dict[int, int] = {}
        for policy, members in self._exclusive.items():
            footprints = [(index, self._footprint(policy, arrangement[index])) for index in members]
            once = twice = 0
            for _, footprint in footprints:
                twice |= once & footprint
                once |= footprint
            if twice:
                found.update((i, shared) for i, footprint in footprints if (shared := (footprint & twice).bit_count()))
        return found

    @cached_property
    def cores_on(self) -> Mapping[int, tuple[int, ...]]:
        """Per NUMA node the CPU bits of its cores, in ascending order of core ids."""
        return {
            numa: tuple(core.bits for core in self.machine.cores if core.numa == numa) for numa in self.machine.numa_ids
        }

    @cached_property
    def _exclusive(self) -> Mapping[CpuExclusivePolicy, tuple[int, ...]]:
        members = {
            policy: tuple(index for index, tenant in enumerate(self.tenants) if tenant.exclusive is policy)
            for policy in (CpuExclusivePolicy.PCPU_LEVEL, CpuExclusivePolicy.NUMA_NODE_LEVEL)
        }
        return {policy: indices for policy, indices in members.items() if len(indices) > 1}

    def _footprint(self, policy: CpuExclusivePolicy, bits: int) -> int:
        """The CPUs' cores, as the bits of their first CPUs; or their NUMA nodes, as a mask."""
        known = self._footprints.get((policy, bits))
        if known is None:
            spanned = [numa for numa, here in self.machine.numa_bits.items() if here & bits]
            if policy is CpuExclusivePolicy.NUMA_NODE_LEVEL:
                known = sum(1 << numa for numa in spanned)
            else:
                touched = (core for numa in spanned for core in self.cores_on[numa] if core & bits)
                known = sum(core & -core for core in touched)
            self._footprints[policy, bits] = known
        return known

    def _block(self, numa: int, free: int) -> int:
        key = (numa, free)
        known = self._blocks.get(key)
        if known is None:
            known = self._blocks[key] = sum(core.bit_count() for core in self.cores_on[numa] if core & free == core)
        return known

    def has_room(self, arrangement: Sequence[int]) -> bool:
        """Do the NUMA nodes' amounts allow it? Where they are overdrawn today, they may at least not be drawn further."""
        for numa, limit in self.room.items():
            bits = self.machine.numa_bits.get(numa, 0)
            floating = (
                (new & bits).bit_count() for t, new in zip(self.tenants, arrangement, strict=True) if t.per_numa is None
            )
            today = ((t.cpus.bits & bits).bit_count() for t in self.tenants if t.per_numa is None)
            if sum(floating) > max(limit, sum(today)):
                return False
        return True
