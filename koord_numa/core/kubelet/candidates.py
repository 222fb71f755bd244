"""
The candidate states of the kubelet of a node, derived from its pods in the order of their binds.

The decisions of a kubelet depend on its state and configuration only, so its state follows from the order of the pods
that reached it. Pods reach it in the order of their binds. Verdicts and departures are seen late, so the latest
arrivals are kept with the candidates before them, and are replayed when an event changes their outcome. Assumptions
within a candidate are made in ``unknowns.py`` only.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from koord_numa.core.kubelet.budget import Budget, OverBudget
from koord_numa.core.kubelet.unknowns import (
    LIMITS,
    CandidateState,
    Signature,
    arrive,
    join,
    placement_of,
    released,
    unknown_pod,
)
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.value_objects import ValueObject, replace

UNLIKELY: Final = 8
"""Divisor of the step budget for a variant of the node with an unlikely option."""

TRUNCATED: Final = "more states of the kubelet are possible than one decision may try; the next topology decides"


@dataclass(slots=True)
class ArrivedPod:
    """
    A pod that was bound to the node.

    ``bound`` is the time of its bind in seconds, ``judged`` the time at which its verdict was seen. ``before`` are the
    candidates before the pod reached the kubelet. ``unseen`` caches the input and the output of the replay of this
    arrival in ``Candidates.with_unseen_departures`` until something changes.
    """

    uid: str
    request: PodRequest
    bound: float
    judged: float | None = None
    before: list[CandidateState] = field(default_factory=list)
    unseen: tuple[list[CandidateState], list[CandidateState]] | None = field(default=None, repr=False, compare=False)

    def may_follow(self, left: float) -> bool:
        """Return whether a pod that was seen gone at ``left`` may have left before this pod reached the kubelet."""
        return self.judged is None or left - LIMITS.news_delay <= self.judged


@dataclass(slots=True)
class Candidates:
    """
    The candidates of one node.

    ``states`` are the candidates after all events, the likeliest first. ``verdicts`` are the kubelet's verdicts by uid.
    ``left`` is the time at which pods were seen gone, by uid. ``last`` are the candidates after the latest arrival.
    ``truncated`` is why candidates were given up, empty if none were. If it is set, no decision may rest on ``states``.
    """

    states: list[CandidateState]
    truncated: str = ""
    verdicts: dict[str, bool] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)
    arrivals: list[ArrivedPod] = field(default_factory=list)
    last: list[CandidateState] = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.states

    @property
    def problem(self) -> str:
        """Why no decision may rest on the candidates; empty if decisions may."""
        if self.truncated:
            return self.truncated
        if not self.states:
            return "the state of the kubelet is not known"
        uids = self.states[0].unexplained
        return f"the kubelet's verdict on pod {min(uids)} agrees with no possible state" if uids else ""

    def arrive(self, uid: str, request: PodRequest, when: float) -> None:
        """Record the bind of a pod to the node. Kubelets admit pods in the order of their binds."""
        self._forget(when)
        self.arrivals.append(ArrivedPod(uid, request, when, before=self.last))
        self._replay(len(self.arrivals) - 1)

    def resume(self, arrived: Sequence[ArrivedPod], left: Mapping[str, float]) -> None:
        """Record several arrivals and departures at once, after a start while the node is in use."""
        self.arrivals = [replace(arrival, before=self.last) for arrival in arrived[-LIMITS.arrivals :]]
        self.verdicts.update((arrival.uid, True) for arrival in arrived if arrival.judged is not None)
        self.left.update(left)
        if len(arrived) > LIMITS.arrivals:
            self.truncated = TRUNCATED
        self._replay(0)

    def judge(self, uid: str, when: float, *, admitted: bool) -> None:
        """Record the kubelet's verdict on a pod."""
        self.verdicts[uid] = admitted
        at = self._place(uid)
        if at is not None:
            self.arrivals[at].judged = when
        if all(state.has(uid) == admitted and uid not in state.unexplained for state in self.states):
            return
        if at is not None:
            self._replay(at)
            return
        # The arrival is no longer kept: states can only be dropped.
        if not admitted:
            self.last = [_never_there(state, uid) if uid in state.unknown_placement else state for state in self.last]
        kept = [state for state in self.last if state.has(uid) == admitted]
        self.last = kept or [unexplained(state, uid, None, admitted=admitted) for state in self.last]
        self._conclude()

    def withdraw(self, uid: str) -> None:
        """Record that the pod never reached the managers: its bind failed, or it was rejected for a reason that is not modeled."""
        at = self._place(uid)
        if at is not None:
            before = self.arrivals.pop(at).before
            self._begin(at, before)
            return
        self.last = [_never_there(state, uid) for state in self.last]
        self._conclude()

    def depart(self, uid: str, when: float) -> None:
        """Record that the pod has been deleted or has finished, at ``when`` or shortly before."""
        self.left[uid] = min(when, self.left.get(uid, when))
        first = next((at for at, arrival in enumerate(self.arrivals) if arrival.may_follow(when)), len(self.arrivals))
        self._replay(first)

    def with_unseen_departures(self, budget: Budget) -> list[CandidateState]:
        """
        Return the candidates, and those in which one pod left unseen before a pod in flight reached the kubelet.

        A departure counts only if the kubelet then decides differently. If the decision is the same, a later departure
        stands for both. Raises ``OverBudget`` when the budget is spent or too many candidates are found.
        """
        first = next((at for at, arrival in enumerate(self.arrivals) if arrival.judged is None), None)
        if first is None:
            return self.states
        states: list[CandidateState] = self.arrivals[first].before
        for arrival in self.arrivals[first:]:
            states = self._next_unseen(arrival, states, budget)
        return distinct(_gone(states, self.left))

    def _next_unseen(self, arrival: ArrivedPod, states: list[CandidateState], budget: Budget) -> list[CandidateState]:
        if arrival.unseen is not None and arrival.unseen[0] is states:
            return arrival.unseen[1]
        verdict = self.verdicts.get(arrival.uid)
        found: list[CandidateState] = []
        for state in states:
            usual = self._outcomes(state, arrival, budget)
            found += usual
            if not state.unseen and not state.unexplained:
                known = {_outcome(after, arrival.uid) for after in usual}
                for uid in kinds_of_pods(state, self.left):
                    for after in self._outcomes(replace(released(state, uid), unseen=uid), arrival, budget):
                        if _outcome(after, arrival.uid) not in known:
                            found.append(after)
        if verdict is not None:
            found = [state for state in found if state.has(arrival.uid) == verdict] or found
        found = distinct(found)
        if len(found) > LIMITS.candidates * 2:
            raise OverBudget
        arrival.unseen = states, found
        return found

    def _outcomes(self, state: CandidateState, arrival: ArrivedPod, budget: Budget) -> list[CandidateState]:
        after = list(_advanced(state, arrival, self.left, budget))
        return after or [state]

    def _place(self, uid: str) -> int | None:
        return next((at for at, arrival in enumerate(self.arrivals) if arrival.uid == uid), None)

    def _before(self, at: int) -> list[CandidateState]:
        return self.arrivals[at].before if at < len(self.arrivals) else self.last

    def _begin(self, at: int, states: list[CandidateState]) -> None:
        if at < len(self.arrivals):
            self.arrivals[at].before = states
        else:
            self.last = states
        self._replay(at)

    def _replay(self, first: int) -> None:
        """Replay all arrivals from index ``first`` on."""
        if not first:
            self.truncated = ""
        budgets: dict[tuple[object, ...], Budget] = {}
        for at in range(first, len(self.arrivals)):
            arrival = self.arrivals[at]
            arrival.unseen = None
            after = self._bounded(self._advance(arrival, budgets))
            if at + 1 < len(self.arrivals):
                self.arrivals[at + 1].before = after
            else:
                self.last = after
        self._conclude()

    def _advance(self, arrival: ArrivedPod, budgets: dict[tuple[object, ...], Budget]) -> list[CandidateState]:
        """
        Return the states after an arrival.

        Each variant of the node has its own budget. Variants with unlikely options have a small budget.
        """
        most = LIMITS.replay
        verdict = self.verdicts.get(arrival.uid)
        found: list[CandidateState] = []
        others: list[CandidateState] = []
        for key, group in _by_variant(arrival.before).items():
            budget = budgets.setdefault(key, Budget(most // UNLIKELY if group[0].options else most))
            try:
                after = [one for state in group for one in _advanced(state, arrival, self.left, budget)]
            except OverBudget:
                after = self._joined(group)
                if verdict is not False:
                    after = [unknown_pod(state, arrival.uid, arrival.request) for state in after]
                budget.left = max(budget.left, 0) + most // UNLIKELY // 4
            for one in after:
                (found if verdict in (None, one.has(arrival.uid)) else others).append(one)
        return found or [unexplained(state, arrival.uid, arrival.request, admitted=bool(verdict)) for state in others]

    def _conclude(self) -> None:
        self.states = self._bounded(_gone(self.last, self.left))

    def _bounded(self, states: Iterable[CandidateState]) -> list[CandidateState]:
        found = distinct(states)
        if any(not state.unexplained for state in found):
            found = [state for state in found if not state.unexplained]
        found.sort(key=lambda state: (len(state.options), state.lateness))
        return [after for group in _by_variant(found).values() for after in self._few(group)]

    def _few(self, states: list[CandidateState]) -> list[CandidateState]:
        """Return the states of one variant of the node, joined if there are too many."""
        most = LIMITS.unlikely_candidates if states[0].options else LIMITS.candidates
        return states if len(states) <= most else self._joined(states)

    def _joined(self, states: Sequence[CandidateState]) -> list[CandidateState]:
        """Return one candidate per variant of the node that stands for all states of the variant."""
        found = []
        for group in _by_variant(states).values():
            if (joined := join(group)) is None:
                self.truncated = TRUNCATED
            found.append(joined or group[0])
        return found

    def _forget(self, now: float) -> None:
        """Forget arrivals whose outcome no later event can change, and departures before them."""
        old = 0
        for arrival in self.arrivals:
            is_recent = arrival.judged is None or arrival.judged >= now - LIMITS.topology_delay
            if is_recent and len(self.arrivals) - old < LIMITS.arrivals:
                break
            old += 1
        self.arrivals = self.arrivals[old:]
        uids = {arrival.uid for arrival in self.arrivals}
        for state in self._before(0):
            uids.update(state.state.pods, state.unlocated, state.unknown_placement)
        self.left = {uid: when for uid, when in self.left.items() if uid in uids}
        self.verdicts = {uid: verdict for uid, verdict in self.verdicts.items() if uid in uids}


def _by_variant(states: Iterable[CandidateState]) -> dict[tuple[object, ...], list[CandidateState]]:
    """Return the states of each variant of the node, in order."""
    groups: dict[tuple[object, ...], list[CandidateState]] = {}
    for state in states:
        node = state.state.node
        groups.setdefault((id(node.machine), id(node.config), state.options), []).append(state)
    return groups


def _advanced(
    state: CandidateState, arrival: ArrivedPod, left: Mapping[str, float], budget: Budget
) -> Iterator[CandidateState]:
    """
    Yield the states after a pod reached the kubelet: one per possible decision and per set of pods that may have left before.

    Pods that were seen gone before the bind are gone. A larger set of departures with the same decision is left out,
    because the other pods may leave later.
    """
    leaving = sorted((when, uid) for uid, when in left.items() if uid != arrival.uid and state.has(uid))
    gone = [uid for when, uid in leaving if when <= arrival.bound]
    open_ = [uid for when, uid in leaving if when > arrival.bound and arrival.may_follow(when)]
    start = _without(state, gone)
    seen: list[tuple[frozenset[str], Signature]] = []
    for away in _subsets(open_):
        before = _without(start, away)
        late = sum(_lateness(arrival, left[uid], away=uid in away) for uid in open_)
        for after in arrive(before, arrival.uid, arrival.request, budget):
            outcome = _outcome(after, arrival.uid)
            if any(outcome == known and less < away for less, known in seen):
                continue
            seen.append((away, outcome))
            yield replace(after, lateness=after.lateness + late) if late else after


def _outcome(after: CandidateState, uid: str) -> Signature:
    """
    Return a key of the kubelet's decision on a pod, including the CPUs that its containers hold; empty if the kubelet rejects the pod.
    """
    pod = after.state.pods.get(uid)
    if pod is None:
        return ("unknown",) if uid in after.unknown_placement else ()
    node = after.state.node
    held = 0
    for container in pod.grant.containers:
        held |= container.cpus.bits
    memory = after.state.managers.memory
    wide = memory is not None and any(
        block.mask & (block.mask - 1) for container in pod.grant.containers for block in container.memory
    )
    return (
        placement_of(pod.grant, node),
        tuple([(held & here).bit_count() for here in node.machine.numa_bits.values()]),
        # The share of each NUMA node in a block of several NUMA nodes depends on the free amounts.
        tuple(tuple(of.items()) for of in memory.free.values()) if wide and memory is not None else (),
    )


def _lateness(arrival: ArrivedPod, left: float, *, away: bool) -> float:
    """
    Return by how many seconds events must have been late for a pod to be gone (``away``), or still there, at the arrival.

    ``left`` is the time at which the pod was seen gone.
    """
    latest = left if arrival.judged is None else arrival.judged
    return max(0.0, left - latest) if away else max(0.0, latest - left)


def _subsets(uids: Sequence[str]) -> Iterator[frozenset[str]]:
    if len(uids) > LIMITS.leaving:
        # Too many pods to try every subset: try departures in the order in which they were seen, then single pods.
        found = [frozenset(uids[:size]) for size in range(len(uids) + 1)]
        found += [frozenset([uid]) for uid in uids[1:]]
        found += [frozenset(uids) - {uid} for uid in uids[:-1]]
        yield from dict.fromkeys(found)
        return
    for size in range(len(uids) + 1):
        yield from (frozenset(chosen) for chosen in combinations(uids, size))


def _without(state: CandidateState, uids: Iterable[str]) -> CandidateState:
    for uid in uids:
        state = released(state, uid)
    return state


def _gone(states: Iterable[CandidateState], left: Collection[str]) -> Iterator[CandidateState]:
    for state in states:
        after = _without(state, [uid for uid in left if state.has(uid)])
        yield replace(after, unseen="") if after.unseen and after.unseen in left else after


def _never_there(state: CandidateState, uid: str) -> CandidateState:
    after = released(state, uid)
    return replace(after, departed={other: grant for other, grant in after.departed.items() if other != uid})


def unexplained(state: CandidateState, uid: str, request: PodRequest | None, *, admitted: bool) -> CandidateState:
    """
    Return the candidate with the pod added or removed against the prediction, marked as unexplained.

    An admitted pod is charged to each NUMA node.
    """
    marked = state.unexplained | {uid}
    if not admitted:
        return replace(_never_there(state, uid), unexplained=marked)
    if state.has(uid) or request is None:
        return replace(state, unexplained=marked)
    return replace(unknown_pod(state, uid, request), unexplained=marked)


def distinct(states: Iterable[CandidateState]) -> list[CandidateState]:
    """
    Return each set of placements once, in order.

    Candidates that differ only in amounts that may be free or held are joined.
    """
    there = list(states)
    if len(there) < 2:
        return there
    found: dict[Signature, list[CandidateState]] = {}
    for state in there:
        found.setdefault(state.signature, []).append(state)
    return [group[0] if len(group) == 1 else _one_of(group) for group in found.values()]


def _one_of(group: list[CandidateState]) -> CandidateState:
    rooms = {state.room: state for state in group}
    joined = join(list(rooms.values())) if len(rooms) > 1 else None
    first = min(group, key=lambda state: state.lateness) if joined is None else joined
    unseen, unexplained_ = group[0].unseen, group[0].unexplained
    if (first.unseen, first.unexplained) != (unseen, unexplained_):
        first = replace(first, unseen=unseen, unexplained=unexplained_)
    return first


def kinds_of_pods(state: CandidateState, left: Collection[str] = ()) -> Iterator[str]:
    """Yield one pod of each kind. Pods are of one kind if their departures leave the same room."""
    known: set[Signature] = set()
    for uid, pod in state.state.pods.items():
        if uid in left:
            continue
        own = uid if uid in state.maybe_free or uid in state.maybe_held else ""
        kind = (placement_of(pod.grant, state.state.node), *sorted(pod.requests.items()), own)
        if kind not in known:
            known.add(kind)
            yield uid
    requests: list[PodRequest] = []
    for uid, request in state.unlocated.items():
        if uid not in left and request not in requests:
            requests.append(request)
            yield uid


class Expected(ValueObject):
    """
    The candidates that decisions on a node rest on.

    ``states`` are the candidates, ``asked`` the candidates with unseen departures. ``truncated`` is why they are
    incomplete, empty if they are complete. ``arrived`` are the uids of the kept arrivals.
    """

    states: Sequence[CandidateState]
    asked: Sequence[CandidateState] = ()
    truncated: str = ""
    arrived: frozenset[str] = frozenset()


def expecting(candidates: Candidates, coming: Mapping[str, PodRequest]) -> Expected:
    """Return the candidates with the nominated pods ``coming`` (uid, request), for which the node is being freed."""
    states, truncated = candidates.states, candidates.truncated
    try:
        asked = candidates.with_unseen_departures(Budget(LIMITS.question))
    except OverBudget:
        asked, truncated = states, truncated or TRUNCATED
    for uid, request in coming.items():
        is_same = asked is states
        states = _admitted(states, uid, request)
        asked = states if is_same else _admitted(asked, uid, request)
    return Expected(
        states,
        asked,
        truncated,
        frozenset(arrival.uid for arrival in candidates.arrivals),
    )


def _admitted(states: list[CandidateState], uid: str, request: PodRequest) -> list[CandidateState]:
    """Return the states after the kubelet admitted this pod. States in which it would reject the pod are unchanged."""
    found: list[CandidateState] = []
    for state in states:
        found += [after for after in arrive(state, uid, request, Budget(LIMITS.question)) if after.has(uid)] or [state]
    return distinct(found)[: LIMITS.candidates]
