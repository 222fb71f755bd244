"""
Merge the hints of all resources to a set of NUMA nodes, independent of policies: the kubelet's rule and Koordinator's.

Both iterate over every combination of one hint per resource and keep the best. The kubelet's comparison is a total order,
so the winner can be looked up. A preferred result needs a set that every resource prefers: an intersection of lists. Only
without such a set, different sets are combined, and then only the possible intersections matter, not the number of their
combinations. Koordinator's hints have scores, and its result depends on the order of the lists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from koord_numa.core.numa.hints import (
    ANYWHERE,
    WIDEST_TABLE,
    Distances,
    Hint,
    HintRule,
    Takes,
    closest,
    hints_of,
    mask_of,
    numa_ids,
)
from koord_numa.core.value_objects import ValueObject

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Merged sets that are possible if one hint is taken of every resource.
#
# A merged set is the intersection of one set of every resource. The number of combinations is the product of the lists'
# lengths, but there are at most 2^n sets. Each list is a 0/1 array over all sets. Every entry is replaced by the sum over
# its supersets, the arrays are multiplied by entry, and the sums are undone. The result is the number of combinations
# with this intersection, for every set: n·2^n additions per resource, regardless of the lists' lengths. Below
# ``NARROWEST_TABLE`` and above ``WIDEST_TABLE`` NUMA nodes, sets are intersected pair by pair, without duplicates.
Counts: TypeAlias = "NDArray[np.int64]"

NARROWEST_TABLE: Final = 6
"""Minimum NUMA nodes for a table instead of pairs of sets. At 4 NUMA nodes a table takes 220 microseconds and pairs take 26."""

WIDEST_MATRIX: Final = 8
"""Maximum NUMA nodes for sums as a product of matrices."""

_EXACT_FLOAT: Final = 2.0**44
"""Maximum combinations for which sums of counts are exact in floats."""

_EXACT: Final = 2**62
"""Upper bound of counts of combinations. Larger counts are reduced to 0 and 1 in between."""


def reachable_masks(takes: Sequence[Takes], nodes: int) -> list[int]:
    """
    Return every non-empty merged set within ``nodes``, ascending.

    Uses a table from ``NARROWEST_TABLE`` to ``WIDEST_TABLE`` NUMA nodes, else intersects the sets of the lists pair by
    pair.
    """
    ids = numa_ids(nodes)
    if NARROWEST_TABLE <= len(ids) <= WIDEST_TABLE:
        return _by_table(takes, ids)
    found = {nodes}
    for dimension in takes:
        # Without duplicates after each resource: at most 2^n sets, regardless of the number of combinations.
        masks = listed_masks(hints_of(dimension), nodes)
        found = {have & mask for have in found for mask in masks}
    return sorted(found - {0})


def listed_masks(hints: Iterable[Hint], nodes: int) -> set[int]:
    """Return the sets that these hints leave of ``nodes``. "Any" leaves all."""
    return {nodes if hint[0] is None else nodes & hint[0] for hint in hints}


def _by_matrix(takes: Sequence[Takes], ids: tuple[int, ...]) -> list[int] | None:
    """
    Return the result of ``_by_table``, with all sums in one matrix product. ``None`` if counts exceed the exact floats.

    At 8 NUMA nodes a table takes 250 microseconds and matrices take 70.
    """
    import numpy as np

    sums, signs = _matrices(len(ids))
    tables: list[Counts] = []
    for place, dimension in enumerate(takes):
        # The memory manager gives one rule for all its resources.
        tables.append(tables[-1] if place and dimension is takes[place - 1] else _table(dimension, ids))
    flags = np.array(tables, dtype=np.float64)
    if float(np.prod(np.maximum(flags.sum(axis=1), 1.0))) > _EXACT_FLOAT:
        return None
    counts = (flags @ sums).prod(axis=0) @ signs
    found: list[int] = np.flatnonzero(counts[1:] > 0.5).tolist()
    return [mask + 1 for mask in found]


@lru_cache(maxsize=WIDEST_MATRIX + 1)
def _matrices(nodes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the matrix that sums over supersets, and its inverse."""
    import numpy as np

    sums, signs = np.ones((1, 1)), np.ones((1, 1))
    for _ in range(nodes):
        sums = np.block([[sums, np.zeros_like(sums)], [sums, sums]])
        signs = np.block([[signs, np.zeros_like(signs)], [-signs, signs]])
    return sums, signs


