"""
Sums over the pods of one node by NUMA node, brought up to date with each pod: a pod changes one NUMA node or two of eight.

The ledger keeps them once they have been asked for. They say nothing that its holdings do not say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.numa.exclusive import NumaOccupancy
from koord_numa.core.objects.vocabulary import SINGLE_NUMA_NODE
from koord_numa.core.resources import ResourceList
from koord_numa.core.state.inventory import Inventory, PerNuma
from koord_numa.core.state.ledger import Holding, Ledger

LEFT: Final = "left"
USERS: Final = "users"
"""What they are called among the sums of a ledger."""


@dataclass(slots=True, eq=False)
class NumaLeft:
    """
    ``left[resource][place]`` is what no recorded amount covers of ``totals``, below zero where more is recorded than there is.

    ``places`` are the places of NUMA ids in both.
    """

    totals: Mapping[str, PerNuma]
    places: Mapping[int, int]
    left: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.left = {name: list(amounts) for name, amounts in self.totals.items()}

    def count(self, holding: Holding, sign: int) -> None:
        """A pod came (1) or went (-1)."""
        for numa, amounts in holding.numa:
            self.take(numa, amounts, sign)

    def take(self, numa: int, amounts: ResourceList, sign: int = 1) -> None:
        """So much more of a NUMA node is covered, or less. What no NUMA node lists is left out."""
        left, place = self.left, self.places.get(numa)
        if place is None:
            return
        for name, amount in amounts.items():
            if name in left:
                left[name][place] -= sign * amount


@dataclass(slots=True, eq=False)
class NumaUsers:
    """
    By set of NUMA nodes (a mask), how many pods span it (``several``), and how many sit on it alone and name SingleNUMANode (``single``).

    Pods with CPUs of their own and pods that share a pool count alike, by where their CPUs and amounts are (pod-level NUMA
    policy, "Goal"). Koordinator's node_allocation.go counts pods with own CPUs only, whatever policy they name.
    """

    machine: CpuTopology | None
    single: dict[int, int] = field(default_factory=dict)
    several: dict[int, int] = field(default_factory=dict)

    def count(self, holding: Holding, sign: int) -> None:
        """A pod came (1) or went (-1)."""
        if not (holding.mask or holding.cpus.bits):
            return  # on whichever NUMA nodes it is, nothing tells
        mask = numa_mask(holding, self.machine)
        if mask & (mask - 1):
            # Several bits set: the pod spans NUMA nodes, whatever policy it names.
            users = self.several
        elif holding.request is not None and holding.request.numa.policy is SINGLE_NUMA_NODE:
            users = self.single
        else:
            return
        users[mask] = users.get(mask, 0) + sign
        if not users[mask]:
            del users[mask]


def numa_left(inventory: Inventory, ledger: Ledger) -> Mapping[str, list[int]]:
    """What no recorded amount covers on each NUMA node, by resource, in the order of ``numa_ids``. Not to be changed."""
    known = ledger.sums.get(LEFT)
    # By identity: the totals are replaced when anything of the node changes.
    if isinstance(known, NumaLeft) and known.totals is inventory.totals:
        return known.left
    places = {numa: place for place, numa in enumerate(inventory.numa_ids)}
    made = NumaLeft(inventory.totals, places)
    # The ledger has added up already what is recorded.
    for numa, amounts in ledger.numa.items():
        made.take(numa, amounts)
    ledger.sums[LEFT] = made
    return made.left


def numa_occupancy(ledger: Ledger, machine: CpuTopology | None) -> NumaOccupancy:
    """Which NUMA nodes have pods that name SingleNUMANode and sit on one NUMA node, and which have pods over several."""
    known = ledger.sums.get(USERS)
    if not isinstance(known, NumaUsers) or known.machine is not machine:
        known = ledger.sums[USERS] = NumaUsers(machine)
        for holding in ledger:
            known.count(holding, 1)
    return NumaOccupancy(reduce(or_, known.single, 0), reduce(or_, known.several, 0))


def numa_mask(holding: Holding, machine: CpuTopology | None) -> int:
    """The NUMA nodes of what the pod holds: of its CPUs, and of its amounts."""
    if machine is None or not holding.cpus.bits:
        return holding.mask
    return holding.mask | machine.numa_of(holding.cpus)
