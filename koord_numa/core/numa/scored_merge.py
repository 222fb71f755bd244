"""
Koordinator's merge: as the kubelet's, but hints carry scores, and the answer depends on the order of the lists.

Theory. Koordinator walks every combination of one hint per resource, the last resource fastest. A candidate replaces the
best so far if it is preferred and the best is not; else if it is narrower; else, at equal size, if its mask is a smaller
number *or* its score is higher. So among the narrowest candidates of the better class the winner is the first one that no
later candidate beats: whatever stood before it is beaten by it or would itself be such a one. A value (mask, score) wins
if its last occurrence comes after the last occurrence of every smaller mask and of every higher score. Last occurrences
need no walk: a hint equal to the merged mask adds its score, wider ones add nothing, and once one hint equals it, all
others only have to contain it, so each takes its last place in its list. Only a mask met by wider hints alone is searched.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from koord_numa.core.numa.hints import ANYWHERE, Hint
from koord_numa.core.numa.merge import narrowest, preferred_masks
from koord_numa.core.numa.reachable import reachable_masks

Place = tuple[int, ...]
"""A combination: the position of the hint taken from each list. Later combinations compare greater."""


class Option(NamedTuple):
    """One hint seen from the mask that is to come out: what it leaves of the NUMA nodes and what it adds to the score."""

    place: int
    mask: int
    adds: int
    equal: bool
    satisfied: bool


def merge_scored(takes: Sequence[Sequence[Hint]], nodes: int, allows: Callable[[int], bool]) -> Hint:
    """
    The best hint for all resources together; sets that ``allows`` denies (exclusivity) can only win as not preferred.

    Masks lie within ``nodes``, scores are not negative. When nothing can be merged the answer is all NUMA nodes, not
    preferred. As Koordinator's topologymanager/policy.go, mergeFilteredHints.
    """
    takes = takes or [(ANYWHERE,)]  # nobody was asked
    preferred = narrowest([mask for mask in preferred_masks(takes, nodes) if allows(mask)])
    if preferred:
        level = {None, *preferred}
        lists = [[hint for hint in hints if hint.preferred and hint.mask in level] for hints in takes]
        return _last_standing(lists, nodes, preferred)._replace(preferred=True)
    level_masks = narrowest(reachable_masks(takes, nodes))
    first = Hint(nodes, preferred=False)  # what the walk starts with
    if not level_masks:
        return first
    best = _last_standing(takes, nodes, level_masks)
    return best if best.mask != nodes or best.score > 0 else first


def _last_standing(lists: Sequence[Sequence[Hint]], nodes: int, level: Sequence[int]) -> Hint:
    """Of the combinations that merge into one of ``level`` (ascending, equally narrow) the first that no later one beats."""
    lasts = {mask: _last_by_score(lists, mask) for mask in level}
    smaller: Place = ()  # the last occurrence of a smaller mask
    for mask in level:
        last = lasts[mask]
        for score in sorted(last, reverse=True):
            beaten = max(smaller, _last_of_higher(lasts, score))
            if last[score] > beaten:
                return _first_after(beaten, lists, nodes, Hint(mask, preferred=False, score=score))
        wide = _last_of_wider(lists, nodes, mask)
        beaten = max(smaller, _last_of_higher(lasts, 0))
        if wide > beaten:
            return _first_after(beaten, lists, nodes, Hint(mask, preferred=False))
        smaller = max(smaller, wide, *last.values())
    raise AssertionError("the last of all combinations is beaten by none")


def _last_by_score(lists: Sequence[Sequence[Hint]], mask: int) -> dict[int, Place]:
    """The last combination for each score that the mask can have with at least one hint equal to it."""
    found: dict[tuple[bool, int], Place] = {(False, 0): ()}
    for hints in lists:
        adds: dict[tuple[bool, int], int] = {}
        for index, hint in enumerate(hints):
            if hint[0] == mask:
                adds[True, hint[3]] = index
        wider = _last_wider(hints, mask)
        if wider >= 0:
            adds[False, 0] = wider
        longer: dict[tuple[bool, int], Place] = {}
        for (equal, score), place in found.items():
            for (equals, more), index in adds.items():
                key, candidate = (equal or equals, score + more), (*place, index)
                if candidate > longer.get(key, ()):
                    longer[key] = candidate
        found = longer
    return {score: place for (equal, score), place in found.items() if equal}


def _last_wider(hints: Sequence[Hint], mask: int) -> int:
    for index in range(len(hints) - 1, -1, -1):
        wider = hints[index][0]
        if wider is None or (wider & mask == mask and wider != mask):
            return index
    return -1


def _last_of_higher(lasts: Mapping[int, Mapping[int, Place]], score: int) -> Place:
    return max((place for last in lasts.values() for other, place in last.items() if other > score), default=())


def _last_of_wider(lists: Sequence[Sequence[Hint]], nodes: int, mask: int) -> Place:
    """The last combination of wider hints alone that merges into the mask; ``()`` when there is none."""
    options = [[option for option in _options(hints, nodes, mask) if not option.equal][::-1] for hints in lists]
    return tuple(option.place for option in _Walk(options, mask, score=0).first(nodes, ()))


def _first_after(after: Place, lists: Sequence[Sequence[Hint]], nodes: int, best: Hint) -> Hint:
    """Its first occurrence after that place decides whether the winner is satisfied: equal candidates do not replace it."""
    mask = nodes if best.mask is None else best.mask
    options = [_options(hints, nodes, mask) for hints in lists]
    chosen = _Walk(options, mask, best.score).first(nodes, after)
    return best._replace(unsatisfied=not all(option.satisfied for option in chosen))


def _options(hints: Sequence[Hint], nodes: int, mask: int) -> list[Option]:
    options = []
    for index, (has, _, unsatisfied, score) in enumerate(hints):
        if has is None:
            options.append(Option(index, nodes, 0, equal=False, satisfied=not unsatisfied))
        elif has == mask:
            options.append(Option(index, has, score, equal=True, satisfied=not unsatisfied))
        elif has & mask == mask:
            options.append(Option(index, has, 0, equal=False, satisfied=False))
    return options


class _Walk:
    """Depth first through the options of all lists for the first combination that merges into ``mask`` with ``score``."""

    def __init__(self, options: Sequence[Sequence[Option]], mask: int, score: int) -> None:
        self.options, self.mask, self.score = options, mask, score
        self.dead: set[tuple[int, int, int]] = set()  # (list, intersection so far, score so far) that lead nowhere
        self.rest = [-1]  # what remains if every option from this list on were taken
        for choices in reversed(options):
            common = self.rest[-1]
            for option in choices:
                common &= option.mask
            self.rest.append(common)
        self.rest.reverse()

    def first(self, nodes: int, after: Place) -> list[Option]:
        """In the order of the options, and later than ``after`` when that is not empty; nothing if there is none."""
        return self._descend(0, nodes, 0, after) or []

    def _descend(self, at: int, merged: int, score: int, after: Place) -> list[Option] | None:
        if at == len(self.options):
            return [] if merged == self.mask and score == self.score and not after else None
        if merged & self.rest[at] != self.mask or (not after and (at, merged, score) in self.dead):
            return None
        for option in self.options[at]:
            bound: Place = ()
            if after:
                if option.place < after[0]:
                    continue
                # The last list has to go beyond the place, the others may stay on it.
                if option.place == after[0]:
                    if len(after) == 1:
                        continue
                    bound = after[1:]
            found = self._descend(at + 1, merged & option.mask, score + option.adds, bound)
            if found is not None:
                return [option, *found]
        if not after:
            self.dead.add((at, merged, score))
        return None
