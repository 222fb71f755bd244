"""
The kubelet's memory manager with policy Static (``memorymanager/policy_static.go``): topology hints, and the NUMA nodes of a container.

The amounts and groups are in ``state.MemoryTable``, which this module does not change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from koord_numa.core.cpuset import members
from koord_numa.core.explain import needs_text
from koord_numa.core.kubelet.demand import UNEXPECTED_ADMISSION, AdmitRejection
from koord_numa.core.kubelet.state import ContainerAffinity, ContainerGrant, MemoryBlock, MemoryTable
from koord_numa.core.numa.hint_providers import IMPOSSIBLE, HintRule, fewest_that_reach
from koord_numa.core.numa.hints import masks_of_size, numa_ids
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import replace

ReusableMemory = dict[tuple[int, str], int]
"""Bytes that init containers of the pod that is being admitted left, by (mask, memory type)."""

_FEW_NUMA_NODES: Final = 2
"""Up to this number of NUMA nodes, all masks are tried instead of a list of candidates."""


@dataclass(slots=True)
class MemoryStock:
    """The memory at one moment of an admission: the table, and the bytes that init containers of the pod left."""

    table: MemoryTable
    reusable: ReusableMemory

    def hints(self, demand: ResourceList) -> HintRule:
        """
        Return the hints for these amounts, all from the same NUMA nodes (calculateHints).

        The preferred size counts what is allocatable, without reservations.
        """
        table = self.table
        if self._is_short(demand):
            return IMPOSSIBLE

        def fits(mask: int) -> bool:
            # The groups are the cheapest test.
            if not table.allows(mask):
                return False
            for resource, amount in demand.items():
                if _sum(table.supply, mask, resource) < amount:
                    return False
                if _sum(table.free, mask, resource) + self.reusable.get((mask, resource), 0) < amount:
                    return False
            return True

        # A wider mask may include a part of a group, so that a superset of a fitting mask may not fit.
        return HintRule(
            nodes=table.nodes, size=self._preferred_size(demand), fits=fits, grows=False, candidates=self._candidates()
        )

    def choose(self, demand: ResourceList, hint: ContainerAffinity) -> int | AdmitRejection:
        """
        Return the mask that a container's memory is bound to (Allocate).

        A hint without a mask is replaced by the best own hint. A mask with too little free memory is extended to the best own hint that
        includes the mask. A preferred hint is never replaced by one that is not preferred.
        """
        mask, preferred = hint.mask, hint.preferred
        if mask is None and not demand:
            # getDefaultHint has no hints for a container without exclusive memory, and fails.
            return AdmitRejection(UNEXPECTED_ADMISSION, "no hint for a container without exclusive memory")
        if mask is None:
            best = _best(self.hints(demand), within=0)
            if best is None:
                return AdmitRejection(UNEXPECTED_ADMISSION, f"no set of NUMA nodes has free {needs_text(demand)}")
            if preferred and not best.preferred:
                return AdmitRejection(
                    UNEXPECTED_ADMISSION, f"no preferred set of NUMA nodes has free {needs_text(demand)}"
                )
            mask, preferred = best.mask or 0, best.preferred
        # The kubelet compares with free memory alone; reusable bytes do not count here.
        if [resource for resource, amount in demand.items() if _sum(self.table.free, mask, resource) < amount]:
            best = _best(self.hints(demand), within=mask)
            if best is None or (preferred and not best.preferred):
                return AdmitRejection(
                    UNEXPECTED_ADMISSION, f"no set around NUMA nodes {_ids_text(mask)} has {needs_text(demand)}"
                )
            mask = best.mask or 0
        if mask.bit_count() > 1 and not self.table.allows(mask):
            return AdmitRejection(
                UNEXPECTED_ADMISSION, f"NUMA nodes {_ids_text(mask)} are bound to other groups already"
            )
        return mask

    def _is_short(self, demand: ResourceList) -> bool:
        """Return whether all NUMA nodes together have too little, free or in total."""
        for resource, amount in demand.items():
            # Reusable bytes belong to one mask, so at most the largest of them helps.
            reusable = max((size for (_, name), size in self.reusable.items() if name == resource), default=0)
            free = reusable + _sum(self.table.free, self.table.nodes, resource)
            total = _sum(self.table.supply, self.table.nodes, resource)
            if free < amount or total < amount:
                return True
        return False

    def _candidates(self) -> list[int] | None:
        """
        Return the masks that the groups allow, by size: NUMA nodes in no group, groups, and sets of NUMA nodes without blocks.

        ``None`` means nearly every mask.
        """
        groups, blocks = self.table.groups, self.table.blocks
        if len(blocks) <= _FEW_NUMA_NODES:
            return None
        empty = sum(1 << numa for numa, count in blocks.items() if not count)
        if empty.bit_count() > len(blocks) - 2:
            return None
        masks = {1 << numa for numa, group in groups.items() if group.bit_count() == 1}
        masks.update(mask for size in range(2, empty.bit_count() + 1) for mask in masks_of_size(empty, size))
        masks.update(group for group in groups.values() if group.bit_count() > 1 and not group & ~self.table.nodes)
        return sorted(masks, key=lambda mask: (mask.bit_count(), members(mask)))

    def _preferred_size(self, demand: ResourceList) -> int:
        """Return the smallest number of NUMA nodes with these allocatable amounts, or the number of all NUMA nodes."""
        supply, nodes = self.table.supply, self.table.nodes
        for amounts in supply.values():
            if not [resource for resource, amount in demand.items() if amounts.get(resource, 0) < amount]:
                return 1
        if any(_sum(supply, nodes, resource) < amount for resource, amount in demand.items()):
            return nodes.bit_count()
        # The largest NUMA nodes per type are a lower bound: all types must come from the same set.
        fewest = (
            fewest_that_reach({numa: amounts.get(resource, 0) for numa, amounts in supply.items()}, amount)
            for resource, amount in demand.items()
        )
        for size in range(max(fewest, default=1), nodes.bit_count()):
            for mask in masks_of_size(nodes, size):
                if all(_sum(supply, mask, resource) >= amount for resource, amount in demand.items()):
                    return size
        return nodes.bit_count()


_amount = attrgetter("amount")


def release_reused(blocks: tuple[MemoryBlock, ...], earlier: list[ContainerGrant]) -> None:
    """Subtract these blocks from the blocks of earlier init containers, which stay listed with size 0 (updatePodReusableMemory)."""
    for block in blocks:
        rest = block.amount
        for index, grant in enumerate(earlier):
            if not rest or grant.kind is ContainerKind.APP:
                break  # containers follow init containers and sidecars
            if grant.kind is not ContainerKind.INIT or not any(map(_amount, grant.memory)):
                continue
            remaining = []
            for old in grant.memory:
                if old.resource == block.resource and old.mask == block.mask:
                    part = min(rest, old.amount)
                    rest -= part
                    old = replace(old, amount=old.amount - part)
                remaining.append(old)
            earlier[index] = replace(grant, memory=tuple(remaining))


def _sum(amounts: Mapping[int, ResourceList], mask: int, resource: str) -> int:
    return sum([amounts[numa].get(resource, 0) for numa in numa_ids(mask)])


def _best(hints: HintRule, within: int) -> ContainerAffinity | None:
    """Return the narrowest hint that includes ``within``, preferred hints first, then the smallest mask (findBestHint)."""
    preferred = [mask for mask in hints.preferred() if not within & ~mask]
    if preferred:
        return ContainerAffinity(min(preferred), preferred=True)
    others = [(mask.bit_count(), mask) for mask, *_ in hints.hints() if mask and not within & ~mask]
    return ContainerAffinity(min(others)[1], preferred=False) if others else None


def _ids_text(mask: int) -> str:
    return ", ".join(str(numa) for numa in numa_ids(mask))
