"""
Pods with exclusive CPUs on one node: the cores of their CPUs, amounts per NUMA node, and exclusivity between pods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet, lowest
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaExclusive
from koord_numa.core.resources import CPU, MILLI, ResourceList, total
from koord_numa.core.value_objects import ValueObject


class Cores(ValueObject):
    """
    The cores of a machine, grouped by shape: bits of the first CPUs of the cores, and offsets of the CPUs of a core.
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
        known = machine.derived[Cores] = _by_shape(machine)
    return known


def _by_shape(machine: CpuTopology) -> Cores:
    shapes: dict[tuple[int, ...], int] = {}
    for core in machine.cores:
        first, *_ = cpus = tuple(CpuSet(core.bits))
        offsets = tuple(cpu - first for cpu in cpus)
        shapes[offsets] = shapes.get(offsets, 0) | 1 << first
    # Largest shape first, as ``most`` and ``fill`` require. The offsets make the order total.
    largest_first = sorted(shapes.items(), key=lambda shape: (-len(shape[0]), shape))
    return Cores(tuple((firsts, offsets) for offsets, firsts in largest_first))


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
        """Whether the pod prefers one CPU per core to whole cores."""
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


class _Masks(dict[int, int]):
    """NUMA masks by CPU bits, computed on demand."""

    def __init__(self, machine: CpuTopology) -> None:
        super().__init__()
        self._numa_bits = machine.numa_bits

    def __missing__(self, bits: int) -> int:
        mask = self[bits] = sum(1 << numa for numa, here in self._numa_bits.items() if here & bits)
        return mask


@dataclass(frozen=True)
class ExclusivityRules:
    """Exclusivity rules between the pods of one layout. CPU sets are bits, one set per pod."""

    machine: CpuTopology
    pods: tuple[PinnedPod, ...]
    fixed_pods: FixedPods = NO_FIXED_PODS
    _groups: Mapping[CpuExclusivePolicy, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    _numa_exclusive: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _cores: Cores = field(init=False, repr=False, compare=False)
    _masks: _Masks = field(init=False, repr=False, compare=False)
    _touched: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

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
        object.__setattr__(self, "_masks", _Masks(self.machine))

    @property
    def has_numa_exclusive(self) -> bool:
        """Whether any pod is NUMA-exclusive."""
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
            mask = self._masks[assigned[index]]
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
        for mask in set(map(self._masks.__getitem__, assigned)):
            if _is_several(mask):
                spanning |= mask
            else:
                single |= mask
        return single, spanning

    def _units(self, level: CpuExclusivePolicy, bits: int) -> int:
        if level is CpuExclusivePolicy.NUMA_NODE_LEVEL:
            return self._masks[bits]
        # The same CPU sets occur in thousands of evaluations.
        known = self._touched.get(bits)
        if known is None:
            known = self._touched[bits] = self._cores.touched(bits)
        return known


def _is_several(mask: int) -> bool:
    return bool(mask & (mask - 1))
