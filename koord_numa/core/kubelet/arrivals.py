"""
One pod that reached the kubelet while others were about to leave: the states that may be after it.

Theory. Pods reach the kubelet in the order of their binds. That a pod has left is seen later than it happens, so it may have left before
pods arrived that were bound earlier. Of all the orders only those matter in which the arriving pod is treated otherwise: where the kubelet
decides the same with the leaving pod still there, that it leaves later stands for both. With more room init containers may hold other CPUs
than later ones take: that is another decision, although no topology shows it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, dropwhile, islice
from typing import Final

from koord_numa.core.kubelet.budget import EVENT, OverBudget, TooManyWays, limited
from koord_numa.core.kubelet.departures import Departed, without
from koord_numa.core.kubelet.hypothesis import Hypothesis, Signature, cpus_by_numa, held_by_init, released, variant_of
from koord_numa.core.kubelet.replay import Outcome, arrive
from koord_numa.core.kubelet.variants import distinct
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import INIT
from koord_numa.core.value_objects import replace

LAG: Final = 30.0
"""Seconds: news of a pod's end or verdict come within so many."""

OLD: Final = 180.0
"""Seconds after which no topology is delivered any more that does not show an arrival."""

MOST_ARRIVALS: Final = 40
"""So many of the latest arrivals are replayed at most."""

MOST_LEAVING: Final = 4
"""Of so many pods every subset may have left before another one arrives; of more, those that were seen gone first."""

BEYOND: Final = 1_200
"""Steps that are added for one arrival as long as no state explains its verdict."""

MOST_HYPOTHESES: Final = 96
"""With more of them a belief is no longer complete until a topology rules some out."""

MOST_STATES: Final = 800
"""So many states are compared at most."""


@dataclass(slots=True)
class Arrival:
    """
    A pod that reached the kubelet. ``when`` is the time of its bind, ``known`` that of the news of its verdict. ``before`` are the states
    that may have been when it came; of pods that may leave before,XX"""

    uid: str
    request: PodRequest
    when: float
    known: float | None = None
    before: list[Hypothesis] = field(default_factory=list)

    def copy(self) -> "Arrival":
        """Return the arrival as it is now."""
        return Arrival(self.uid, self.request, self.when, self.known, self.before)

    def may_follow(self, left: float) -> bool:
        """May a pod have left before this one came that was seen gone at ``left``?"""
        # Without a verdict the pod may still be waiting at the kubelet, so that any departure may come first.
        return self.known is None or left - LAG <= self.known


def surely_after(arrivals: Sequence[Arrival], place: int, must_show: Callable[[str], bool]) -> int:
    """
    The place of the first arrival that came after a topology which shows none from ``place`` on; their number if none is.

    ``must_show`` tells of which pods any newer topology speaks. One of refused pods, and of pods that have left since, does not.
    """
    return next((at for at in range(place, len(arrivals)) if must_show(arrivals[at].uid)), len(arrivals))


def still_open(arrivals: Iterable[Arrival], when: float, explains: Callable[[Hypothesis], bool]) -> list[Arrival]:
    """
    The arrivals that later news can put in another light, at ``when``, with those states before them that explain what was published.

    Pods that are about to be seen gone may have left before these came, also where a topology tells of an unknown moment.
    """
    found = [*dropwhile(lambda each: not each.may_follow(when), arrivals)]
    for each in found:
        # Where none does, what is known is of another history: all stay.
        each.before = list(filter(explains, each.before)) or each.before
    return found


def not_shown(states: Iterable[Hypothesis], shown: Collection[str], counts: Callable[[str], bool]) -> set[str]:
    """The pods of these states that a topology speaks of (``counts``) and that are not among those which it shows."""
    return {
        uid
        for one in states
        for uid in (*one.state.pods, *one.unplaced, *one.unlocated)
        if uid not in shown and counts(uid)
    }


