"""
The kubelet's merge: one set of NUMA nodes out of what all resources would take. It knows no policy and no scores.

Theory. The kubelet walks every combination of one hint per resource and keeps the best. Its comparison is a total order,
so the winner can be looked up instead. A preferred result needs one set that every resource prefers: an intersection of
lists. Only when there is none do unequal sets matter, and then only which intersections can be reached, not by how many
combinations.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from koord_numa.core.numa.common_masks import common_masks, narrowest_common
from koord_numa.core.numa.counted import EVERY_SIZE, Counted
from koord_numa.core.numa.distances import Distances, closest
from koord_numa.core.numa.hint_providers import Takes
from koord_numa.core.numa.hints import Hint
from koord_numa.core.numa.reachable import reachable_masks


def merge(takes: Sequence[Takes], nodes: int, distances: Distances | None = None) -> Hint:
    """
    The best hint for all resources together on a machine with the NUMA nodes ``nodes``.

    With ``distances`` the closest set wins among equally narrow ones, else the numerically smallest. When nothing can be
    merged the answer is all NUMA nodes, not preferred. As topologymanager/policy.go, HintMerger.
    """
    level = narrowest(preferred_masks(takes, nodes))
    if level:
        return Hint(_choose(level, distances), preferred=True)
    reachable = reachable_masks(takes, nodes)
    if not reachable:
        return Hint(nodes, preferred=False)
    size = best_size({mask.bit_count() for mask in reachable}, max(map(_narrowest_of, takes)))
    return Hint(_choose([mask for mask in reachable if mask.bit_count() == size], distances), preferred=False)


def nothing_denied(_: int) -> int:
    """No size of set is kept away from any NUMA node."""
    return 0


def preferred_masks(takes: Sequence[Takes], nodes: int, denied: Callable[[int], int] = nothing_denied) -> set[int]:
    """
    The non-empty sets that every resource prefers alike; one that prefers "any" goes along with each of them.

    When all prefer "any", so do all NUMA nodes together. Of counted resources alone only the narrowest are looked at, and
    beyond sixteen NUMA nodes only the numerically smallest. ``denied`` names NUMA nodes that sets of a size must not contain.
    """
    listed = [{hint[0] for hint in take if hint[1]} for take in takes if not isinstance(take, Counted)]
    counted = [take for take in takes if isinstance(take, Counted)]
    strict = [masks for masks in listed if None not in masks]
    found: Iterable[int]
    if strict:
        shared = [mask for mask in set.intersection(*strict) if mask is not None]
        found = (mask for mask in shared if all(family.prefers(mask) for family in counted))
    elif counted:
        found = _preferred_by_all(counted, nodes, denied)
    else:
        found = (nodes, *(mask for masks in listed for mask in masks if mask is not None))
    return {mask & nodes for mask in found if mask & nodes and not mask & denied(mask.bit_count())}


def _preferred_by_all(counted: Sequence[Counted], nodes: int, denied: Callable[[int], int]) -> list[int]:
    sizes = {family.fewest for family in counted} - {EVERY_SIZE}
    if not sizes:
        return narrowest_common(counted, denied)
    size = sizes.pop()
    return [] if sizes else common_masks(counted, size, nodes & ~denied(size))


def narrowest(masks: Collection[int]) -> list[int]:
    """Those of the smallest size, ascending."""
    if not masks:
        return []
    size = min(mask.bit_count() for mask in masks)
    return sorted(mask for mask in masks if mask.bit_count() == size)


def _choose(level: Sequence[int], distances: Distances | None) -> int:
    return min(level) if distances is None else closest(level, distances)


def _narrowest_of(take: Takes) -> int:
    if isinstance(take, Counted):
        return take.narrowest
    return min((mask.bit_count() for mask, *_ in take if mask is not None), default=0)


def best_size(sizes: set[int], wanted: int) -> int:
    """
    Which size wins among results that are not preferred: the widest "narrowest" of all resources, else the next smaller, else wider.

    As HintMerger.compare with bestNonPreferredAffinityCount: a narrower set could not hold the most demanding resource.
    """
    if wanted in sizes:
        return wanted
    return max((size for size in sizes if size < wanted), default=min(sizes))