def _by_table(takes: Sequence[Takes], ids: tuple[int, ...]) -> list[int]:
    import numpy as np

    if takes and len(ids) <= WIDEST_MATRIX and ids == tuple(range(len(ids))):
        found_by_matrix = _by_matrix(takes, ids)
        if found_by_matrix is not None:
            return found_by_matrix
    total: Counts | None = None
    combinations = 1
    last: Takes | None = None
    for dimension in takes:
        # The memory manager gives one rule for all its resources.
        if dimension is not last:
            sets = _table(dimension, ids)
            longest = int(sets.sum())
            sums = _sum_over_supersets(sets)
        last = dimension
        if total is None:
            total = sums
        else:
            # Counts multiply. Before they overflow int64 they are reduced to 0 and 1, which keeps "reachable" exact.
            if combinations * longest >= _EXACT:
                some = (_undo_sums(total) != 0).astype(np.int64)
                combinations = int(some.sum())
                total = _sum_over_supersets(some)
            total = total * sums
        combinations *= longest
    if total is None:
        return [_spread_out(2 ** len(ids) - 1, ids)]
    # Entry 0 is the empty intersection, which is no affinity.
    found: list[int] = np.flatnonzero(_undo_sums(total)[1:]).tolist()
    if ids == tuple(range(len(ids))):
        return [mask + 1 for mask in found]
    return [_spread_out(mask + 1, ids) for mask in found]


def _table(dimension: Takes, ids: tuple[int, ...]) -> Counts:
    import numpy as np

    if isinstance(dimension, HintRule) and dimension.counted is not None:
        return dimension.counted.table(ids).astype(np.int64)
    masks = listed_masks(hints_of(dimension), mask_of(ids))
    sets = np.zeros(2 ** len(ids), dtype=np.int64)
    if ids != tuple(range(len(ids))):
        masks = {sum(1 << i for i, numa in enumerate(ids) if mask >> numa & 1) for mask in masks}
    sets[list(masks)] = 1
    return sets


def _spread_out(mask: int, ids: tuple[int, ...]) -> int:
    return mask_of(ids[i] for i in numa_ids(mask))


def _sum_over_supersets(counts: Counts) -> Counts:
    sums = counts.copy()
    for half in _halves(len(sums)):
        # Axis 1 is the bit of weight ``half``: [:, 0] are the sets without it, [:, 1] those with it. Each set adds its
        # superset.
        view = sums.reshape(-1, 2, half)
        view[:, 0] += view[:, 1]
    return sums


def _undo_sums(sums: Counts) -> Counts:
    counts = sums.copy()
    for half in _halves(len(counts)):
        # The same steps with the opposite sign. Their order does not matter, since the bits are independent.
        view = counts.reshape(-1, 2, half)
        view[:, 0] -= view[:, 1]
    return counts


@lru_cache(maxsize=WIDEST_TABLE + 1)
def _halves(length: int) -> tuple[int, ...]:
    return tuple(1 << bit for bit in range(length.bit_length() - 1))


def preferred_hint(takes: Sequence[Takes], nodes: int, distances: Distances | None = None) -> Hint | None:
    """Return the merged hint if a set of NUMA nodes is preferred by every resource, else ``None``."""
    level = narrowest(preferred_masks(takes, nodes))
    return Hint(_choose(level, distances), preferred=True) if level else None


def preferred_by_rules(rules: Sequence[HintRule], widest: int, distances: Distances | None = None) -> Hint | None:
    """Return ``preferred_hint`` if every resource has a rule, for sets of up to ``widest`` NUMA nodes. Lists only one rule."""
    # A rule with ``also`` lists every set of NUMA nodes, the others list those of one size.
    first = next((rule for rule in rules if rule.also is None), rules[0])
    others = [rule for rule in rules if rule is not first]
    level: list[int] = []
    size = widest + 1
    for mask in first.preferred():
        width = mask.bit_count()
        # Narrow sets come first: sets wider than the best so far are skipped.
        if width > min(size, widest):
            break
        for rule in others:
            if not rule.prefers(mask):
                break
        else:
            level = [*level, mask] if width == size else [mask]
            size = width
            if size == 1 and distances is None:
                break  # single NUMA nodes are listed in ascending order
    return Hint(_choose(level, distances), preferred=True) if level else None


