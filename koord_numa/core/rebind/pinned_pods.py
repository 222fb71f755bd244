"""Pods with CPUs of their own on one node: cores they touch, amounts per NUMA node, and exclusivity between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from koord_numa.core.bit_sets import lowest
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaExclusive
from koord_numa.core.resources import CPU, MILLI, ResourceList, total


@dataclass(frozen=True, slots=True)
class Cores:
    """Per shape the first CPUs of its cores, and the offsets of their CPUs."""

    shapes: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def most(self) -> int:
        """CPUs of the largest core; 0 without any."""
        return len(self.shapes[0][1]) if self.shapes else 0

    def touched(self, bits: int) -> int:
        """Cores with at least one CPU in the set."""
        found = 0
        for firsts, offsets in self.shapes:
            anywhere = 0
            for offset in offsets:
                anywhere |= bits >> offset
            # ``firsts`` cuts off what other shapes' CPUs have shifted there.
            found |= anywhere & firsts
        return found

    def whole(self, bits: int) -> int:
        """Cores with all CPUs in the set."""
        found = 0
        for firsts, offsets in self.shapes:
            everywhere = firsts
            for offset in offsets:
                everywhere &= bits >> offset
            found |= everywhere
        return found

    def cpus(self, cores: int) -> int:
        """All CPUs of these cores."""
        bits = 0
        for firsts, offsets in self.shapes:
            here = cores & firsts
            for offset in offsets:
                bits |= here << offset
        return bits

    def fill(self, cores: int, count: int) -> int:
        """The CPUs of as many of these cores as fit into ``count`` CPUs: large cores first, then the lowest."""
        bits = 0
        # Shapes are in the order of their size, largest first.
        for firsts, offsets in self.shapes:
            chosen = lowest(cores & firsts, count // len(offsets))
            count -= chosen.bit_count() * len(offsets)
            for offset in offsets:
                bits |= chosen << offset
        return bits

    def one_each(self, cores: int, pool: int) -> int:
        """The lowest CPU of the pool on each of these cores."""
        bits = 0
        for firsts, offsets in self.shapes:
            left = cores & firsts
            for offset in offsets:
                found = left & pool >> offset
                bits |= found << offset
                left &= ~found
        return bits


def cores_of(machine: CpuTopology) -> Cores:
    """The cores of a machine by shape; remembered with it."""
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
    # Largest shape first, which ``most`` and ``fill`` rely on; the offsets make the order total.
    largest_first = sorted(shapes.items(), key=lambda shape: (-len(shape[0]), shape))
    return Cores(tuple((firsts, offsets) for offsets, firsts in largest_first))


NumaAmounts = tuple[tuple[int, ResourceList], ...]
"""Amounts by NUMA id, ascending."""


def amounts_after(numa: NumaAmounts, topology: CpuTopology, cpus: CpuSet) -> NumaAmounts:
    """The amounts per NUMA node of a pod that held ``numa`` and now has these CPUs. A pod without NUMA amounts gets none."""
    counts = {node: count for node, here in topology.numa_bits.items() if (count := (here & cpus.bits).bit_count())}
    # CPUs per NUMA node unchanged: amounts stay to the byte, rounding included.
    if not numa or counts == {node: held.get(CPU, 0) // MILLI for node, held in numa if held.get(CPU)}:
        return numa
    held, number = total(amounts for _, amounts in numa), len(cpus)
    shares = {
        # Shares of zero are left out, so that a NUMA node is named only where the pod has something.
        node: {name: amount * count // number for name, amount in held.items() if amount * count // number}
        for node, count in sorted(counts.items())
    }
    # The lowest NUMA node takes what rounding leaves, so that the sum is kept.
    first = min(shares)
    for name, amount in held.items():
        rest = amount - sum(share.get(name, 0) for share in shares.values())
        if rest:
            shares[first][name] = shares[first].get(name, 0) + rest
    return tuple(shares.items())


@dataclass(frozen=True, slots=True)
class PinnedPod:
    """
    A pod whose CPUs may change. ``order`` sorts pods for reallocation: smaller comes first.

    ``cpus_per_numa`` fixes how many CPUs it has on each NUMA node, because it holds memory or devices there; ``None`` lets it move
    between NUMA nodes. ``numa_exclusive`` is its wish to meet no pod of the other kind: on one NUMA node, or over several.
    ``numa`` are its amounts per NUMA node today: they follow its CPUs.
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
        """Does it want one CPU a core rather than whole cores?"""
        return self.bind is CpuBindPolicy.SPREAD_BY_PCPUS


