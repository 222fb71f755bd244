"""
The kubelet's merge of the hints of all resources to a set of NUMA nodes. Independent of policies and scores.

The kubelet iterates over every combination of one hint per resource and keeps the best. Its comparison is a total
order, so the winner can be looked up. A preferred result needs a set that every resource prefers: an intersection of
lists. Only without such a set, different sets are combined, and then only the possible intersections matter, not the
number of their combinations.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from koord_numa.core.numa.distances import Distances, closest
from koord_numa.core.numa.hint_providers import Takes
from koord_numa.core.numa.hint_rule import HintRule
from koord_numa.core.numa.hints import Hint
from koord_numa.core.numa.reachable import reachable_masks


def merge(takes: Sequence[Takes], nodes: int, distances: Distances | None = None) -> Hint:
    """
    Return the best hint for all resources on a machine with the NUMA nodes ``nodes``.

    With ``distances``, the closest of equally narrow sets wins, else the numerically smallest. As HintMerger in
    topologymanager/policy.go.
    """
    # Most machines have a set that all resources prefer, and the look-up is much cheaper than all intersections.
    return preferred_hint(takes, nodes, distances) or compromise(takes, nodes, distances)


def preferred_hint(takes: Sequence[Takes], nodes: int, distances: Distances | None = None) -> Hint | None:
    """Return the merged hint if a set of NUMA nodes is preferred by every resource, else ``None``."""
    level = narrowest(preferred_masks(takes, nodes))
    return Hint(_choose(level, distances), preferred=True) if level else None


def preferred_by_rules(rules: Sequence[HintRule], widest: int, distances: Distances | None = None) -> Hint | None:
    """Return ``preferred_hint`` if every resource has a rule, for sets of up to ``widest`` NUMA nodes. Lists only the first rule."""
    first, others = rules[0], rules[1:]
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
