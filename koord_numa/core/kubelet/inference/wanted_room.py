"""
What the containers of one pod want of a NUMA node, and which amounts of room there make a difference to them.

The memory and devices that containers of one pod hold at one moment are the sum of some of them, as init containers hand theirs on; of CPUs
it is open how many are handed on. So two amounts of room are alike where the same sets of the containers have their memory and devices
there together, and as many CPUs are free for each of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import le
from typing import Final

from koord_numa.core.kubelet.demand import ContainerDemand
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, Signature
from koord_numa.core.kubelet.room import together
from koord_numa.core.kubelet.state import KubeletNode, ManagerState, free_on
from koord_numa.core.resources import CPU, MILLI

MOST_TOGETHER: Final = 6
"""Of so many containers all sets are looked at, 63; of more every amount of room counts as another one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    ``whole`` is all that a pod's containers ask for, as ``amounts`` of the resources in ``names``, of which CPUs are the last.

    ``sets`` is what each set of containers asks for: memory and devices of all, the most CPUs of one, and the CPUs of all. It is empty
    where sets are too many, or containers need several NUMA nodes.
    """

    whole: ContainerDemand
    names: Sequence[str]
    amounts: list[int]
    sets: Sequence[tuple[Sequence[int], int, int]]

    @classmethod
    def of(cls, parts: Sequence[ContainerDemand], node: KubeletNode, *, one_numa: bool) -> "Wanted":
        """What these containers want, of one NUMA node each if ``one_numa``."""
        whole = together(parts)
        names = kinds_of(whole, node)
        sets: list[Sequence[ContainerDemand]] = []
        if one_numa and len(parts) <= MOST_TOGETHER:
            sets += (chosen for size in range(1, len(parts) + 1) for chosen in combinations(parts, size))
        return cls(whole, names, _amounts(whole, names), [_of_all(chosen, names) for chosen in sets])

    def free(self, one: Hypothesis, numa: int) -> list[int]:
        """How much of ``names`` is free on one NUMA node."""
        return self.free_in(one.state.node, one.state.managers, numa)

    def free_in(self, node: KubeletNode, managers: ManagerState, numa: int) -> list[int]:
        """As ``free``, of these managers."""
        free = free_on(node, managers, numa)
        return [free.get(name, 0) for name in self.names]

    def fitting(self, free: Sequence[int]) -> Signature:
        """Equal for amounts of one NUMA node on which the same of the containers fit together."""
        if not self.sets:
            return tuple(map(min, free, self.amounts))
        cpus = free[-1] if self.names[-1:] == [CPU] else 0
        return tuple(
            min(cpus, all_cpus) if cpus >= most and all(map(le, amounts, free)) else -1
            for amounts, most, all_cpus in self.sets
        )


def kinds_of(part: ContainerDemand, node: KubeletNode) -> list[str]:
    """What the managers tie to NUMA nodes for a container; CPUs last."""
    kinds = [name for name, count in part.devices.items() if count and name in node.devices]
    kinds += [kind for kind, amount in (part.memory or {}).items() if amount and node.pins_memory]
    return [*kinds, CPU] if part.cpus and node.pins_cpus else kinds


def _amounts(part: ContainerDemand, names: Sequence[str]) -> list[int]:
    wanted = {**part.devices, **(part.memory or {}), CPU: part.cpus * MILLI}
    return [wanted.get(name, 0) for name in names]


def _of_all(parts: Sequence[ContainerDemand], names: Sequence[str]) -> tuple[Sequence[int], int, int]:
    if CPU not in names:
        return _amounts(together(parts), names), 0, 0
    cpus = [part.cpus * MILLI for part in parts]
    # CPUs are compared on their own.
    return [*_amounts(together(parts), names[:-1]), 0], max(cpus), sum(cpus)
