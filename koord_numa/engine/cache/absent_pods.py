"""
Pods that are bound to a kubelet-owned node and that its kubelet surely does not count, before any event of theirs has shown it.

A kubelet's check of node-wide amounts counts the pods that it has admitted and that have not ended (``GetActivePods`` in kubelet_pods.go).
Its managers let go of what a pod holds only once it is none of these, so that a topology without a pod that it would have to show proves
that the pod was refused or is gone. Of some pods it is known that they will be refused, whatever else is there (``empty_node.never_fits``).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from koord_numa.core.kubelet.empty_node import never_fits
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.state.ledger import Ledger
from koord_numa.engine.cache.pod_sets import KnownPod, Reading


@dataclass(slots=True)
class AbsentPods:
    """
    One node. ``listed`` are the uids that the last topology with a fingerprint surely showed, ``unlisted`` those that topologies prove not
    to be counted, ``hopeless`` those of pods on their way that it will refuse.
    """

    listed: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    hopeless: frozenset[str] = frozenset()

    def read(self, reading: Reading, pods: Mapping[str, KnownPod], *, young: bool = False) -> None:
        """
        A topology came. ``pods`` are all that it may show, in the order in which they became known.

        ``young``: it may be older than the scheduler, and show an earlier pod in the place of one whose name is not coined.
        """
        if reading.shown is None:
            return
        sure = reading.shown - reading.namesakes
        if young:
            sure = frozenset(uid for uid in sure if pods[uid].coined)
        missing = (uid for uid in reading.counted if uid not in reading.shown)
        news = (uid for uid in missing if uid in self.listed or _is_before(uid, sure, pods))
        self.unlisted = frozenset({uid for uid in self.unlisted if uid in pods} - reading.shown).union(news)
        self.listed = sure

    def foresee(self, pods: Iterable[KnownPod], node: KubeletNode, *, keeps_cores: bool) -> list[KnownPod]:
        """Which of the pods are on their way and sure to be refused (``never_fits``). Returns those of which that was not known."""
        asked = list(pods)
        sure = [known for known in asked if _is_hopeless(known, node, keeps_cores=keeps_cores)]
        news = [known for known in sure if known.uid not in self.hopeless]
        if self.hopeless or news:
            self.hopeless = self.hopeless.difference(known.uid for known in asked).union(known.uid for known in sure)
        return news

    def forget(self, uid: str) -> None:
        """The pod was bound, perhaps once more after a bind that had failed: what was known is of the time before."""
        if uid in self.unlisted or uid in self.listed or uid in self.hopeless:  # most pods are new
            self.unlisted -= {uid}
            self.listed -= {uid}
            self.hopeless -= {uid}

    def left_out(self, ledger: Ledger) -> Ledger:
        """The ledger without them; itself where it has none of them."""
        if not (self.unlisted or self.hopeless):
            return ledger
        away = self.unlisted | self.hopeless
        return ledger if away.isdisjoint(ledger.holdings) else Ledger.of(it for it in ledger if it.pod.uid not in away)


def _is_hopeless(known: KnownPod, node: KubeletNode, *, keeps_cores: bool) -> bool:
    return not (known.started or known.left) and never_fits(known.request, node, keeps_cores=keeps_cores)


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
