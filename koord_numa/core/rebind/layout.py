"""Pods with exclusive CPUs on one node, arrangements of the CPUs of all pods, and their evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet, lowest
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaExclusive
from koord_numa.core.resources import CPU, MILLI, ResourceList, total
from koord_numa.core.value_objects import ValueObject


class Cores(ValueObject):
    """
    The cores of a machine. Cores with equal distances between their CPU ids have one shape.

    A shape is a pair: the first CPU of every core, as bits, and the distances of a core's CPUs from its first CPU.
    """

    shapes: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def most(self) -> int:
        """Number of CPUs of the largest core, 0 without cores."""
        return len(self.shapes[0][1]) if self.shapes else 0

    def touched(self, bits: int) -> int:
        """Return the cores with at least one CPU in the set."""
        found = 0
        for firsts, offsets in self.shapes:
            anywhere = 0
            for offset in offsets:
                anywhere |= bits >> offset
            # ``firsts`` masks out shifted bits of other shapes.
            found |= anywhere & firsts
        return found

    def whole(self, bits: int) -> int:
        """Return the cores with all CPUs in the set."""
        found = 0
        for firsts, offsets in self.shapes:
            everywhere = firsts
            for offset in offsets:
                everywhere &= bits >> offset
            found |= everywhere
        return found

    def cpus(self, cores: int) -> int:
        """Return all CPUs of the cores."""
        bits = 0
        for firsts, offsets in self.shapes:
            here = cores & firsts
            for offset in offsets:
                bits |= here << offset
        return bits

    def fill(self, cores: int, count: int) -> int:
        """Return the CPUs of as many of the cores as fit into ``count`` CPUs: large cores first, then the lowest."""
        bits = 0
        # Shapes are sorted by size, largest first.
        for firsts, offsets in self.shapes:
            chosen = lowest(cores & firsts, count // len(offsets))
            count -= chosen.bit_count() * len(offsets)
            for offset in offsets:
                bits |= chosen << offset
        return bits

    def one_each(self, cores: int, pool: int) -> int:
        """Return the lowest CPU of the pool on each of the cores."""
        bits = 0
        for firsts, offsets in self.shapes:
            left = cores & firsts
            for offset in offsets:
                found = left & pool >> offset
                bits |= found << offset
                left &= ~found
        return bits


def cores_of(machine: CpuTopology) -> Cores:
    """Return the cores of a machine by shape. The result is cached with the machine."""
    known: Cores | None = machine.derived.get(Cores)
    if known is None:
        shapes: dict[tuple[int, ...], int] = {}
        for core in machine.cores:
            first, *_ = cpus = tuple(CpuSet(core.bits))
            offsets = tuple(cpu - first for cpu in cpus)
            shapes[offsets] = shapes.get(offsets, 0) | 1 << first
        # Largest shape first, as ``most`` and ``fill`` require. The offsets make the order total.
        largest_first = sorted(shapes.items(), key=lambda shape: (-len(shape[0]), shape))
        known = machine.derived[Cores] = Cores(tuple((firsts, offsets) for offsets, firsts in largest_first))
    return known


NumaAmounts = tuple[tuple[int, ResourceList], ...]
"""Amounts by NUMA id, ascending."""


def amounts_after(numa: NumaAmounts, topology: CpuTopology, cpus: CpuSet) -> NumaAmounts:
    """
    Return the amounts per NUMA node of a pod that held ``numa`` and now has the CPUs.

    Empty for a pod without NUMA amounts.
    """
    counts = {node: count for node, here in topology.numa_bits.items() if (count := (here & cpus.bits).bit_count())}
    # With unchanged CPUs per NUMA node the amounts stay exactly the same, including rounding.
    if not numa or counts == {node: held.get(CPU, 0) // MILLI for node, held in numa if held.get(CPU)}:
        return numa
    held, number = total(amounts for _, amounts in numa), len(cpus)
    shares = {
        # Zero shares are left out, so that only NUMA nodes with amounts are listed.
        node: {name: amount * count // number for name, amount in held.items() if amount * count // number}
        for node, count in sorted(counts.items())
    }
    # The lowest NUMA node gets the remainder of the rounding, so that the sum is kept.
    first = min(shares)
    for name, amount in held.items():
        rest = amount - sum(share.get(name, 0) for share in shares.values())
        if rest:
            shares[first][name] = shares[first].get(name, 0) + rest
    return tuple(shares.items())


@dataclass(frozen=True, slots=True)
class PinnedPod:
    """
    A pod whose CPUs may change. ``order`` sorts pods for reallocation, smaller first.

    ``cpus_per_numa`` fixes the number of CPUs on each NUMA node, because the pod holds memory or devices there. None
    permits moves between NUMA nodes. ``numa_exclusive`` excludes pods of the other kind (single NUMA node or several)
    from its NUMA nodes. ``numa`` are its current amounts per NUMA node, which follow its CPUs.
    """

    key: PodKey
    cpus: CpuSet
    bind: CpuBindPolicy = CpuBindPolicy.FULL_PCPUS
    required: bool = False
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE
    cpus_per_numa: Mapping[int, int] | None = None
    order: tuple[int | float | str, ...] = ()
    numa_exclusive: NumaExclusive = NumaExclusive.NONE
    numa: NumaAmounts = field(default=(), compare=False)

    @property
    def spreads(self) -> bool:
        """True if the pod prefers one CPU per core to whole cores."""
        return self.bind is CpuBindPolicy.SPREAD_BY_PCPUS


class Quality(NamedTuple):
    """Quality of the placement of one pod. Smaller is better in every field."""

    numa_nodes: int  # NUMA nodes spanned
    split_cores: int  # partly held cores (or, for a pod that spreads, CPUs beyond the first of a core)
    conflicts: int  # cores or NUMA nodes shared with pods of the same exclusive policy
    numa_conflicts: int = 0  # NUMA nodes shared with pods of the other kind, for a NUMA-exclusive pod

    def no_worse_than(self, other: "Quality") -> bool:
        """Return whether no field is worse."""
        # All fields are compared: fewer split cores do not compensate for another NUMA node.
        return all(mine <= theirs for mine, theirs in zip(self, other, strict=True))


_LEVELS: Final = (CpuExclusivePolicy.PCPU_LEVEL, CpuExclusivePolicy.NUMA_NODE_LEVEL)


class FixedPods(ValueObject):
    """
    NUMA masks of fixed pods with exclusive CPUs: pods on a single NUMA node, and pods that span several.

    ``protected_single`` and ``protected_spanning`` are the masks of NUMA-exclusive pods among them
    (``singleNUMANodeExclusive`` of the pod-level NUMA policy proposal).
    """

    single: int = 0
    spanning: int = 0
    protected_single: int = 0
    protected_spanning: int = 0


NO_FIXED_PODS: Final = FixedPods()


@dataclass(frozen=True)
class ExclusivityRules:
    """Exclusivity rules between the pods of one layout. CPU sets are bits, one set per pod."""

    machine: CpuTopology
    pods: tuple[PinnedPod, ...]
    fixed_pods: FixedPods = NO_FIXED_PODS
    _groups: Mapping[CpuExclusivePolicy, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    _numa_exclusive: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _cores: Cores = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        groups = {
            level: tuple(index for index, pinned in enumerate(self.pods) if pinned.exclusive is level)
            for level in _LEVELS
        }
        protected = tuple(
            index for index, pinned in enumerate(self.pods) if pinned.numa_exclusive is not NumaExclusive.NONE
        )
        # A pod that is alone in its group has no conflicts.
        object.__setattr__(self, "_groups", {level: members for level, members in groups.items() if len(members) > 1})
        object.__setattr__(self, "_numa_exclusive", protected)
        object.__setattr__(self, "_cores", cores_of(self.machine))

    @property
    def has_numa_exclusive(self) -> bool:
        """True if any pod is NUMA-exclusive."""
        return bool(self._numa_exclusive or self.fixed_pods.protected_single or self.fixed_pods.protected_spanning)

    @property
    def constrained(self) -> frozenset[int]:
        """Pods that affect the exclusivity of any pod."""
        if self.has_numa_exclusive:
            return frozenset(range(len(self.pods)))
        return frozenset(index for members in self._groups.values() for index in members)

    def conflicts(self, assigned: Sequence[int]) -> dict[int, int]:
        """Return, for each exclusive pod, the number of cores or NUMA nodes shared with pods of the same policy."""
        found: dict[int, int] = {}
        for level, members in self._groups.items():
            prints = [self._units(level, assigned[index]) for index in members]
            # One pass over the bits instead of a comparison of all pairs.
            once = twice = 0
            for units in prints:
                twice |= once & units
                once |= units
            if twice:
                pairs = zip(members, prints, strict=True)
                found.update((index, shared) for index, units in pairs if (shared := (units & twice).bit_count()))
        return found

    def numa_conflicts(self, assigned: Sequence[int]) -> dict[int, int]:
        """Return, for each NUMA-exclusive pod, the number of NUMA nodes shared with pods of the other kind."""
        if not self._numa_exclusive:
            return {}
        single, spanning = self._kinds(assigned)
        found = {}
        for index in self._numa_exclusive:
            mask = self._mask(assigned[index])
            others = single if _is_several(mask) else spanning
            if mask & others:
                found[index] = (mask & others).bit_count()
        return found

    def violated(self, assigned: Sequence[int]) -> int:
        """
        Return the NUMA nodes where moved pods violate the exclusivity of fixed pods.

        The result is a mask, with a second mask above it for fixed pods that span several NUMA nodes.
        """
        fixed_pods = self.fixed_pods
        if not (fixed_pods.protected_single or fixed_pods.protected_spanning):
            return 0
        single, spanning = self._kinds(assigned)
        return (
            fixed_pods.protected_single & spanning
            # The second mask is shifted beyond the highest NUMA id.
            | (fixed_pods.protected_spanning & single) << max(self.machine.numa_ids) + 1
        )

    def _kinds(self, assigned: Sequence[int]) -> tuple[int, int]:
        """
        Return the mask of NUMA nodes with single-NUMA pods, and that of NUMA nodes with spanning pods.

        The masks may overlap.
        """
        single, spanning = self.fixed_pods.single, self.fixed_pods.spanning
        # A set, because pods on the same NUMA nodes count once.
        for mask in set(map(self._mask, assigned)):
            if _is_several(mask):
                spanning |= mask
            else:
                single |= mask
        return single, spanning

    def _units(self, level: CpuExclusivePolicy, bits: int) -> int:
        return self._mask(bits) if level is CpuExclusivePolicy.NUMA_NODE_LEVEL else self._cores.touched(bits)

    def _mask(self, bits: int) -> int:
        """Return the NUMA nodes of the CPUs."""
        return sum(1 << numa for numa, here in self.machine.numa_bits.items() if here & bits)


def _is_several(mask: int) -> bool:
    return bool(mask & (mask - 1))


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

    ``regression`` is the increase over the current layout in NUMA nodes plus split cores.
    """

    numa_nodes: int
    split_cores: int
    regression: int


