"""
Pods that a topology may show instead of other pods of the same name: fingerprints use names, and controllers reuse names.

A topology shows the pods that ran at one moment. A pod may run from its bind until it is observed as gone. A pod with a unique name limits
the possible moments: pods that left before its bind are not shown. Pods with reused names do not limit the moments, because for each of
them the topology may show the departed pod instead.

Example: pods a and b left at 10, and pods of the same names were bound at 20 and 30. A late topology of {a, b} may show the first two. If
pod c with a unique name was bound at 25, a topology of {a, b, c} shows the second two, because the first two had left by then.
"""

from collections.abc import Iterable
from itertools import islice, product
from math import inf
from typing import Final

from koord_numa.engine.cache.shown_pods.known_pod import KnownPod

MOST_WAYS: Final = 64
"""Maximum sets of pods with the same names that are distinguished."""


def ways_to_show(shown: Iterable[KnownPod], pods: Iterable[KnownPod], oldest: float = -inf) -> list[frozenset[str]]:
    """
    Return all sets of UIDs with the names of ``shown`` that a topology created at ``oldest`` or later may show.

    The first set is ``shown`` itself. The others contain departed pods of the same names. Return no set if there are more than
    ``MOST_WAYS``. ``pods`` are all known pods, including departed pods.
    """
    departed: dict[tuple[str, str], list[KnownPod]] = {}
    for known in pods:
        if known.left:
            departed.setdefault((known.namespace, known.name), []).append(known)
    first = [*shown]
    ways = dict.fromkeys([frozenset(known.uid for known in first)])
    if not departed:  # the usual case
        return [*ways]
    begin, end = oldest, inf  # interval in which the topology was created, by the pods that it certainly shows
    sure: set[str] = set()
    unsure: list[list[KnownPod]] = []
    for known in first:
        same = [known, *(other for other in departed.get((known.namespace, known.name), ()) if other is not known)]
        if len(same) > 1:
            unsure.append(same)
        else:
            sure.add(known.uid)
            begin, end = max(begin, _begin(known)), min(end, _end(known))
    # Pods that run together at some moment also run together when the last of them is bound.
    for moment in sorted({begin, *(_begin(known) for same in unsure for known in same)}):
        if not begin <= moment <= end:
            continue
        there = [[known.uid for known in same if _begin(known) <= moment <= _end(known)] for same in unsure]
        ways.update((way.union(sure), None) for way in islice(map(frozenset, product(*there)), MOST_WAYS + 1))
        if len(ways) > MOST_WAYS:
            return []
    return [*ways]


def _begin(known: KnownPod) -> float:
    """Return the earliest time at which the pod may run; unbounded if its bind was not observed."""
    return -inf if known.found or known.unordered else known.bound


def _end(known: KnownPod) -> float:
    return known.left_at if known.left else inf
