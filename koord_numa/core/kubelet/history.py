"""
Events of one kubelet-owned node in order (binds, verdicts, departures, topologies), and the kubelet's state derived from them.

Updates ``core/kubelet/belief`` and determines from the fingerprint which pods a topology shows. It makes no decisions.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Final

from koord_numa.core.cpus.kubelet_options import NO_RULE, CoreEvidence, chooses_otherwise
from koord_numa.core.kubelet.belief import (
    TOO_MANY,
    Belief,
    InFlightPods,
    expecting,
    expecting_on_each,
    one_more,
)
from koord_numa.core.kubelet.demand import SMT_ALIGNMENT, TOPOLOGY_AFFINITY, UNEXPECTED_ADMISSION, PodDemand, pod_demand
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.inferred_state import overlooked_use, used_starts
from koord_numa.core.kubelet.node_config import NodeConfig, exact_hypothesis, starts
from koord_numa.core.kubelet.replay import Arrival
from koord_numa.core.kubelet.shown_pods import (
    KnownPod,
    LastReading,
    Reading,
    has_cpus_for,
    is_tied,
    order_is_known,
    sets,
    tied_sets,
)
from koord_numa.core.kubelet.state import KubeletNode, OnTruncation, TooManyWays, spend
from koord_numa.core.kubelet.variants import most_cpus
from koord_numa.core.kubelet.view import (
    KubeletView,
    PodsThere,
    followed_view,
    frame_of,
    inferred_view,
    never_fits,
    problem_of,
)
from koord_numa.core.objects.node import KubeletCheckpoint, Node, NodeResourceTopology
from koord_numa.core.objects.request import Pod, PodKey, PodRequest
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import ValueObject, replace

# Pods that are bound to a kubelet-owned node and that its kubelet certainly does not count, although no event has shown that.
#
# The kubelet checks node-wide amounts against the pods that it has admitted and that have not ended (``GetActivePods`` in kubelet_pods.go).
# Its managers release the resources of a pod only when the pod is no longer active. A topology without a pod that it must show therefore
# proves that the pod was rejected or is gone. Some pods are rejected whatever else the node runs (``never_fits``).


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

    def read(self, reading: Reading, pods: Mapping[str, KnownPod], reused_since: float = inf) -> None:
        """
        Process a topology. ``pods`` are all pods that it may show, in the order in which they were first observed.

        Pods created at ``reused_since`` or later may have the name of an unknown earlier pod, which the topology may show instead.
        """
        if reading.shown is None:
            return
        sure = frozenset(uid for uid in reading.shown - reading.namesakes if not pods[uid].may_reuse_name(reused_since))
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
        sure = [
            known
            for known in asked
            if not (known.started or known.left) and never_fits(known.request, node, keeps_cores=keeps_cores)
        ]
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

    def left_out(self, ledger: Ledger) -> Ledger:
        """Return the ledger without absent pods, the ledger itself if it has none."""
        away = self.unlisted | self.hopeless
        if away.isdisjoint(ledger.holdings):
            return ledger  # nearly all nodes
        return Ledger.of(it for it in ledger if it.pod.uid not in away)


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


# Evidence for unpublished options of a kubelet: options that a rejection proved to be on, and pods that explore options.
#
# Evidence is read from API objects, so a restart of the scheduler loses none: running pods, pods that failed with a reason of the kubelet,
# and the annotation of exploring pods. Evidence expires when the kubelet may run with another configuration: after another boot of the
# machine, with another kubelet version, or with a newer Ready condition (node lifecycle, ``kubelet_node_status.go``).

UNDATED: Final = float("inf")
"""Time of evidence from a pod without a start time. It expires only with another boot or kubelet version."""


@dataclass(slots=True)
class KubeletEvidence:
    """
    Evidence for the options of one node's kubelet. Times are seconds since the epoch by the node's clock.

    ``exploring`` has the explored options of pods in flight, by UID. The other fields have the time of a rejected pod. ``found_on``: by
    option that the pod explored. ``kept_cores``: the rejection was for whole cores. ``kept_pairs``: also, enough CPUs were free. ``since``
    is the start of the Ready condition, ``life`` identifies the boot and the kubelet version.
    """

    exploring: dict[str, tuple[str, ...]] = field(default_factory=dict)
    found_on: dict[str, float] = field(default_factory=dict)
    kept_cores: float | None = None
    kept_pairs: float | None = None
    since: float = 0.0
    life: str = ""

    def __bool__(self) -> bool:
        """Return whether there is evidence that would be lost with this object."""
        return self.kept_cores is not None or bool(self.found_on)

    @property
    def keeps_cores(self) -> bool:
        """True if the kubelet has rejected a pod with SMTAlignmentError, which proves that full-pcpus-only is on."""
        return self.kept_cores is not None

    @property
    def keeps_pairs(self) -> bool:
        """True if SMTAlignmentError came although enough CPUs were free, which proves that cores have several threads."""
        return self.kept_pairs is not None

    @property
    def latest(self) -> float | None:
        """Start time of the latest rejected pod; ``None`` if no rejected pod has a start time."""
        return max(
            (when for when in (self.kept_cores, *self.found_on.values()) if when not in (None, UNDATED)), default=None
        )

    def observe_node(self, node: Node) -> bool:
        """
        Process the current Node. Evidence from before its Ready condition is discarded.

        Return whether the boot or the kubelet version has changed. The state of the kubelet is then unknown as well.
        """
        is_other = bool(self.life) and node.kubelet != self.life
        self.life, self.since = node.kubelet, max(self.since, node.kubelet_since)
        # Evidence from before the kubelet became Ready again may be of another configuration.
        self.found_on = {option: when for option, when in self.found_on.items() if when >= self.since}
        if self.kept_cores is not None and self.kept_cores < self.since:
            self.kept_cores = None
        if self.kept_pairs is not None and self.kept_pairs < self.since:
            self.kept_pairs = None
        return is_other

    def is_of_this_life(self, pod: Pod) -> bool:
        """Return whether the kubelet admitted the pod with its current configuration."""
        # A pod without a start time counts: discarding it would lose evidence of a running pod.
        return not pod.started_at or pod.started_at >= self.since

    def admitted_counts(self, pods: Iterable[Pod]) -> frozenset[int]:
        """Return the numbers of exclusive CPUs of containers that the kubelet has admitted with its current configuration."""
        found: set[int] = set()
        for pod in pods:
            if pod.started and self.is_of_this_life(pod):
                found.update(pod_demand(pod.request).counts)
        return frozenset(found)

    def admitted(self, request: PodRequest) -> None:
        """Process the start of a pod. An odd number of CPUs disproves ``keeps_pairs``."""
        if any(count % 2 for count in pod_demand(request).counts):
            self.kept_pairs = None

    def explore(self, uid: str, options: tuple[str, ...]) -> None:
        """Record that the pod explores options. No other pod explores the node until the kubelet's verdict."""
        self.exploring[uid] = options

    def decided(self, uid: str) -> None:
        """Record that the pod explores no longer: it runs, is gone, or was never bound."""
        self.exploring.pop(uid, None)

    def rejected(self, pod: Pod, *, had_cpus: bool = False) -> None:
        """
        Process a rejection by the kubelet. The same pod may be processed repeatedly.

        ``had_cpus``: enough CPUs were free in every state. A rejection for whole cores then proves that cores have several threads.
        """
        # The annotation outlives this process; ``exploring`` does not.
        options = self.exploring.pop(pod.key.uid, ()) or pod.explores
        when = pod.started_at or UNDATED
        if when < self.since:
            return
        for option in options:
            self.found_on[option] = max(when, self.found_on.get(option, 0.0))
        if pod.reason == SMT_ALIGNMENT:
            self.kept_cores = max(when, self.kept_cores or 0.0)
            if had_cpus:
                self.kept_pairs = max(when, self.kept_pairs or 0.0)


