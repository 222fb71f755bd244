"""
Who is too near to whom: pods that want cores or NUMA nodes for themselves, and pods on one NUMA node beside pods over several.

It counts and forbids nothing. Most pods want nothing of the kind; then every answer is empty and costs nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.objects.vocabulary import CpuExclusivePolicy, NumaExclusive
from koord_numa.core.rebind.arrangement.cores import Cores, cores_of
from koord_numa.core.rebind.arrangement.pinned_pod import PinnedPod

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
