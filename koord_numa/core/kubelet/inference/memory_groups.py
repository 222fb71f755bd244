"""
Which NUMA nodes are tied together by memory blocks that span them: worked out from what pods asked for and what is in use.

No exporter publishes the memory manager's groups, but its arithmetic leaves traces: the blocks of a group add up to what is in
use on all its NUMA nodes together, and those of a NUMA node on its own to what is in use there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.numa.hints import masks_of_size, numa_ids
from koord_numa.core.resources import ResourceList, total, without_zeros

STEPS: Final = 2_000
"""The search gives up after so many trials: attributing blocks to NUMA nodes is a subset sum in the worst case."""

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
