"""
What happened on one kubelet-owned node, in order: binds, verdicts, departures, topologies; and what follows for its kubelet's state.

It feeds ``core/kubelet/belief`` and finds out, by the fingerprint, which pods a topology shows. It decides nothing.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Final

from koord_numa.core.kubelet.arrivals import Arrival
from koord_numa.core.kubelet.belief import Belief
from koord_numa.core.kubelet.budget import OnTruncation
from koord_numa.core.kubelet.candidates import Arrival as Arriving
from koord_numa.core.kubelet.candidates import Candidates
from koord_numa.core.kubelet.checkpoint import exact_candidate
from koord_numa.core.kubelet.demand import SMT_ALIGNMENT, pod_demand
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.inferred_state import used_starts
from koord_numa.core.kubelet.node_config import NodeConfig, starts
from koord_numa.core.kubelet.variants import most_cpus
from koord_numa.core.kubelet.view import problem_of
from koord_numa.core.objects.kubelet_checkpoint import KubeletCheckpoint
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.engine.cache.absent_pods import AbsentPods
from koord_numa.engine.cache.kubelet_evidence import KubeletEvidence, tells_of_numa
from koord_numa.engine.cache.shown_pods.known_pod import KnownPod, order_is_known
from koord_numa.engine.cache.shown_pods.pod_sets import LastReading, Reading, has_cpus_for, is_tied, sets, tied_sets

MOST_GUESSES: Final = 64
"""So many sets of pods are compared with amounts where no fingerprint tells."""

ORDER_UNKNOWN: Final = "pods came in an order that is not known"

SHOWN_UNKNOWN: Final = "the node was in use when it was first seen, and which pods its topology shows is not known"

MOST_GONE: Final = 64
"""So many pods that left are remembered, in case a late topology still shows them."""


@dataclass(slots=True)
class KubeletHistory:
    """
    ``pods`` are known pods in the order of their binds, those that left among them until no topology can show them any more. ``shown``
    are the uids that the last understood topology showed for sure. ``belief`` is ``None`` until it is read. ``evidence`` is about options
    that are not published. ``now`` is when the last of all this was seen. ``young``: a topology may be older than the scheduler, and
    ``oldest`` is when the last one was made at the earliest.
    """

    pods: dict[str, KnownPod] = field(default_factory=dict)
    shown: frozenset[str] = frozenset()
    belief: Belief | None = None
    frame: NodeConfig | None = None
    absent: AbsentPods = field(default_factory=AbsentPods)  # known to be, whatever is believed
    evidence: KubeletEvidence = field(default_factory=KubeletEvidence)
    now: float = 0.0
    young: bool = False
    oldest: float = -inf
    exact: Candidates | None = None  # from the kubelet's own state, where the node agent publishes it
    _checkpoint: KubeletCheckpoint | None = None  # the one that ``exact`` begins with
    _reading: LastReading = field(default_factory=LastReading)

    def observe(self, pod: Pod, now: float) -> None:
        """A pod is bound to the node, or more is known of one that is. Times are seconds of any one clock."""
        self.now = max(self.now, now)
        known = self.pods.get(pod.key.uid)
        if known is None:
            self.pods[pod.key.uid] = known = KnownPod.of(pod, now)
            known.had_cpus = self.frame is not None and has_cpus_for(known, self.pods.values(), self.frame)
            self._reading.forget()
            self.absent.forget(known.uid)
            if self.exact is not None:
                self.exact.arrive(known.uid, known.request, now)
            if not pod.started:  # what runs was not refused
                self._foresee([known])
            if known.uid not in self.absent.hopeless and (belief := self._belief_of(known)) is not None:
                belief.arrive(known.uid, known.request, now)
            # A pod that runs has its verdict; only one on its way explores.
            if pod.explores and not pod.started:
                self.evidence.explore(known.uid, pod.explores)
        if pod.deleting and known.ending is None:
            known.ending = now
            self._reading.forget()
        if pod.started and not known.started:
            known.started, known.judged = True, now
            if self.exact is not None:
                self.exact.judge(known.uid, now, admitted=True)
            self.evidence.admitted(known.request)
            self._foresee(self.pods.values() if self.absent.hopeless else ())
            self._reading.pod_started()
            self.evidence.decided(known.uid)
            if (belief := self._belief_of(known)) is not None:
                belief.started(known.uid, now)

    def reject(self, pod: Pod, now: float) -> None:
        # Out of the history: a refused pod was never there, and no topology can show it.
        """The kubelet refused the pod, now or before this process started."""
        uid, reason = pod.key.uid, pod.reason
        known = self.pods.pop(uid, None)
        self.evidence.rejected(pod, had_cpus=known is not None and known.had_cpus)
        if known is not None and self.exact is not None:
            self.exact.judge(uid, now, admitted=False)
        if pod.reason == SMT_ALIGNMENT:
            self._foresee(self.pods.values())
        self._reading.forget()
        if known is not None and (belief := self._belief_of(known)) is not None:
            belief.rejected(uid, now, tells=tells_of_numa(known.request, reason, self.frame))

    def _foresee(self, pods: Iterable[KnownPod]) -> None:
        if self.frame is None:
            return
        for known in self.absent.foresee(pods, self.frame.node, keeps_cores=self.evidence.keeps_pairs):
            # Refused for something that is not followed, as if it had never come.
            if (belief := self._belief_of(known)) is not None:
                belief.rejected(known.uid, self.now, tells=False)

    def withdraw(self, uid: str) -> None:
        """The pod never came: its bind failed. It may be bound here later, and is new then."""
        self.evidence.decided(uid)
        known = self.pods.pop(uid, None)
        self._reading.forget()
        if known is not None and self.exact is not None:
            self.exact.withdraw(uid)
        if known is not None and (belief := self._belief_of(known)) is not None:
            belief.rejected(uid, self.now, tells=False)

    def leave(self, uid: str, now: float) -> None:
        """The pod is gone or has finished."""
        self.evidence.decided(uid)
        known = self.pods.get(uid)
        # The pod may be told gone more than once: by its phase, and by its deletion.
        if known is None or known.left:
            return
        known.left, known.left_at = True, now
        if self.exact is not None:
            self.exact.depart(uid, now)
        self._reading.forget()
        self.now = max(self.now, now)
        if (belief := self._belief_of(known)) is not None:
            belief.depart(uid, now)
        # Bounded, since a topology that never comes would keep them for ever.
        gone = [each.uid for each in self.pods.values() if each.left] if len(self.pods) > MOST_GONE else []
        for old in gone[:-MOST_GONE]:
            del self.pods[old]

    def _belief_of(self, known: KnownPod) -> Belief | None:
        """The belief, for a pod that the kubelet's managers give anything; one without any hypothesis has nothing to learn."""
        belief = self.belief
        if belief is None or self.frame is None or not (belief.hypotheses or belief.arrivals) or belief.given_up:
            return None
        return belief if is_tied(pod_demand(known.request), self.frame) else None

    def _is_followed(self, known: KnownPod, frame: NodeConfig) -> bool:
        return known.uid not in self.absent.hopeless and is_tied(pod_demand(known.request), frame)

    def reset(self) -> None:
        """The node is another one: nothing that is believed of its kubelet holds."""
        self.belief, self.frame, self.shown, self.absent = None, None, frozenset(), AbsentPods()
        self.exact, self._checkpoint = None, None

    def restarted(self) -> None:
        """The machine or its kubelet is another one: what pods have shown of it does not hold either."""
        self.reset()
        self.evidence = KubeletEvidence(
            dict(self.evidence.exploring), life=self.evidence.life, since=self.evidence.since
        )

    def publish(self, topology: NodeResourceTopology, frame: NodeConfig) -> None:
        """A topology came that differs from the last one at most in what is available, or that is the first."""
        # Another machine, configuration or device pool: states of the old one mean nothing.
        if self.frame is None or not self.frame.holds_for(topology, frame.allocatable):
            self.reset()
        self.frame = frame
        if self._read_checkpoint(topology.checkpoint, frame):
            return
        reading, belief = self._read(frame), self.belief
        self.absent.read(reading, self.pods, young=self.young)
        self._foresee(self.pods.values())
        if reading.tells and reading.shown is None:
            # Adding it to the belief would need a pod whose request is unknown.
            return  # it speaks of pods that no event has shown yet
        if belief is not None and belief.begins_again and reading.shown is not None and not reading.namesakes:
            self.belief = belief = None  # beginning again costs less than what was given up
        if belief is not None and not (belief.lost and not reading.tells):
            seen = self._report(belief, reading, topology, frame)
            if seen is not None:
                self._now_shown(frozenset(seen), reading)
                return
            if reading.tells:
                self.belief = None  # the amounts contradict everything that was believed of these pods
        if reading.shown is not None:
            self._now_shown(reading.shown, reading)
        if belief is not None and belief.lost:
            self.belief = None

    def judge_again(self) -> Reading | None:
        """
        Read the last topology again with the pods that are known now, as if it came now. ``None`` if they do not explain it.

        A topology may come before the verdicts and departures that it shows.
        """
        if self.frame is None or self.exact is not None or problem_of(self.frame.topology):
            return None
        self._reading.forget()
        reading = self._read(self.frame)
        if reading.shown is None:
            return None
        if self.shown != reading.shown - reading.namesakes or self.belief is None or self.belief.lost:
            self.publish(self.frame.topology, self.frame)
        return reading

    def expire_namesakes(self, oldest: float) -> None:
        """The topology is at least as new, though none came: pods that had left by then it does not show."""
        if self.frame is not None and self._read(self.frame).namesakes:
            self.oldest = max(self.oldest, oldest)
            self._reading.forget()
            self.publish(self.frame.topology, self.frame)

    def _report(
        self, belief: Belief, reading: Reading, topology: NodeResourceTopology, frame: NodeConfig
    ) -> Collection[str] | None:
        """Hold the belief against a topology. The pods that it shows by the fingerprint, else the first set that agrees, if any."""
        guesses = islice(sets(self.pods.values(), reading.counted, self.shown), MOST_GUESSES)
        followed = tied_sets(guesses if reading.shown is None else reading.ways, self.pods, frame)
        certain = reading.shown is not None and len(followed) == 1
        return belief.report(followed, topology.zones, reading.counted.__contains__, self.now, certain=certain)

    def is_tied(self, pod: Pod) -> bool:
        """Do the kubelet's managers give the pod anything, as far as is known of them?"""
        return self.frame is None or is_tied(pod_demand(pod.request), self.frame)

    def lose_order(self, uids: Collection[str]) -> None:
        """These pods came, and others may have left, in an order that no event tells: the watch had ended."""
        for uid in uids:
            self.pods[uid].unordered = True
        if self.belief is not None and self.belief.hypotheses:
            self.belief = Belief([], overflow=ORDER_UNKNOWN)

    def had_namesake(self, pod: Pod) -> bool:
        """Has a pod with the name of this one left, so lately that a late topology may show it?"""
        name = pod.key.namespace, pod.key.name
        return any(known.left and (known.namespace, known.name) == name for known in self.pods.values())

    def read(self) -> Reading | None:
        """What the last topology says of pods; ``None`` where it is not known what a kubelet holds there."""
        return None if self.frame is None or problem_of(self.frame.topology) else self._read(self.frame)

    def _read(self, frame: NodeConfig) -> Reading:
        return self._reading.of(frame, self.pods, self.shown, self.oldest)

    def sync(self, pods: Iterable[Pod]) -> None:
        """These pods are there; those without an event before are taken to have been bound in this order."""
        # In the order of the list: the true order of their binds is not known any more.
        for pod in pods:
            if pod.key.uid not in self.pods:
                self.observe(pod, 0.0)

    def hypotheses(self, frame: NodeConfig, hidden: Collection[str]) -> list[Hypothesis]:
        """
        The states that the kubelet may be in; none where they are not known well enough.

        ``hidden`` are the uids of pods that the published amounts do not show: where nothing has been followed yet it begins there.
        """
        if self.belief is None:
            self.belief = self._begin(frame, hidden)
        return [] if self.belief.lost else self.belief.hypotheses

    def most_cpus(self) -> dict[int, int] | None:
        """The most exclusive CPUs that each NUMA node may have free, by NUMA id; ``None`` where the kubelet is not followed."""
        belief = self.belief
        return None if belief is None or belief.lost else most_cpus(belief.hypotheses)

    def _read_checkpoint(self, checkpoint: KubeletCheckpoint | None, frame: NodeConfig) -> bool:
        """Whether a topology carries the kubelet's own state, with which the candidates begin again if it is another one."""
        if checkpoint is None or not (checkpoint.is_exact and checkpoint.cpus):
            self.exact, self._checkpoint = None, None
            return False
        self.absent.read_checkpoint(checkpoint.gone - checkpoint.active)
        if self._checkpoint != checkpoint:
            self.exact, self._checkpoint, self.belief = self._begin_exact(frame, checkpoint), checkpoint, None
        return True

    def _begin_exact(self, frame: NodeConfig, checkpoint: KubeletCheckpoint) -> Candidates:
        """Begin with the kubelet's own state. Pods that it does not name came after it was read, or never reached the kubelet."""
        requests = {known.uid: known.request for known in self.pods.values()}
        known_to_kubelet = checkpoint.active | checkpoint.pods.keys() | checkpoint.gone
        candidates = Candidates([exact_candidate(frame, checkpoint, requests)])
        order = sorted(self.pods.values(), key=lambda known: known.order)
        arrived = [
            Arriving(it.uid, it.request, it.bound, it.judged if it.started else None)
            for it in order
            if it.uid not in known_to_kubelet and not it.left
        ]
        candidates.resume(arrived, {it.uid: it.left_at for it in order if it.left and it.uid in known_to_kubelet})
        return candidates

    def _begin(self, frame: NodeConfig, hidden: Collection[str]) -> Belief:
        self.frame = frame
        topology = frame.topology
        if problem_of(topology):
            return Belief([], overflow="the node was in use when it was first seen")
        present = [known for known in sorted(self.pods.values(), key=lambda known: known.order) if not known.left]
        shown = [known for known in present if known.uid not in hidden]
        # Something may run that the history did not see.
        if topology.in_use or any(is_tied(pod_demand(known.request), frame) for known in shown):
            return self._begin_in_use(frame)
        arrived = [known for known in present if known.uid in hidden and self._is_followed(known, frame)]
        if not order_is_known(arrived):
            return Belief([], overflow=ORDER_UNKNOWN)
        self.shown = frozenset(known.uid for known in shown)
        belief = Belief(starts(frame))
        # Pods that are not shown came after the topology: the belief begins before them.
        for known in arrived:
            belief.arrive(known.uid, known.request, known.bound)
            if known.started:
                belief.started(known.uid, known.judged)
        return belief

    def _begin_in_use(self, frame: NodeConfig) -> Belief:
        """From what the pods hold together that a topology shows by its fingerprint."""
        reading = self._read(frame)
        if reading.shown is None or len(tied_sets(reading.ways, self.pods, frame)) > 1:
            return Belief([], overflow=SHOWN_UNKNOWN)
        order = sorted(self.pods.values(), key=lambda known: known.order)
        tied = [known for known in order if self._is_followed(known, frame)]
        last = max((at for at, known in enumerate(order) if known.uid in reading.shown), default=-1)
        before = {known.uid for known in order[: last + 1]}
        shown = {known.uid: known.request for known in tied if known.uid in reading.shown}
        # Older pods that no topology shows are there as long as they are not seen gone.
        older = (known for known in tied if known.uid in before and not known.left)
        others = {known.uid: known.request for known in older if known.uid not in reading.counted}
        if not order_is_known([known for known in tied if known.uid not in before and not known.left]):
            return Belief([], overflow=ORDER_UNKNOWN)
        starts = used_starts(frame, shown, others)
        if not starts:
            return Belief([], overflow="the pods known to be there do not explain what is in use")
        belief = Belief(starts, on_truncation=OnTruncation.WAIT)
        later = [known for known in tied if known.uid not in before]
        arrived = [Arrival(it.uid, it.request, it.bound, it.judged if it.started else None) for it in later]
        left = [known for known in tied if known.left and (known.uid in shown or known.uid not in before)]
        belief.resume(arrived, {known.uid: known.left_at for known in left})
        return belief

    def _now_shown(self, uids: frozenset[str], reading: Reading) -> None:
        # What may be a departed pod in the place of another tells of no moment: the topology may be from before the bind of that other.
        self.shown = uids if reading.shown is None else uids & reading.shown - reading.namesakes
        order = list(self.pods)
        last = max((order.index(uid) for uid in self.shown if uid in self.pods), default=-1)
        may_be_shown = uids.union(*reading.ways)
        # No topology will show those any more that left before the last shown one came.
        for uid in order[: last + 1]:
            if self.pods[uid].left and uid not in may_be_shown:
                del self.pods[uid]
        if self.belief is not None:
            self.belief.keep(self.pods)
