"""
Who is too near to whom: pods that want cores or NUMA nodes for themselves, and pods on one NUMA node beside pods over several.

It counts and forbids nothing. Most pods want nothing of the kind; then every answer is empty and costs nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.rebind.cores import Cores, cores_of
from koord_numa.core.rebind.pinned_pod import PinnedPod
from koord_numa.core.vocabulary import CpuExclusivePolicy, NumaExclusive

_LEVELS: Final = (CpuExclusivePolicy.PCPU_LEVEL, CpuExclusivePolicy.NUMA_NODE_LEVEL)


@dataclass(frozen=True, slots=True)
class Settled:
    """
    Masks of the NUMA nodes of pods that stay where they are and have CPUs of their own, by kind: on one NUMA node, or over several.

    ``shy_single`` and ``shy_spanning`` are those of pods among them that wish to meet none of the other kind
    (``singleNUMANodeExclusive`` of the pod-level NUMA policy proposal).
    """

    single: int = 0
    spanning: int = 0
    shy_single: int = 0
    shy_spanning: int = 0


NOBODY_SETTLED: Final = Settled()


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
    """The wishes of one board's tenants about their neighbours. Seats are CPU bits, one set per tenant."""

    machine: CpuTopology
    tenants: tuple[PinnedPod, ...]
    settled: Settled = NOBODY_SETTLED
    _groups: Mapping[CpuExclusivePolicy, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    _shy: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _cores: Cores = field(init=False, repr=False, compare=False)
    _masks: _Masks = field(init=False, repr=False, compare=False)
    _touched: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        groups = {
            level: tuple(index for index, tenant in enumerate(self.tenants) if tenant.exclusive is level)
            for level in _LEVELS
        }
        shy = tuple(index for index, tenant in enumerate(self.tenants) if tenant.apart is not NumaExclusive.NONE)
        object.__setattr__(self, "_groups", {level: members for level, members in groups.items() if len(members) > 1})
        object.__setattr__(self, "_shy", shy)
        object.__setattr__(self, "_cores", cores_of(self.machine))
        object.__setattr__(self, "_masks", _Masks(self.machine))

    @property
    def keeps_apart(self) -> bool:
        """Does anybody care about pods of the other kind?"""
        return bool(self._shy or self.settled.shy_single or self.settled.shy_spanning)

    @property
    def concerned(self) -> frozenset[int]:
        """Tenants of whom it matters to anybody where they sit."""
        if self.keeps_apart:
            return frozenset(range(len(self.tenants)))
        return frozenset(index for members in self._groups.values() for index in members)

    def conflicts(self, seats: Sequence[int]) -> dict[int, int]:
        """Per exclusive tenant the cores or NUMA nodes that another tenant of the same policy sits on, too."""
        found: dict[int, int] = {}
        for level, members in self._groups.items():
            prints = [self._print(level, seats[index]) for index in members]
            once = twice = 0
            for units in prints:
                twice |= once & units
                once |= units
            if twice:
                pairs = zip(members, prints, strict=True)
                found.update((index, shared) for index, units in pairs if (shared := (units & twice).bit_count()))
        return found

    def strangers(self, seats: Sequence[int]) -> dict[int, int]:
        """Per tenant that wishes to meet none of them, the NUMA nodes where pods of the other kind sit, too."""
        if not self._shy:
            return {}
        single, spanning = self._kinds(seats)
        found = {}
        for index in self._shy:
            mask = self._masks[seats[index]]
            others = single if _is_several(mask) else spanning
            if mask & others:
                found[index] = (mask & others).bit_count()
        return found

    def disturbed(self, seats: Sequence[int]) -> int:
        """The NUMA nodes where tenants disturb pods that stay: a mask, with a second one above it for those over several."""
        settled = self.settled
        if not (settled.shy_single or settled.shy_spanning):
            return 0
        single, spanning = self._kinds(seats)
        return settled.shy_single & spanning | (settled.shy_spanning & single) << max(self.machine.numa_ids) + 1

    def _kinds(self, seats: Sequence[int]) -> tuple[int, int]:
        """NUMA nodes with pods on one only, and with pods over several: one may have both."""
        single, spanning = self.settled.single, self.settled.spanning
        for mask in set(map(self._masks.__getitem__, seats)):
            if _is_several(mask):
                spanning |= mask
            else:
                single |= mask
        return single, spanning

    def _print(self, level: CpuExclusivePolicy, bits: int) -> int:
        if level is CpuExclusivePolicy.NUMA_NODE_LEVEL:
            return self._masks[bits]
        known = self._touched.get(bits)
        if known is None:
            known = self._touched[bits] = self._cores.touched(bits)
        return known


def _is_several(mask: int) -> bool:
    return bool(mask & (mask - 1))
