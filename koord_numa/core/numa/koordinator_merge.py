"""
Koordinator's merge: as the kubelet's, but hints have scores, and the result depends on the order of the lists.

Koordinator iterates over every combination of one hint per resource, the last resource fastest. A candidate replaces the
best so far if it is preferred and the best is not, else if it is narrower, else, at equal size, if its mask is a smaller
number *or* its score is higher. So a value (mask, score) wins if its last occurrence comes after the last occurrence of
every smaller mask and of every higher score. Last occurrences need no iteration: a hint equal to the merged mask adds its
score, wider ones add nothing, and once one hint equals it, all others only have to contain it, so each takes its last
place in its list. Only masks that result from wider hints alone need a search.

Example. CPU has the hints {0} (score 10), {1} (score 30), memory has {0} (20), {1} (5). None is preferred. Combinations in
order: {0}{0} with mask {0} and score 30, {0}{1} and {1}{0} with an empty mask, {1}{1} with mask {1} and score 35. The last
has a larger mask but a higher score, so NUMA node 1 wins. With a score of 25, {0} would win.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from koord_numa.core.numa.hints import ANYWHERE, Hint, Takes, hints_of
from koord_numa.core.numa.kubelet_merge import narrowest, nothing_denied, preferred_masks, reachable_masks
from koord_numa.core.value_objects import ValueObject

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
    preferred. As mergeFilteredHints in Koordinator's topologymanager/policy.go.
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
        wide = _last_of_wider(lists, nodes, mask)
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
    def of(cls, hints: Sequence[Hint], size: int) -> "Occurrences":
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


def _last_of_wider(lists: Sequence[Sequence[Hint]], nodes: int, mask: int) -> Place:
    """Return the last combination of wider hints alone that merges into the mask, ``()`` if there is none."""
    # Reversed, so that the first combination found is the last one of the iteration.
    options = [[option for option in _options(hints, nodes, mask) if not option.equal][::-1] for hints in lists]
    return tuple(option.place for option in _Walk(options, mask, score=0).first(nodes, ()))


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
    """Depth-first search in the options of all lists for the first combination with this ``mask`` and ``score``."""

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
