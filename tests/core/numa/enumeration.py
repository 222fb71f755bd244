"""
The merges written down the long way: every combination, one comparison after the other, as the rules are told.

This is what the package must equal and must not do. Only for small machines.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product

from koord_numa.core.numa.hints import Distances, Hint, Takes
from koord_numa.core.numa.merge import compromise, preferred_hint

Combination = tuple[Hint, ...]


def merge(takes: Sequence[Takes], nodes: int, distances: Distances | None = None) -> Hint:
    """The merge of the package."""
    return preferred_hint(takes, nodes, distances) or compromise(takes, nodes, distances)


def merged(hints: Combination, nodes: int) -> Hint:
    """Intersect; preferred if all hints are and all name the same set; unsatisfied and scored as Koordinator does."""
    named = [hint.mask for hint in hints if hint.mask is not None]
    mask = reduce(lambda left, right: left & right, named, nodes)
    return Hint(
        mask,
        preferred=all(hint.preferred for hint in hints) and len(set(named)) <= 1,
        unsatisfied=any(hint.unsatisfied for hint in hints)
        or (bool(named) and max(one.bit_count() for one in named) != mask.bit_count()),
        score=sum(hint.score for hint in hints if hint.mask is not None and hint.mask == mask),
    )


def candidates(lists: Sequence[Sequence[Hint]], nodes: int) -> Iterator[Hint]:
    """In the order of the walk; empty sets do not count."""
    return (hint for hint in (merged(hints, nodes) for hints in product(*lists)) if hint.mask)


def kubelet_merge(lists: Sequence[Sequence[Hint]], nodes: int, distances: Distances | None) -> Hint:
    """The walk of the kubelet's HintMerger."""
    wanted = max(
        (min((hint.mask.bit_count() for hint in hints if hint.mask is not None), default=0) for hints in lists),
        default=0,
    )
    best: Hint | None = None
    for candidate in candidates(lists, nodes):
        if best is None or _replaces(best, candidate, wanted, distances):
            best = candidate
    return Hint(nodes, preferred=False) if best is None else Hint(best.mask, best.preferred)


def _replaces(best: Hint, candidate: Hint, wanted: int, distances: Distances | None) -> bool:
    if best.preferred != candidate.preferred:
        return candidate.preferred
    have, new = _bits(best), _bits(candidate)
    if best.preferred or have > wanted:
        return _better(best, candidate, distances)
    if have == wanted:
        return new == wanted and _better(best, candidate, distances)
    if new > wanted:
        return False
    if new == wanted or new > have:
        return True
    return new == have and _better(best, candidate, distances)


def _better(best: Hint, candidate: Hint, distances: Distances | None) -> bool:
    if best.mask == candidate.mask:
        return False
    if _bits(best) != _bits(candidate):
        return _bits(candidate) < _bits(best)
    if distances is not None and (have := _average(best, distances)) != (new := _average(candidate, distances)):
        return new < have
    return (candidate.mask or 0) < (best.mask or 0)


def _average(hint: Hint, distances: Distances) -> float:
    ids = [numa for numa in range(64) if (hint.mask or 0) >> numa & 1]
    return sum(distances[a, b] for a in ids for b in ids) / len(ids) ** 2


def koordinator_merge(lists: Sequence[Sequence[Hint]], nodes: int, denied: Callable[[int], int]) -> Hint:
    """The walk of Koordinator's mergeFilteredHints, with the exclusivity check on every candidate."""
    best = Hint(nodes, preferred=False)
    for candidate in candidates(lists, nodes):
        if (candidate.mask or 0) & denied(_bits(candidate)):
            candidate = candidate._replace(preferred=False)
        if candidate.preferred != best.preferred:
            best = candidate if candidate.preferred else best
        elif _bits(candidate) != _bits(best):
            best = candidate if _bits(candidate) < _bits(best) else best
        elif (candidate.mask or 0) < (best.mask or 0) or candidate.score > best.score:
            best = candidate
    return best


def _bits(hint: Hint) -> int:
    return (hint.mask or 0).bit_count()
