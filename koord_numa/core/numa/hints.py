"""
What resources say about NUMA nodes: hints, the answers of their providers, and one line a resource for the merge.

It holds words and translations only; which hint wins is the merge's business, who is admitted the policies'.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final, NamedTuple

from koord_numa.core.numa.counted import Counted


class Hint(NamedTuple):
    """
    A set of NUMA nodes that could serve one resource, or the merged set for all of them.

    ``mask`` has bit i for NUMA node i; ``None`` is "any". ``preferred``: no smaller set could ever serve it. Koordinator adds
    ``unsatisfied`` (the request would not wholly fit) and ``score`` (decides between equally narrow sets).
    """

    mask: int | None
    preferred: bool
    unsatisfied: bool = False
    score: int = 0


Hints = Sequence[Hint] | Counted | None
"""Of one resource: ``None`` = no preference, nothing in it = impossible on this node, ``Counted`` = a list by arithmetic."""

Answer = Mapping[str, Hints] | None
"""Of one provider, by resource in the order in which they are to be merged. ``None`` and ``{}`` are "nothing to say"."""

ANYWHERE: Final = Hint(None, preferred=True)
NOWHERE: Final = Hint(None, preferred=False, unsatisfied=True)


class Wish(NamedTuple):
    """One dimension of the merge: what one resource would take. ``stated`` is its provider's own answer."""

    resource: str
    takes: Sequence[Hint] | Counted
    stated: Hints

    @property
    def impossible(self) -> bool:
        """Is there no set of NUMA nodes at all that could serve it?"""
        return self.stated is not None and not self.stated


def wishes(answers: Iterable[Answer]) -> list[Wish]:
    """
    One dimension a resource, in the providers' order; a provider with nothing to say is a dimension that takes anything.

    An impossible resource takes "any, not preferred", so that best-effort can live with it. As the kubelet's
    filterProvidersHints and Koordinator's, topologymanager/policy.go.
    """
    dimensions: list[Wish] = []
    for answer in answers:
        if not answer:
            dimensions.append(Wish("", (ANYWHERE,), None))
            continue
        for resource, stated in answer.items():
            takes = (ANYWHERE,) if stated is None else stated or (NOWHERE,)
            dimensions.append(Wish(resource, takes, stated))
    return dimensions


def impossible_resources(dimensions: Iterable[Wish]) -> list[str]:
    """The resources that no set of NUMA nodes can serve, by name."""
    return sorted(wish.resource for wish in dimensions if wish.impossible)


def mask_of(numa_ids: Iterable[int]) -> int:
    """The set of these NUMA nodes."""
    mask = 0
    for numa in numa_ids:
        mask |= 1 << numa
    return mask


def numa_ids(mask: int) -> Iterator[int]:
    """The NUMA nodes of a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@lru_cache(maxsize=1024)
def masks_of_size(nodes: int, size: int) -> tuple[int, ...]:
    """All sets of ``size`` out of ``nodes``, lexicographic in the ascending ids: {0,1} {0,2} {1,2}. As bitmask.IterateBitMasks."""
    return tuple(sum(bits) for bits in combinations([1 << numa for numa in numa_ids(nodes)], size))


def hints_by_list(masks: Iterable[int], fewest: int) -> list[Hint]:
    """Hints on these masks; those of ``fewest`` NUMA nodes are preferred."""
    return [Hint(mask, mask.bit_count() == fewest) for mask in masks]
