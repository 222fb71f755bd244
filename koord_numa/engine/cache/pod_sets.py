"""Sets of pods that may have run on a node at one moment, likeliest first: those that a published fingerprint is compared with."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import combinations

from koord_numa.core.objects.request import PodRequest


@dataclass(slots=True)
class KnownPod:
    """
    A pod of this node. ``bound`` is when it was first counted and ``left_at`` when it was seen gone, in seconds of the cache's clock.

    ``started``: its node has reported it as running. ``left``: it is gone, and the node's topology may not show that yet.
    """

    uid: str
    namespace: str
    name: str
    request: PodRequest
    bound: float
    started: bool = False
    left: bool = False
    left_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The first so many pods in the order of their binds. ``open`` are uids of pods of which it is open whether they had left."""

    there: list[KnownPod]
    open: list[str]

    @classmethod
    def of(cls, pods: list[KnownPod]) -> "_Prefix":
        """Who was seen gone before the last of these was bound cannot have run beside it."""
        last = max((known.bound for known in pods), default=0.0)
        there = [known for known in pods if not known.left or known.left_at >= last]
        leaving = sorted((known for known in there if known.left), key=lambda known: known.left_at)
        return cls(there, [known.uid for known in leaving])

    def without(self, away: Collection[str]) -> list[str]:
        """The uids of those that are there."""
        return [known.uid for known in self.there if known.uid not in away]


def _in_order(left: list[str]) -> Iterator[set[str]]:
    """Pods left about in the order in which they were seen gone."""
    for first in range(len(left), -1, -1):
        yield set(left[:first])


def _in_any_order(left: list[str]) -> Iterator[set[str]]:
    for size in range(1, len(left)):
        for chosen in combinations(left, size):
            # Those that ``_in_order`` has yielded already are skipped.
            if list(chosen) != left[:size]:
                yield set(chosen)


def possible_sets(old: list[KnownPod], new: list[KnownPod]) -> Iterator[list[str]]:
    """The uids of each set: all of ``old`` and the first so many of ``new``, in the order of their binds, less some that left."""
    prefixes = [_Prefix.of([*old, *new[:end]]) for end in range(len(new), -1, -1)]
    # In order of likelihood: all prefixes with departures in order, then those in any order, then with one pod unseen.
    for ways in (_in_order, _in_any_order):
        for prefix in prefixes:
            yield from (prefix.without(away) for away in ways(prefix.open))
    for prefix in prefixes:
        for unseen in prefix.there:
            if not unseen.left:
                yield from (prefix.without({*away, unseen.uid}) for away in _in_order(prefix.open))
