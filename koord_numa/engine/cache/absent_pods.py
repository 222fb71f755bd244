"""
Pods that are bound to a kubelet-owned node and that its kubelet surely does not count, before any event of theirs has shown it.

A kubelet's check of node-wide amounts counts the pods that it has admitted and that have not ended (``GetActivePods`` in kubelet_pods.go).
Its managers let go of what a pod holds only once it is none of these, so that a topology without a pod that it would have to show proves
that the pod was refused or is gone. Of some pods it is known that they will be refused, whatever else is there (``empty_node.never_fits``).
Of others on their way that every state refuses those amounts do not count that a pod makes up for which would have to leave before
(``in_flight.py``).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from koord_numa.core.kubelet.arrivals import Arrival
from koord_numa.core.kubelet.belief import Belief
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.in_flight import not_counted, refused_ones
from koord_numa.core.kubelet.refusals import never_fits
from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.shown_pods.known_pod import KnownPod
from koord_numa.engine.cache.shown_pods.pod_sets import Reading


@dataclass(frozen=True, slots=True)
class _Told:
    """What is not counted of pods on their way (``refused_on_the_way``), in these states and with these pods."""

    states: Sequence[Hypothesis]
    of: tuple[int, Collection[str]]
    less: Mapping[str, Collection[str]]


@dataclass(slots=True)
class AbsentPods:
    """
    One node. ``listed`` are the uids that the last topology with a fingerprint surely showed, ``unlisted`` those that topologies prove not
    to be counted, ``hopeless`` those of pods on their way that it will refuse.
    """

    listed: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    hopeless: frozenset[str] = frozenset()
    _told: _Told | None = field(default=None, repr=False, compare=False)

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

    def read_checkpoint(self, gone: frozenset[str]) -> None:
        """Note the pods that the kubelet's own state names as rejected or ended."""
        self.listed, self.unlisted = frozenset(), gone

    def foresee(self, pods: Iterable[KnownPod], node: KubeletNode, *, keeps_cores: bool) -> list[KnownPod]:
        """Which of the pods are on their way and sure to be refused (``never_fits``). Returns those of which that was not known."""
        asked = list(pods)
        sure = [known for known in asked if _is_hopeless(known, node, keeps_cores=keeps_cores)]
        if not (sure or self.hopeless):
            return sure  # as nearly always
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

    def left_out(self, ledger: Ledger, belief: Belief | None) -> Ledger:
        """
        The ledger without them, and without what pods on their way ask for that ``belief`` tells not to be counted; itself where it has
        none of that.
        """
        refused = refused_ones(belief) if belief is not None and belief.arrivals else []
        if not (refused or self.unlisted or self.hopeless):
            return ledger  # as of nearly every node, with every change of it
        away = self.unlisted | self.hopeless
        less = {} if belief is None or not refused else self._not_counted(ledger, belief, refused, away)
        if not less and away.isdisjoint(ledger.holdings):
            return ledger
        return Ledger.of(_without(it, less.get(it.pod.uid, ())) for it in ledger if it.pod.uid not in away)

    def _not_counted(
        self, ledger: Ledger, belief: Belief, refused: Sequence[Arrival], away: Collection[str]
    ) -> Mapping[str, Collection[str]]:
        # By identity: a belief writes new lists where anything is new.
        if self._told is None or self._told.states is not belief.hypotheses or self._told.of != (ledger.revision, away):
            asked = {it.pod.uid: it.amounts for it in ledger if it.pod.uid not in away}
            self._told = _Told(belief.hypotheses, (ledger.revision, away), not_counted(belief, refused, asked))
        return self._told.less


def _without(holding: Holding, names: Collection[str]) -> Holding:
    """The holding without anything of these resources."""
    if not names:
        return holding
    return replace(holding, amounts={name: amount for name, amount in holding.amounts.items() if name not in names})


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
