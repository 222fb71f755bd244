"""
Arrivals: pods that reached the kubelet while other pods were leaving, and the states that are possible after an arrival.

Pods reach the kubelet in the order of their binds. A departure is seen later than it happens, so a pod may have left
before the arrival of pods that were bound earlier. Only orders in which the kubelet decides differently on the arriving
pod are followed: if the decision is the same with the leaving pod still present, a later departure stands for both. A
different set of CPUs held by init containers is a different decision, although no topology shows it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, dropwhile, islice
from typing import Final

from koord_numa.core.kubelet.budget import EVENT, OverBudget, TooManyWays, limited
from koord_numa.core.kubelet.departures import Departed, without
from koord_numa.core.kubelet.hypothesis import (
    Hypothesis,
    Signature,
    cpus_by_numa,
    free_memory,
    held_by_init,
    released,
    signature,
    variant_of,
)
from koord_numa.core.kubelet.replay import Outcome, arrive
from koord_numa.core.kubelet.variants import distinct, one_of_each_kind
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import INIT
from koord_numa.core.value_objects import ValueObject, replace

LAG: Final = 30.0
"""Maximum delay, in seconds, of events about the end of a pod or the verdict on a pod."""

OLD: Final = 180.0
"""Seconds after an arrival from which every delivered topology shows the arrival."""

MOST_ARRIVALS: Final = 40
"""Maximum number of arrivals that are replayed, the latest ones."""

MOST_LEAVING: Final = 4
"""
Maximum number of leaving pods of which every subset is tried. Of more pods, departures are tried in the order in which they were seen.
"""

BEYOND: Final = 1_200
"""Steps that are added for an arrival while no state explains its verdict."""

MOST_HYPOTHESES: Final = 96
"""Maximum number of hypotheses. With more, a belief is incomplete until a topology rules some out."""

MOST_STATES: Final = 800
"""Maximum number of states that are compared."""


@dataclass(slots=True)
class Arrival:
    """
    A pod that reached the kubelet.

    ``when`` is the time of its bind in seconds, ``known`` the time at which its verdict was seen. ``before`` are the
    possible states before its arrival. ``unseen`` caches the input and the output of ``with_one_unseen``.
    """

    uid: str
    request: PodRequest
    when: float
    known: float | None = None
    before: list[Hypothesis] = field(default_factory=list)
    unseen: tuple[Sequence[Hypothesis], bool | None, list[Hypothesis]] | None = field(
        default=None, repr=False, compare=False
    )

    def copy(self) -> "Arrival":
        """Return a copy of the arrival."""
        return Arrival(self.uid, self.request, self.when, self.known, self.before)

    def may_follow(self, left: float) -> bool:
        """Return whether a pod that was seen gone at ``left`` may have left before this pod arrived."""
        # Without a verdict, the pod may still wait at the kubelet, so any departure may come first.
        return self.known is None or left - LAG <= self.known


def surely_after(arrivals: Sequence[Arrival], place: int, must_show: Callable[[str], bool]) -> int:
    """
    Return the index of the first arrival after a topology that shows no pod from index ``place`` on, or the number of arrivals.

    ``must_show`` returns whether every newer topology shows a pod. Topologies do not show rejected pods and pods that
    have left since.
    """
    return next((at for at in range(place, len(arrivals)) if must_show(arrivals[at].uid)), len(arrivals))


def still_open(arrivals: Iterable[Arrival], when: float, explains: Callable[[Hypothesis], bool]) -> list[Arrival]:
    """
    Return the arrivals at time ``when`` whose outcome later events can still change.

    The states before these arrivals are reduced to those that explain the published topology. Pods that are about to be
    seen gone may have left before these arrivals, also if the time of a topology is not known.
    """
    found = [*dropwhile(lambda each: not each.may_follow(when), arrivals)]
    for each in found:
        # If no state explains it, the topology belongs to another history: keep all states.
        each.before = list(filter(explains, each.before)) or each.before
    return found


def not_shown(states: Iterable[Hypothesis], shown: Collection[str], counts: Callable[[str], bool]) -> set[str]:
    """Return the pods of these states that the topology counts (``counts``) and that are not in ``shown``."""
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
    Return the states after this pod reached the kubelet, whether states were given up, and the remaining steps.

    ``admitted`` is the verdict, or ``None`` if it is not known. ``left`` maps the uids of pods that are gone by now to
    the time at which that was seen. If no state explains the verdict, or if too many states are possible, all states
    are kept and marked as unexplained. If ``steps`` are spent, the states with the highest uncertainty are given up.
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
    """Return the hypothesis with the pod added or removed against the prediction, marked as unexplained."""
    marked = one.unexplained | {uid}
    if admitted:
        return replace(one, unplaced=one.unplaced | {uid}, unexplained=marked)
    gone = released(one, uid)
    return replace(gone, gone={other: grant for other, grant in gone.gone.items() if other != uid}, unexplained=marked)


def never_there(one: Hypothesis, uid: str) -> Iterator[Hypothesis]:
    """
    Yield the states without a pod that the kubelet has rejected. No topology shows the pod, and it never held its predicted allocation.
    """
    try:
        with limited(EVENT):
            states = list(without(one, [uid]))
    except TooManyWays:
        # The predicted allocation stays counted until a topology shows it free.
        states = [replace(one, unlocated={other: it for other, it in one.unlocated.items() if other != uid})]
    for after in states:
        yield replace(after, gone={other: grant for other, grant in after.gone.items() if other != uid})


def _outcomes(state: Hypothesis, arrival: Arrival, left: Mapping[str, float]) -> Iterator[Hypothesis]:
    leaving = sorted((when, uid) for uid, when in left.items() if uid != arrival.uid and state.has(uid))
    # Pods seen gone before the bind are gone in any order. Unlocated pods leave only if that matters to the arrival.
    gone = [uid for when, uid in leaving if when <= arrival.when and uid not in state.unlocated]
    open_ = [uid for when, uid in leaving if uid not in gone and (when <= arrival.when or arrival.may_follow(when))]
    for there in without(state, gone):
        seen: list[tuple[frozenset[str], Outcome, HeldByInit]] = []
        departed: Departed = {}  # Subsets with the same first pods share these states.
        for away in _subsets(open_):
            uncertainty = sum(_uncertainty(arrival, left[uid], away=uid in away) for uid in open_)
            for before in without(there, away, departed):
                for outcome, after in arrive(before, arrival.uid, arrival.request).items():
                    held = _held_by_init(after, arrival.uid)
                    # An outcome with fewer pods gone stands for the same outcome with more: they leave later.
                    if not any(
                        outcome == other and less < away and kept.covers(held, away) for less, other, kept in seen
                    ):
                        # Each possible placement of unlocated pods is a separate state.
                        if not away & there.unlocated.keys():
                            seen.append((away, outcome, held))
                        yield replace(after, uncertainty=after.uncertainty + uncertainty) if uncertainty else after


def with_one_unseen(
    arrival: Arrival, others: Sequence[Hypothesis], left: Mapping[str, float], admitted: bool | None
) -> list[Hypothesis]:
    """
    Return the states after this pod reached the kubelet in which one more pod has left without an event.

    In ``others`` that pod left before an earlier arrival. A departure before this arrival counts only if the kubelet
    then decides differently: otherwise a later departure stands for it.
    """
    if arrival.unseen is not None and arrival.unseen[0] is others and arrival.unseen[1] is admitted:
        return arrival.unseen[2]
    uid = arrival.uid
    found = [after for one in others for after in _outcomes(one, arrival, left)]
    for one in arrival.before:
        decisions = {_decision(after, uid) for after in _outcomes(one, arrival, left)}
        for away in one_of_each_kind(one, [other for other in one.state.pods if other not in left]):
            more = _outcomes(released(one, away), arrival, left)
            found += [after for after in more if _decision(after, uid) not in decisions]
    found = distinct(one for one in found if admitted in (None, one.has(uid)))
    arrival.unseen = others, admitted, found
    return found


def _decision(after: Hypothesis, uid: str) -> Signature:
    """Return a key of the kubelet's decision on the pod and of what its containers hold, empty for a rejection."""
    pod, node = after.state.pods.get(uid), after.state.node
    if pod is None:
        return ()
    held = 0
    for one in pod.grant.containers:
        held |= one.cpus.bits
    memory = after.state.managers.memory
    is_wide = any(block.mask & (block.mask - 1) for one in pod.grant.containers for block in one.memory)
    # The share of each NUMA node in a block of several NUMA nodes depends on the free amounts.
    shares = free_memory(memory) if memory is not None and is_wide else ()
    return signature(pod.grant, node), cpus_by_numa(held, node), shares


