"""
Choose the set of NUMA nodes for a pod by arithmetic on their offers. No allocation is tried.

All resources are counted: a set can hold the pod exactly if the free whole units of its members add up for each of them.
A resource only excludes sets with a NUMA node that has none of it left. Sets are searched from the narrowest up for a
set that all resources prefer. Hint lists are merged only if there is none and the policy is BestEffort. A property test
compares both ways. With very many NUMA nodes, sets of a size are searched by amounts instead of enumerated.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import comb
from typing import Final

from koord_numa.core.allocation.demand import NodeRules
from koord_numa.core.allocation.numa_offers import NumaOffers, best_shaped, honouring_first, split
from koord_numa.core.numa import (
    KOORDINATOR,
    UNCONSTRAINED,
    Counted,
    Decision,
    Distances,
    Hint,
    NumaExclusivity,
    common_masks,
    decide_koordinator,
    fewest_that_reach,
    mask_of_ids,
    masks_of_size,
    numa_ids,
    spreads,
)
from koord_numa.core.objects.vocabulary import NUMA_REQUIRED, SINGLE_NUMA_NODE, NumaPolicy, RestrictedRule
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.score.node_scores import score_parts
from koord_numa.core.state.inventory import PerNuma
from koord_numa.core.state.numa_free import Accounting

# Evaluate sets of NUMA nodes for a request: whether they can hold the pod, and their score.
#
# ``hints`` and ``preferred`` decide which sets are evaluated, and in which order.

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


LISTED: Final = 2000
"""Above this number of sets of a size, sets are searched by amounts instead of enumerated."""

REMEMBERED: Final = 1024
"""Maximum cached answers. One per kind of machine and request, of which there are few."""

Needs = tuple[tuple[int, PerNuma], ...]
"""The needed amount of each resource, and the whole units of each NUMA node of the empty node."""


def fewest_if_empty(rules: NodeRules, offers: NumaOffers) -> int | None:
    """
    Return the smallest number of NUMA nodes whose totals hold the whole request, including the devices of its claims.

    ``None`` if all NUMA nodes together do not hold it.
    """
    needs, ids, devices = _needs(rules, offers), offers.numa_ids, offers.devices
    if devices is None:
        return _fewest(needs, ids)
    sets = chain.from_iterable(_sets(needs, ids, size) for size in _sizes(needs, ids))
    return next((mask.bit_count() for mask in sets if devices.fits_if_empty(mask)), None)


def _needs(rules: NodeRules, offers: NumaOffers) -> Needs:
    """Return the needed amounts and totals by resource. Totals for exclusive CPUs are unamplified."""
    found = []
    for name in offers.given:
        ratio = rules.ratio if name == CPU and rules.binding is not None else 1
        unit, totals = offers.units[name], offers.accounts.total[name]
        # Published totals are amplified, exclusive CPUs are counted unamplified: convert to the same unit.
        amounts = tuple([int(amount / ratio) for amount in totals]) if ratio > 1 else totals
        whole = tuple([amount // unit * unit for amount in amounts]) if unit > 1 else amounts
        found.append((rules.amounts[name], whole))
    return tuple(found)


@lru_cache(maxsize=REMEMBERED)
def _fewest(needs: Needs, ids: tuple[int, ...]) -> int | None:
    return next((size for size in _sizes(needs, ids) if next(iter(_sets(needs, ids, size)), None) is not None), None)


def _sizes(needs: Needs, ids: tuple[int, ...]) -> range:
    """Return the sizes of the sets that may hold the request."""
    # If amounts do not add up over all NUMA nodes, no size is possible.
    if not needs or any(sum(amounts) < needed for needed, amounts in needs):
        return range(0)
    # Each resource alone needs at least this many NUMA nodes: the search starts at the largest of these bounds.
    fewest = max(fewest_that_reach(dict(enumerate(amounts)), needed) for needed, amounts in needs)
    return range(fewest, len(ids) + 1)


def _sets(needs: Needs, ids: tuple[int, ...], size: int) -> Iterable[int]:
    """Return the sets of ``size`` NUMA nodes whose totals hold the request."""
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


WIDEST_LIST: Final = 8
"""Maximum NUMA nodes whose sets (255) are all listed if hint lists are needed. Upstream supports no larger machines."""

NO_DISTANCES: Final[Distances] = {}


def all_masks(offers: NumaOffers) -> Iterator[int]:
    """Return every set, narrowest first, lexicographic in the ids within a size."""
    return chain.from_iterable(masks_of_size(offers.mask, size) for size in range(1, len(offers.numa_ids) + 1))


def hints(
    rules: NodeRules, offers: NumaOffers, exclusivity: NumaExclusivity = UNCONSTRAINED, closed: int = 0
) -> dict[str, list[Hint]]:
    """
    Return the hints of every resource, as Koordinator's resource_manager.go: one per set that could hold the whole pod.

    Preferred hints have the smallest size, under Restricted the size that an empty node would need, or any size by
    Koordinator's rule. A resource without hints has an empty list. Sets of several NUMA nodes with a NUMA node of
    ``closed`` are excluded.
    """
    if not offers.given:
        return {}
    sets = NumaSets(rules, offers)
    # ``mask & (mask - 1)`` is non-zero for several NUMA nodes: a closed NUMA node may still be used alone.
    masks = (mask for mask in all_masks(offers) if not (mask & closed and mask & (mask - 1)))
    fitting = [(mask, exclusivity.score(mask, sets.score(mask))) for mask in sets.holding(masks)]
    found: dict[str, list[Hint]] = {}
    for name in offers.given:
        accepted = [(mask, points) for mask, points in fitting if not sets.touches(mask, name)]
        # Every resource has its own smallest size, since a lacking resource excludes sets that others accept.
        sizes = _preferred_sizes(sets, min((mask.bit_count() for mask, _ in accepted), default=1))
        found[name] = [Hint(mask, mask.bit_count() in sizes, score=points) for mask, points in accepted]
    return found


def _preferred_sizes(sets: NumaSets, fewest: int) -> range:
    """Return the sizes of the sets that a resource prefers, if it needs at least ``fewest`` NUMA nodes now."""
    rules, widest = sets.rules, len(sets.offers.numa_ids)
    if rules.policy is not NumaPolicy.RESTRICTED:
        return range(fewest, fewest + 1)
    if rules.restricted is RestrictedRule.KOORDINATOR:
        # Koordinator's Restricted prefers every hint of its resource manager, whatever its size.
        return range(1, widest + 1)
    size = fewest_if_empty(rules, sets.offers)
    return range(0) if size is None else range(size, size + 1)


def _searched_sizes(sets: NumaSets) -> range:
    """Return the sizes of the sets to search: only sets of these sizes can be preferred by all resources."""
    if sets.rules.policy is SINGLE_NUMA_NODE:
        return range(sets.fewest, 2)
    if sets.rules.policy is NumaPolicy.RESTRICTED and sets.rules.restricted is RestrictedRule.EMPTY_NODE:
        preferred_sizes = _preferred_sizes(sets, sets.fewest)
        return range(max(sets.fewest, preferred_sizes.start), preferred_sizes.stop)
    return range(sets.fewest, len(sets.offers.numa_ids) + 1)


def preferred(
    rules: NodeRules,
    offers: NumaOffers,
    exclusivity: NumaExclusivity,
    suits: Callable[[int], bool] | None = None,
    distances: Distances = NO_DISTANCES,
) -> Hint | None:
    """
    Return the merged hint that all resources prefer, without a score, or ``None``. Considers only sets that ``suits``.

    Order of equally narrow sets: no pod of the other kind is disturbed (Preferred), best for the workload
    (``numa-spread``), the CPU exclusive policy is honored, most CPUs of the preferred shape, smallest distance if
    published (LeastNUMANodes proposal). Of the rest, a later set wins if it has a smaller mask or a higher score, by
    Koordinator's rule and order.
    """
    sets = NumaSets(rules, offers)
    # If the widest set without excluded NUMA nodes has too little, no smaller set can hold the pod: one sum instead of
    # 2^n.
    if not offers.given or not sets.may_fit:
        return None
    for size in _searched_sizes(sets):
        # The same bound for sets of several NUMA nodes, which must not contain closed ones.
        if size > 1 and not sets.adds_up(sets.unlacking & ~_closed(exclusivity)):
            return None
        fitting = _of_size(sets, size, exclusivity)
        if suits is not None:
            fitting = [mask for mask in fitting if suits(mask)]
        denied = sets.lacking | exclusivity.denied(size)
        allowed = [mask for mask in fitting if not mask & denied] if denied else fitting
        if offers.workload is not None and allowed:
            permitted = [mask for mask in allowed if offers.workload.allows(mask)]
            # A pod that fits is not split over more NUMA nodes for the sake of its workload: it stays pending.
            if not permitted:
                return None
            allowed = offers.workload.best(exclusivity.undisturbed(permitted))
        # The filters are ordered by importance: undisturbed, exclusive CPUs, shape, distance, and last the score.
        if len(allowed) > 1:  # a single set needs no comparison
            allowed = honouring_first(exclusivity.undisturbed(allowed), rules, offers)
            allowed = _closest(best_shaped(allowed, rules, offers), distances)
        if allowed:
            best = allowed[0] if len(allowed) == 1 else _best(allowed, exclusivity.scoring(sets.score))
            return Hint(best, preferred=True)
        # Only exclusivity prevents sets of this size: BestEffort overrides it, and the merge of lists decides.
        if fitting and rules.policy is NumaPolicy.BEST_EFFORT:
            return None
    return None


def is_possible(rules: NodeRules, offers: NumaOffers) -> bool:
    """Return whether the policy would find a set without the pods that exclude others. Under BestEffort, the widest set decides."""
    if rules.policy is not NumaPolicy.BEST_EFFORT:
        return preferred(rules, offers, UNCONSTRAINED) is not None
    sets = NumaSets(rules, offers)
    return sets.adds_up(sets.unlacking)


def _of_size(sets: NumaSets, size: int, exclusivity: NumaExclusivity) -> list[int]:
    """Return the sets of this size that can hold the pod, in the order of comparison."""
    offers = sets.offers
    if size == 1:
        return sets.alone()
    # comb(16, 8) is already 12,870: above the limit a search by amounts replaces the list.
    if comb(len(offers.numa_ids), size) <= LISTED:
        return sets.holding(masks_of_size(offers.mask, size))
    nodes = sets.unlacking & ~_closed(exclusivity) if size > 1 else sets.unlacking
    return sets.holding(sets.found(size, nodes))


def _closed(exclusivity: NumaExclusivity) -> int:
    """Return the NUMA nodes that are excluded from sets of two or more."""
    return exclusivity.occupancy.single if exclusivity.wish is NUMA_REQUIRED else 0


def _must_spread(offers: NumaOffers) -> bool:
    return offers.workload is not None and offers.workload.spread.required


def _best(masks: Sequence[int], score_of: Callable[[int], int]) -> int:
    best, most = masks[0], score_of(masks[0])
    for mask in masks[1:]:
        points = score_of(mask)
        # Upstream's comparison in upstream's order: either criterion alone replaces the current best.
        if mask < best or points > most:
            best, most = mask, points
    return best


def _closest(masks: list[int], distances: Distances) -> list[int]:
    if not distances or len(masks) < 2:
        return masks
    apart = spreads(masks, distances)
    nearest = min(apart)
    return [mask for mask, distance in zip(masks, apart, strict=True) if distance == nearest]


def select_numa_nodes(
    rules: NodeRules,
    offers: NumaOffers,
    exclusivity: NumaExclusivity = UNCONSTRAINED,
    distances: Distances = NO_DISTANCES,
) -> Decision:
    """
    Return the set of NUMA nodes that the policy elects, and whether it is admitted. The policy must not be ``NONE``.

    Hint lists are generated and merged only if no set is preferred by all resources and the policy is BestEffort.
    """
    rule = KOORDINATOR[rules.policy]
    best = preferred(rules, offers, exclusivity, distances=distances)
    if best is not None:
        return Decision(rule.settles(best, offers.mask), admitted=True)
    if offers.given and (rules.policy is not NumaPolicy.BEST_EFFORT or _must_spread(offers)):
        return Decision(Hint(None, preferred=False), admitted=False)
    closed = _closed(exclusivity)
    # Merging 2^n hints per resource is too slow beyond this width: BestEffort falls back to the whole machine, as a
    # merge without a result.
    if len(offers.numa_ids) > WIDEST_LIST and offers.given:
        return Decision(Hint(offers.mask & ~closed, preferred=False), admitted=offers.mask != closed)
    found = hints(rules, offers, exclusivity, closed)
    decision = decide_koordinator(rules.policy, [found], offers.mask, exclusivity)
    mask = decision.hint.mask
    if closed and (mask is None or (mask & closed and mask & (mask - 1))):
        # BestEffort admits any set except those that Required closes to pods on several NUMA nodes.
        return Decision(Hint(None, preferred=False), admitted=False)
    return decision
