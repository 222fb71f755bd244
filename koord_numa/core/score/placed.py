"""
A placement seen as something to be scored: which NUMA nodes it fills, and how full it makes them or the node.

Facts for the scores in ``numa_scores.py`` and ``composite.py``; no score is made here.
"""

from dataclasses import dataclass

from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from koord_numa.core.pod_resources import amplify
from koord_numa.core.resources import CPU, MILLI, ResourceList, total
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import NumaAccounting, NumaFree, accounts


@dataclass(frozen=True, slots=True)
class Part:
    """One NUMA node that takes ``share`` of the pod: what it has in total, and what was taken before."""

    share: ResourceList
    capacity: ResourceList
    taken: ResourceList


@dataclass(frozen=True, slots=True)
class Placed:
    """One pod's placement on one node, before it is held. ``amounts`` is the pod's effective request."""

    placement: Placement
    amounts: ResourceList
    inventory: Inventory
    ledger: Ledger

    @property
    def has_own_cpus(self) -> bool:
        """Does the pod get CPUs of its own?"""
        return self.placement.bind is not CpuBindPolicy.NONE

    @property
    def numa_nodes(self) -> int:
        """
        How many NUMA nodes the pod is on: those of its CPUs and amounts; all of them when it may run anywhere.

        0 where the node's NUMA nodes are unknown.
        """
        # A pod that may run anywhere may touch all NUMA nodes, so it counts as if it were on each.
        return self.mask.bit_count() or self.numa_total

    @property
    def mask(self) -> int:
        """The NUMA nodes of its CPUs and amounts; 0 when it may run anywhere."""
        machine = self.inventory.machine
        mask = self.placement.mask or 0
        return mask | machine.numa_of(self.placement.cpus) if self.placement.cpus and machine else mask

    @property
    def numa_total(self) -> int:
        """How many NUMA nodes the node has."""
        if self.inventory.zones:
            return len(self.inventory.zones)
        return len(self.inventory.machine.numa_ids) if self.inventory.machine else 0

    @property
    def numa_free(self) -> NumaFree:
        """What was free on each NUMA node before the pod came."""
        # Default accounting: scores compare places, and rules of one pod play no part in it.
        return accounts(self.inventory, self.ledger, NumaAccounting())

    def weighed(self, amounts: ResourceList) -> ResourceList:
        """Amounts of this pod as they weigh on the node: own CPUs amplified."""
        if not self.has_own_cpus or not amounts.get(CPU):
            return amounts
        return {**amounts, CPU: amplify(amounts[CPU], self.inventory.ratios.get(CPU))}

    @property
    def parts(self) -> tuple[Part, ...]:
        """The NUMA nodes that take a part of the pod."""
        numa_free = self.numa_free if self.placement.numa else None
        return tuple(_part(numa_free, numa, share) for numa, share in self.placement.numa) if numa_free else ()

    @property
    def scope(self) -> tuple[ResourceList, ResourceList]:
        """Total and taken of the NUMA nodes that the pod's amounts are on, or of the whole node when it has none."""
        if self.placement.numa:
            parts = self.parts
            return total(part.capacity for part in parts), total(part.taken for part in parts)
        held = dict(self.ledger.amounts)
        own = MILLI * len(self.ledger.cpus)
        # Own CPUs are held bare; they weigh amplified, as the pod to be placed does.
        held[CPU] = held.get(CPU, 0) - own + amplify(own, self.inventory.ratios.get(CPU))
        return self.inventory.allocatable, held


def _part(numa_free: NumaFree, numa: int, share: ResourceList) -> Part:
    at = numa_free.numa_ids.index(numa)
    capacity = {name: amounts[at] for name, amounts in numa_free.total.items()}
    return Part(share, capacity, {name: capacity[name] - numa_free.free[name][at] for name in capacity})
