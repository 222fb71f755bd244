"""
All states that a kubelet may be in after everything that is known of its node: the hypotheses that nothing contradicts.

``Belief`` follows one node. Its feeder tells pods in the order of their binds, what became of them, and which pods a topology shows.

Theory. What is told comes late and out of order, so the latest arrivals are kept with the states before them. News that puts one of them in
another light (a pod that may have left before it came, a verdict that was not foreseen) lets everything from there on be replayed. A
topology whose pods are known settles what was before it: only states that agree with it are kept, and replays begin there.

Every choice doubles the states, so a replay may take ``EVENT`` steps: where that does not do, those are given up for which news must
have been latest. Should a topology contradict the rest, all is replayed once more with more effort, without states that cannot come to it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.kubelet.arrivals import (
    LAG,
    MOST_ARRIVALS,
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
    without_left,
)
from koord_numa.core.kubelet.budget import EVENT, OnTruncation, TooManyWays, limited
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
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.value_objects import replace

TOO_MANY: Final = "too many histories of the kubelet are possible"


@dataclass(slots=True)
class Belief:
    """
    ``hypotheses`` are in the order of their likelihood. A belief that is ``lost`` needs a new start, unless time explains it.

    ``fates`` are verdicts on pods by uid, ``left`` when pods were seen gone that may still be in a state before one of ``arrivals``.
    ``last`` are the states after the latest arrival. ``overflow`` says that not all states are followed, empty while they are;
    ``shortened``, that states were given up because the replay of ``arrivals`` took too many steps. ``on_truncation``: a node that was
    in use begins again with the next topology (WAIT); on a node that was empty the states that were tried answer (TRUST), unless all likely
    ones were given up. ``undated`` are topologies of pods among ``arrivals`` that rule states out.
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
        """Why no hypothesis may be true."""
        if not self.hypotheses or self.given_up or self.shortened is GivenUp.LIKELY:
            return self.overflow or (TOO_MANY if self.shortened else "nothing is known of it")
        uids = self.hypotheses[0].unexplained
        # Any of them will do for the message; the smallest uid makes it repeatable.
        return f"the fate of pod {min(uids)} fits no known state of the kubelet" if uids else ""

    @property
    def given_up(self) -> bool:
        """Were states given up that it can begin with again?"""
        return self.on_truncation is OnTruncation.WAIT and bool(self.overflow)

    @property
    def begins_again(self) -> bool:
        """Does beginning with a topology tell more? Only new sums tell what init containers hold."""
        return self.given_up or any(SOMEONE in one.loose for one in self.last)

    def arrive(self, uid: str, request: PodRequest, when: float) -> None:
        """The pod was bound to the node; kubelets admit pods in the order of their binds."""
        self._forget(when)
        self.arrivals.append(Arrival(uid, request, when, before=self.last))
        self._replay(len(self.arrivals) - 1)

    def resume(self, arrived: Sequence[Arrival], left: Mapping[str, float]) -> None:
        """These pods arrived, admitted if their verdict is known, and those of ``left`` were seen gone, when it says."""
        self.arrivals = [replace(each, before=self.last) for each in arrived[-MOST_ARRIVALS:]]
        self.fates.update((each.uid, True) for each in arrived if each.known is not None)
        self.left.update(left)
        self.overflow = self.overflow or (TOO_MANY if len(arrived) > MOST_ARRIVALS else "")
        self._replay(0)

    def started(self, uid: str, when: float) -> None:
        """The kubelet has admitted the pod, as was seen at ``when``."""
        self._judged(uid, when, admitted=True)

    def rejected(self, uid: str, when: float, *, tells: bool) -> None:
        """The kubelet refused the pod, which holds nothing. ``tells``: not for something that is not followed here."""
        if not tells:
            # A refusal for something that is not followed says nothing of CPUs: as if the pod had never arrived.
            if (at := self._place(uid)) is not None:
                self._begin(at, self.arrivals.pop(at).before)
                return
            self.last = [after for one in self.last for after in never_there(one, uid)]
            self._conclude()
            return
        self._judged(uid, when, admitted=False)

    def depart(self, uid: str, when: float) -> None:
        """The pod is gone, or has finished: now or shortly before."""
        self.left[uid] = min(when, self.left.get(uid, when))  # a topology may have told of it before
        self.undated = [each.without(uid, surely=False) if when - LAG <= each.when else each for each in self.undated]
        # The verdicts of earlier arrivals were known long before this pod can have left.
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
        A topology was published while just the pods of one of these sets ran: hypotheses that agree with none of them are dropped.

        ``counts`` tells which pods its sets speak of. ``certain``: there is one set, by the fingerprint. Returns the first set that
        some hypothesis agrees with; ``None``, and no hypothesis is dropped, when there is no such set.
        """
        if not certain:
            return self._filter(UndatedTopology.of(shown, zones, when, self.hypotheses))
        settled = self._settle(shown[0], zones, counts, when)
        if not settled and (self.shortened or self.overflow):
            again = Again(MOST_EFFORT, leads_on=Prospect(shown[0], zones, self.arrivals).may_come)
            settled = self._settle(shown[0], zones, counts, when, again)
        return shown[0] if settled else None

    def _filter(self, topology: UndatedTopology) -> Collection[str] | None:
        """Keep the states that agree with any of its sets. Nothing is known of the moment, so that arrivals are not replayed from it."""
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
        """Keep the states that agree of the moment after the last arrival that the topology shows, replayed so, and go on from there."""
        place = max((at + 1 for at, each in enumerate(self.arrivals) if each.uid in shown), default=0)
        absent = not_shown(self._states(place), shown, counts)
        if not place and any(self._stays(uid) for uid in absent):
            # A pod that the kubelet admitted and that has not left must be shown by any topology that is newer than its arrival.
            # Either older than the oldest arrival that is remembered, or newer and the news of a departure is still to come. Where
            # a pod is does not change, so that in both cases the states before all arrivals must agree.
            if kept := [one for one in self._states(0) if agrees(one, shown, zones)]:
                self._begin(0, kept)
            return bool(kept)
        news = sorted(uid for uid in absent if uid not in self.left)
        earlier = self.arrivals, self.last, self.hypotheses, dict(self.left)
        if place and (news or how.leads_on is not None):
            # Not shown, though it counts: it left before the topology was made, and the news of it is still to come.
            self.left.update(dict.fromkeys(news, when))
            # Copies, as a replay writes ``before``: a topology that fits no state changes nothing.
            self.arrivals = [each.copy() for each in self.arrivals]
            self._replay(0, how, until=place)
            absent |= not_shown(self._states(place), shown, counts)
        # What nothing explains so far is not replayed after this, and so would never be explained.
        there = [one for one in self._states(place) if not one.unexplained and all(one.has(uid) for uid in shown)]
        until = surely_after(self.arrivals, place, lambda uid: self._stays(uid) and counts(uid))
        # It may be newer than arrivals that it would not show, and pods have left after them. Unlocated ones its sums place: gone before.
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
        # The topology settles what was before it, also where states had been given up.
        self.overflow = ""
        latest = self.arrivals[until].when if until < len(self.arrivals) else when
        self.left.update({uid: min(latest, self.left.get(uid, when)) for uid in sorted(absent)})
        self.arrivals = self.arrivals[place:]
        self._begin(0, kept)
        return True

    def _stays(self, uid: str) -> bool:
        """Did the kubelet admit the pod, which has not left?"""
        return bool(self.fates.get(uid)) and uid not in self.left

    def keep(self, uids: Collection[str]) -> None:
        """Pods that left are forgotten but for these, those whose part of the sums is not known, and those of whose devices more is."""
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
        # Foreseen by all: a replay would change nothing.
        if all(one.has(uid) == admitted and uid not in one.unexplained for one in self.hypotheses):
            return
        if at is None:
            # The pod arrived too long ago to be replayed, so that states can only be filtered.
            kept = [one for one in self.last if one.has(uid) == admitted]
            self.last = kept or [unexplained(one, uid, admitted=admitted) for one in self.last]
            self._conclude()
        else:
            self._replay(at)

    def _place(self, uid: str) -> int | None:
        return next((at for at, each in enumerate(self.arrivals) if each.uid == uid), None)

    def _states(self, at: int) -> list[Hypothesis]:
        """The states before this arrival, after the last one where there are no more."""
        return self.arrivals[at].before if at < len(self.arrivals) else self.last

    def _begin(self, at: int, states: list[Hypothesis]) -> None:
        if at < len(self.arrivals):
            self.arrivals[at].before = states
        else:
            self.last = states
        self._replay(at)

    def _replay(self, first: int, how: Again = ONCE, until: int | None = None) -> None:
        """Everything from this arrival on, or what is before ``until``: all the effort is for that then."""
        # Where all likely states were given up they stay so until one is among those before the arrivals again.
        if not first and (self.shortened is not GivenUp.LIKELY or any(not one.options for one in self._states(0))):
            self.shortened = GivenUp.NONE
        left, end = how.effort, len(self.arrivals) if until is None else until
        for at in range(first, end):
            each = self.arrivals[at]
            # An equal share of the effort, and what those before did not need.
            share = left // (end - at)
            states, shortened, rest = advance(each.before, each, self.left, self.fates.get(each.uid), share)
            left -= share - rest
            if shortened:
                self.shortened = max(self.shortened, given_up(each.before, states))
            self.overflow = self.overflow or (TOO_MANY if shortened and self.on_truncation is OnTruncation.WAIT else "")
            # Where none leads on, what is known is of another history: all stay. Without a rule ``filter`` drops none.
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
        """Arrivals that no news can put in another light any more, and departures before them."""
        old = 0
        for each in self.arrivals:
            # Arrivals are in order, so that the first recent one ends the search.
            if len(self.arrivals) - old < MOST_ARRIVALS and (each.known is None or each.known >= now - OLD):
                break
            old += 1
        self.arrivals = self.arrivals[old:]
        uids = {each.uid for each in self.arrivals}
        self.undated = [each for each in self.undated if each.speaks_of(uids)]
        # A uid that is in no state and no arrival can matter to none of the later replays.
        for one in self._states(0):
            uids.update(one.state.pods, one.unplaced, one.unlocated)
        self.left = {uid: when for uid, when in self.left.items() if uid in uids}
        self.fates = {uid: fate for uid, fate in self.fates.items() if uid in uids}