class Quality(NamedTuple):
    """How well one pod sits; smaller is better in every part."""

    numa_nodes: int  # NUMA nodes spanned
    split_cores: int  # cores held in part (or, for a pod that spreads, CPUs beyond the first of a core)
    conflicts: int  # cores or NUMA nodes shared with pods that want to be alone there
    numa_conflicts: int = 0  # NUMA nodes shared with pods of the other kind, for a pod that wishes to meet none

    def no_worse_than(self, other: "Quality") -> bool:
        """In no part worse."""
        # In every part: fewer split cores do not make up for one more NUMA node.
        return all(mine <= theirs for mine, theirs in zip(self, other, strict=True))


_LEVELS: Final = (CpuExclusivePolicy.PCPU_LEVEL, CpuExclusivePolicy.NUMA_NODE_LEVEL)


@dataclass(frozen=True, slots=True)
class FixedPods:
    """
    Masks of the NUMA nodes of pods that stay where they are and have CPUs of their own, by kind: on one NUMA node, or over several.

    ``protected_single`` and ``protected_spanning`` are those of pods among them that wish to meet none of the other kind
    (``singleNUMANodeExclusive`` of the pod-level NUMA policy proposal).
    """

    single: int = 0
    spanning: int = 0
    protected_single: int = 0
    protected_spanning: int = 0


NO_FIXED_PODS: Final = FixedPods()


class _Masks(dict[int, int]):
    """NUMA masks by CPU bits, made when they are first asked for."""

    def __init__(self, machine: CpuTopology) -> None:
        super().__init__()
        self._numa_bits = machine.numa_bits

    def __missing__(self, bits: int) -> int:
        mask = self[bits] = sum(1 << numa for numa, here in self._numa_bits.items() if here & bits)
        return mask


@dataclass(frozen=True)
class ExclusivityRules:
    """The wishes of one layout's pods about their neighbours. CPU sets are CPU bits, one set per pod."""

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
        # A group of one has no other pod to conflict with.
        object.__setattr__(self, "_groups", {level: members for level, members in groups.items() if len(members) > 1})
        object.__setattr__(self, "_numa_exclusive", protected)
        object.__setattr__(self, "_cores", cores_of(self.machine))
        object.__setattr__(self, "_masks", _Masks(self.machine))

    @property
    def has_numa_exclusive(self) -> bool:
        """Does any pod care about pods of the other kind?"""
        return bool(self._numa_exclusive or self.fixed_pods.protected_single or self.fixed_pods.protected_spanning)

    @property
    def constrained(self) -> frozenset[int]:
        """Pods whose place matters to some pod's exclusivity."""
        if self.has_numa_exclusive:
            return frozenset(range(len(self.pods)))
        return frozenset(index for members in self._groups.values() for index in members)

    def conflicts(self, assigned: Sequence[int]) -> dict[int, int]:
        """Per exclusive pod the cores or NUMA nodes that another pod of the same policy sits on, too."""
        found: dict[int, int] = {}
        for level, members in self._groups.items():
            prints = [self._units(level, assigned[index]) for index in members]
            # Bits seen once, and bits seen again: one pass instead of a comparison of every pair.
            once = twice = 0
            for units in prints:
                twice |= once & units
                once |= units
            if twice:
                pairs = zip(members, prints, strict=True)
                found.update((index, shared) for index, units in pairs if (shared := (units & twice).bit_count()))
        return found

    def numa_conflicts(self, assigned: Sequence[int]) -> dict[int, int]:
        """Per pod that wishes to meet none of them, the NUMA nodes where pods of the other kind sit, too."""
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
        """The NUMA nodes where pods disturb pods that stay: a mask, with a second one above it for those over several."""
        fixed_pods = self.fixed_pods
        if not (fixed_pods.protected_single or fixed_pods.protected_spanning):
            return 0
        single, spanning = self._kinds(assigned)
        return (
            fixed_pods.protected_single & spanning
            # The second mask is shifted beyond the highest NUMA id, so that one integer holds both.
            | (fixed_pods.protected_spanning & single) << max(self.machine.numa_ids) + 1
        )

    def _kinds(self, assigned: Sequence[int]) -> tuple[int, int]:
        """NUMA nodes with pods on one only, and with pods over several: one may have both."""
        single, spanning = self.fixed_pods.single, self.fixed_pods.spanning
        # As a set: pods on the same NUMA nodes count once.
        for mask in set(map(self._masks.__getitem__, assigned)):
            if _is_several(mask):
                spanning |= mask
            else:
                single |= mask
        return single, spanning

    def _units(self, level: CpuExclusivePolicy, bits: int) -> int:
        if level is CpuExclusivePolicy.NUMA_NODE_LEVEL:
            return self._masks[bits]
        # The same CPU sets are asked about in thousands of evaluations.
        known = self._touched.get(bits)
        if known is None:
            known = self._touched[bits] = self._cores.touched(bits)
        return known


def _is_several(mask: int) -> bool:
    return bool(mask & (mask - 1))
