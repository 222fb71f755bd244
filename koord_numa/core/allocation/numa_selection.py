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

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from math import comb
from typing import Final

from koord_numa.core.allocation.cpu_exclusivity import honouring_first
from koord_numa.core.allocation.empty_node import fewest_if_empty
from koord_numa.core.allocation.numa_offers import NumaOffers, NumaRequest
from koord_numa.core.allocation.split import split
from koord_numa.core.inventory import PerNuma
from koord_numa.core.numa.common_masks import common_masks
from koord_numa.core.numa.counted import Counted, fewest_that_reach
from koord_numa.core.numa.distances import Distances, spread
from koord_numa.core.numa.exclusive import UNCONSTRAINED, Exclusivity
from koord_numa.core.numa.hints import Hint, masks_of_size, numa_ids
from koord_numa.core.numa.policies import KOORDINATOR, Decision, decide_koordinator
from koord_numa.core.numa_free import Accounting
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.score.node_resources import counts, score_parts
from koord_numa.core.vocabulary import NumaExclusive, NumaPolicy, RestrictedRule

WIDEST_LIST: Final = 8
"""Up to so many NUMA nodes all sets are listed when hint lists are needed: 255 of them. Upstream knows no larger machines."""

LISTED: Final = 2000
"""More sets of one size than these are not listed but searched for, and beyond ``COMPARED`` found ones none is looked at."""

COMPARED: Final = 64

NO_DISTANCES: Final[Distances] = {}


