"""
What a list of all bound pods changes on the nodes whose kubelets are followed: the first one, and those after a watch has ended.

A watch tells binds and departures in their order; a list tells pods by name. Where more than one thing happened on a node in between, the
kubelet's state does not follow from it any more, until a topology shows the pods.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from koord_numa.core.objects.request import Pod
from koord_numa.engine.cache.cache import Cache


@dataclass(slots=True)
class ListedChanges:
    """By node: the uids of pods that are new in a list, and how many pods came and left."""

    new: dict[str, list[str]] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(
        cls, cache: Cache, listed: Iterable[Pod], contained: Callable[[Pod], AbstractContextManager[None]]
    ) -> "ListedChanges":
        """
        Against what is counted before the list is told. Only pods that the kubelet of a followed node gives something matter, and on
        nodes that are not followed yet those on their way.

        ``contained`` is entered for every pod that is looked at: one whose request cannot be worked out costs itself only.
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
        """After the list was told."""
        for node, uids in self.new.items():
            info = cache.nodes.get(node)
            if info is not None and self.count[node] > 1:
                info.history.lose_order([uid for uid in uids if uid in info.history.pods])
                info.touch()


def _runs_unfollowed(cache: Cache, pod: Pod) -> bool:
    """Does the pod run on a node that is not followed yet, as nearly all of the first list? Nothing of its request is asked then."""
    info = cache.nodes.get(pod.node)
    return pod.started and (info is None or info.history.belief is None)


def _matters(cache: Cache, pod: Pod) -> bool:
    info = cache.nodes.get(pod.node)
    if info is None or info.history.belief is None:
        return not pod.started  # pods on their way are to be followed from the first list on
    return info.history.is_tied(pod)
