"""
Evaluate sets of NUMA nodes for a request: whether they can hold the pod, and their score.

``numa_selection.py`` decides which sets are evaluated, and in which order.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from koord_numa.core.allocation.node_rules import NodeRules
from koord_numa.core.allocation.numa_offers import NumaOffers, split
from koord_numa.core.numa.common_masks import common_masks
from koord_numa.core.numa.counted import Counted, fewest_that_reach
from koord_numa.core.numa.hints import numa_ids
from koord_numa.core.objects.vocabulary import NumaPolicy
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.score.node_scores import score_parts
from koord_numa.core.state.inventory import PerNuma
from koord_numa.core.state.numa_free import Accounting

COMPARED: Final = 64
"""Maximum sets to compare, if sets are searched by amounts."""


class NumaSets:
    """The sets of NUMA nodes of a node for a request. Sums are shared: a set is its lowest member plus the rest."""

    def __init__(self, rules: NodeRules, offers: NumaOffers) -> None:
        self.rules, self.offers = rules, offers
        self.lacking = _struck(rules, offers)
        self._scored: list[tuple[int, int, PerNuma, PerNuma]] | None = None
        self._wanted: list[tuple[int, PerNuma]] | None = None
        self._shortage: bool | None = None
        self._sums: list[dict[int, int]] | None = None  # sums of sets by resource
        self._alone: list[int] | None = None
        # Sums of amounts are sufficient if they include the limit of CPUs and no devices are needed.
        by_amounts = rules.binding is None or (rules.accounting is Accounting.EVERY_POD and CPU in offers.given)
        self._by_amounts = by_amounts and offers.devices is None

    @property
    def wanted(self) -> list[tuple[int, PerNuma]]:
        """Return the needed amount and the whole units of each NUMA node by resource. Not needed for a pod on a single NUMA node."""
        if self._wanted is None:
            amounts, units = self.rules.amounts, self.offers.units
            # Parts of a unit on different NUMA nodes do not make a unit, so amounts are rounded down before they are
            # added.
            self._wanted = [
                (amounts[name], given if (unit := units[name]) == 1 else tuple([have // unit * unit for have in given]))
                for name, given in self.offers.given.items()
            ]
        return self._wanted

    @property
    def shortage(self) -> bool:
        """Return whether no set can hold the pod: the total is too small, or the need is not a multiple of the unit."""
        if self._shortage is None:
            units = self.offers.units.values()
            self._shortage = any(
                sum(whole) < needed or needed % unit for (needed, whole), unit in zip(self.wanted, units, strict=True)
            )
        return self._shortage

    @property
    def position(self) -> Mapping[int, int]:
        """Return the position of each NUMA node in the amounts."""
        return _positions(self.offers.accounts.numa_ids)

    @property
    def unlacking(self) -> int:
        """Return the widest set without excluded NUMA nodes."""
        return self.offers.mask & ~self.lacking

    @property
    def fewest(self) -> int:
        """Return a lower bound of the number of NUMA nodes that can hold the pod."""
        if self._alone:
            return 1
        for needed, whole in self.wanted:
            if max(whole) < needed:
                return max(fewest_that_reach(dict(enumerate(whole)), needed) for needed, whole in self.wanted)
        return 1

    def found(self, size: int, nodes: int) -> list[int]:
        """Return sets of this size within ``nodes`` that can hold the pod, by a search for cases with too many sets to list."""
        ids = self.offers.numa_ids
        families = [
            Counted({numa: amount for numa, amount in zip(ids, whole, strict=True) if nodes >> numa & 1}, needed)
            for needed, whole in self.wanted
        ]
        # Common masks are ascending numbers. Comparisons need the lexicographic order in the ids of ``masks_of_size``.
        return sorted(common_masks(families, size), key=numa_ids)[:COMPARED]

    def holds(self, mask: int) -> bool:
        """Return whether the whole pod could be placed on exactly this set."""
        return bool(self.holding((mask,)))

    def holding(self, masks: Iterable[int]) -> list[int]:
        """Return the sets that could hold the whole pod, in their order."""
        if self.shortage:
            return []
        masks = list(masks)
        for (needed, _), sums in zip(self.wanted, self._sums_of_sets(), strict=True):
            masks = [mask for mask in masks if (sums[mask] if mask in sums else _sum(sums, mask)) >= needed]
        if self._by_amounts:
            return masks
        return [mask for mask in masks if self._has_cpus(mask) and self._has_devices(mask)]

    def alone(self) -> list[int]:
        """Return the single NUMA nodes that could hold the whole pod, ascending."""
        if self._alone is None:
            self._alone = self._found_alone()
        return self._alone

    @property
    def may_fit(self) -> bool:
        """Return whether the widest set without excluded NUMA nodes has enough. If not, no smaller set can hold the pod."""
        # No addition is needed if a single member holds the pod. The sum of different bits is their union.
        unlacking = self.unlacking
        return bool(sum(self.alone()) & unlacking) or self.adds_up(unlacking)

    def _found_alone(self) -> list[int]:
        ids, amounts, units = self.offers.numa_ids, self.rules.amounts, self.offers.units
        fitting: Sequence[int] = range(len(ids))
        for name, given in self.offers.given.items():
            needed = amounts[name]
            if needed % units[name]:
                return []
            # Parts of a unit do not count: the need is in whole units.
            fitting = [at for at in fitting if given[at] >= needed]
        masks = [1 << ids[at] for at in fitting]
        if self._by_amounts:
            return masks
        return [mask for mask in masks if self._has_cpus(mask) and self._has_devices(mask)]

    def adds_up(self, mask: int) -> bool:
        """Return whether the members have enough together. If not, no part of the set can hold the pod."""
        if self.shortage:
            return False
        if mask == self.offers.mask:
            return True  # there is no shortage
        for (needed, _), sums in zip(self.wanted, self._sums_of_sets(), strict=True):
            # Most masks are evaluated several times (by size, then by score), so sums are cached.
            if (sums[mask] if mask in sums else _sum(sums, mask)) < needed:
                return False
        return True

    def _sums_of_sets(self) -> list[dict[int, int]]:
        """Return the sums, created for the first set of several: most pods fit a single NUMA node."""
        if self._sums is None:
            ids = self.offers.numa_ids
            # The empty set ends the recursion of ``_sum``.
            self._sums = [
                {0: 0, **{1 << numa: has for numa, has in zip(ids, whole, strict=True)}} for _, whole in self.wanted
            ]
        return self._sums

    def touches(self, mask: int, name: str) -> bool:
        """Return whether the set contains a NUMA node that has nothing left of this resource."""
        return bool(mask & self.offers.lacking[name])

    def score(self, mask: int) -> int:
        """Return the score of the set by the configured strategy, from the sums of its members."""
        scoring = self.rules.scoring
        if scoring is None:
            return 0
        scored = self._scored_resources()
        if not mask & (mask - 1):
            at = self.position[mask.bit_length() - 1]
            # The free amount may exceed the total if a required bind policy finds CPUs without an amount: nothing is
            # then in use.
            return score_parts(
                scoring.type,
                [
                    (weight, more + has - left if has > (left := free[at]) else more, has)
                    for weight, more, total, free in scored
                    if (has := total[at])
                ],
            )
        positions = [self.position[numa] for numa in numa_ids(mask)]
        parts = []
        for weight, more, total, free in scored:
            capacity = used = 0
            for at in positions:
                capacity += total[at]
                used += total[at] - free[at]
            if capacity:
                parts.append((weight, used + more if used > 0 else more, capacity))
        return score_parts(scoring.type, parts)

    def _scored_resources(self) -> list[tuple[int, int, PerNuma, PerNuma]]:
        """Return weight, needed amount, totals and free amounts of each scored resource."""
        if self._scored is None:
            totals, free = self.offers.accounts.total, self.offers.free
            self._scored = [
                (weight, more, totals[name], free[name]) for name, weight, more in self.rules.scored if name in totals
            ]
        return self._scored

    def _has_devices(self, mask: int) -> bool:
        return self.offers.devices is None or self.offers.devices.fits(mask)

    def _has_cpus(self, mask: int) -> bool:
        """Return whether the set has CPUs for the shares, in cases where amounts may exceed the CPUs that can be taken."""
        rules = self.rules
        # Under EVERY_POD ``given`` already includes the limit of CPUs, so the sum is sufficient.
        if rules.binding is None or rules.accounting is Accounting.EVERY_POD:
            return rules.binding is None or CPU in self.offers.given
        positions = [self.position[numa] for numa in numa_ids(mask)]
        if CPU not in self.offers.given:
            return False
        shares = split(rules.amounts[CPU], [self.offers.given[CPU][at] for at in positions], self.offers.units[CPU])
        return shares is not None and all(
            share <= MILLI * self.offers.cpus[at] for share, at in zip(shares, positions, strict=True)
        )


def _struck(rules: NodeRules, offers: NumaOffers) -> int:
    """
    Return the NUMA nodes that are excluded from all sets, because they have nothing left of a resource.

    A NUMA node that never has the resource is not excluded. BestEffort takes as few NUMA nodes as possible, regardless
    of used resources.
    """
    if rules.policy is NumaPolicy.BEST_EFFORT:
        return 0
    struck = 0
    for name, mask in offers.lacking.items():
        if mask:
            totals = offers.accounts.total[name]
            struck |= sum(1 << numa for at, numa in enumerate(offers.numa_ids) if mask >> numa & 1 and totals[at])
    return struck


@lru_cache(maxsize=1024)
def _positions(ids: tuple[int, ...]) -> Mapping[int, int]:
    return {numa: at for at, numa in enumerate(ids)}


def _sum(sums: dict[int, int], mask: int) -> int:
    # A set is its lowest member plus the rest: a sum costs one addition and is shared by all supersets.
    low = mask & -mask
    rest = mask ^ low
    found = sums[mask] = (sums[rest] if rest in sums else _sum(sums, rest)) + sums[low]
    return found