def compromise(takes: Sequence[Takes], nodes: int, distances: Distances | None = None) -> Hint:
    """
    Return the merged hint without a set that all resources prefer: the best intersection of one hint per resource.

    Its width is that of the narrowest hint of the resource that needs most NUMA nodes, as far as it is possible. If
    nothing can be merged, the result is all NUMA nodes.
    """
    # ``takes`` may have only empty intersections, such as {0} and {1}. The kubelet then returns its default affinity.
    reachable = reachable_masks(takes, nodes)
    if not reachable:
        return Hint(nodes, preferred=False)
    size = best_size({mask.bit_count() for mask in reachable}, max(map(_narrowest_of, takes), default=0))
    return Hint(_choose([mask for mask in reachable if mask.bit_count() == size], distances), preferred=False)


def nothing_denied(_: int) -> int:
    """Return the empty mask: no NUMA node is denied for any size."""
    return 0


def preferred_masks(takes: Sequence[Takes], nodes: int, denied: Callable[[int], int] = nothing_denied) -> set[int]:
    """
    Return the non-empty sets that every resource prefers. A resource that prefers "any" matches each of them.

    If all prefer "any", the result includes the set of all NUMA nodes. ``denied`` returns NUMA nodes that sets of a
    size must not contain.
    """
    listed: list[set[int | None]] = []
    rules: list[HintRule] = []
    for take in takes:
        if isinstance(take, HintRule):
            rules.append(take)
        else:
            listed.append({hint[0] for hint in take if hint[1]})
    # A list that prefers "any" restricts nothing, so it is omitted from the intersection.
    strict = [masks for masks in listed if None not in masks]
    found: Iterable[int]
    if strict:
        shared = [mask for mask in set.intersection(*strict) if mask is not None]
        found = (mask for mask in shared if _all_prefer(mask, rules))
    elif rules:
        # The memory manager gives one rule for all its resources.
        others = [rule for rule in rules if rule is not rules[0]]
        found = (mask for mask in rules[0].preferred() if _all_prefer(mask, others))
    else:
        found = (nodes, *(mask for masks in listed for mask in masks if mask is not None))
    # Masks are first restricted to the machine's NUMA nodes: hints may contain others.
    return {mask & nodes for mask in found if mask & nodes and not mask & denied(mask.bit_count())}


def _all_prefer(mask: int, rules: Sequence[HintRule]) -> bool:
    return all(rule.prefers(mask) for rule in rules)


def narrowest(masks: Collection[int]) -> list[int]:
    """Return the masks of the smallest size, ascending."""
    if not masks:
        return []
    size = min(mask.bit_count() for mask in masks)
    return sorted(mask for mask in masks if mask.bit_count() == size)


def _choose(level: Sequence[int], distances: Distances | None) -> int:
    return min(level) if distances is None else closest(level, distances)


def _narrowest_of(take: Takes) -> int:
    if isinstance(take, HintRule):
        return take.narrowest
    return min((mask.bit_count() for mask, *_ in take if mask is not None), default=0)


def best_size(sizes: set[int], wanted: int) -> int:
    """
    Return the winning size of results that are not preferred.

    ``wanted`` is the width of the widest "narrowest" hint of all resources. If it is impossible, the next smaller size
    wins, else the next wider. As HintMerger.compare with bestNonPreferredAffinityCount: a narrower set could not hold
    the most demanding resource.
    """
    if wanted in sizes:
        return wanted
    # As HintMerger.compare: above the wanted size narrower wins, below it wider does.
    return max((size for size in sizes if size < wanted), default=min(sizes))


Place = tuple[int, ...]
"""A combination: the position of the hint taken from each list. Later combinations compare greater."""


NOT_LISTED: Final[Mapping[int, int]] = {}


class Option(NamedTuple):
    """A hint relative to the merged mask: the NUMA nodes that it keeps and the score that it adds."""

    place: int
    mask: int
    adds: int
    equal: bool
    satisfied: bool


