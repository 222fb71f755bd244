"""
Which pods a topology may show in the place of others of the same name: a pod fingerprint is of names, and controllers give names again.

Theory. A topology is of one moment, at which a pod of every name that it shows ran. A pod ran from its bind at the earliest until it was
seen gone at the latest. The moments that are left are those at which some pod of each name may have run; where a departed pod may have run
at one of them, the topology may be from before the bind of its successor. A pod whose name no other had narrows the moments down: those
that departed before its bind are not shown. One in whose place another may be shown does so only where that other cannot be, so that two
pods that came back under the names of two departed ones say nothing of one another.

Example: pods a and b left at 10, and others of these names were bound at 20 and 30. A late topology of {a, b} may be of the first two. One
of {a, b, c} is of the second two where c, the first of its name, was bound at 25: the first a and b were gone by then.
"""

from collections.abc import Iterable
from itertools import islice, product
from math import inf
from typing import Final

from koord_numa.engine.cache.shown_pods.known_pod import KnownPod

MOST_WAYS: Final = 64
"""So many sets of pods of the same names are told apart."""


def ways_to_show(shown: Iterable[KnownPod], pods: Iterable[KnownPod], oldest: float = -inf) -> list[frozenset[str]]:
    """
    All sets of pods, by uid, of the names of ``shown`` that a topology may show that was made at ``oldest`` or later: first ``shown``
    itself, then those with departed pods of the same names. None where they are too many.

    ``pods`` are all that are known, those that left among them.
    """
    departed: dict[tuple[str, str], list[KnownPod]] = {}
    for known in pods:
        if known.left:
            departed.setdefault((known.namespace, known.name), []).append(known)
    first = [*shown]
    ways = dict.fromkeys([frozenset(known.uid for known in first)])
    if not departed:  # as nearly always
        return [*ways]
    begin, end = oldest, inf  # between which the topology was made, by the pods that it shows for sure
    sure: set[str] = set()
    unsure: list[list[KnownPod]] = []
    for known in first:
        same = [known, *(other for other in departed.get((known.namespace, known.name), ()) if other is not known)]
        if len(same) > 1:
            unsure.append(same)
        else:
            sure.add(known.uid)
            begin, end = max(begin, _begin(known)), min(end, _end(known))
    # Pods run together at some moment only if they do when the last of them comes.
    for moment in sorted({begin, *(_begin(known) for same in unsure for known in same)}):
        if not begin <= moment <= end:
            continue
        there = [[known.uid for known in same if _begin(known) <= moment <= _end(known)] for same in unsure]
        ways.update((way.union(sure), None) for way in islice(map(frozenset, product(*there)), MOST_WAYS + 1))
        if len(ways) > MOST_WAYS:
            return []
    return [*ways]


def _begin(known: KnownPod) -> float:
    """Since when it may run: what ran when it was first seen, or came unwatched, may have come at any time."""
    return -inf if known.found or known.unordered else known.bound


def _end(known: KnownPod) -> float:
    return known.left_at if known.left else inf