class NumaSets:
    """The sets of NUMA nodes of one node, judged for one need. Sums are shared: a set is its lowest member and the rest."""

    def __init__(self, need: NumaRequest, offers: NumaOffers) -> None:
        self.need, self.offers = need, offers
        ids = offers.accounts.numa_ids
        self.position = dict(zip(ids, range(len(ids)), strict=True))
        self.lacking = 0  # NUMA nodes that some resource strikes
        for mask in offers.lacking.values():
            self.lacking |= mask
        self._scored: list[tuple[int, int, PerNuma, PerNuma]] | None = (
            None  # weight, wanted, total and free by resource
        )
        self._wanted: list[tuple[int, PerNuma, dict[int, int]]] = []
        self.shortage = False
        for name, amounts in offers.given.items():
            unit, needed = offers.units[name], need.amounts[name]
            whole = tuple([amount // unit * unit for amount in amounts]) if unit > 1 else amounts
            sums = {1 << numa: amount for numa, amount in zip(ids, whole, strict=True)}
            sums[0] = 0
            self._wanted.append((needed, whole, sums))
            self.shortage = self.shortage or sum(whole) < needed or needed % unit != 0

    @property
    def unlacking(self) -> int:
        """The widest set that no resource strikes."""
        return self.offers.mask & ~self.lacking

    @property
    def fewest(self) -> int:
        """No set of fewer NUMA nodes can hold the pod."""
        if all(max(whole) >= needed for needed, whole, _ in self._wanted):
            return 1
        return max(fewest_that_reach(dict(enumerate(whole)), needed) for needed, whole, _ in self._wanted)

    def found(self, size: int, nodes: int) -> list[int]:
        """Sets of this size within ``nodes`` that can hold the pod, found by search where there are too many to list."""
        ids = self.offers.numa_ids
        families = [
            Counted({numa: amount for numa, amount in zip(ids, whole, strict=True) if nodes >> numa & 1}, needed, size)
            for needed, whole, _ in self._wanted
        ]
        return sorted(common_masks(families, size), key=numa_ids)[:COMPARED]

    def holds(self, mask: int) -> bool:
        """Could the whole pod be placed on exactly this set?"""
        return self.adds_up(mask) and self._has_cpus(mask)

    def adds_up(self, mask: int) -> bool:
        """Do its members have enough of everything together? If not, no part of the set can hold the pod either."""
        if self.shortage:
            return False
        for needed, _, sums in self._wanted:
            known = sums.get(mask)
            if (_sum(sums, mask) if known is None else known) < needed:
                return False
        return True

    def touches(self, mask: int, name: str) -> bool:
        """Does the set contain a NUMA node that has nothing left of this resource?"""
        return bool(mask & self.offers.lacking[name])

    def score(self, mask: int) -> int:
        """How the configured strategy ranks the set: by what its members hold together."""
        scoring = self.need.scoring
        if scoring is None:
            return 0
        if self._scored is None:
            totals, free, wanted = self.offers.accounts.total, self.offers.free, self.need.weighed
            self._scored = [
                (weight, wanted.get(name, 0), totals[name], free[name])
                for name, weight in scoring.weights.items()
                if name in totals and counts(name, wanted)
            ]
        positions = [self.position[numa] for numa in numa_ids(mask)]
        parts = []
        for weight, more, total, free_here in self._scored:
            capacity = used = 0
            for at in positions:
                capacity += total[at]
                used += total[at] - free_here[at]
            if capacity:
                parts.append((weight, max(0, used) + more, capacity))
        return score_parts(scoring.type, parts)

    def _has_cpus(self, mask: int) -> bool:
        """Where amounts may promise more CPUs than can be taken, the shares must be there as CPUs."""
        need = self.need
        if need.binding is None or need.accounting is Accounting.EVERY_POD:
            return need.binding is None or CPU in self.offers.given
        positions = [self.position[numa] for numa in numa_ids(mask)]
        if CPU not in self.offers.given:
            return False
        shares = split(need.amounts[CPU], [self.offers.given[CPU][at] for at in positions], self.offers.units[CPU])
        return shares is not None and all(
            share <= MILLI * self.offers.cpus[at] for share, at in zip(shares, positions, strict=True)
        )


def _sum(sums: dict[int, int], mask: int) -> int:
    known = sums.get(mask)
    if known is None:
        low = mask & -mask
        known = sums[mask] = _sum(sums, mask ^ low) + sums[low]
    return known


def all_masks(offers: NumaOffers) -> Iterator[int]:
    """Every set, narrowest first, lexicographic in the ids within a size."""
    return chain.from_iterable(masks_of_size(offers.mask, size) for size in range(1, len(offers.numa_ids) + 1))


def hints(
    need: NumaRequest, offers: NumaOffers, exclusivity: Exclusivity = UNCONSTRAINED, closed: int = 0
) -> dict[str, list[Hint]]:
    """
    The hints of every resource, as Koordinator's resource_manager.go generates them: one per set that could hold the whole pod.

    Preferred are those of the smallest size; under Restricted those of the size that an empty node would need, or all of them by
    Koordinator's rule. A resource without hints has an empty list. Sets of several NUMA nodes of ``closed`` are left out.
    """
    if not offers.given:
        return {}
    sets = NumaSets(need, offers)
    masks = (mask for mask in all_masks(offers) if not (mask & closed and mask & (mask - 1)))
    fitting = [(mask, exclusivity.score(mask, sets.score(mask))) for mask in masks if sets.holds(mask)]
    found: dict[str, list[Hint]] = {}
    for name in offers.given:
        accepted = [(mask, points) for mask, points in fitting if not sets.touches(mask, name)]
        sizes = _preferred_sizes(sets, min((mask.bit_count() for mask, _ in accepted), default=1))
        found[name] = [Hint(mask, mask.bit_count() in sizes, score=points) for mask, points in accepted]
    return found


def _preferred_sizes(sets: NumaSets, fewest: int) -> range:
    """The sizes of the sets that a resource prefers, when ``fewest`` NUMA nodes at least are needed now."""
    need, widest = sets.need, len(sets.offers.numa_ids)
    if need.policy is not NumaPolicy.RESTRICTED:
        return range(fewest, fewest + 1)
    if need.restricted is RestrictedRule.KOORDINATOR:
        return range(1, widest + 1)
    size = fewest_if_empty(need, sets.offers)
    return range(0) if size is None else range(size, size + 1)


def _searched_sizes(sets: NumaSets) -> range:
    """The sizes at which a set that all resources prefer may be found."""
    if sets.need.policy is NumaPolicy.SINGLE_NUMA_NODE:
        return range(sets.fewest, 2)
    if sets.need.policy is NumaPolicy.RESTRICTED and sets.need.restricted is RestrictedRule.EMPTY_NODE:
        preferred_sizes = _preferred_sizes(sets, sets.fewest)
        return range(max(sets.fewest, preferred_sizes.start), preferred_sizes.stop)
    return range(sets.fewest, len(sets.offers.numa_ids) + 1)


def preferred(
    need: NumaRequest,
    offers: NumaOffers,
    exclusivity: Exclusivity,
    suits: Callable[[int], bool] | None = None,
    distances: Distances = NO_DISTANCES,
) -> Hint | None:
    """
    The merged hint that all resources prefer, or ``None`` when there is none; only sets that ``suits`` are looked at.

    Of equally narrow sets those come first that disturb no pod of the other kind (Preferred) and honour the CPU exclusive policy;
    then the closest ones where distances are published, as the LeastNUMANodes proposal has it. Of these the later one wins if it
    is a smaller number or scores higher: Koordinator's rule and order.
    """
    sets = NumaSets(need, offers)
    if not offers.given or not sets.adds_up(sets.unlacking):
        return None
    for size in _searched_sizes(sets):
        if size > 1 and not sets.adds_up(sets.unlacking & ~_closed(exclusivity)):
            return None
        fitting = [mask for mask in _of_size(sets, size, exclusivity) if suits is None or suits(mask)]
        denied = sets.lacking | exclusivity.denied(size)
        allowed = exclusivity.undisturbed([mask for mask in fitting if not mask & denied])
        allowed = _closest(honouring_first(allowed, need, offers), distances)
        best = _best(allowed, lambda mask: exclusivity.score(mask, sets.score(mask)))
        if best is not None:
            mask, points = best
            return Hint(mask, preferred=True, score=len(offers.given) * points)
        if need.policy is NumaPolicy.BEST_EFFORT and fitting and _someone_prefers(sets, fitting, offers):
            return None
    return None


def is_possible(need: NumaRequest, offers: NumaOffers) -> bool:
    """Would the policy find a set if no pod kept anybody off? The widest set that nothing strikes tells, without a search."""
    if need.policy is not NumaPolicy.BEST_EFFORT:
        return preferred(need, offers, UNCONSTRAINED) is not None
    sets = NumaSets(need, offers)
    return sets.adds_up(sets.unlacking)


def _of_size(sets: NumaSets, size: int, exclusivity: Exclusivity) -> list[int]:
    """The sets of this size that can hold the pod, in the order in which they are compared."""
    offers = sets.offers
    if comb(len(offers.numa_ids), size) <= LISTED:
        return [mask for mask in masks_of_size(offers.mask, size) if sets.holds(mask)]
    nodes = sets.unlacking & ~_closed(exclusivity) if size > 1 else sets.unlacking
    return [mask for mask in sets.found(size, nodes) if sets.holds(mask)]


def _closed(exclusivity: Exclusivity) -> int:
    """NUMA nodes that no set of several may contain."""
    return exclusivity.occupancy.single if exclusivity.wish is NumaExclusive.REQUIRED else 0


def _someone_prefers(sets: NumaSets, fitting: Iterable[int], offers: NumaOffers) -> bool:
    """From here on some resource's preferred size is passed: no wider set can be preferred by all."""
    return any(not sets.touches(mask, name) for mask in fitting for name in offers.given)


def _best(masks: Iterable[int], score_of: Callable[[int], int]) -> tuple[int, int] | None:
    best: tuple[int, int] | None = None
    for mask in masks:
        points = score_of(mask)
        if best is None or mask < best[0] or points > best[1]:
            best = mask, points
    return best


def _closest(masks: list[int], distances: Distances) -> list[int]:
    if not distances or len(masks) < 2:
        return masks
    apart = [spread(mask, distances) for mask in masks]
    nearest = min(apart)
    return [mask for mask, distance in zip(masks, apart, strict=True) if distance == nearest]


def select_numa_nodes(
    need: NumaRequest, offers: NumaOffers, exclusivity: Exclusivity = UNCONSTRAINED, distances: Distances = NO_DISTANCES
) -> Decision:
    """
    The set of NUMA nodes that the need's policy elects, and whether it admits it; the policy is not ``NONE``.

    Hint lists are made and merged only where no set is preferred by all resources and BestEffort wants an answer all the same.
    """
    rule = KOORDINATOR[need.policy]
    best = preferred(need, offers, exclusivity, distances=distances)
    if best is not None:
        return Decision(rule.settles(best, offers.mask), admitted=True)
    if offers.given and need.policy is not NumaPolicy.BEST_EFFORT:
        return Decision(Hint(None, preferred=False), admitted=False)
    closed = _closed(exclusivity)
    if len(offers.numa_ids) > WIDEST_LIST and offers.given:
        return Decision(Hint(offers.mask & ~closed, preferred=False), admitted=offers.mask != closed)
    found = hints(need, offers, exclusivity, closed)
    decision = decide_koordinator(need.policy, [found], offers.mask, exclusivity)
    mask = decision.hint.mask
    if closed and (mask is None or (mask & closed and mask & (mask - 1))):
        # BestEffort admits anything but a set that Required keeps free of pods over several NUMA nodes.
        return Decision(Hint(None, preferred=False), admitted=False)
    return decision