def merge_scored(takes: Sequence[Takes], nodes: int, denied: Callable[[int], int] = nothing_denied) -> Hint:
    """
    Return the best hint for all resources. A set with NUMA nodes ``denied`` for its size can only win as not preferred.

    Masks are within ``nodes``, scores are not negative. If nothing can be merged, the result is all NUMA nodes, not
    preferred. As mergeFilteredHints in Koordinator's topologymanager/policy.go, which iterates over every combination, the
    last resource fastest. A candidate replaces the best so far if it is preferred and the best is not, else if it is
    narrower, else, at equal size, if its mask is a smaller number *or* its score is higher. So a value (mask, score) wins
    if its last occurrence comes after the last occurrence of every smaller mask and of every higher score. Last
    occurrences need no iteration: a hint equal to the merged mask adds its score, wider hints add nothing, and once one
    hint equals the mask, all others only have to contain it, so each takes its last place in its list. Only masks that
    result from wider hints alone need a search.

    Example: CPU has the hints {0} (score 10), {1} (score 30), memory has {0} (20), {1} (5). None is preferred. The
    combinations are {0}{0} with mask {0} and score 30, {0}{1} and {1}{0} with an empty mask, {1}{1} with mask {1} and score
    35. The last has a larger mask but a higher score, so NUMA node 1 wins. With a score of 25, {0} would win.
    """
    takes = takes or [(ANYWHERE,)]  # no provider was asked
    preferred = narrowest(preferred_masks(takes, nodes, denied))
    if preferred:
        # Only preferred hints on a winning mask can give a preferred result, so all others are removed first.
        lists = [_preferring(take, preferred) for take in takes]
        return _last_standing(lists, nodes, preferred)._replace(preferred=True)
    first = Hint(nodes, preferred=False)  # the initial best of the iteration
    reachable = narrowest(reachable_masks(takes, nodes))
    if not reachable:
        return first
    best = _last_standing([list(hints_of(take)) for take in takes], nodes, reachable)
    # Upstream starts with "all NUMA nodes, not preferred", which only a higher score replaces.
    return best if best.mask != nodes or best.score > 0 else first


def _preferring(take: Takes, level: Sequence[int]) -> list[Hint]:
    # A hint for any NUMA nodes matches every mask, so it stays.
    wanted = {None, *level}
    return [hint for hint in hints_of(take) if hint.preferred and hint.mask in wanted]


def _last_standing(lists: Sequence[Sequence[Hint]], nodes: int, level: Sequence[int]) -> Hint:
    """Return the first combination that merges into a mask of ``level`` (ascending, equally narrow) and that no later one beats."""
    # Without scores a later mask of equal size wins only if it is smaller: the smallest mask is the result.
    if not any(hint.score for hints in lists for hint in hints):
        level = level[:1]  # nothing beats the smallest mask
    size = level[0].bit_count()
    found = [Occurrences.of(hints, size) for hints in lists]
    lasts = {mask: _last_by_score(found, mask) for mask in level}
    higher = _last_of_higher(lasts.values())
    smaller: Place = ()  # the last occurrence of a smaller mask
    for mask in level:
        last = lasts[mask]
        for score in sorted(last, reverse=True):
            beaten = max(smaller, higher[score])
            if last[score] > beaten:
                # The winner is unbeaten: its last occurrence is later than that of every smaller mask and of every
                # higher score.
                return _first_after(beaten, lists, nodes, (mask, score))
        # The last combination of wider hints alone that merges into the mask, ``()`` if there is none.
        # Reversed, so that the first combination found is the last one of the iteration.
        options = [[option for option in _options(hints, nodes, mask) if not option.equal][::-1] for hints in lists]
        wide = tuple(option.place for option in _Walk(options, mask, score=0).first(nodes, ()))
        # Masks that result only from wider hints have score 0, so every scored combination counts as higher.
        beaten = max(smaller, higher[0])
        if wide > beaten:
            return _first_after(beaten, lists, nodes, (mask, 0))
        smaller = max(smaller, wide, *last.values())
    raise AssertionError("the last of all combinations is beaten by none")


class Occurrences(ValueObject):
    """Positions of the sets of a list: sets of the merged size by mask and score, and the others from the end."""

    equal: Mapping[int, Mapping[int, int]]  # mask -> score -> last place
    others: Sequence[tuple[int, int]]  # (wider mask, or -1 for "any"; place), last first

    @classmethod
    def of(cls, hints: Sequence[Hint], size: int) -> Occurrences:
        equal: dict[int, dict[int, int]] = {}
        # By position, since this loop runs for every hint of every list.
        others: list[tuple[int, int]] = []
        for place, hint in enumerate(hints):
            mask = hint[0]
            if mask is None:
                others.append((-1, place))
                continue
            width = mask.bit_count()
            if width == size:
                equal.setdefault(mask, {})[hint[3]] = place
            elif width > size:
                # Narrower sets cannot contain a mask of ``size`` and are in neither group.
                others.append((mask, place))
        others.reverse()
        return cls(equal, others)

    def last_wider(self, mask: int) -> int | None:
        """Return the position of the last set that contains the mask and is not equal to it."""
        return next((place for wider, place in self.others if wider & mask == mask), None)