def tells_of_numa(request: PodRequest, reason: str, frame: NodeConfig | None) -> bool:
    """Return whether the rejection depends on the tracked state: not on whole cores, node-wide amounts, or devices that no zone lists."""
    devices = () if frame is None else frame.devices
    parts = (part.devices.items() for _, part in pod_demand(request).containers)
    unlisted = any(count and name not in devices for part in parts for name, count in part)
    return reason == TOPOLOGY_AFFINITY or (reason == UNEXPECTED_ADMISSION and not unlisted)


FIRST_STATES: Final = 20
"""Steps of the first states of a node, which take 2 ms on average in addition to the steps of their dry runs."""

MOST_GUESSES: Final = 64
"""Maximum sets of pods that are compared with the published amounts if there is no usable fingerprint."""

ORDER_UNKNOWN: Final = "pods came in an order that is not known"

ANY_NUMA_NODE: Final = "its kubelet chooses among equally good NUMA nodes by an order that is not modeled"

SHOWN_UNKNOWN: Final = "the node was in use when it was first seen, and which pods its topology shows is not known"

MOST_GONE: Final = 64
"""Maximum number of remembered pods that have left, because a late topology may still show them."""


class NodePods(ValueObject):
    """
    The pods of a node as the cache counts them.

    ``booked`` has the counted and the nominated pods, ``coming`` the requests of the nominated pods by UID. ``hidden`` are the UIDs of the
    counted pods that the topology does not show yet. ``counts`` is ``KubeletEvidence.admitted_counts``. ``in_use``: any pod is counted.
    """

    booked: Ledger
    coming: Mapping[str, PodRequest]
    hidden: Collection[str]
    counts: frozenset[int]
    in_use: bool


