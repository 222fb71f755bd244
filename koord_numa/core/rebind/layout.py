"""Arrangements of the CPUs of all pods on one node, and their evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from koord_numa.core.rebind.pinned_pods import (
    NO_FIXED_PODS,
    Cores,
    ExclusivityRules,
    FixedPods,
    PinnedPod,
    Quality,
    amounts_after,
    cores_of,
)

AmountKey = tuple[str, int]
"""Key of an amount: resource and NUMA node."""


@dataclass(frozen=True)
class MovingAmounts:
    """
    Amounts beside CPU of the pods of one layout.

    ``limits`` are the maximum amounts of movable pods, by resource and NUMA node.
    """

    machine: CpuTopology
    pods: tuple[PinnedPod, ...]
    limits: Mapping[str, Mapping[int, int]]
    _held: dict[tuple[int, int], tuple[tuple[AmountKey, int], ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # by pod and CPU bits

    @cached_property
    def now(self) -> Mapping[AmountKey, int]:
        """The current amounts of the pods."""
        return self._sums([pinned.cpus.bits for pinned in self.pods])

    def overloaded(self, arrangement: Sequence[int]) -> int:
        """
        Return the number of (resource, NUMA node) pairs whose amount exceeds both the limit and the current amount.
        """
        # Most nodes have no movable pod with such amounts.
        if not self._carriers:
            return 0
        return sum(
            # A NUMA node that already exceeds the limit must not exceed it further.
            held > max(self.limits[key[0]].get(key[1], 0), self.now.get(key, 0))
            for key, held in self._sums(arrangement).items()
        )

    def _sums(self, arrangement: Sequence[int]) -> dict[AmountKey, int]:
        sums: dict[AmountKey, int] = {}
        for index in self._carriers:
            for key, amount in self._held_by(index, arrangement[index]):
                sums[key] = sums.get(key, 0) + amount
        return sums

    def _held_by(self, index: int, bits: int) -> tuple[tuple[AmountKey, int], ...]:
        known = self._held.get((index, bits))
        if known is None:
            after = amounts_after(self.pods[index].numa, self.machine, CpuSet(bits))
            known = self._held[index, bits] = tuple(
                ((name, numa), amount) for numa, held in after for name, amount in held.items() if name in self.limits
            )
        return known

    @cached_property
    def _carriers(self) -> tuple[int, ...]:
        """Pods that may change NUMA nodes and hold amounts of limited resources."""
        return tuple(
            index
            for index, pinned in enumerate(self.pods)
            if pinned.cpus_per_numa is None and any(name in self.limits for _, held in pinned.numa for name in held)
        )


Arrangement = tuple[int, ...]


class Figures(NamedTuple):
    """Figures of an arrangement. A smaller tuple is a better arrangement."""

    crossings: int  # NUMA nodes beyond the first, summed over pods
    split_cores: int
    conflicts: int  # violations of CPU exclusivity and of NUMA exclusivity
    minus_block: int  # negated CPUs of whole free cores on the NUMA node with most of them
    minus_free: int  # negated free CPUs of the NUMA node with most of them
    moves: int


class PodShape(NamedTuple):
    """
    One pod on a CPU set, without regard to other pods.

    ``regression`` is the increase over today in NUMA nodes plus split cores.
    """

    numa_nodes: int
    split_cores: int
    regression: int


class ConflictCount(NamedTuple):
    """Total conflicts of an arrangement, and the increase over today, summed over pods."""

    total: int
    regression: int


@dataclass(frozen=True)
class NodeLayout:
    """
    One node to repack. ``fixed`` are CPUs that no pod may get: reserved CPUs and those of fixed pods.

    ``cpu_limit`` limits, per NUMA node, the CPUs of pods without ``cpus_per_numa``. A missing entry means no limit.
    ``fixed_pods`` are the NUMA masks of fixed pods. ``amount_limits`` are the maximum amounts of movable pods, by
    resource beside CPU and by NUMA node. Caches make thousands of evaluations cheap and never change a result.
    """

    machine: CpuTopology
    pods: tuple[PinnedPod, ...]
    fixed: CpuSet = CpuSet()
    cpu_limit: Mapping[int, int] = field(default_factory=dict)
    fixed_pods: FixedPods = NO_FIXED_PODS
    amount_limits: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    _figures: dict[Arrangement, Figures] = field(default_factory=dict, init=False, repr=False, compare=False)
    _conflict_counts: dict[Arrangement, ConflictCount] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _shapes: dict[tuple[int, int], PodShape] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def usable(self) -> int:
        """Bits of all CPUs that pods may get."""
        return self.machine.bits & ~self.fixed.bits

    @cached_property
    def now(self) -> Arrangement:
        """The current arrangement."""
        return tuple(pinned.cpus.bits for pinned in self.pods)

    @cached_property
    def qualities_now(self) -> tuple[Quality, ...]:
        """The current qualities of the pods."""
        return self.qualities(self.now)

    @cached_property
    def figures_now(self) -> Figures:
        """The figures of the current arrangement."""
        return self.figures(self.now)

    @cached_property
    def block_now(self) -> int:
        """The current largest block, in CPUs."""
        return -self.figures_now.minus_block

    @cached_property
    def in_order(self) -> tuple[int, ...]:
        """Pods in the order of reallocation."""
        return tuple(sorted(range(len(self.pods)), key=lambda index: (self.pods[index].order, index)))

    @cached_property
    def cores(self) -> Cores:
        """The cores of the machine."""
        return cores_of(self.machine)

    @cached_property
    def constrained(self) -> frozenset[int]:
        """Pods that affect the exclusivity of any pod."""
        return self.exclusivity.constrained

    @cached_property
    def exclusivity(self) -> ExclusivityRules:
        """The exclusivity rules of the pods."""
        return ExclusivityRules(self.machine, self.pods, self.fixed_pods)

    def free(self, arrangement: Sequence[int]) -> int:
        """Return the bits of the usable CPUs that no pod holds."""
        held = 0
        for bits in arrangement:
            held |= bits
        return self.usable & ~held

    def qualities(self, arrangement: Sequence[int]) -> tuple[Quality, ...]:
        """Return the quality of each pod."""
        conflicts, numa_conflicts = (
            self.exclusivity.conflicts(arrangement),
            self.exclusivity.numa_conflicts(arrangement),
        )
        return tuple(
            Quality(*self._shape(index, bits), conflicts.get(index, 0), numa_conflicts.get(index, 0))
            for index, bits in enumerate(arrangement)
        )

    def figures(self, arrangement: Sequence[int]) -> Figures:
        """Return the figures of an arrangement."""
        key = tuple(arrangement)
        known = self._figures.get(key)
        if known is None:
            known = self._figures[key] = self._count(key)
        return known

    def _count(self, arrangement: Arrangement) -> Figures:
        shapes = [self.shape_of(index, bits) for index, bits in enumerate(arrangement)]
        block, most = self.largest_block(self.free(arrangement))
        return Figures(
            crossings=sum(max(0, shape.numa_nodes - 1) for shape in shapes),
            split_cores=sum(shape.split_cores for shape in shapes),
            conflicts=self.conflict_count(arrangement).total,
            minus_block=-block,
            minus_free=-most,
            moves=sum(bits != before for bits, before in zip(arrangement, self.now, strict=True)),
        )

    def conflict_count(self, arrangement: Sequence[int]) -> ConflictCount:
        """Return the number of conflicts, and the number of new conflicts."""
        key = tuple([arrangement[index] for index in self.constrained])
        known = self._conflict_counts.get(key)
        if known is None:
            known = self._conflict_counts[key] = self._count_conflicts(arrangement)
        return known

    def _count_conflicts(self, arrangement: Sequence[int]) -> ConflictCount:
        total = regression = 0
        for now, counts in (
            (self._conflicts_now, self.exclusivity.conflicts(arrangement)),
            (self._numa_conflicts_now, self.exclusivity.numa_conflicts(arrangement)),
        ):
            total += sum(counts.values())
            regression += sum(max(0, count - now.get(index, 0)) for index, count in counts.items())
        violated = self.exclusivity.violated(arrangement)
        return ConflictCount(total + violated.bit_count(), regression + (violated & ~self._violated_now).bit_count())

    def blocks(self, free: int) -> dict[int, int]:
        """Return the CPUs of wholly free cores, by NUMA node."""
        whole = self.cores.cpus(self.cores.whole(free))
        return {numa: (whole & bits).bit_count() for numa, bits in self.machine.numa_bits.items()}

    def largest_block(self, free: int) -> tuple[int, int]:
        """Return the maximum CPUs of whole free cores, and the maximum free CPUs, of any NUMA node."""
        whole = self.cores.cpus(self.cores.whole(free))
        block = most = 0
        for bits in self.machine.numa_bits.values():
            block = max(block, (whole & bits).bit_count())
            most = max(most, (free & bits).bit_count())
        return block, most

    def allows(self, arrangement: Sequence[int]) -> bool:
        """
        Return whether the arrangement is valid.

        No pod is worse off, CPU counts and required policies are kept, limits hold, and the largest block shrinks only
        if there are fewer NUMA crossings.
        """
        if not all(self.tolerates(index, bits) for index, bits in enumerate(arrangement)):
            return False
        qualities = self.qualities(arrangement)
        if not all(new.no_worse_than(old) for new, old in zip(qualities, self.qualities_now, strict=True)):
            return False
        figures = self.figures(arrangement)
        return not self.shrunk(figures.crossings, -figures.minus_block) and self.may_pass(arrangement)

    def shrunk(self, crossings: int, block: int) -> int:
        """
        Return by how many CPUs the largest block shrinks without a reduction of NUMA crossings.

        A pod that is consolidated on one NUMA node takes CPUs from a block, which is the purpose of a rebind.
        """
        return 0 if crossings < self.figures_now.crossings else max(0, self.block_now - block)

    def may_pass(self, arrangement: Sequence[int]) -> bool:
        """
        Return whether the arrangement is valid between two steps.

        If the rebind stops there, no pod has a new conflict and no NUMA node exceeds its limits.
        """
        if self.overdrawn(self.free(arrangement)) or self.overloaded(arrangement):
            return False
        return not self.conflict_count(arrangement).regression

    @cached_property
    def amounts(self) -> MovingAmounts:
        """Amounts that move with pods, and their limits per NUMA node."""
        return MovingAmounts(self.machine, self.pods, self.amount_limits)

    def overloaded(self, arrangement: Sequence[int]) -> int:
        """
        Return the number of (resource, NUMA node) pairs whose amount exceeds both the limit and the current amount.
        """
        return self.amounts.overloaded(arrangement)

    def overdrawn(self, free: int) -> int:
        """
        Return the number of CPUs that NUMA nodes lack to respect their CPU limits if ``free`` are the free CPUs.

        A NUMA node that already exceeds its limit must not exceed it further.
        """
        numa_bits = self.machine.numa_bits
        return sum(max(0, least - (free & numa_bits[numa]).bit_count()) for numa, least in self._least_free.items())

    @cached_property
    def overdraft(self) -> Mapping[int, int]:
        """CPUs by which pods without ``cpus_per_numa`` currently exceed the limit, by NUMA node."""
        floating = [pinned.cpus.bits for pinned in self.pods if pinned.cpus_per_numa is None]
        held = {
            numa: sum((bits & here).bit_count() for bits in floating) for numa, here in self.machine.numa_bits.items()
        }
        return {numa: max(0, held.get(numa, 0) - limit) for numa, limit in self.cpu_limit.items()}

    @cached_property
    def _least_free(self) -> Mapping[int, int]:
        """
        CPUs that must stay free, by NUMA node with a limit. Pods with ``cpus_per_numa`` keep their number of CPUs.
        """
        least = {}
        for numa, limit in self.cpu_limit.items():
            here = self.machine.numa_bits.get(numa, 0)
            tied = sum((t.cpus.bits & here).bit_count() for t in self.pods if t.cpus_per_numa is not None)
            least[numa] = (self.usable & here).bit_count() - tied - limit - self.overdraft[numa]
        return {numa: count for numa, count in least.items() if count > 0}

    def keeps_policy(self, index: int, bits: int) -> bool:
        """Return whether the CPU set has the pod's size, its CPUs per NUMA node and its required policy."""
        pinned = self.pods[index]
        if bits.bit_count() != len(pinned.cpus) or bits & ~self.usable:
            return False
        if pinned.cpus_per_numa is not None:
            counts = {n: c for n, b in self.machine.numa_bits.items() if (c := (bits & b).bit_count())}
            if counts != {n: c for n, c in pinned.cpus_per_numa.items() if c}:
                return False
        if not pinned.required or pinned.bind is CpuBindPolicy.NONE:
            return True
        # A required policy that is already violated (a hand-written cpuset) must not get worse.
        return self.shape_of(index, bits).split_cores <= self.shape_of(index, pinned.cpus.bits).split_cores

    def tolerates(self, index: int, bits: int) -> bool:
        """
        Return whether the pod is no worse off on the CPUs, without regard to other pods.

        The current CPUs are always tolerated.
        """
        if bits == self.now[index]:
            return True
        return not self.shape_of(index, bits).regression and self.keeps_policy(index, bits)

    def shape_of(self, index: int, bits: int) -> PodShape:
        """Return the shape of one pod on the CPUs, without regard to other pods."""
        known = self._shapes.get((index, bits))
        if known is None:
            spanned, split = self._shape(index, bits)
            before_spanned, before_split = self._shape(index, self.pods[index].cpus.bits)
            regression = max(0, spanned - before_spanned) + max(0, split - before_split)
            known = self._shapes[index, bits] = PodShape(spanned, split, regression)
        return known

    def _shape(self, index: int, bits: int) -> tuple[int, int]:
        """Return the number of spanned NUMA nodes and of split cores."""
        spanned = 0
        for here in self.machine.numa_bits.values():
            spanned += here & bits != 0
        touched = self.cores.touched(bits).bit_count()
        if self.pods[index].spreads:
            return spanned, bits.bit_count() - touched
        return spanned, touched - self.cores.whole(bits).bit_count()

    @cached_property
    def _conflicts_now(self) -> Mapping[int, int]:
        return self.exclusivity.conflicts(self.now)

    @cached_property
    def _numa_conflicts_now(self) -> Mapping[int, int]:
        return self.exclusivity.numa_conflicts(self.now)

    @cached_property
    def _violated_now(self) -> int:
        return self.exclusivity.violated(self.now)
