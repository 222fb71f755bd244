"""
Changes that a list of all bound pods implies for nodes whose kubelets are tracked: the first list, and lists after a watch has ended.

A watch reports binds and departures in order, a list does not. If more than one change happened on a node in between, the kubelet's state
cannot be derived until a topology shows the pods.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from koord_numa.core.objects.request import Pod
from koord_numa.engine.cache.cache import Cache


@dataclass(slots=True)
class ListedChanges:
    """Changes by node: the UIDs of pods that are new in a list, and the number of added and removed pods."""

    new: dict[str, list[str]] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(
        cls, cache: Cache, listed: Iterable[Pod], contained: Callable[[Pod], AbstractContextManager[None]]
    ) -> "ListedChanges":
        """
        Compare a list with the counted pods, before the list is processed.

        Only pods count for which the kubelet of a tracked node allocates something, and on untracked nodes pods that have not started.
        ``contained`` is entered for every evaluated pod, so that a request that cannot be evaluated affects its pod only.
        """
        changes = cls()
        there = {pod.key.uid: pod for pod in listed if not pod.finished}
        for uid, pod in there.items():
            if cache.node_of.get(uid) != pod.node and not _runs_unfollowed(cache, pod):
                with contained(pod):
                    if _matters(cache, pod):
                        changes.new.setdefault(pod.node, []).append(uid)
                        changes.count[pod.node] += 1
        for uid, node in cache.node_of.items():
            if uid not in there and uid not in cache.assumed:
                pod = cache.nodes[node].pods[uid]
                if not _runs_unfollowed(cache, pod):
                    with contained(pod):
                        changes.count[node] += _matters(cache, pod)
        return changes

    def lose_order(self, cache: Cache) -> None:
        """Mark the order of new pods as unknown. Call it after the list was processed."""
        for node, uids in self.new.items():
            info = cache.nodes.get(node)
            if info is not None and self.count[node] > 1:
                info.history.lose_order([uid for uid in uids if uid in info.history.pods])
                info.touch()


def _runs_unfollowed(cache: Cache, pod: Pod) -> bool:
    """Return whether the pod runs on an untracked node, like nearly all pods of the first list. Its request is not evaluated then."""
    info = cache.nodes.get(pod.node)
    return pod.started and (info is None or info.history.belief is None)


def _matters(cache: Cache, pod: Pod) -> bool:
    info = cache.nodes.get(pod.node)
    if info is None or info.history.belief is None:
        return not pod.started  # pods that have not started are tracked from the first list on
    return info.history.is_tied(pod)