def _last_by_score(lists: Sequence[Occurrences], mask: int) -> dict[int, Place]:
    """Return the last combination for each score that the mask can have with at least one hint equal to it."""
    found: dict[tuple[bool, int], Place] = {(False, 0): ()}
    for occurrences in lists:
        adds = [(True, score, place) for score, place in occurrences.equal.get(mask, NOT_LISTED).items()]
        wider = occurrences.last_wider(mask)
        # The last place is sufficient: of equal contributions, a later place gives a later combination.
        if wider is not None:
            adds.append((False, 0, wider))
        longer: dict[tuple[bool, int], Place] = {}
        for (equal, score), places in found.items():
            for equals, more, place in adds:
                key, candidate = (equal or equals, score + more), (*places, place)
                if candidate > longer.get(key, ()):
                    longer[key] = candidate
        found = longer
    return {score: places for (equal, score), places in found.items() if equal}


def _last_of_higher(lasts: Iterable[Mapping[int, Place]]) -> dict[int, Place]:
    """Return the last combination with a higher score, for every score."""
    by_score: dict[int, Place] = {0: ()}
    for last in lasts:
        for score, place in last.items():
            by_score[score] = max(place, by_score.get(score, ()))
    higher: dict[int, Place] = {}
    # The empty tuple is less than any place: "never".
    latest: Place = ()
    for score in sorted(by_score, reverse=True):
        higher[score] = latest
        latest = max(latest, by_score[score])
    return higher


def _first_after(after: Place, lists: Sequence[Sequence[Hint]], nodes: int, value: tuple[int, int]) -> Hint:
    """Return the winner for its mask and score: the first combination after that place, since equal ones do not replace it."""
    mask, score = value
    options = [_options(hints, nodes, mask) for hints in lists]
    chosen = _Walk(options, mask, score).first(nodes, after)
    return Hint(mask, preferred=False, unsatisfied=not all(option.satisfied for option in chosen), score=score)


def _options(hints: Sequence[Hint], nodes: int, mask: int) -> list[Option]:
    options = []
    for index, (has, _, unsatisfied, score) in enumerate(hints):
        if has is None:
            options.append(Option(index, nodes, 0, equal=False, satisfied=not unsatisfied))
        elif has == mask:
            options.append(Option(index, has, score, equal=True, satisfied=not unsatisfied))
        elif has & mask == mask:
            options.append(Option(index, has, 0, equal=False, satisfied=False))
    # A wider hint that is reduced to the mask counts as unsatisfied: the resource gets fewer NUMA nodes than in its
    # hint.
    return options


class _Walk:
    """Depth-first search for the first combination of one option per list that has this ``mask`` and ``score``."""

    def __init__(self, options: Sequence[Sequence[Option]], mask: int, score: int) -> None:
        self.options, self.mask, self.score = options, mask, score
        # Only states without a lower bound are cached: with a bound, the same state may succeed later.
        self.dead: set[tuple[int, int, int]] = set()  # dead ends: (list, intersection so far, score so far)
        self.rest = [-1]  # intersection of all options from this list on
        for choices in reversed(options):
            common = self.rest[-1]
            for option in choices:
                common &= option.mask
            self.rest.append(common)
        self.rest.reverse()

    def first(self, nodes: int, after: Place) -> list[Option]:
        """Return the first combination after ``after`` (if not empty) in the order of the options, empty if there is none."""
        return self._descend(0, nodes, 0, after) or []

    def _descend(self, at: int, merged: int, score: int, after: Place) -> list[Option] | None:
        if at == len(self.options):
            return [] if merged == self.mask and score == self.score and not after else None
        # Even with all remaining options the intersection stays wider than the mask: this branch cannot reach it.
        if merged & self.rest[at] != self.mask or (not after and (at, merged, score) in self.dead):
            return None
        for option in self.options[at]:
            bound = _bound_below(option.place, after)
            if bound is None:
                continue
            found = self._descend(at + 1, merged & option.mask, score + option.adds, bound)
            if found is not None:
                return [option, *found]
        if not after:
            self.dead.add((at, merged, score))
        return None


def _bound_below(place: int, after: Place) -> Place | None:
    """
    Return the lower bound for the rest of a combination if this list takes the hint at ``place``, ``None`` if impossible.

    The last list must be after its part of ``after``, the others may be equal. After that, the rest is unbounded.
    """
    if not after or place > after[0]:
        return ()
    return after[1:] if place == after[0] and len(after) > 1 else None