def advance(
    states: Sequence[Hypothesis], arrival: Arrival, left: Mapping[str, float], admitted: bool | None, steps: int
) -> tuple[list[Hypothesis], bool, int]:
    """
    The states after this pod reached the kubelet, whose verdict on it is ``admitted`` if it is known.

    ``left`` are pods that are gone by now, by uid, and when that was seen. Where no state explains the verdict, or there are too many, all
    are kept and marked. The flag says whether some were given up because ``steps`` were spent, the most doubtful ones.
    The last value is how many steps are left.
    """
    found: list[Hypothesis] = []
    others: list[Hypothesis] = []
    given_up = False
    with limited(steps + BEYOND) as budget:
        try:
            for state in sorted(states, key=lambda one: one.uncertainty):
                for after in _outcomes(state, arrival, left):
                    (found if admitted in (None, after.has(arrival.uid)) else others).append(after)
                    if found and budget.left < BEYOND:
                        raise OverBudget
        except TooManyWays:
            given_up = True
    afterwards = _explained(found, others, arrival, admitted)
    if not afterwards:
        afterwards = [unexplained(one, arrival.uid, admitted=admitted is not False) for one in states]
    return afterwards, given_up, budget.left - BEYOND


def _explained(
    found: list[Hypothesis], others: list[Hypothesis], arrival: Arrival, admitted: bool | None
) -> list[Hypothesis]:
    return found or [unexplained(one, arrival.uid, admitted=bool(admitted)) for one in others]


def unexplained(one: Hypothesis, uid: str, *, admitted: bool) -> Hypothesis:
    """The hypothesis with a pod in or out against what it foresees."""
    marked = one.unexplained | {uid}
    if admitted:
        return replace(one, unplaced=one.unplaced | {uid}, unexplained=marked)
    gone = released(one, uid)
    return replace(gone, gone={other: grant for other, grant in gone.gone.items() if other != uid}, unexplained=marked)


def never_there(one: Hypothesis, uid: str) -> Iterator[Hypothesis]:
    """The states without a pod that the kubelet has refused: no topology shows it, and it never held what it was foreseen to."""
    try:
        with limited(EVENT):
            states = list(without(one, [uid]))
    except TooManyWays:
        # What it was foreseen to hold stays counted until a topology shows it free.
        states = [replace(one, unlocated={other: it for other, it in one.unlocated.items() if other != uid})]
    for after in states:
        yield replace(after, gone={other: grant for other, grant in after.gone.items() if other != uid})


def _outcomes(state: Hypothesis, arrival: Arrival, left: Mapping[str, float]) -> Iterator[Hypothesis]:
    leaving = sorted((when, uid) for uid, when in left.items() if uid != arrival.uid and state.has(uid))
    # Pods that were seen gone before the bind are gone in any order of events; of unlocated ones only where that matters to the arrival.
    gone = [uid for when, uid in leaving if when <= arrival.when and uid not in state.unlocated]
    open_ = [uid for when, uid in leaving if uid not in gone and (when <= arrival.when or arrival.may_follow(when))]
    for there in without(state, gone):
        seen: list[tuple[frozenset[str], Outcome, HeldByInit]] = []
        departed: Departed = {}  # the subsets share what their first pods leave
        for away in _subsets(open_):
            uncertainty = sum(_uncertainty(arrival, left[uid], away=uid in away) for uid in open_)
            for before in without(there, away, departed):
                for outcome, after in arrive(before, arrival.uid, arrival.request).items():
                    held = _held_by_init(after, arrival.uid)
                    # An outcome with fewer pods gone stands for the same one with more: they leave later, with the same effect.
                    if not any(
                        outcome == other and less < away and kept.covers(held, away) for less, other, kept in seen
                    ):
                        # Of several places at which they may have been each is another state.
                        if not away & there.unlocated.keys():
                            seen.append((away, outcome, held))
                        yield replace(after, uncertainty=after.uncertainty + uncertainty) if uncertainty else after


