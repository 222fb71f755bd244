"""
Which NUMA nodes are tied together by memory blocks that span them: worked out from what pods asked for and what is in use.

No exporter publishes the memory manager's groups, but its arithmetic leaves traces: the blocks of a group add up to what is in
use on all its NUMA nodes together, and those of a NUMA node on its own to what is in use there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.state import MemoryTable
from koord_numa.core.numa.hints import masks_of_size, numa_ids
from koord_numa.core.resources import ResourceList, total, without_zeros

STEPS: Final = 2_000
"""The search gives up after so many trials: attributing blocks to NUMA nodes is a subset sum in the worst case."""

MOST_GROUPINGS: Final = 12
"""So many ways to group NUMA nodes are told apart at most."""

UNCLEAR: Final = 0
"""The mask of a NUMA node that is in one of several possible groups."""


@dataclass(frozen=True, slots=True)
class Block:
    """The memory of one container, bytes by type, and whether it may or must span NUMA nodes."""

    amounts: ResourceList
    may_span: bool
    must_span: bool


@dataclass(slots=True)
class _Search:
    """Depth first over blocks, largest first; a cell's rest is what is in use there and not yet attributed."""

    blocks: Sequence[Block]
    steps: int = field(default=STEPS)

    def covers(self, cells: Sequence[tuple[int, dict[str, int]]], place: int = 0) -> bool:
        """Can all blocks from ``place`` on be attributed so that nothing is left?"""
        # A budget of steps, not of time: the same use is explained or not on every machine.
        self.steps -= 1
        if self.steps < 0:
            return False
        if place == len(self.blocks):
            return not any(amount for _, rest in cells for amount in rest.values())
        block = self.blocks[place]
        tried: list[dict[str, int]] = []
        for mask, rest in cells:
            spans = mask.bit_count() > 1
            # Cells with equal rests lead to the same answer, so that one of them is tried.
            if (block.must_span and not spans) or (spans and not block.may_span) or rest in tried:
                continue
            if any(rest.get(kind, 0) < amount for kind, amount in block.amounts.items()):
                continue
            if not spans:
                tried.append(dict(rest))  # equal NUMA nodes are as good as one another
            for kind, amount in block.amounts.items():
                # Subtract, recurse and add back: one set of dicts serves the whole search.
                rest[kind] -= amount
            found = self.covers(cells, place + 1)
            for kind, amount in block.amounts.items():
                rest[kind] += amount
            if found:
                return True
        return False


def explain_use(used: Mapping[int, ResourceList], blocks: Sequence[Block]) -> Mapping[int, int] | None:
    """
    For every NUMA node the mask of its group, itself when it is in none; ``None`` when the blocks do not explain the use.

    ``used`` is per NUMA node and memory type in bytes. Explanations with the narrowest groups are taken; a NUMA node about which
    they disagree has the mask ``UNCLEAR``.
    """
    # The sums must agree before any attribution can.
    if _total(used.values()) != _total(block.amounts for block in blocks):
        return None
    # Largest first: few places hold a large block, so that dead ends show early.
    ordered = sorted(blocks, key=lambda block: sorted(block.amounts.values(), reverse=True), reverse=True)
    search = _Search(ordered)
    nodes = sum(1 << numa for numa in used)
    widest = len(used) if any(block.may_span for block in ordered) else 1
    for width in range(1, widest + 1):
        found: dict[int, int] = {}
        for masks in _partitions(nodes, width):
            if search.covers([(mask, _together(used, mask)) for mask in masks]):
                for mask in masks:
                    for numa in numa_ids(mask):
                        found[numa] = mask if found.get(numa, mask) == mask else UNCLEAR
            # Out of steps is "not known", and never "no group".
            if search.steps < 0:
                return None
        if found:
            return dict(sorted(found.items()))
    return None


@dataclass(frozen=True, slots=True)
class Grouping:
    """One way in which memory may be bound: the mask of every NUMA node's group, and the bytes that blocks on each mask hold, by type."""

    groups: Mapping[int, int]
    held: Mapping[int, ResourceList]