class _Expected(ValueObject):
    """Hypotheses about a kubelet without the expected pods (``base``) and with them, and the verdicts known then (``fates``)."""

    base: list[Hypothesis]
    uids: list[str]
    fates: dict[str, bool]
    hypotheses: list[Hypothesis]
    in_flight: InFlightPods | None


@dataclass(slots=True)
class KubeletHistory:
    """
    History of one node. Times are seconds of the cache's clock.

    ``pods`` are the known pods by UID, in the order of their binds. Pods that have left stay until no topology can show them any more.
    ``shown`` are the UIDs of the pods that the last explained topology certainly shows. ``belief`` is ``None`` until the states are first
    requested. ``evidence`` concerns unpublished options. ``now`` is the time of the last event. ``oldest`` is the earliest
    possible time at which the last topology was created. ``reused_since`` is that time in seconds since the epoch if the topology may be
    older than the scheduler, else infinite.
    """

    pods: dict[str, KnownPod] = field(default_factory=dict)
    shown: frozenset[str] = frozenset()
    belief: Belief | None = None
    frame: NodeConfig | None = None
    absent: AbsentPods = field(default_factory=AbsentPods)  # certain in every state
    evidence: KubeletEvidence = field(default_factory=KubeletEvidence)
    now: float = 0.0
    oldest: float = -inf
    reused_since: float = inf
    later: Callable[[], None] | None = (
        None  # called when ``advance`` must continue a replay; ``None``: replays end at once
    )
    _checkpoint: KubeletCheckpoint | None = None  # the kubelet's own state, where the node agent publishes it
    _exact: Belief | None = None  # ``exact``, once it was requested
    _reading: LastReading = field(default_factory=LastReading)
    _expected: _Expected | None = None

    @property
    def busy(self) -> bool:
        """True if events wait for their replay."""
        return any(one is not None and one.busy for one in (self.belief, self._exact))

    @property
    def exact(self) -> Belief | None:
        """The belief that starts with the kubelet's own state; ``None`` where no node agent publishes it."""
        if self._exact is None and self._checkpoint is not None and self.frame is not None:
            self._exact = self._begin_exact(self.frame, self._checkpoint)
        return self._exact

    def advance(self) -> bool:
        """Run a slice of the replays. Return whether they are finished."""
        for one in (self.belief, self._exact):
            if one is not None and one.busy:
                one.advance()
                break
        return not self.busy

    def observe(self, pod: Pod, now: float, *, listed: bool = False) -> None:
        """Process a pod that is bound to the node, or its update. ``listed``: its bind may have been long before."""
        self.now = max(self.now, now)
        known = self.pods.get(pod.key.uid) or self._add(pod, now, listed=listed)
        if pod.deleting and known.ending is None:
            known.ending = now
            self._reading.forget()
        if pod.started and not known.started:
            known.started, known.judged = True, now
            if self._exact is not None:
                self._exact.started(known.uid, now)
            self.evidence.admitted(known.request)
            self._foresee(self.pods.values() if self.absent.hopeless else ())
            self._reading.pod_started()
            self.evidence.decided(known.uid)
            if (belief := self._belief_of(known)) is not None:
                belief.started(known.uid, now)

    def _add(self, pod: Pod, now: float, *, listed: bool) -> KnownPod:
        """Record a pod that is observed for the first time."""
        known = self.pods[pod.key.uid] = KnownPod.of(pod, now, listed=listed)
        known.had_cpus = self.frame is not None and has_cpus_for(known, self.pods.values(), self.frame)
        self._reading.forget()
        self.absent.forget(known.uid)
        if self._checkpoint is not None and self._checkpoint.knows(known.uid):
            self._exact = None  # begins again, as the request of this pod is known now
        elif self._exact is not None:
            self._exact.arrive(known.uid, known.request, now, listed=listed)
        if not pod.started:  # a running pod was not rejected
            self._foresee([known])
        if known.uid not in self.absent.hopeless and (belief := self._belief_of(known)) is not None:
            belief.arrive(known.uid, known.request, now, listed=listed)
        # Only a pod in flight explores: a running pod has its verdict.
        if pod.explores and not pod.started:
            self.evidence.explore(known.uid, pod.explores)
        return known

    def reject(self, pod: Pod, now: float) -> None:
        """Process a rejection by the kubelet, now or before this process started."""
        # Removed from the history: the kubelet never counted the pod, and no topology can show it.
        uid, reason = pod.key.uid, pod.reason
        known = self.pods.pop(uid, None)
        self.evidence.rejected(pod, had_cpus=known is not None and known.had_cpus)
        if known is not None and self._exact is not None:
            self._exact.rejected(uid, now, tells=True)
        if pod.reason == SMT_ALIGNMENT:
            self._foresee(self.pods.values())
        self._reading.forget()
        if known is not None and (belief := self._belief_of(known)) is not None:
            belief.rejected(uid, now, tells=tells_of_numa(known.request, reason, self.frame))

    def _foresee(self, pods: Iterable[KnownPod]) -> None:
        if self.frame is None:
            return
        for known in self.absent.foresee(pods, self.frame.node, keeps_cores=self.evidence.keeps_pairs):
            # The reason is not part of the tracked state, so the rejection rules out no state.
            if (belief := self._belief_of(known)) is not None:
                belief.rejected(known.uid, self.now, tells=False)

    def withdraw(self, uid: str) -> None:
        """Remove a pod whose bind failed. If it is bound here later, it counts as a new pod."""
        self.evidence.decided(uid)
        known = self.pods.pop(uid, None)
        self._reading.forget()
        if known is not None and self._exact is not None:
            self._exact.rejected(uid, self.now, tells=False)
        if known is not None and (belief := self._belief_of(known)) is not None:
            belief.rejected(uid, self.now, tells=False)

    def leave(self, uid: str, now: float) -> None:
        """Process the deletion or the end of a pod."""
        self.evidence.decided(uid)
        known = self.pods.get(uid)
        # A pod may leave twice: by its phase and by its deletion.
        if known is None or known.left:
            return
        known.left, known.left_at = True, now
        if self._exact is not None:
            self._exact.depart(uid, now)
        self._reading.forget()
        self.now = max(self.now, now)
        if (belief := self._belief_of(known)) is not None:
            belief.depart(uid, now)
        # Bounded: without a further topology they would stay forever.
        gone = [each.uid for each in self.pods.values() if each.left] if len(self.pods) > MOST_GONE else []
        for old in gone[:-MOST_GONE]:
            del self.pods[old]

    def _belief_of(self, known: KnownPod) -> Belief | None:
        """Return the belief if the kubelet's managers allocate resources to the pod and there is a hypothesis to update."""
        belief = self.belief
        if belief is None or self.frame is None or not (belief.hypotheses or belief.arrivals) or belief.given_up:
            return None
        return belief if is_tied(pod_demand(known.request), self.frame) else None

    def _is_followed(self, known: KnownPod, frame: NodeConfig) -> bool:
        return known.uid not in self.absent.hopeless and is_tied(pod_demand(known.request), frame)

    def reset(self) -> None:
        """Discard the kubelet's state, because the node or its configuration has changed. Evidence is kept."""
        self.belief, self.frame, self.shown, self.absent = None, None, frozenset(), AbsentPods()
        self._exact, self._checkpoint = None, None

    def restarted(self) -> None:
        """Discard the kubelet's state and the evidence, because the boot or the kubelet version has changed."""
        self.reset()
        self.evidence = KubeletEvidence(
            dict(self.evidence.exploring), life=self.evidence.life, since=self.evidence.since
        )

    def observe_topology(self, node: Node, topology: NodeResourceTopology) -> None:
        """Process a topology of the node."""
        self.publish(topology, frame_of(node, topology, self.frame))

    def publish(self, topology: NodeResourceTopology, frame: NodeConfig) -> None:
        """Process a topology: the kubelet's checkpoint if it has one, else its fingerprint and amounts."""
        # With another machine, configuration or device pool, earlier states are invalid.
        if self.frame is None or not self.frame.holds_for(topology, frame.allocatable):
            self.reset()
        self.frame = frame
        if self._read_checkpoint(topology.checkpoint, frame):
            return
        reading, belief = self._read(frame), self.belief
        self.absent.read(reading, self.pods, self.reused_since)
        self._foresee(self.pods.values())
        if reading.tells and reading.shown is None:
            # The fingerprint includes pods that no event has shown yet. Their requests are unknown.
            return
        if belief is not None:
            belief.do(self._compare(belief, reading, frame, self.now))
        elif reading.shown is not None:
            self._now_shown(reading.shown, reading)

    def _compare(self, belief: Belief, reading: Reading, frame: NodeConfig, now: float) -> Generator[int, None, None]:
        """Compare the belief with the topology of ``frame``, after all earlier events. It ends if a new one would know more."""
        seen, ends = None, belief.begins_again and reading.shown is not None and not reading.namesakes
        if not ends and (reading.tells or not belief.lost):
            seen = yield from self._report(belief, reading, frame, now)
            ends = seen is None and reading.tells  # the amounts contradict every hypothesis
        if ends or (belief.lost and seen is None):
            self.belief = None
        if seen is not None:
            self._now_shown(frozenset(seen), reading)
        elif reading.shown is not None:
            self._now_shown(reading.shown, reading)

    def judge_again(self) -> Reading | None:
        """
        Process the last topology again with the pods that are known now. Return ``None`` if they do not explain it.

        A topology may arrive before the verdicts and departures that it shows.
        """
        if self.frame is None or self._checkpoint is not None or problem_of(self.frame.topology):
            return None
        self._reading.forget()
        reading = self._read(self.frame)
        if reading.shown is None:
            return None
        is_lost = self.belief is None or (self.belief.lost and not self.belief.busy)
        if self.shown != reading.shown - reading.namesakes or is_lost:
            self.publish(self.frame.topology, self.frame)
        return reading

    def expire_namesakes(self, oldest: float) -> None:
        """Process the last topology again as created at ``oldest`` or later: it does not show pods that had left by then."""
        if self.frame is not None and self._read(self.frame).namesakes:
            self.oldest = max(self.oldest, oldest)
            self._reading.forget()
            self.publish(self.frame.topology, self.frame)

    def _report(
        self, belief: Belief, reading: Reading, frame: NodeConfig, now: float
    ) -> Generator[int, None, Collection[str] | None]:
        """
        Compare the belief with a topology. Return the pods that the topology shows, ``None`` if no hypothesis agrees.

        The pods follow from the fingerprint. Without a usable fingerprint the first set that agrees is returned.
        """
        guesses = islice(sets(self.pods.values(), reading.counted, self.shown), MOST_GUESSES)
        followed = tied_sets(guesses if reading.shown is None else reading.ways, self.pods, frame)
        certain = reading.shown is not None and len(followed) == 1
        counts = reading.counted.__contains__
        return (yield from belief.report(followed, frame.topology.zones, counts, now, certain=certain))

    def is_tied(self, pod: Pod) -> bool:
        """Return whether the kubelet's managers allocate resources to the pod; true while their configuration is unknown."""
        return self.frame is None or is_tied(pod_demand(pod.request), self.frame)

    def lose_order(self, uids: Collection[str]) -> None:
        """Mark the order of these pods as unknown: they arrived, and others may have left, while there was no watch."""
        for uid in uids:
            self.pods[uid].unordered = True
        if self.belief is not None and self.belief.hypotheses:
            self.belief = Belief([], overflow=ORDER_UNKNOWN)

    def had_namesake(self, pod: Pod) -> bool:
        """Return whether a pod of the same name has left so recently that a late topology may show it."""
        name = pod.key.namespace, pod.key.name
        return any(known.left and (known.namespace, known.name) == name for known in self.pods.values())

    def read(self) -> Reading | None:
        """Return the reading of the last topology; ``None`` if the kubelet's state cannot be derived on this node."""
        return None if self.frame is None or problem_of(self.frame.topology) else self._read(self.frame)

    def _read(self, frame: NodeConfig) -> Reading:
        return self._reading.of(frame, self.pods, self.shown, self.oldest)

    def sync(self, pods: Iterable[Pod]) -> None:
        """Add the listed pods that are not known, in the order of the list: the order of their binds is unknown."""
        for pod in pods:
            if pod.key.uid not in self.pods:
                self.observe(pod, 0.0, listed=True)

    def view(
        self, node: Node, topology: NodeResourceTopology, pods: NodePods, running: Iterable[tuple[PodKey, PodDemand]]
    ) -> KubeletView:
        """
        Return what decisions on the node need: the tracked states of the kubelet, or the state inferred from published amounts.

        ``running`` are pods that run since before the topology was created and do not terminate.
        """
        view = self._view(node, frame_of(node, topology, self.frame), pods, running)
        explored, found_on = bool(self.evidence.exploring), frozenset(self.evidence.found_on)
        return replace(view, explored=explored, found_on=found_on) if explored or found_on else view

    def _view(
        self, node: Node, frame: NodeConfig, pods: NodePods, running: Iterable[tuple[PodKey, PodDemand]]
    ) -> KubeletView:
        exact = self.exact
        # If a kubelet decision matches no state, published amounts are used until the next state is published.
        if exact is not None and (exact.busy or exact.given_up or not exact.lost):
            return _exact_view(node, frame, exact, pods)
        others = None
        hypotheses = self.hypotheses(frame, pods.hidden)
        if hypotheses and not self.busy:
            hypotheses, others = self._expecting(hypotheses, pods.coming)
        evidence = CoreEvidence(pods.counts, self.evidence.keeps_cores, settled=others is None)
        if hypotheses:
            view = followed_view(node, frame, hypotheses, pods.booked, evidence)
            return replace(view, in_flight=others, is_behind=self.busy)
        # No topology shows the nominated pods yet.
        unpublished = {*pods.hidden, *pods.coming} if pods.coming else pods.hidden
        overlooked = overlooked_use(frame, running)
        there = PodsThere(pods.booked, unpublished, pods.in_use or frame.topology.in_use, overlooked)
        view = inferred_view(frame, node, there, evidence)
        return replace(view, is_behind=True) if self.busy else view

    def _expecting(
        self, hypotheses: list[Hypothesis], coming: Mapping[str, PodRequest]
    ) -> tuple[list[Hypothesis], InFlightPods | None]:
        """
        Return the result of ``expecting``, extended incrementally when another pod is expected, as for the members of a gang.

        The extension reduces the time of a decision about a gang of 1,000 members to a third.
        """
        belief = self.belief
        if belief is None or not coming:
            return expecting(belief, hypotheses, coming)
        uids, fates, known = list(coming), dict(belief.fates), self._expected
        # A belief replaces the list of hypotheses when a state changes; a verdict may leave them as they are.
        if known is not None and known.base is hypotheses and known.uids == uids[:-1] and known.fates == fates:
            found, in_flight = one_more(known.hypotheses, known.in_flight, uids[-1], coming[uids[-1]])
        else:
            found, in_flight = expecting(belief, hypotheses, coming)
        self._expected = _Expected(hypotheses, uids, fates, found, in_flight)
        return found, in_flight

    def hypotheses(self, frame: NodeConfig, hidden: Collection[str]) -> list[Hypothesis]:
        """
        Return the states that the kubelet may be in; none if they are not known completely enough.

        ``hidden`` are the UIDs of pods that the published amounts do not show. They are used when tracking begins.
        """
        if self.belief is None:
            spend(FIRST_STATES)
            self.belief = self._begin(frame, hidden)
        return [] if self.belief.lost and not self.belief.busy else self.belief.hypotheses

    def most_cpus(self) -> dict[int, int] | None:
        """Return the maximum of free exclusive CPUs by NUMA ID over all states; ``None`` if the kubelet is not tracked."""
        belief = self.belief
        return None if belief is None or belief.lost or belief.busy else most_cpus(belief.hypotheses)

    def _read_checkpoint(self, checkpoint: KubeletCheckpoint | None, frame: NodeConfig) -> bool:
        """Return whether the topology has the kubelet's exact state. A changed state replaces the candidates."""
        if checkpoint is None or not (checkpoint.is_exact and checkpoint.cpus):
            self._exact, self._checkpoint = None, None
            return False
        self.absent.read_checkpoint(checkpoint.gone - checkpoint.active)
        if not frame.node.numa_order_known:
            self._exact, self._checkpoint = None, None
            return False
        if self._checkpoint != checkpoint:
            self._exact, self._checkpoint, self.belief = None, checkpoint, None
        return True

    def _begin_exact(self, frame: NodeConfig, checkpoint: KubeletCheckpoint) -> Belief:
        """Return the belief that starts with the kubelet's exact state. Pods that are not in it are treated as arriving later."""
        requests = {known.uid: known.request for known in self.pods.values()}
        belief = Belief(
            [exact_hypothesis(frame, checkpoint, requests)], on_truncation=OnTruncation.WAIT, later=self.later
        )
        order = sorted(self.pods.values(), key=lambda known: known.order)
        arrived = [_arrival(it) for it in order if not (it.left or checkpoint.knows(it.uid))]
        belief.resume(arrived, {it.uid: it.left_at for it in order if it.left and checkpoint.knows(it.uid)})
        return belief

    def _begin(self, frame: NodeConfig, hidden: Collection[str]) -> Belief:
        self.frame = frame
        topology = frame.topology
        if problem_of(topology):
            return Belief([], overflow="the node was in use when it was first seen")
        if not frame.node.numa_order_known:
            return Belief([], overflow=ANY_NUMA_NODE)
        present = [known for known in sorted(self.pods.values(), key=lambda known: known.order) if not known.left]
        shown = [known for known in present if known.uid not in hidden]
        # Unobserved pods may run.
        if topology.in_use or any(is_tied(pod_demand(known.request), frame) for known in shown):
            return self._begin_in_use(frame)
        arrived = [known for known in present if known.uid in hidden and self._is_followed(known, frame)]
        if not order_is_known(arrived):
            return Belief([], overflow=ORDER_UNKNOWN)
        self.shown = frozenset(known.uid for known in shown)
        belief = Belief(starts(frame), later=self.later)
        # Pods that are not shown were bound after the topology was created: the belief begins before them.
        for known in arrived:
            belief.arrive(known.uid, known.request, known.bound, listed=known.listed)
            if known.started:
                belief.started(known.uid, known.judged)
        return belief

    def _begin_in_use(self, frame: NodeConfig) -> Belief:
        """Derive the initial states from the total amounts that the pods in the fingerprint hold."""
        reading = self._read(frame)
        if reading.shown is None or len(tied_sets(reading.ways, self.pods, frame)) > 1:
            return Belief([], overflow=SHOWN_UNKNOWN)
        # The topology may show pods of the same names that had left before this scheduler started.
        if any(self.pods[uid].may_reuse_name(self.reused_since) for uid in reading.shown):
            return Belief([], overflow=SHOWN_UNKNOWN)
        order = sorted(self.pods.values(), key=lambda known: known.order)
        tied = [known for known in order if self._is_followed(known, frame)]
        last = max((at for at, known in enumerate(order) if known.uid in reading.shown), default=-1)
        before = {known.uid for known in order[: last + 1]}
        shown = {known.uid: known.request for known in tied if known.uid in reading.shown}
        # Older pods that no topology shows run until they are observed as gone.
        older = (known for known in tied if known.uid in before and not known.left)
        others = {known.uid: known.request for known in older if known.uid not in reading.counted}
        if not order_is_known([known for known in tied if known.uid not in before and not known.left]):
            return Belief([], overflow=ORDER_UNKNOWN)
        starts = used_starts(frame, shown, others)
        if not starts:
            return Belief([], overflow="the pods known to be there do not explain what is in use")
        belief = Belief(starts, on_truncation=OnTruncation.WAIT, later=self.later)
        later = [known for known in tied if known.uid not in before]
        arrived = [*map(_arrival, later)]
        left = [known for known in tied if known.left and (known.uid in shown or known.uid not in before)]
        belief.resume(arrived, {known.uid: known.left_at for known in left})
        return belief

    def _now_shown(self, uids: frozenset[str], reading: Reading) -> None:
        # A name that a departed pod had as well proves nothing: the topology may be from before the bind of the second pod.
        self.shown = uids if reading.shown is None else uids & reading.shown - reading.namesakes
        order = list(self.pods)
        last = max((order.index(uid) for uid in self.shown if uid in self.pods), default=-1)
        may_be_shown = uids.union(*reading.ways)
        # Future topologies cannot show pods that left before the last shown pod was bound.
        for uid in order[: last + 1]:
            if self.pods[uid].left and uid not in may_be_shown:
                del self.pods[uid]
        if self.belief is not None:
            self.belief.keep(self.pods)


def _arrival(known: KnownPod) -> Arrival:
    return Arrival(known.uid, known.request, known.bound, known.judged if known.started else None, listed=known.listed)


def _exact_view(node: Node, frame: NodeConfig, exact: Belief, pods: NodePods) -> KubeletView:
    """Return the kubelet's own state plus later events. No pod is placed while that leaves more states than may be evaluated."""
    hypotheses, problem = exact.hypotheses, exact.overflow
    try:
        hypotheses = exact.with_one_unseen()
    except TooManyWays:
        problem = "" if exact.busy else TOO_MANY
    view = followed_view(node, frame, expecting_on_each(hypotheses, pods.coming), pods.booked, CoreEvidence())
    # Kubelets may choose CPUs in a way that is not modeled. Their next state shows them, after about a second.
    unseen = bool(exact.arrivals) and chooses_otherwise(node.kubelet, frame.node.config.cpu_options)
    return replace(view, cores=NO_RULE, problem=view.problem or problem, is_behind=exact.busy or unseen)
