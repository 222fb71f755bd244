"""
Pods that are bound to a kubelet-owned node and that its kubelet surely does not count, before any event of theirs has shown it.

A kubelet's check of node-wide amounts counts the pods that it has admitted and that have not ended (``GetActivePods`` in kubelet_pods.go).
Its managers let go of what a pod holds only once it is none of these, so that a topology without a pod that it would have to show proves
that the pod was refused or is gone.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from koord_numa.core.state.ledger import Ledger
from koord_numa.engine.cache.pod_sets import KnownPod, Reading


@dataclass(slots=True)
class AbsentPods:
    """
    One node. ``listed`` are the uids that the last topology with a fingerprint surely showed, ``unlisted`` those that topologies prove not
    to be counted.
    """

    listed: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()

    def read(self, reading: Reading, pods: Mapping[str, KnownPod]) -> None:
        """A topology came. ``pods`` are all that it may show, in the order in which they became known."""
        if reading.shown is None:
            return
        sure = reading.shown - reading.namesakes
        missing = (uid for uid in reading.counted if uid not in reading.shown)
        news = (uid for uid in missing if uid in self.listed or _is_before(uid, sure, pods))
        self.unlisted = frozenset({uid for uid in self.unlisted if uid in pods} - reading.shown).union(news)
        self.listed = sure

    def forget(self, uid: str) -> None:
        """The pod was bound, perhaps once more after a bind that had failed: what was known is of the time before."""
        self.unlisted -= {uid}
        self.listed -= {uid}

    def left_out(self, ledger: Ledger) -> Ledger:
        """The ledger without them; itself where it has none of them."""
        if not self.unlisted or self.unlisted.isdisjoint(ledger.holdings):
            return ledger
        return Ledger.of(held for held in ledger if held.pod.uid not in self.unlisted)


def _is_before(uid: str, shown: Collection[str], pods: Mapping[str, KnownPod]) -> bool:
    """Did the pod reach the kubelet before one that is shown? Kubelets admit pods in the order of their binds."""
    known, later = pods[uid], False
    for other in pods.values():
        if other is known:
            later = True
        elif other.uid not in shown or known.unordered or other.unordered:
            continue
        elif not other.found:
            if known.found or later:
                return True
        # The starts of pods that ran when they were found tell their order, in whole seconds.
        elif known.found and known.started and other.started and 0 < known.began < other.began:
            return True
    return False
