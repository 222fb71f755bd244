"""
How many NUMA nodes a pod would need if the node were empty: the size of set that Restricted demands.

Theory. KEP-693 (Node Topology Manager, "Topology Hints") calls a hint preferred when it has as few NUMA nodes as could satisfy the
request if the node were empty, and ``restricted`` refuses whatever is not preferred. So a pod that would fit on one NUMA node of
the empty node is not split because others hold its room; it waits. Here the pod is judged as a whole, as Koordinator makes one hint
for each set that holds the whole pod.

Example: two NUMA nodes of 8 CPUs, 2 free on each. A pod of 4 CPUs needs one NUMA node of the empty node: it is refused. A pod of 12
needs two: it is placed over both as soon as 12 are free.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from math import comb
from typing import Final

from koord_numa.core.allocation.node_rules import NodeRules
from koord_numa.core.allocation.numa_offers import NumaOffers
from koord_numa.core.numa.common_masks import common_masks
from koord_numa.core.numa.counted import Counted, fewest_that_reach
from koord_numa.core.numa.hints import mask_of_ids, masks_of_size
from koord_numa.core.resources import CPU
from koord_numa.core.state.inventory import PerNuma

LISTED: Final = 2000
"""More sets of one size than these are searched for instead of listed."""

REMEMBERED: Final = 1024
"""So many answers are kept: one for each kind of machine and request, of which there are few."""

Needs = tuple[tuple[int, PerNuma], ...]
"""By resource how much is needed, and the whole units of each NUMA node of the empty node."""


def fewest_if_empty(rules: NodeRules, offers: NumaOffers) -> int | None:
    """
    The smallest number of NUMA nodes whose totals hold the whole request, the devices of its claims included; ``None`` when all of them
    together do not.
    """
    needs, ids, devices = _needs(rules, offers), offers.numa_ids, offers.devices
    if devices is None:
        return _fewest(needs, ids)
    sets = chain.from_iterable(_sets(needs, ids, size) for size in _sizes(needs, ids))
    return next((mask.bit_count() for mask in sets if devices.fits_if_empty(mask)), None)


def _needs(rules: NodeRules, offers: NumaOffers) -> Needs:
    """CPUs of one's own weigh amplified."""
    found = []
    for name in offers.given:
        ratio = rules.ratio if name == CPU and rules.binding is not None else 1
        unit, totals = offers.units[name], offers.accounts.total[name]
        # Totals are published amplified, own CPUs are counted bare: the same unit on both sides of the comparison.
        amounts = tuple([int(amount / ratio) for amount in totals]) if ratio > 1 else totals
        whole = tuple([amount // unit * unit for amount in amounts]) if unit > 1 else amounts
        found.append((rules.amounts[name], whole))
    return tuple(found)


@lru_cache(maxsize=REMEMBERED)
def _fewest(needs: Needs, ids: tuple[int, ...]) -> int | None:
    return next((size for size in _sizes(needs, ids) if next(iter(_sets(needs, ids, size)), None) is not None), None)


def _sizes(needs: Needs, ids: tuple[int, ...]) -> range:
    """The sizes of the sets that may hold the request."""
    # Amounts that do not add up over all NUMA nodes rule every size out, so no size needs a look.
    if not needs or any(sum(amounts) < needed for needed, amounts in needs):
        return range(0)
    # Each resource alone needs at least this many NUMA nodes: the search starts at the largest of these bounds.
    fewest = max(fewest_that_reach(dict(enumerate(amounts)), needed) for needed, amounts in needs)
    return range(fewest, len(ids) + 1)


def _sets(needs: Needs, ids: tuple[int, ...], size: int) -> Iterable[int]:
    """The sets of so many NUMA nodes whose totals hold the request."""
    # comb(n, size) sets: above the limit the search by amounts is cheaper than the list.
    if comb(len(ids), size) > LISTED:
        return common_masks([Counted(dict(zip(ids, amounts, strict=True)), needed) for needed, amounts in needs], size)
    return (
        mask
        for mask in masks_of_size(mask_of_ids(ids), size)
        if all(
            sum([amount for numa, amount in zip(ids, amounts, strict=True) if mask >> numa & 1]) >= needed
            for needed, amounts in needs
        )
    )