class ConflictCount(NamedTuple):
    """Total conflicts of an arrangement, and the increase over the current layout, summed over pods."""

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
            shapes = [self.shape_of(index, bits) for index, bits in enumerate(key)]
            block, most = self.largest_block(self.free(key))
            known = self._figures[key] = Figures(
                crossings=sum(max(0, shape.numa_nodes - 1) for shape in shapes),
                split_cores=sum(shape.split_cores for shape in shapes),
                conflicts=self.conflict_count(key).total,
                minus_block=-block,
                minus_free=-most,
                moves=sum(bits != before for bits, before in zip(key, self.now, strict=True)),
            )
        return known

    def conflict_count(self, arrangement: Sequence[int]) -> ConflictCount:
        """Return the number of conflicts, and the number of new conflicts."""
        key = tuple([arrangement[index] for index in self.constrained])
        known = self._conflict_counts.get(key)
        if known is None:
            total = regression = 0
            for now, counts in (
                (self._conflicts_now, self.exclusivity.conflicts(arrangement)),
                (self._numa_conflicts_now, self.exclusivity.numa_conflicts(arrangement)),
            ):
                total += sum(counts.values())
                regression += sum(max(0, count - now.get(index, 0)) for index, count in counts.items())
            violated = self.exclusivity.violated(arrangement)
            known = self._conflict_counts[key] = ConflictCount(
                total + violated.bit_count(), regression + (violated & ~self._violated_now).bit_count()
            )
        return known

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
