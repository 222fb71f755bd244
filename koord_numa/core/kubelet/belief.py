"""
All states that the kubelet of a node may be in: the hypotheses that no observation contradicts.

The caller reports pods in the order of their binds, verdicts, departures and published topologies. These events are
late and out of order, so the latest arrivals are kept with the states before them, and an event about an arrival
causes a replay from there. A topology whose pods are known drops all states that disagree with it. ``InFlightPods``
are the bound pods without a verdict: if a pod on a lower NUMA node left unseen, they may be on other NUMA nodes than
predicted, and the next pod waits where that matters.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from math import inf
from typing import Final

from koord_numa.core.cpuset import members
from koord_numa.core.kubelet.bounds import (
    STRICT,
    asks_managers,
    everything,
    fits_on,
    has_room_whoever_leaves,
    together,
)
from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.hypothesis import SOMEONE, Hypothesis
from koord_numa.core.kubelet.replay import (
    LAG,
    MOST_ARRIVALS,
    OLD,
    SHORTEST,
    Arrival,
    admitted,
    advance,
    all_of,
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
from koord_numa.core.kubelet.reports import (
    MOST_EFFORT,
    ONCE,
    Again,
    GivenUp,
    UndatedTopology,
    agreeing_after,
    agrees,
    allowed,
    given_up,
    leads_to,
)
from koord_numa.core.kubelet.state import (
    DECISION,
    EVENT,
    SLICE,
    STEP_COUNT,
    Grant,
    KubeletNode,
    KubeletState,
    OnTruncation,
    TooManyWays,
    limited,
    spend,
)
from koord_numa.core.kubelet.variants import distinct
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletScope
from koord_numa.core.value_objects import replace

TOO_MANY: Final = "too many histories of the kubelet are possible"

Work = Generator[int, None, None]
"""Work in pieces, which yields the number of steps of each."""


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

    A replay may take many steps. With ``later``, an event runs a slice of them; if that is not enough, ``later`` is
    called, the belief is ``busy``, later events wait in line, and ``advance`` runs the next slices. Without ``later``,
    every event is replayed at once.
    """

    hypotheses: list[Hypothesis]
    overflow: str = ""
    fates: dict[str, bool] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    shortened: GivenUp = GivenUp.NONE
    on_truncation: OnTruncation = OnTruncation.TRUST
    undated: list[UndatedTopology] = field(default_factory=list)
    later: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    last: list[Hypothesis] = field(init=False)
    _unseen: list[Hypothesis] | None = field(default=None, init=False, repr=False, compare=False)  # empty: too many
    _line: deque[Work] = field(default_factory=deque, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.last = self.hypotheses

    @property
    def lost(self) -> str:
        """Reason why no hypothesis can be true; empty if one can."""
        if not self.hypotheses or self.given_up or self.shortened is GivenUp.LIKELY:
            return self.overflow or (TOO_MANY if self.shortened else "nothing is known of it")
        uids = self.hypotheses[0].unexplained
        # The smallest uid makes the message deterministic.
        return f"the fate of pod {min(uids)} fits no known state of the kubelet" if uids else ""

    @property
    def given_up(self) -> bool:
        """True if states were given up on a node whose belief restarts with the next topology."""
        return self.on_truncation is OnTruncation.WAIT and bool(self.overflow)

    @property
    def begins_again(self) -> bool:
        """True if a restart with the next topology would give more information, for example about CPUs that init containers hold."""
        return self.given_up or any(SOMEONE in one.loose for one in self.last)

    @property
    def busy(self) -> bool:
        """True if events wait for their replay. The hypotheses are then those of an earlier moment."""
        return bool(self._line)

    def do(self, work: Work) -> None:
        """Run the work after all earlier events."""
        self._unseen = None
        self._line.append(work)
        if len(self._line) == 1:
            finished = self.advance(SLICE if self.later else inf)
            if not finished and self.later is not None:
                self.later()

    def advance(self, steps: float = SLICE) -> bool:
        """
        Continue the replay for about this number of steps. Return whether it is finished.

        An exception ends the belief: nothing is known until it is restarted.
        """
        end = STEP_COUNT.total + steps
        try:
            while self._line:
                for _ in self._line[0]:
                    if STEP_COUNT.total > end:
                        return False
                self._line.popleft()
        except BaseException:
            self._line.clear()
            self.hypotheses, self.last, self.arrivals = [], [], []
            raise
        return True

    def arrive(self, uid: str, request: PodRequest, when: float, *, listed: bool = False) -> None:
        """Record the bind of a pod to the node. Kubelets admit pods in the order of their binds."""
        self.do(self._arrive(uid, request, when, listed=listed))

    def _arrive(self, uid: str, request: PodRequest, when: float, *, listed: bool) -> Work:
        self._forget(when)
        self.arrivals.append(Arrival(uid, request, when, before=self.last, listed=listed))
        yield from self._replay(len(self.arrivals) - 1)

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
        self.do(self._replay(0))

    def started(self, uid: str, when: float) -> None:
        """Record that the kubelet has admitted the pod, as seen at ``when``."""
        self.do(self._judged(uid, when, admitted=True))

    def rejected(self, uid: str, when: float, *, tells: bool) -> None:
        """
        Record that the kubelet rejected the pod, which holds nothing.

        ``tells`` is false if the reason of the rejection is not modeled. Such a rejection says nothing about CPUs, so
        the pod counts as never arrived.
        """
        self.do(self._judged(uid, when, admitted=False) if tells else self._never_came(uid))

    def _never_came(self, uid: str) -> Work:
        if (at := self._place(uid)) is not None:
            yield from self._begin(at, self.arrivals.pop(at).before)
            return
        self.last = [after for one in self.last for after in never_there(one, uid)]
        self._conclude()

    def depart(self, uid: str, when: float) -> None:
        """Record that the pod has been deleted or has finished, at ``when`` or shortly before."""
        self.do(self._depart(uid, when))

    def _depart(self, uid: str, when: float) -> Work:
        self.left[uid] = min(when, self.left.get(uid, when))  # A topology may have shown the departure earlier.
        self.undated = [each.without(uid, surely=False) if when - LAG <= each.when else each for each in self.undated]
        # The verdicts on earlier arrivals were known long before this pod can have left.
        first = next((at for at, each in enumerate(self.arrivals) if each.may_follow(when)), len(self.arrivals))
        yield from self._replay(first)

    def report(
        self,
        shown: Sequence[Collection[str]],
        zones: Sequence[Zone],
        counts: Callable[[str], bool],
        when: float,
        *,
        certain: bool,
    ) -> Generator[int, None, Collection[str] | None]:
        """
        Apply a topology that was published while exactly the pods of one of the sets ``shown`` ran.

        Hypotheses that agree with none of the sets are dropped. ``counts`` returns whether the sets cover a pod.
        ``certain`` means that the fingerprint identifies a single set. Return the first set that a hypothesis agrees
        with. If there is none, return ``None`` and drop no hypothesis. Runs as a part of the work that ``do`` takes.
        """
        if not certain:
            return self._filter(UndatedTopology.of(shown, zones, when, self.hypotheses))
        settled = yield from self._settle(shown[0], zones, counts, when)
        if not settled and (self.shortened or self.overflow):
            again = Again(MOST_EFFORT, leads_on=leads_to(shown[0], zones))
            settled = yield from self._settle(shown[0], zones, counts, when, again)
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
    ) -> Generator[int, None, bool]:
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
                yield from self._begin(0, kept)
            return bool(kept)
        news = sorted(uid for uid in absent if uid not in self.left)
        earlier = self.arrivals, self.last, self.hypotheses, dict(self.left)
        if place and (news or how.leads_on is not None):
            # The topology counts these pods but does not show them: they left before, and that has not been seen yet.
            self.left.update(dict.fromkeys(news, when))
            # Copies, because a replay writes ``before``, and a topology that fits no state must not change anything.
            self.arrivals = [each.copy() for each in self.arrivals]
            yield from self._replay(0, how, until=place)
            absent |= not_shown(self._states(place), shown, counts)
        # Unexplained states are dropped: arrivals before the topology are not replayed again.
        there = [one for one in self._states(place) if not one.unexplained and all(one.has(uid) for uid in shown)]
        until = surely_after(self.arrivals, place, lambda uid: self._stays(uid) and counts(uid))
        # The topology may be newer than arrivals that it does not show, with departures after them.
        # Its sums locate unlocated pods, so absent unlocated pods left before.
        away = absent if until == place else {uid for uid in absent for one in there if uid in one.unlocated}
        budget = limited(EVENT)
        try:
            kept = yield from all_of(budget, agreeing_after(there, away, shown, zones))
            with budget:
                kept = distinct(kept)
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
        yield from self._begin(0, kept)
        return True

    def _stays(self, uid: str) -> bool:
        """Return whether the kubelet admitted the pod and the pod has not left."""
        return bool(self.fates.get(uid)) and uid not in self.left

    def with_one_unseen(self) -> list[Hypothesis]:
        """
        Return the hypotheses, and the states in which one more pod left unseen before the arrival of a pod without a verdict.

        Raise ``TooManyWays`` if there are too many states, or if the belief is ``busy``.
        """
        if self._unseen is None and not self.busy:
            self.do(self._look_unseen())
        if not self._unseen:
            raise TooManyWays
        return self._unseen

    def _look_unseen(self) -> Work:
        first = next((at for at, each in enumerate(self.arrivals) if each.known is None), None)
        if first is None:
            self._unseen = self.hypotheses
            return
        budget = limited(DECISION)
        try:
            others = yield from with_one_unseen(self.arrivals[first:], self.left, self.fates, budget)
            with budget:
                found = distinct(after for one in [*self.last, *others] for after in without_left(one, self.left))
        except TooManyWays:
            found = []
        self._unseen = found

    def keep(self, uids: Collection[str]) -> None:
        """Forget departed pods, except for ``uids`` and for pods whose grant is not known, because their part of the sums is not known."""
        self.hypotheses, self.last = forgetting(self.hypotheses, uids), forgetting(self.last, uids)
        for each in self.arrivals:
            each.before = forgetting(each.before, uids)

    def _judged(self, uid: str, when: float, *, admitted: bool) -> Work:
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
            yield from self._replay(at)

    def _place(self, uid: str) -> int | None:
        return next((at for at, each in enumerate(self.arrivals) if each.uid == uid), None)

    def _states(self, at: int) -> list[Hypothesis]:
        """Return the states before this arrival, or those after the last arrival if there is no such arrival."""
        return self.arrivals[at].before if at < len(self.arrivals) else self.last

    def _begin(self, at: int, states: list[Hypothesis]) -> Work:
        if at < len(self.arrivals):
            self.arrivals[at].before = states
        else:
            self.last = states
        yield from self._replay(at)

    def _replay(self, first: int, how: Again = ONCE, until: int | None = None) -> Work:
        """
        Replay the arrivals from index ``first`` on.

        With ``until``, replay only the arrivals before that index, with the whole budget.
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
            states, shortened, rest = yield from advance(each.before, each, self.left, self.fates.get(each.uid), share)
            left -= share - rest
            if shortened:
                self.shortened = max(self.shortened, given_up(each.before, states))
            self.overflow = self.overflow or (TOO_MANY if shortened and self.on_truncation is OnTruncation.WAIT else "")
            if how.leads_on is not None:
                # If no state passes, the topology belongs to another history: keep all.
                states = (yield from _passing(states, how.leads_on)) or states
            yield 0
            after = self._bounded(allowed(states, self.undated, each.uid))
            if at + 1 < len(self.arrivals):
                self.arrivals[at + 1].before = after
            else:
                self.last = after
            yield 0
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


def _passing(
    states: Iterable[Hypothesis], test: Callable[[Hypothesis], bool]
) -> Generator[int, None, list[Hypothesis]]:
    """Return the states that pass the test. Each state is a step."""
    found = []
    for one in states:
        spend()
        if test(one):
            found.append(one)
        yield 1
    return found


MANY: Final = 1 << 30
"""A number above every NUMA ID."""


class PodsInFlight(Exception):
    """The verdict on a pod depends on the unknown placement of pods in flight."""


@dataclass(slots=True)
class InFlightPods:
    """
    The pods in flight of one node.

    ``arrivals`` start with the first pod without a verdict, in the order of their binds, with the states before them.
    ``after`` are the states after all of them. ``verdicts`` are known verdicts by uid.
    """

    arrivals: Sequence[Arrival]
    after: Sequence[Hypothesis]
    verdicts: Mapping[str, bool]
    left: Mapping[str, float] = field(default_factory=dict)
    _may_move: bool | None = field(default=None, init=False)

    def matters_to(self, request: PodRequest) -> bool:
        """Return whether the kubelet may reject the pod because a pod in flight is on another NUMA node than predicted."""
        if not asks_managers(request, self.arrivals[0].before[0].state.node):
            return False
        return self.may_move() and not (self.all_equal(request) or self.leaves_room(request))

    def with_one_unseen(self) -> Generator[int, None, list[Hypothesis]]:
        """
        Return the states after all of these pods in which one other pod has left unseen before one of them arrived.

        Raise ``TooManyWays`` if there are too many states.
        """
        others = yield from with_one_unseen(self.arrivals, self.left, self.verdicts, limited(DECISION))
        return distinct(after for one in others for after in without_left(one, self.left))

    def may_move(self) -> bool:
        """Return whether one of these pods may be on another NUMA node, because a pod has left and no event has shown it yet."""
        if self._may_move is None:
            coming = [each for each in self.arrivals if self.verdicts.get(each.uid) is not False]
            self._may_move = any(_may_move(one, coming) for one in self.after)
        return self._may_move

    def all_equal(self, request: PodRequest) -> bool:
        """Return whether the pod and all of these arrivals have equal requests, each aligned as one unit to one NUMA node."""
        first = self.arrivals[0].before[0]
        node, place = first.state.node, everything(request)
        if first.sharing.keys() & place.devices.keys() or not _counts_places(node):
            return False
        # By identity: equal pods share their request object.
        requests = {id(each): each for each in (request, *self._requests())}.values()
        if not all(_is_one_unit(each, node) and everything(each) == place for each in requests):
            return False
        # A pod that is larger than every NUMA node has no placement on a single NUMA node.
        empty = KubeletState.empty(node).managers
        return any(fits_on(node, empty, numa, place) for numa in node.machine.numa_ids)

    def _requests(self) -> Iterator[PodRequest]:
        return (each.request for each in self.arrivals)

    def leaves_room(self, request: PodRequest) -> bool:
        """Return whether the pod is admitted for all placements of these arrivals."""
        return all(self._leaves_room(one, request) for one in self.arrivals[0].before)

    def _leaves_room(self, one: Hypothesis, request: PodRequest) -> bool:
        # Rejected pods hold nothing.
        coming = [each.request for each in self.arrivals if self.verdicts.get(each.uid) is not False]
        kept, node = together(map(everything, coming)), one.state.node
        # A memory block of several NUMA nodes groups them, which matters to a pod that asks for memory.
        binds = node.pins_memory and everything(request).memory
        if binds and not all(
            _stays_on_one(everything(each), node) or has_room_whoever_leaves(each, one, kept) for each in coming
        ):
            return False
        return has_room_whoever_leaves(request, one, kept)


def expecting(
    belief: Belief | None, hypotheses: list[Hypothesis], nominees: Mapping[str, PodRequest]
) -> tuple[list[Hypothesis], InFlightPods | None]:
    """
    Return the hypotheses with the nominated pods, for which the node is being freed, and the pods in flight, if any.

    ``nominees`` are requests by uid.
    """
    arrivals: list[Arrival] = []
    if belief is not None and hypotheses and has_places(hypotheses[0].state.node):
        # A pod that was seen gone holds nothing, whether the kubelet admitted it or not.
        # Copies, because a replay of the belief writes the states before arrivals.
        there = [each for each in belief.arrivals if each.uid not in belief.left]
        arrivals += [each.copy() for each in dropwhile(lambda each: each.known is not None, there)]
    for uid, request in nominees.items():
        if arrivals:
            arrivals.append(Arrival(uid, request, inf, before=hypotheses))
        hypotheses = admitted(hypotheses, uid, request)
    if belief is None or not arrivals:
        return hypotheses, None
    return hypotheses, InFlightPods(arrivals, hypotheses, dict(belief.fates), dict(belief.left))


def one_more(
    hypotheses: list[Hypothesis], in_flight: InFlightPods | None, uid: str, request: PodRequest
) -> tuple[list[Hypothesis], InFlightPods | None]:
    """Return a result of ``expecting`` with another nominated pod."""
    after = admitted(hypotheses, uid, request)
    if in_flight is None:
        return after, None
    arrivals = [*in_flight.arrivals, Arrival(uid, request, inf, before=hypotheses)]
    return after, InFlightPods(arrivals, after, in_flight.verdicts, in_flight.left)


def expecting_on_each(hypotheses: list[Hypothesis], nominees: Mapping[str, PodRequest]) -> list[Hypothesis]:
    """Return the hypotheses with the nominated pods. A hypothesis in which the kubelet rejects a pod stays without the pod."""
    for uid, request in nominees.items():
        hypotheses = [after for one in hypotheses for after in admitted([one], uid, request) or [one]]
    return hypotheses


def has_places(node: KubeletNode) -> bool:
    """Return whether a pod may have several placements on this node: it has several NUMA nodes and aligns pods or binds memory."""
    return len(node.machine.numa_ids) > 1 and (node.aligns or node.pins_memory)


def _counts_places(node: KubeletNode) -> bool:
    """Return whether the kubelet keeps a pod that fits one NUMA node on a single NUMA node, and chooses it by amounts alone."""
    strict = node.config.topology_policy in STRICT
    return strict and not (node.ids_are_real or node.whole_cores is not None or node.static_options.align_by_socket)


def _is_one_unit(request: PodRequest, node: KubeletNode) -> bool:
    """Return whether the pod is aligned as one unit and holds all its resources at the same time."""
    parts = pod_demand(request).containers
    if node.config.topology_scope is not KubeletScope.POD:
        return len(parts) == 1
    return all(container.kind is not ContainerKind.INIT for container, _ in parts)


def _stays_on_one(demand: ContainerDemand, node: KubeletNode) -> bool:
    """
    Return whether the memory of the pod is on a single NUMA node.

    Strict policies use no more NUMA nodes than the pod needs on the empty node.
    """
    if not demand.memory:
        return True
    empty = KubeletState.empty(node).managers
    strict = node.config.topology_policy in STRICT
    return strict and any(fits_on(node, empty, numa, demand) for numa in node.machine.numa_ids)


def _may_move(one: Hypothesis, coming: Sequence[Arrival]) -> bool:
    """
    Return whether a departure from a lower NUMA node may have changed the placements of these pods in flight in the hypothesis.

    A container takes the lowest NUMA node that fits, so more room there or above changes nothing.
    """
    pods, lowest = one.state.pods, one.state.node.machine.numa_ids[0]
    uids = {each.uid for each in coming}
    below = min((_lowest_place(one, uid) for uid in pods if uid not in uids), default=MANY)
    # A pod in flight may leave before a later one arrives, but not before one that is bound at nearly the same time.
    earlier = deque[tuple[float, int]]()
    for each in coming:
        while earlier and each.when - earlier[0][0] >= SHORTEST:
            below = min(below, earlier.popleft()[1])
        uid = each.uid
        highest = _highest_place(pods[uid].grant if uid in pods else None)
        if highest > lowest and (one.unlocated or below < highest):
            return True
        place = _lowest_place(one, uid) if uid in pods else lowest
        if each.listed:
            below = min(below, place)
        else:
            earlier.append((each.when, place))
    return False


def _lowest_place(one: Hypothesis, uid: str) -> int:
    """Return the lowest NUMA node on which the pod holds anything, or ``MANY`` if it holds nothing."""
    mask = mask_of(one.state.pods[uid].grant, one.state.node)
    return members(mask)[0] if mask else MANY


def _highest_place(grant: Grant | None) -> int:
    """
    Return the NUMA node below which a departure must be to change this grant.

    It is ``MANY`` if a container has a hint that is not preferred or has several NUMA nodes, because such grants are
    not modeled here.
    """
    highest = 0
    for one in () if grant is None else grant.containers:
        hint = one.hint
        if hint is None or not hint.preferred or hint.mask is None or hint.mask.bit_count() != 1:
            return MANY
        highest = max(highest, members(hint.mask)[0])
    return MANY if grant is None else highest


def mask_of(grant: Grant, node: KubeletNode) -> int:
    """Return the mask of NUMA nodes on which the pod holds resources."""
    mask = 0
    for given in grant.containers:
        for numa, bits in node.machine.numa_bits.items():
            mask |= bool(given.cpus.bits & bits) << numa
        for block in given.memory:
            mask |= block.mask
        for resource, ids in given.devices.items():
            for device in node.devices[resource].devices:
                mask |= device.near if device.id in ids else 0
    return mask
