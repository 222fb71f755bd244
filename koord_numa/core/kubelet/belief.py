"""
All states that the kubelet of a node may be in: the hypotheses that no observation contradicts.

``Belief`` follows one node. The caller reports pods in the order of their binds, verdicts, departures and published
topologies. These events are late and out of order, so the latest arrivals are kept with the states before them, and an
event about an arrival causes a replay from there. A topology whose pods are known drops all states that disagree with
it, and later replays start from it. A replay may take ``EVENT`` steps; beyond that, the states that need the latest
events are given up. If a topology contradicts the remaining states, all arrivals are replayed again with more steps,
without states that cannot lead to it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.kubelet.arrivals import (
    LAG,
    MOST_ARRIVALS,
    MOST_HYPOTHESES,
    OLD,
    Arrival,
    advance,
    bounded,
    forgetting,
    never_there,
    not_shown,
    still_open,
    surely_after,
    unexplained,
    with_one_unseen,
    without_left,
)
from koord_numa.core.kubelet.budget import DECISION, EVENT, OnTruncation, TooManyWays, limited
from koord_numa.core.kubelet.departures import without
from koord_numa.core.kubelet.hypothesis import SOMEONE, Hypothesis
from koord_numa.core.kubelet.reports import (
    MOST_EFFORT,
    ONCE,
    Again,
    GivenUp,
    Prospect,
    UndatedTopology,
    agreeing,
    agrees,
    allowed,
    given_up,
)
from koord_numa.core.kubelet.variants import distinct
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.value_objects import replace

TOO_MANY: Final = "too many histories of the kubelet are possible"


@dataclass(slots=True)
class Belief:
    """
    The hypotheses about one node, in the order of their likelihood.

    ``fates`` are verdicts by uid (admitted or not). ``left`` is when pods were seen gone that may still be in a state
    before one of ``arrivals``. ``last`` are the states after the latest arrival. ``overflow`` is why not all states are
    followed, empty if all are. ``shortened`` is set if states were given up because the replay of ``arrivals`` took too
    many steps.

    ``on_truncation`` is WAIT on a node that was in use: its belief restarts with the next topology. It is TRUST on a
    node that was empty: the tried states answer, unless all likely states were given up. ``undated`` are topologies of
    pods among ``arrivals`` that rule out states. A belief that is ``lost`` must be restarted, unless later events
    explain it.
    """

    hypotheses: list[Hypothesis]
    overflow: str = ""
    fates: dict[str, bool] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    shortened: GivenUp = GivenUp.NONE
    on_truncation: OnTruncation = OnTruncation.TRUST
    undated: list[UndatedTopology] = field(default_factory=list)
    last: list[Hypothesis] = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.hypotheses

    @property
    def lost(self) -> str:
        """Why no hypothesis may be true; empty if a hypothesis may be."""
        if not self.hypotheses or self.given_up or self.shortened is GivenUp.LIKELY:
            return self.overflow or (TOO_MANY if self.shortened else "nothing is known of it")
        uids = self.hypotheses[0].unexplained
        # The smallest uid makes the message deterministic.
        return f"the fate of pod {min(uids)} fits no known state of the kubelet" if uids else ""

    @property
    def given_up(self) -> bool:
        """Whether states were given up on a node that can restart with a topology."""
        return self.on_truncation is OnTruncation.WAIT and bool(self.overflow)

    @property
    def begins_again(self) -> bool:
        """Whether a restart with a topology gains information. Only new sums show what init containers hold."""
        return self.given_up or any(SOMEONE in one.loose for one in self.last)

    def arrive(self, uid: str, request: PodRequest, when: float) -> None:
        """Record the bind of a pod to the node. Kubelets admit pods in the order of their binds."""
        self._forget(when)
        self.arrivals.append(Arrival(uid, request, when, before=self.last))
        self._replay(len(self.arrivals) - 1)

    def resume(self, arrived: Sequence[Arrival], left: Mapping[str, float]) -> None:
        """
        Record several arrivals and departures at once.

        Arrived pods whose verdict time is known were admitted. ``left`` maps uids to the time at which the pod was seen
        gone.
        """
        self.arrivals = [replace(each, before=self.last) for each in arrived[-MOST_ARRIVALS:]]
        self.fates.update((each.uid, True) for each in arrived if each.known is not None)
        self.left.update(left)
        self.overflow = self.overflow or (TOO_MANY if len(arrived) > MOST_ARRIVALS else "")
        self._replay(0)

    def started(self, uid: str, when: float) -> None:
        """Record that the kubelet has admitted the pod, as seen at ``when``."""
        self._judged(uid, when, admitted=True)

    def rejected(self, uid: str, when: float, *, tells: bool) -> None:
        """
        Record that the kubelet rejected the pod, which holds nothing.

        ``tells`` is false if the reason of the rejection is not modeled. Such a rejection says nothing about CPUs, so
        the pod counts as never arrived.
        """
        if not tells:
            if (at := self._place(uid)) is not None:
                self._begin(at, self.arrivals.pop(at).before)
                return
            self.last = [after for one in self.last for after in never_there(one, uid)]
            self._conclude()
            return
        self._judged(uid, when, admitted=False)

    def depart(self, uid: str, when: float) -> None:
        """Record that the pod has been deleted or has finished, at ``when`` or shortly before."""
        self.left[uid] = min(when, self.left.get(uid, when))  # A topology may have shown the departure earlier.
        self.undated = [each.without(uid, surely=False) if when - LAG <= each.when else each for each in self.undated]
        # The verdicts on earlier arrivals were known long before this pod can have left.
        self._replay(next((at for at, each in enumerate(self.arrivals) if each.may_follow(when)), len(self.arrivals)))

    def report(
        self,
        shown: Sequence[Collection[str]],
        zones: Sequence[Zone],
        counts: Callable[[str], bool],
        when: float,
        *,
        certain: bool,
    ) -> Collection[str] | None:
        """
        Apply a topology that was published while exactly the pods of one of the sets ``shown`` ran.

        Hypotheses that agree with none of the sets are dropped. ``counts`` returns whether the sets cover a pod.
        ``certain`` means that the fingerprint identifies a single set. Return the first set that a hypothesis agrees
        with. If there is none, return ``None`` and drop no hypothesis.
        """
        if not certain:
            return self._filter(UndatedTopology.of(shown, zones, when, self.hypotheses))
        settled = self._settle(shown[0], zones, counts, when)
        if not settled and (self.shortened or self.overflow):
            again = Again(MOST_EFFORT, leads_on=Prospect(shown[0], zones, self.arrivals).may_come)
            settled = self._settle(shown[0], zones, counts, when, again)
        return shown[0] if settled else None

    def _filter(self, topology: UndatedTopology) -> Collection[str] | None:
        """
        Keep the states that agree with one of the sets of the topology.

        The time of the topology is not known, so arrivals are not replayed from it.
        """
        found, kept = topology.agreeing(self.hypotheses)
        if found is not None:
            self.undated.append(topology)
            self.arrivals = still_open(self.arrivals, topology.when, topology.allows)
            self.last = kept
            self._conclude()
        return found

    def _settle(
        self,
        shown: Collection[str],
        zones: Sequence[Zone],
        counts: Callable[[str], bool],
        when: float,
        how: Again = ONCE,
    ) -> bool:
        """
        Keep the states after the last shown arrival that agree with the topology, and replay the later arrivals from them.

        Return whether a state agrees. If none does, nothing changes.
        """
        place = max((at + 1 for at, each in enumerate(self.arrivals) if each.uid in shown), default=0)
        absent = not_shown(self._states(place), shown, counts)
        if not place and any(self._stays(uid) for uid in absent):
            # Every topology that is newer than the arrival of an admitted pod shows the pod until it leaves.
            # This topology is older than the oldest kept arrival, or newer, and a departure has not been seen yet.
            # Placements do not change, so in both cases the states before all arrivals must agree.
            if kept := [one for one in self._states(0) if agrees(one, shown, zones)]:
                self._begin(0, kept)
            return bool(kept)
        news = sorted(uid for uid in absent if uid not in self.left)
        earlier = self.arrivals, self.last, self.hypotheses, dict(self.left)
        if place and (news or how.leads_on is not None):
            # The topology counts these pods but does not show them: they left before, and that has not been seen yet.
            self.left.update(dict.fromkeys(news, when))
            # Copies, because a replay writes ``before``, and a topology that fits no state must not change anything.
            self.arrivals = [each.copy() for each in self.arrivals]
            self._replay(0, how, until=place)
            absent |= not_shown(self._states(place), shown, counts)
        # Unexplained states are dropped: arrivals before the topology are not replayed again.
        there = [one for one in self._states(place) if not one.unexplained and all(one.has(uid) for uid in shown)]
        until = surely_after(self.arrivals, place, lambda uid: self._stays(uid) and counts(uid))
        # The topology may be newer than arrivals that it does not show, with departures after them.
        # Its sums locate unlocated pods, so absent unlocated pods left before.
        away = absent if until == place else {uid for uid in absent for one in there if uid in one.unlocated}
        here = (after for one in there for after in without(one, away))
        try:
            with limited(EVENT):
                kept = agreeing(here, shown, zones)
        except TooManyWays:
            kept = []
        if not self.shortened.explained(kept):
            self.arrivals, self.last, self.hypotheses, self.left = earlier
            return False
        # The topology determines the state before it, also if states were given up.
        self.overflow = ""
        latest = self.arrivals[until].when if until < len(self.arrivals) else when
        self.left.update({uid: min(latest, self.left.get(uid, when)) for uid in sorted(absent)})
        self.arrivals = self.arrivals[place:]
        self._begin(0, kept)
        return True

    def _stays(self, uid: str) -> bool:
        """Return whether the kubelet admitted the pod and the pod has not left."""
        return bool(self.fates.get(uid)) and uid not in self.left

    def with_one_unseen(self) -> list[Hypothesis]:
        """
        Return the hypotheses, and the states in which one more pod has left before a pod without a verdict arrived.

        Raise ``TooManyWays`` if there are too many states.
        """
        first = next((at for at, each in enumerate(self.arrivals) if each.known is None), None)
        if first is None:
            return self.hypotheses
        others: Sequence[Hypothesis] = ()
        with limited(DECISION):
            for each in self.arrivals[first:]:
                others = with_one_unseen(each, others, self.left, self.fates.get(each.uid))
                if len(others) > MOST_HYPOTHESES:
                    raise TooManyWays
            return distinct(after for one in [*self.last, *others] for after in without_left(one, self.left))

    def keep(self, uids: Collection[str]) -> None:
        """Forget departed pods, except for ``uids`` and for pods whose grant is not known, because their part of the sums is not known."""
        self.hypotheses, self.last = forgetting(self.hypotheses, uids), forgetting(self.last, uids)
        for each in self.arrivals:
            each.before = forgetting(each.before, uids)

    def _judged(self, uid: str, when: float, *, admitted: bool) -> None:
        self.fates[uid] = admitted
        if not admitted:
            self.undated = [each.without(uid, surely=True) for each in self.undated]
        at = self._place(uid)
        if at is not None:
            self.arrivals[at].known = when
        # If all hypotheses predicted the verdict, a replay would change nothing.
        if all(one.has(uid) == admitted and uid not in one.unexplained for one in self.hypotheses):
            return
        if at is None:
            # The arrival is no longer kept, so states can only be filtered.
            kept = [one for one in self.last if one.has(uid) == admitted]
            self.last = kept or [unexplained(one, uid, admitted=admitted) for one in self.last]
            self._conclude()
        else:
            self._replay(at)

    def _place(self, uid: str) -> int | None:
        return next((at for at, each in enumerate(self.arrivals) if each.uid == uid), None)

    def _states(self, at: int) -> list[Hypothesis]:
        """Return the states before this arrival, or those after the last arrival if there is no such arrival."""
        return self.arrivals[at].before if at < len(self.arrivals) else self.last

    def _begin(self, at: int, states: list[Hypothesis]) -> None:
        if at < len(self.arrivals):
            self.arrivals[at].before = states
        else:
            self.last = states
        self._replay(at)

    def _replay(self, first: int, how: Again = ONCE, until: int | None = None) -> None:
        """
        Replay the arrivals from index ``first`` on.

        With ``until``, replay only the arrivals before that index and spend all steps on them.
        """
        # All likely states stay given up until a likely state is among those before the arrivals again.
        if not first and (self.shortened is not GivenUp.LIKELY or any(not one.options for one in self._states(0))):
            self.shortened = GivenUp.NONE
        left, end = how.effort, len(self.arrivals) if until is None else until
        for at in range(first, end):
            each = self.arrivals[at]
            each.unseen = None
            # An equal share of the steps, plus the steps that earlier arrivals did not need.
            share = left // (end - at)
            states, shortened, rest = advance(each.before, each, self.left, self.fates.get(each.uid), share)
            left -= share - rest
            if shortened:
                self.shortened = max(self.shortened, given_up(each.before, states))
            self.overflow = self.overflow or (TOO_MANY if shortened and self.on_truncation is OnTruncation.WAIT else "")
            # If no state passes, the topology belongs to another history: keep all. ``None`` drops no state.
            states = list(filter(how.leads_on, states)) or states
            after = self._bounded(allowed(states, self.undated, each.uid))
            if at + 1 < len(self.arrivals):
                self.arrivals[at + 1].before = after
            else:
                self.last = after
        self._conclude()

    def _conclude(self) -> None:
        self.hypotheses = self._bounded(after for one in self.last for after in without_left(one, self.left))

    def _bounded(self, hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
        found, overflow = bounded(hypotheses)
        self.overflow = overflow or self.overflow
        return found

    def _forget(self, now: float) -> None:
        """Forget arrivals whose outcome no later event can change, and departures before them."""
        old = 0
        for each in self.arrivals:
            # Arrivals are in order, so the first recent arrival ends the search.
            if len(self.arrivals) - old < MOST_ARRIVALS and (each.known is None or each.known >= now - OLD):
                break
            old += 1
        self.arrivals = self.arrivals[old:]
        uids = {each.uid for each in self.arrivals}
        self.undated = [each for each in self.undated if each.speaks_of(uids)]
        # A uid in no state and no arrival cannot affect later replays.
        for one in self._states(0):
            uids.update(one.state.pods, one.unplaced, one.unlocated)
        self.left = {uid: when for uid, when in self.left.items() if uid in uids}
        self.fates = {uid: fate for uid, fate in self.fates.items() if uid in uids}
