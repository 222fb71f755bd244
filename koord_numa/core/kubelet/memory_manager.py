"""
The kubelet's memory manager, policy Static: memory and huge pages per NUMA node, and the groups that wide blocks tie together.

While a block spans several NUMA nodes they form a group: other memory goes to exactly that group or to NUMA nodes outside. The
table follows the manager to the byte, also where releases are credited to another NUMA node of a group than was charged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.demand import UNEXPECTED_ADMISSION, AdmitRejection
from koord_numa.core.kubelet.state import ContainerAffinity, ContainerGrant, MemoryBlock, MemoryTable
from koord_numa.core.numa.counted import fewest_that_reach
from koord_numa.core.numa.hint_rule import IMPOSSIBLE, HintRule
from koord_numa.core.numa.hints import masks_of_size, numa_ids
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import replace

FEW: Final = 2
"""With so many NUMA nodes every mask is looked at."""


Reusable = dict[tuple[int, str], int]
"""Bytes that init containers of the pod being admitted leave to later ones, by (mask, memory type)."""


@dataclass(slots=True)
class MemoryStock:
    """The memory of a table as the pod that is being admitted sees it: with what its init containers left."""

    table: MemoryTable
    reusable: Reusable

    def hints(self, demand: ResourceList) -> HintRule:
        """
        Where memory of these types could come from, all from the same NUMA nodes.

        The preferred size counts what is allocatable, reservations excluded (calculateHints in the kubelet's
        memorymanager/policy_static.go).
        """
        if self.lacks(demand):
            return IMPOSSIBLE

        def fits(mask: int) -> bool:
            # First the groups, the cheap test.
            if not self.table.allows(mask):
                return False
            for kind, amount in demand.items():
                if _sum(self.table.supply, mask, kind) < amount:
                    return False
                if _sum(self.table.free, mask, kind) + self.reusable.get((mask, kind), 0) < amount:
                    return False
            return True

        # Not growing: a wider mask may cut through a group, so a larger set can be refused where a smaller one fits.
        return HintRule(
            nodes=self.table.nodes, size=self._smallest(demand), fits=fits, grows=False, candidates=self._candidates()
        )

    def fits_alone(self, numa: int, demand: ResourceList) -> bool:
        """Has this NUMA node all of it free, on its own and in no group?"""
        there = self.table.supply.get(numa)
        if there is None or self.table.groups[numa].bit_count() != 1:
            return False
        free = self.table.free[numa]
        for kind, amount in demand.items():
            if free.get(kind, 0) < amount or there.get(kind, 0) < amount:
                break
        else:
            return True
        return False

    def lacks(self, demand: ResourceList) -> bool:
        """Are all NUMA nodes together too small, or too full?"""
        for kind, amount in demand.items():
            # Reusable bytes belong to one mask, so that at most the largest of them can help.
            left = (
                max((bytes_ for (_, of), bytes_ in self.reusable.items() if of == kind), default=0)
                if self.reusable
                else 0
            )
            for amounts in self.table.free.values():
                left += amounts.get(kind, 0)
            # Allocatable bounds it too: more than a machine has is impossible, whatever is free.
            there = 0
            for has in self.table.supply.values():
                there += has.get(kind, 0)
            if left < amount or there < amount:
                return True
        return False

    def _candidates(self) -> list[int] | None:
        """
        The masks that the groups allow, by size: one NUMA node that is in no group, a group, or several NUMA nodes without blocks.

        ``None`` where that is nearly every mask.
        """
        # Three masks are looked at sooner than listed.
        if len(self.table.blocks) <= FEW:
            return None
        empty = sum(1 << numa for numa, blocks in self.table.blocks.items() if not blocks)
        # With nearly all NUMA nodes empty every mask is a candidate, and listing them would gain nothing.
        if empty.bit_count() > len(self.table.blocks) - 2:
            return None
        found = [1 << numa for numa, group in self.table.groups.items() if group.bit_count() == 1]
        found += [mask for size in range(2, empty.bit_count() + 1) for mask in masks_of_size(empty, size)]
        found += sorted(
            {group for group in self.table.groups.values() if group.bit_count() > 1 and not group & ~self.table.nodes}
        )
        return sorted(set(found), key=lambda mask: (mask.bit_count(), members(mask)))

    def choose(self, demand: ResourceList, hint: ContainerAffinity) -> int | AdmitRejection:
        """
        The mask that a container's memory will be bound to.

        Without a mask in the hint the best of the manager's own; a mask with too little is widened to a fitting one around
        it; a preferred hint is never replaced by one that is not (Allocate in the kubelet's policy_static.go).
        """
        mask, preferred = hint.mask, hint.preferred
        if mask is None:
            best = _best(self.hints(demand), within=0)
            # The kubelet's getDefaultHint: without an affinity from the topology manager, its own best hint.
            if best is None:
                return AdmitRejection(UNEXPECTED_ADMISSION, f"no set of NUMA nodes has free {missing(demand)}")
            if preferred and not best.preferred:
                return AdmitRejection(
                    UNEXPECTED_ADMISSION, f"no preferred set of NUMA nodes has free {missing(demand)}"
                )
            mask, preferred = best.mask or 0, best.preferred
        # Reusable bytes do not count here: the kubelet compares with free memory only, and widens the mask where that is short.
        if not _covers_all(self.table.free, mask, demand):
            best = _best(self.hints(demand), within=mask)
            if best is None or (preferred and not best.preferred):
                return AdmitRejection(
                    UNEXPECTED_ADMISSION, f"no set around NUMA nodes {_named(mask)} has {missing(demand)}"
                )
            mask = best.mask or 0
        # A mask of one NUMA node is checked by its own free memory; wider ones must be a group or make one.
        if mask.bit_count() > 1 and not self.table.allows(mask):
            return AdmitRejection(UNEXPECTED_ADMISSION, f"NUMA nodes {_named(mask)} are bound to other groups already")
        return mask

    def _smallest(self, demand: ResourceList) -> int:
        for amounts in self.table.supply.values():
            if _covers(amounts, demand):
                return 1
        count = self.table.nodes.bit_count()
        if any(_sum(self.table.supply, self.table.nodes, kind) < amount for kind, amount in demand.items()):
            return count
        least = (
            fewest_that_reach({numa: has.get(kind, 0) for numa, has in self.table.supply.items()}, amount)
            for kind, amount in demand.items()
        )
        # The sum over the largest NUMA nodes is a lower bound, as all types must come from the same set.
        for size in range(max(least, default=1), count):
            for mask in masks_of_size(self.table.nodes, size):
                if all(_sum(self.table.supply, mask, kind) >= amount for kind, amount in demand.items()):
                    return size
        return count


def missing(demand: ResourceList) -> str:
    """The demand in words."""
    return ", ".join(f"{kind} {amount}" for kind, amount in sorted(demand.items()))


def hand_over(blocks: tuple[MemoryBlock, ...], earlier: list[ContainerGrant]) -> None:
    """Take what these blocks cover off the blocks of earlier init containers, which may end up empty but stay listed."""
    for block in blocks:
        rest = block.amount
        for place, grant in enumerate(earlier):
            if grant.kind is not ContainerKind.INIT:
                continue  # only blocks of init containers are handed over; sidecars keep running
            shrunk = []
            for old in grant.memory:
                if old.resource == block.resource and old.mask == block.mask:
                    part = min(rest, old.amount)
                    rest -= part
                    old = replace(old, amount=old.amount - part)
                shrunk.append(old)
            earlier[place] = replace(grant, memory=tuple(shrunk))


def _best(hints: HintRule, within: int) -> ContainerAffinity | None:
    """The narrowest, numerically smallest of the preferred masks around ``within``, else of the others."""
    preferred = [mask for mask in hints.preferred() if not within & ~mask]
    if preferred:
        return ContainerAffinity(min(preferred), preferred=True)
    # ``min`` over (size, mask): narrowest first, then the smallest number, as in the kubelet's findBestHint.
    others = [(mask.bit_count(), mask) for mask, *_ in hints.hints() if mask and not within & ~mask]
    return ContainerAffinity(min(others)[1], preferred=False) if others else None


def _named(mask: int) -> str:
    return ", ".join(str(numa) for numa in numa_ids(mask))


def _sum(amounts: Mapping[int, ResourceList], mask: int, kind: str) -> int:
    members = numa_ids(mask)
    if len(members) == 1:
        return amounts[members[0]].get(kind, 0)
    return sum([amounts[numa].get(kind, 0) for numa in members])


def _covers_all(amounts: Mapping[int, ResourceList], mask: int, demand: ResourceList) -> bool:
    return not [kind for kind, amount in demand.items() if _sum(amounts, mask, kind) < amount]


def _covers(amounts: ResourceList, demand: ResourceList) -> bool:
    # A list, as a generator costs more than the few amounts that it would save.
    return not [kind for kind, amount in demand.items() if amounts.get(kind, 0) < amount]
