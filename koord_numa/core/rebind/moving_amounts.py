"""What pods take along when they change NUMA nodes, and whether the NUMA nodes have room for it; CPUs are the layout's own business."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.rebind.arrangement.numa_amounts import amounts_after
from koord_numa.core.rebind.arrangement.pinned_pod import PinnedPod

AmountKey = tuple[str, int]
"""A resource on a NUMA node."""


@dataclass(frozen=True)
class MovingAmounts:
    """Amounts beside CPU of the pods of one layout. ``limits``: per resource and NUMA node, what pods that may move hold there at most."""

    machine: CpuTopology
    pods: tuple[PinnedPod, ...]
    limits: Mapping[str, Mapping[int, int]]
    _held: dict[tuple[int, int], tuple[tuple[AmountKey, int], ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # by pod and CPU bits

    @cached_property
    def now(self) -> Mapping[AmountKey, int]:
        """What the pods hold today."""
        return self._sums([pinned.cpus.bits for pinned in self.pods])

    def overloaded(self, arrangement: Sequence[int]) -> int:
        """On how many NUMA nodes, by resource, they would hold more than there is room for, and more than today."""
        # Most nodes have no pod that moves and takes amounts along.
        if not self._carriers:
            return 0
        return sum(
            # Where a NUMA node holds too much today, it may at least not hold more.
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