@dataclass(frozen=True, slots=True)
class HeldByInit:
    """
    How many CPUs of each NUMA node a pod's init containers hold, and how many perhaps those of every pod, by uid. ``alone``: how many no
    later container has, where CPUs come from several NUMA nodes; else it follows from the rest.

    Outcomes do not tell it apart. What one state takes to be free for the arrival another may have held all the same.
    """

    own: Signature
    perhaps: Mapping[str, tuple[int, ...]]
    alone: int = 0

    def covers(self, other: "HeldByInit", gone: Collection[str]) -> bool:
        """Is what the other tells of pods that stay told by this one, too? What pods hold that leave is free whenever they do."""
        return (self.own, self.alone) == (other.own, other.alone) and all(
            self.perhaps.get(uid) == other.perhaps.get(uid)
            for uid in self.perhaps.keys() | other.perhaps.keys()
            if uid not in gone
        )


def _held_by_init(after: Hypothesis, uid: str) -> HeldByInit:
    pod = after.state.pods.get(uid)
    bits = 0
    for one in pod.grant.containers if pod is not None else ():
        bits |= one.cpus.bits if one.kind is INIT else 0
    node = after.state.node
    alone = held_by_init(pod.grant).bit_count() if pod is not None and uid in after.spread else 0
    return HeldByInit(
        cpus_by_numa(bits, node) if bits else (),
        {other: cpus_by_numa(loose, node) for other, loose in after.loose.items()},
        alone,
    )


def _uncertainty(arrival: Arrival, left: float, *, away: bool) -> float:
    """Seconds by which news must have been late for a pod that was seen gone at ``left`` to be away, or still there, at the arrival."""
    # The earliest moment that the news of the verdict allows is when the kubelet decided at the latest.
    latest = left if arrival.known is None else arrival.known
    return max(0.0, left - latest) if away else max(0.0, latest - left)


def _subsets(uids: Sequence[str]) -> Iterator[frozenset[str]]:
    for size in range(len(uids) + 1):
        # 2^n subsets: above the limit departures are taken in the order in which they were seen.
        if size and len(uids) > MOST_LEAVING:
            yield frozenset(uids[:size])
        else:
            yield from (frozenset(chosen) for chosen in combinations(uids, size))


def without_left(one: Hypothesis, left: Collection[str]) -> Iterator[Hypothesis]:
    """After all of these pods have left; what unlocated ones held stays counted, and they are named."""
    leaving = frozenset(uid for uid in left if uid in one.unlocated)
    for after in without(one, [uid for uid in left if uid not in leaving]):
        yield replace(after, leaving=leaving) if leaving else after


def forgetting(states: list[Hypothesis], uids: Collection[str]) -> list[Hypothesis]:
    """The states without pods that left but for these; the same list where all stay."""
    found = [_forgetting(one, uids) for one in states]
    # By identity: what has been worked out for a list is kept with it.
    return states if all(after is one for after, one in zip(found, states, strict=True)) else found


def _forgetting(one: Hypothesis, uids: Collection[str]) -> Hypothesis:
    old = [uid for uid, grant in one.gone.items() if grant is not None and uid not in uids]
    return replace(one, gone={uid: it for uid, it in one.gone.items() if uid not in old}) if old else one


def bounded(hypotheses: Iterable[Hypothesis]) -> tuple[list[Hypothesis], str]:
    """Those of these states that are followed, each once, and why some are given up, empty if none is."""
    found = distinct(islice(hypotheses, MOST_STATES))
    # A state that explains everything outranks all that do not.
    if any(not one.unexplained for one in found):
        found = [one for one in found if not one.unexplained]
    if len(found) <= MOST_HYPOTHESES:
        return found, ""
    return _fair_share(found, MOST_HYPOTHESES), f"more than {MOST_HYPOTHESES} states of the kubelet are possible"


def _fair_share(found: Sequence[Hypothesis], most: int) -> list[Hypothesis]:
    """The least doubtful of every variant of the node, so that none is given up for another's details."""
    groups: dict[tuple[int, int], list[Hypothesis]] = {}
    for one in sorted(found, key=lambda one: one.uncertainty):
        groups.setdefault(variant_of(one.state.node), []).append(one)
    share = max(1, most // len(groups))
    return [one for group in groups.values() for one in group[:share]]
