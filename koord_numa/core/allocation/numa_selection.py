"""
Chooses the set of NUMA nodes for one pod, by arithmetic on what they offer; no allocation is tried.

Theory. Every resource here is counted, so a set can hold the pod exactly when, resource by resource, the free whole units of
its members add up (``split`` then finds the shares). The sets that can are the same for all resources; a resource only strikes
those that contain a NUMA node with none of it left. A preferred merge needs one set that all resources accept alike, so it is
found by going through the sets from the narrowest up, and the merge of hint lists is needed only when there is none and the
policy (BestEffort) must answer nevertheless. A property test keeps both equal. On machines with very many NUMA nodes the sets
of one size are searched for instead of gone through.

Example. Four NUMA nodes with 6, 2, 8 and 8 free CPUs; a pod of 12 CPUs under BestEffort. No single one holds it. Of the pairs {0,1} adds
up to 8 and {1,2}, {1,3} to 10: too little. {0,2}, {0,3} and {2,3} hold it. With distances that put 2 and 3 on one socket {2,3} is the
closest and wins; without distances the strategy's score decides, the smaller mask at equal score.
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
from koord_numa.core.numa.exclusive import UNCONSTRAINED, Exclusivity
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


WIDEST_LIST: Final = 8
"""Up to so many NUMA nodes all sets are listed when hint lists are needed: 255 of them. Upstream knows no larger machines."""
"""More sets of one size than these are not listed but searched for."""

NO_DISTANCES: Final[Distances] = {}


def all_masks(offers: NumaOffers) -> Iterator[int]:
    """Every set, narrowest first, lexicographic in the ids within a size."""
    return chain.from_iterable(masks_of_size(offers.mask, size) for size in range(1, len(offers.numa_ids) + 1))


def hints(
    rules: NodeRules, offers: NumaOffers, exclusivity: Exclusivity = UNCONSTRAINED, closed: int = 0
) -> dict[str, list[Hint]]:
    """
    The hints of every resource, as Koordinator's resource_manager.go generates them: one per set that could hold the whole pod.

    Preferred are those of the smallest size; under Restricted those of the size that an empty node would need, or all of them by
    Koordinator's rule. A resource without hints has an empty list. Sets of several NUMA nodes of ``closed`` are left out.
    """
    if not offers.given:
        return {}
    sets = NumaSets(rules, offers)
    # ``mask & (mask - 1)`` is non-zero for sets of several: a closed NUMA node may still be used alone.
    masks = (mask for mask in all_masks(offers) if not (mask & closed and mask & (mask - 1)))
    fitting = [(mask, exclusivity.score(mask, sets.score(mask))) for mask in sets.holding(masks)]
    found: dict[str, list[Hint]] = {}
    for name in offers.given:
        accepted = [(mask, points) for mask, points in fitting if not sets.touches(mask, name)]
        # Every resource has its own smallest size, since a lacking resource strikes sets that others accept.
        sizes = _preferred_sizes(sets, min((mask.bit_count() for mask, _ in accepted), default=1))
        found[name] = [Hint(mask, mask.bit_count() in sizes, score=points) for mask, points in accepted]
    return found


def _preferred_sizes(sets: NumaSets, fewest: int) -> range:
    """The sizes of the sets that a resource prefers, when ``fewest`` NUMA nodes at least are needed now."""
    rules, widest = sets.rules, len(sets.offers.numa_ids)
    if rules.policy is not NumaPolicy.RESTRICTED:
        return range(fewest, fewest + 1)
    if rules.restricted is RestrictedRule.KOORDINATOR:
        # Koordinator's Restricted prefers every hint that its resource manager returns, of whatever size.
        return range(1, widest + 1)
    size = fewest_if_empty(rules, sets.offers)
    return range(0) if size is None else range(size, size + 1)


def _searched_sizes(sets: NumaSets) -> range:
    """The sizes at which a set that all resources prefer may be found."""
    if sets.rules.policy is SINGLE_NUMA_NODE:
        return range(sets.fewest, 2)
    if sets.rules.policy is NumaPolicy.RESTRICTED and sets.rules.restricted is RestrictedRule.EMPTY_NODE:
        preferred_sizes = _preferred_sizes(sets, sets.fewest)
        return range(max(sets.fewest, preferred_sizes.start), preferred_sizes.stop)
    return range(sets.fewest, len(sets.offers.numa_ids) + 1)


def preferred(
    rules: NodeRules,
    offers: NumaOffers,
    exclusivity: Exclusivity,
    suits: Callable[[int], bool] | None = None,
    distances: Distances = NO_DISTANCES,
) -> Hint | None:
    """
    The merged hint that all resources prefer, or ``None`` when there is none; only sets that ``suits`` are looked at. It has no score:
    that decides between sets, and nothing asks for it once a set is chosen.

    Of equally narrow sets those come first that disturb no pod of the other kind (Preferred), suit the workload (``numa-spread``), honour
    the CPU exclusive policy and have CPUs of the preferred shape; then the closest ones where distances are published, as the
    LeastNUMANodes proposal has it. Of these the later one wins if it is a smaller number or scores higher: Koordinator's rule and order.
    """
    sets = NumaSets(rules, offers)
    # If even the widest set that nothing strikes falls short, no smaller one can hold the pod: one sum instead of 2^n.
    if not offers.given or not sets.may_fit:
        return None
    for size in _searched_sizes(sets):
        # The same bound for sets of several, which must do without the closed NUMA nodes.
        if size > 1 and not sets.adds_up(sets.unlacking & ~_closed(exclusivity)):
            return None
        fitting = _of_size(sets, size, exclusivity)
        if suits is not None:
            fitting = [mask for mask in fitting if suits(mask)]
        denied = sets.lacking | exclusivity.denied(size)
        allowed = [mask for mask in fitting if not mask & denied] if denied else fitting
        if offers.workload is not None and allowed:
            permitted = [mask for mask in allowed if offers.workload.allows(mask)]
            # A pod that fits is not split over more NUMA nodes for the sake of its workload: it waits.
            if not permitted:
                return None
            allowed = offers.workload.best(exclusivity.undisturbed(permitted))
        # The order of the filters is the order of importance: undisturbed, exclusive CPUs, shape, distance, and last the score.
        if len(allowed) > 1:  # one set is not compared with others
            allowed = honouring_first(exclusivity.undisturbed(allowed), rules, offers)
            allowed = _closest(best_shaped(allowed, rules, offers), distances)
        if allowed:
            best = allowed[0] if len(allowed) == 1 else _best(allowed, exclusivity.scoring(sets.score))
            return Hint(best, preferred=True)
        # Only pods that exclude others stand against sets of this size: BestEffort overrides them, and the merge of lists decides.
        if fitting and rules.policy is NumaPolicy.BEST_EFFORT:
            return None
    return None


def is_possible(rules: NodeRules, offers: NumaOffers) -> bool:
    """Would the policy find a set without the pods that exclude others? The widest set that nothing strikes tells, without a search."""
    if rules.policy is not NumaPolicy.BEST_EFFORT:
        return preferred(rules, offers, UNCONSTRAINED) is not None
    sets = NumaSets(rules, offers)
    return sets.adds_up(sets.unlacking)


def _of_size(sets: NumaSets, size: int, exclusivity: Exclusivity) -> list[int]:
    """The sets of this size that can hold the pod, in the order in which they are compared."""
    offers = sets.offers
    if size == 1:
        return sets.alone()
    # comb(16, 8) is 12,870 already: beyond the limit a search by amounts replaces the list.
    if comb(len(offers.numa_ids), size) <= LISTED:
        return sets.holding(masks_of_size(offers.mask, size))
    nodes = sets.unlacking & ~_closed(exclusivity) if size > 1 else sets.unlacking
    return sets.holding(sets.found(size, nodes))


def _closed(exclusivity: Exclusivity) -> int:
    """NUMA nodes that no set of several may contain."""
    return exclusivity.occupancy.single if exclusivity.wish is NUMA_REQUIRED else 0


def _must_spread(offers: NumaOffers) -> bool:
    return offers.workload is not None and offers.workload.spread.required


def _best(masks: Sequence[int], score_of: Callable[[int], int]) -> int:
    best, most = masks[0], score_of(masks[0])
    for mask in masks[1:]:
        points = score_of(mask)
        # Upstream's comparison, replayed in upstream's order: either criterion alone replaces the best so far.
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
    rules: NodeRules, offers: NumaOffers, exclusivity: Exclusivity = UNCONSTRAINED, distances: Distances = NO_DISTANCES
) -> Decision:
    """
    The set of NUMA nodes that the need's policy elects, and whether it admits it; the policy is not ``NONE``.

    Hint lists are made and merged only where no set is preferred by all resources and BestEffort wants an answer all the same.
    """
    rule = KOORDINATOR[rules.policy]
    best = preferred(rules, offers, exclusivity, distances=distances)
    if best is not None:
        return Decision(rule.settles(best, offers.mask), admitted=True)
    if offers.given and (rules.policy is not NumaPolicy.BEST_EFFORT or _must_spread(offers)):
        return Decision(Hint(None, preferred=False), admitted=False)
    closed = _closed(exclusivity)
    # 2^n hints a resource cannot be merged in time beyond this width: BestEffort falls back to the whole machine, the answer of a
    # merge that finds nothing.
    if len(offers.numa_ids) > WIDEST_LIST and offers.given:
        return Decision(Hint(offers.mask & ~closed, preferred=False), admitted=offers.mask != closed)
    found = hints(rules, offers, exclusivity, closed)
    decision = decide_koordinator(rules.policy, [found], offers.mask, exclusivity)
    mask = decision.hint.mask
    if closed and (mask is None or (mask & closed and mask & (mask - 1))):
        # BestEffort admits anything but a set that Required keeps free of pods over several NUMA nodes.
        return Decision(Hint(None, preferred=False), admitted=False)
    return decision
