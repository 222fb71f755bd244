"""
Pods that are bound to a kubelet-owned node and that its kubelet certainly does not count, although no event has shown that.

The kubelet checks node-wide amounts against the pods that it has admitted and that have not ended (``GetActivePods`` in kubelet_pods.go).
Its managers release the resources of a pod only when the pod is no longer active. A topology without a pod that it must show therefore
proves that the pod was rejected or is gone. Some pods are rejected whatever else the node runs (``refusals.never_fits``). A pod in flight
that every state rejects is admitted only if another pod leaves before: amounts that the other pod frees are not counted
(``in_flight.not_counted``).
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
    """Cached result of ``not_counted`` for these states, ledger revision and excluded pods. ``less`` has resource names by UID."""

    states: Sequence[Hypothesis]
    of: tuple[int, Collection[str]]
    less: Mapping[str, Collection[str]]


@dataclass(slots=True)
class AbsentPods:
    """
    Absent pods of one node, as UIDs.

    ``listed`` pods are certainly shown by the last topology with a fingerprint. ``unlisted`` pods are not counted, as topologies prove.
    ``hopeless`` pods are in flight and will be rejected.
    """

    listed: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    hopeless: frozenset[str] = frozenset()
    _told: _Told | None = field(default=None, repr=False, compare=False)

    def read(self, reading: Reading, pods: Mapping[str, KnownPod], *, young: bool = False) -> None:
        """
        Process a topology. ``pods`` are all pods that it may show, in the order in which they were first observed.

        ``young``: the topology may be older than the scheduler. Unless a pod is ``coined``, its name may then be that of an earlier pod.
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
        """Record the pods that the kubelet's checkpoint lists as rejected or ended."""
        self.listed, self.unlisted = frozenset(), gone

    def foresee(self, pods: Iterable[KnownPod], node: KubeletNode, *, keeps_cores: bool) -> list[KnownPod]:
        """Record which of the pods are in flight and certain to be rejected (``never_fits``). Return the newly recorded pods."""
        asked = list(pods)
        sure = [known for known in asked if _is_hopeless(known, node, keeps_cores=keeps_cores)]
        if not (sure or self.hopeless):
            return sure  # the usual case
        news = [known for known in sure if known.uid not in self.hopeless]
        if self.hopeless or news:
            self.hopeless = self.hopeless.difference(known.uid for known in asked).union(known.uid for known in sure)
        return news

    def forget(self, uid: str) -> None:
        """Discard the records of a pod that is bound. They are from an earlier bind that failed."""
        if uid in self.unlisted or uid in self.listed or uid in self.hopeless:  # most pods are new
            self.unlisted -= {uid}
            self.listed -= {uid}
            self.hopeless -= {uid}

    def left_out(self, ledger: Ledger, belief: Belief | None) -> Ledger:
        """
        Return the ledger without absent pods, and without amounts of pods in flight that ``belief`` proves not to be counted.

        Return the ledger itself if nothing is omitted.
        """
        refused = refused_ones(belief) if belief is not None and belief.arrivals else []
        if not (refused or self.unlisted or self.hopeless):
            return ledger  # nearly all nodes
        away = self.unlisted | self.hopeless
        less = {} if belief is None or not refused else self._not_counted(ledger, belief, refused, away)
        if not less and away.isdisjoint(ledger.holdings):
            return ledger
        return Ledger.of(_without(it, less.get(it.pod.uid, ())) for it in ledger if it.pod.uid not in away)

    def _not_counted(
        self, ledger: Ledger, belief: Belief, refused: Sequence[Arrival], away: Collection[str]
    ) -> Mapping[str, Collection[str]]:
        # By identity: a belief replaces the list when a state changes.
        if self._told is None or self._told.states is not belief.hypotheses or self._told.of != (ledger.revision, away):
            asked = {it.pod.uid: it.amounts for it in ledger if it.pod.uid not in away}
            self._told = _Told(belief.hypotheses, (ledger.revision, away), not_counted(belief, refused, asked))
        return self._told.less


def _without(holding: Holding, names: Collection[str]) -> Holding:
    """Return the holding without these resources."""
    if not names:
        return holding
    return replace(holding, amounts={name: amount for name, amount in holding.amounts.items() if name not in names})


def _is_hopeless(known: KnownPod, node: KubeletNode, *, keeps_cores: bool) -> bool:
    return not (known.started or known.left) and never_fits(known.request, node, keeps_cores=keeps_cores)


def _is_before(uid: str, shown: Collection[str], pods: Mapping[str, KnownPod]) -> bool:
    """Return whether the pod reached the kubelet before a shown pod. Kubelets admit pods in the order of their binds."""
    known, later = pods[uid], False
    for other in pods.values():
        if other is known:
            later = True
        elif other.uid not in shown or known.unordered or other.unordered:
            continue
        elif not other.found:
            if known.found or later:
                return True
        # Pods that ran when first observed are ordered by their start times, in whole seconds.
        elif known.found and known.started and other.started and 0 < known.began < other.began:
            return True
    return False