class HeldByInit(ValueObject):
    """
    CPU counts of init containers that outcomes do not distinguish.

    ``own`` is the number of CPUs per NUMA node that the init containers of the arriving pod hold. ``perhaps`` is the
    number of CPUs per NUMA node that the init containers of every pod may hold, by uid. ``alone`` is the number of CPUs
    that no later container has, if CPUs come from several NUMA nodes; otherwise it follows from the other fields. CPUs
    that are free for the arrival in one state may be held in another.
    """

    own: Signature
    perhaps: Mapping[str, tuple[int, ...]]
    alone: int = 0

    def covers(self, other: "HeldByInit", gone: Collection[str]) -> bool:
        """
        Return whether both have equal counts for all pods that stay. CPUs of the pods in ``gone`` become free at any time of departure.
        """
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
    """
    Return by how many seconds events must have been late for a pod to be gone (``away``), or still there, at the arrival.

    ``left`` is the time at which the pod was seen gone.
    """
    # The kubelet decided at the latest when the verdict was seen.
    latest = left if arrival.known is None else arrival.known
    return max(0.0, left - latest) if away else max(0.0, latest - left)


def _subsets(uids: Sequence[str]) -> Iterator[frozenset[str]]:
    for size in range(len(uids) + 1):
        # There are 2^n subsets. Above the limit, departures are taken in the order in which they were seen.
        if size and len(uids) > MOST_LEAVING:
            yield frozenset(uids[:size])
        else:
            yield from (frozenset(chosen) for chosen in combinations(uids, size))


