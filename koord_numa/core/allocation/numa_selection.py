"""
Choose the set of NUMA nodes for a pod by arithmetic on their offers. No allocation is tried.

All resources are counted: a set can hold the pod exactly if the free whole units of its members add up for each of them.
A resource only excludes sets with a NUMA node that has none of it left. Sets are searched from the narrowest up for a
set that all resources prefer. Hint lists are merged only if there is none and the policy is BestEffort. A property test
compares both ways. With very many NUMA nodes, sets of a size are searched by amounts instead of enumerated.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from math import comb
from typing import Final

from koord_numa.core.allocation.cpu_preferences import best_shaped, honouring_first
from koord_numa.core.allocation.node_rules import NodeRules
from koord_numa.core.allocation.numa_offers import NumaOffers
from koord_numa.core.allocation.numa_sets import NumaSets
from koord_numa.core.numa.common_masks import common_masks
from koord_numa.core.numa.counted import Counted, fewest_that_reach
from koord_numa.core.numa.distances import Distances, spreads
from koord_numa.core.numa.exclusive import UNCONSTRAINED, NumaExclusivity
from koord_numa.core.numa.hints import Hint, mask_of_ids, masks_of_size
from koord_numa.core.numa.policies import KOORDINATOR, Decision, decide_koordinator
from koord_numa.core.objects.vocabulary import (
    NUMA_REQUIRED,
    SINGLE_NUMA_NODE,
    NumaPolicy,
    RestrictedRule,
)
from koord_numa.core.resources import CPU
from koord_numa.core.state.inventory import PerNuma

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
    """Return the sizes of sets that all resources may prefer."""
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
    """Return the NUMA nodes that no set of several may contain."""
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