def groupings(
    used: Mapping[int, ResourceList], supply: Mapping[int, ResourceList], blocks: Sequence[Block], *, in_full: bool
) -> list[Grouping] | None:
    """
    Every way to group NUMA nodes in which these blocks, and no others, leave the published use; ``None`` when there are too many to tell.

    ``used`` and ``supply`` are per NUMA node and memory type in bytes. ``in_full``: the exporter counts a block with its whole size on each
    of its NUMA nodes, as resource-topology-exporter does; else it fills them up in ascending order, as NFD does.
    """
    due = _total(block.amounts for block in blocks)
    ordered = sorted(blocks, key=lambda block: sorted(block.amounts.values(), reverse=True), reverse=True)
    cells = _in_full(used, supply) if in_full else _filled_up(used, supply)
    spans = any(block.may_span for block in blocks)
    search = _Search(ordered)
    found: list[Grouping] = []
    for tried, parts in enumerate(_cellings(sorted(used), cells if spans else {})):
        if tried >= STEPS:
            return None
        held = {mask: without_zeros(cells[mask] if mask in cells else used[members(mask)[0]]) for mask in parts}
        if _total(held.values()) != due:
            continue
        # Out of steps is "may be": what is not ruled out stays.
        if search.steps < 0 or search.covers([(mask, dict(rest)) for mask, rest in held.items()]) or search.steps < 0:
            found.append(Grouping({numa: mask for mask in parts for numa in members(mask)}, held))
        if len(found) > MOST_GROUPINGS:
            return None
    return found


def bound_memory(supply: Mapping[int, ResourceList], grouping: Grouping) -> MemoryTable:
    """The memory manager's table with this in use."""
    table = MemoryTable.of(supply)
    for mask, kinds in grouping.held.items():
        for kind, amount in kinds.items():
            left = amount
            for numa in members(mask):
                part = min(left, table.free[numa].get(kind, 0))
                table.hold(numa, kind, part)
                left -= part
        for numa in members(mask):
            table.groups[numa] = mask
            # Blocks of pods whose place is open count as one.
            table.blocks[numa] = int(any(kinds.values()))
    return table


def _cellings(nodes: Sequence[int], cells: Mapping[int, ResourceList]) -> Iterator[list[int]]:
    """All ways to put NUMA nodes into these cells of several, or to leave them alone."""
    if not nodes:
        yield []
        return
    first, rest = nodes[0], nodes[1:]
    left = sum(1 << numa for numa in rest)
    for cell in (1 << first, *(mask for mask in cells if mask >> first & 1 and not mask & ~(left | 1 << first))):
        for others in _cellings([numa for numa in rest if not cell >> numa & 1], cells):
            yield [cell, *others]


def _in_full(used: Mapping[int, ResourceList], supply: Mapping[int, ResourceList]) -> dict[int, ResourceList]:
    """What blocks on several NUMA nodes hold together, by mask: as much as each of them shows, or all that one has."""
    found: dict[int, ResourceList] = {}
    nodes = sum(1 << numa for numa in used if any(used[numa].values()))
    for size in range(2, nodes.bit_count() + 1):
        for mask in masks_of_size(nodes, size):
            kinds = {kind for numa in members(mask) for kind in supply[numa]}
            most = {kind: max(used[numa].get(kind, 0) for numa in members(mask)) for kind in kinds}
            if all(
                used[numa].get(kind, 0) in (amount, supply[numa].get(kind, 0))
                for numa in members(mask)
                for kind, amount in most.items()
            ):
                found[mask] = most
    return found


def _filled_up(used: Mapping[int, ResourceList], supply: Mapping[int, ResourceList]) -> dict[int, ResourceList]:
    """As ``_in_full`` for an exporter that fills NUMA nodes up: one shows use only where those below it are full."""
    found: dict[int, ResourceList] = {}
    nodes = sum(1 << numa for numa in used)
    for size in range(2, nodes.bit_count() + 1):
        for mask in masks_of_size(nodes, size):
            sums = _together(used, mask)
            if any(sums.values()) and all(_is_filled_up(kind, mask, used, supply) for kind in sums):
                found[mask] = sums
    return found


def _is_filled_up(kind: str, mask: int, used: Mapping[int, ResourceList], supply: Mapping[int, ResourceList]) -> bool:
    is_full = True
    for numa in members(mask):
        amount = used[numa].get(kind, 0)
        if amount and not is_full:
            return False
        is_full = is_full and amount == supply[numa].get(kind, 0)
    return True


def _partitions(nodes: int, width: int) -> Iterator[list[int]]:
    """The NUMA nodes in up to two groups, the wider one of this width, and the others alone."""
    singles = [1 << numa for numa in numa_ids(nodes)]
    if width == 1:
        yield singles
        return
    for wide in masks_of_size(nodes, width):
        rest = nodes & ~wide
        others = [mask for size in range(2, width + 1) for mask in masks_of_size(rest, size)]
        # Of two groups of the same width each pair is made once, with the larger mask second.
        for other in [0, *(mask for mask in others if mask.bit_count() < width or mask > wide)]:
            yield [mask for mask in (wide, other) if mask] + [one for one in singles if not one & (wide | other)]


def _total(parts: Iterable[ResourceList]) -> dict[str, int]:
    return without_zeros(total(parts))


def _together(used: Mapping[int, ResourceList], mask: int) -> dict[str, int]:
    rest: dict[str, int] = {}
    for numa in numa_ids(mask):
        for kind, amount in used[numa].items():
            rest[kind] = rest.get(kind, 0) + amount
    return rest
