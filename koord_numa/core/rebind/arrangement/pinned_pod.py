"""A pod whose CPUs a rebind may change, and how well it sits. It knows nothing of its neighbours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaExclusive
from koord_numa.core.rebind.arrangement.numa_amounts import NumaAmounts


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