def without_left(one: Hypothesis, left: Collection[str]) -> Iterator[Hypothesis]:
    """
    Yield the states after all of these pods have left. The use of unlocated pods stays counted, and these pods are named in ``leaving``.
    """
    leaving = frozenset(uid for uid in left if uid in one.unlocated)
    for after in without(one, [uid for uid in left if uid not in leaving]):
        yield replace(after, leaving=leaving) if leaving else after


def forgetting(states: list[Hypothesis], uids: Collection[str]) -> list[Hypothesis]:
    """Return the states without departed pods other than ``uids``, or the same list if nothing changes."""
    found = [_forgetting(one, uids) for one in states]
    # Keep the identity of the list: results are cached by it.
    return states if all(after is one for after, one in zip(found, states, strict=True)) else found


def _forgetting(one: Hypothesis, uids: Collection[str]) -> Hypothesis:
    old = [uid for uid, grant in one.gone.items() if grant is not None and uid not in uids]
    return replace(one, gone={uid: it for uid, it in one.gone.items() if uid not in old}) if old else one


def bounded(hypotheses: Iterable[Hypothesis]) -> tuple[list[Hypothesis], str]:
    """Return the distinct states that are followed, and why some were given up; empty if none were."""
    found = distinct(islice(hypotheses, MOST_STATES))
    # States that explain all verdicts replace all states that do not.
    if any(not one.unexplained for one in found):
        found = [one for one in found if not one.unexplained]
    if len(found) <= MOST_HYPOTHESES:
        return found, ""
    return _fair_share(found, MOST_HYPOTHESES), f"more than {MOST_HYPOTHESES} states of the kubelet are possible"


def _fair_share(found: Sequence[Hypothesis], most: int) -> list[Hypothesis]:
    """Return the states with the lowest uncertainty of each variant of the node, so that no variant is dropped because of another."""
    groups: dict[tuple[int, int], list[Hypothesis]] = {}
    for one in sorted(found, key=lambda one: one.uncertainty):
        groups.setdefault(variant_of(one.state.node), []).append(one)
    share = max(1, most // len(groups))
    return [one for group in groups.values() for one in group[:share]]
