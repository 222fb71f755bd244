"""
How many NUMA nodes a pod would need if the node were empty: the size of set that Restricted demands.

Theory. KEP-693 (Node Topology Manager, "Topology Hints") calls a hint preferred when it has as few NUMA nodes as could satisfy the
request if the node were empty, and ``restricted`` refuses whatever is not preferred. So a pod that would fit on one NUMA node of
the empty node is not split because others hold its room; it waits. Here the pod is judged as a whole, as Koordinator makes one hint
for each set that holds the whole pod.

Example: two NUMA nodes of 8 CPUs, 2 free on each. A pod of 4 CPUs needs one NUMA node of the empty node: it is refused. A pod of 12
needs two: it is placed over both as soon as 12 are free.
"""

from collections.abc import Mapping
from math import comb
from typing import Final

from koord_numa.core.allocation.node_rules import NodeRules
from koord_numa.core.allocation.numa_offers import NumaOffers
from koord_numa.core.numa.common_masks import common_masks
from koord_numa.core.numa.counted import Counted, fewest_that_reach
from koord_numa.core.numa.hints import masks_of_size
from koord_numa.core.resources import CPU

LISTED: Final = 2000
"""More sets of one size than these are searched for instead of listed."""


def fewest_if_empty(rules: NodeRules, offers: NumaOffers) -> int | None:
    """
    The smallest number of NUMA nodes whose totals hold the whole request, the devices of its claims included; ``None`` when all of them
    together do not.
    """
    totals = _totals(rules, offers)
    # Amounts that do not add up over all NUMA nodes rule every size out, so no size needs a look.
    if not totals or any(sum(amounts.values()) < rules.amounts[name] for name, amounts in totals.items()):
        return None
    # Each resource alone needs at least this many NUMA nodes: the search starts at the largest of these bounds.
    fewest = max(fewest_that_reach(amounts, rules.amounts[name]) for name, amounts in totals.items())
    return next(
        (size for size in range(fewest, len(offers.numa_ids) + 1) if _holds_some(rules, offers, totals, size)), None
    )


def _totals(rules: NodeRules, offers: NumaOffers) -> dict[str, dict[int, int]]:
    """By resource and NUMA id, in whole units; CPUs of one's own weigh amplified."""
    found = {}
    for name in offers.given:
        ratio = rules.ratio if name == CPU and rules.binding is not None else 1
        unit = offers.units[name]
        # Totals are published amplified, own CPUs are counted bare: the same unit on both sides of the comparison.
        amounts = (int(amount / ratio) if ratio > 1 else amount for amount in offers.accounts.total[name])
        found[name] = {numa: amount // unit * unit for numa, amount in zip(offers.numa_ids, amounts, strict=True)}
    return found


def _holds_some(rules: NodeRules, offers: NumaOffers, totals: Mapping[str, Mapping[int, int]], size: int) -> bool:
    # comb(n, size) sets: above the limit the search by amounts is cheaper than the list.
    if comb(len(offers.numa_ids), size) > LISTED:
        families = [Counted(dict(amounts), rules.amounts[name]) for name, amounts in totals.items()]
        return any(_could_hold_devices(offers, mask) for mask in common_masks(families, size))
    return any(
        all(
            sum(amount for numa, amount in amounts.items() if mask >> numa & 1) >= rules.amounts[name]
            for name, amounts in totals.items()
        )
        and _could_hold_devices(offers, mask)
        for mask in masks_of_size(offers.mask, size)
    )


def _could_hold_devices(offers: NumaOffers, mask: int) -> bool:
    return offers.devices is None or offers.devices.fits_if_empty(mask)
