"""
On which of some nodes evictions could help a class that nothing has helped yet, told for any number of classes at once.

Theory. ``may_help`` is necessary for an eviction to help, and asks what a node would have free without all pods that may go. This depends
on the class by its priority alone, so that the amounts are summed up once for each node, in the order of priorities, and each class is
compared with one of the sums. What is left out here (what a kubelet or a claim says, whose bind is not confirmed) only takes nodes away.

Example. A node of 64 CPUs has 4 free and is full of pods of the priorities 0 (20 CPUs) and 100 (40). Classes of priority 0 need no look; of
those between 1 and 100 the ones that want 24 CPUs at most do.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable
from itertools import groupby

from koord_numa.core.resources import NOTHING, ResourceList, add, total
from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.queue.request_class import RequestClass


class Freeable(ValueObject):
    """
    What one node would have free: ``free`` without the pods that are leaving, and ``sums[i]`` more without those of the priorities up to
    ``priorities[i]``, which ascend. ``leaving``: is there any that is leaving? What is kept for nominees counts as free.
    """

    free: ResourceList
    leaving: bool
    priorities: tuple[int, ...]
    sums: tuple[ResourceList, ...]

    @classmethod
    def of(cls, info: NodeInfo, evicted: Collection[str]) -> "Freeable":
        """Of this node; the uids ``evicted`` are leaving, though no event has shown it yet."""
        holdings = info.counted.holdings
        held = {uid: holding.amounts if (holding := holdings.get(uid)) else NOTHING for uid in info.pods}
        leaving = [uid for uid, pod in info.pods.items() if pod.deleting or uid in evicted]
        staying = [(pod.request.priority, held[uid]) for uid, pod in info.pods.items() if uid not in set(leaving)]
        # Their room is free already, and they may be displaced.
        staying += [(nominee.pod.request.priority, NOTHING) for nominee in info.nominees.values()]
        free = add(info.free, total(held[uid] for uid in leaving))
        priorities, sums, more = [], [], NOTHING
        for priority, found in groupby(sorted(staying, key=_priority), key=_priority):
            more = add(more, total(amounts for _, amounts in found))
            priorities.append(priority)
            sums.append(more)
        return cls(free, bool(leaving), tuple(priorities), tuple(sums))

    def suffices(self, request_class: RequestClass) -> bool:
        """May it be enough for a pod of this class, and is there a pod that may go for it?"""
        lower = bisect_left(self.priorities, request_class.priority)
        if not lower and not self.leaving:
            return False
        free, more = self.free, self.sums[lower - 1] if lower else NOTHING
        return not [
            name for name, amount in request_class.amounts.items() if amount > free.get(name, 0) + more.get(name, 0)
        ]


class Glance:
    """One glance at the cluster as it is now, for any number of classes."""

    def __init__(self, cache: Cache, evicted: Collection[str]) -> None:
        self._cache = cache
        self._evicted = evicted
        self._known: dict[str, Freeable | None] = {}

    def worth_a_look(self, request_class: RequestClass, names: Iterable[str]) -> frozenset[str]:
        """Those of the nodes on which evictions may help the class."""
        return frozenset(
            [name for name in names if (found := self._of(name)) is not None and found.suffices(request_class)]
        )

    def _of(self, name: str) -> Freeable | None:
        if name not in self._known:
            info = self._cache.nodes.get(name)
            self._known[name] = None if info is None else Freeable.of(info, self._evicted)
        return self._known[name]


def _priority(found: tuple[int, ResourceList]) -> int:
    return found[0]
