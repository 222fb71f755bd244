"""
All states that a kubelet may be in after everything that is known of its node: the hypotheses that nothing contradicts.

``Belief`` follows one node. Whoever feeds it tells pods in the order of their binds, what became of them, and which pods a topology shows.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, distinct, released
from koord_numa.core.kubelet.inference.replay import arrive, depart
from koord_numa.core.kubelet.managers.results import OUT_OF, SMT_ALIGNMENT
from koord_numa.core.kubelet.report import agrees, settled
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest

MOST_HYPOTHESES: Final = 12
"""With more of them a belief is no longer complete until a topology rules some out."""

WINDOW: Final = 60.0
"""Seconds: a pod that is seen gone may have left before pods arrived that were bound so long ago."""

MOST_RECENT: Final = 6
"""So many of the latest arrivals are replayed at most."""


@dataclass(slots=True)
class Belief:
    """
    ``hypotheses`` are in the order of their likelihood. A belief that is ``lost`` needs a new start, unless time explains it. ``fates`` are
    verdicts on pods by uid; ``overflow`` says that not all states are followed, empty while they are.
    """

    hypotheses: list[Hypothesis]
    overflow: str = ""
    fates: dict[str, bool] = field(default_factory=dict)

    @property
    def lost(self) -> str:
        """Why no hypothesis may be true."""
        if not self.hypotheses:
            return self.overflow or "nothing is known of it"
        uids = self.hypotheses[0].unexplained
        return f"the fate of pod {min(uids)} fits no known state of the kubelet" if uids else ""

    def arrive(self, uid: str, request: PodRequest, when: float) -> None:
        """The pod was bound to the node; kubelets admit pods in the order of their binds."""
        self._take(after for one in self.hypotheses for after in arrive(_recent(one, when), uid, request, when))

    def started(self, uid: str) -> None:
        """The kubelet has admitted the pod."""
        self.fates[uid] = True
        kept = [one for one in self.hypotheses if one.has(uid)]
        # Otherwise somebody left before it came, which will be seen in time.
        self._take(
            kept
            or [
                replace(one, strangers=one.strangers | {uid}, unexplained=one.unexplained | {uid})
                for one in self.hypotheses
            ]
        )

    def rejected(self, uid: str, reason: str) -> None:
        """The kubelet refused the pod, which holds nothing."""
        self.fates[uid] = False
        kept = [one for one in self.hypotheses if not one.has(uid)]
        if kept:
            self._take(kept)
            return
        known = reason == SMT_ALIGNMENT or reason.startswith(OUT_OF)
        unexplained = frozenset() if known else frozenset({uid})
        gone = (_never_came(one, uid) for one in self.hypotheses)
        self._take(replace(one, unexplained=one.unexplained | unexplained) for one in gone)

    def depart(self, uid: str, when: float) -> None:
        """The pod is gone, or has finished: now or shortly before."""
        self._take(after for one in self.hypotheses for after in depart(one, uid, when - WINDOW, self.fates))
        recent = {each.uid for one in self.hypotheses for each in one.recent}
        for old in [old for old in self.fates if old not in recent]:
            del self.fates[old]

    def report(self, shown: Iterable[Collection[str]], zones: Sequence[Zone]) -> Collection[str] | None:
        """
        A topology was published while just the pods of one of these sets ran: hypotheses that agree with none of them are dropped.

        Returns the first set that some hypothesis agrees with; ``None``, and no hypothesis is dropped, when there is no such set.
        """
        for pods in shown:
            kept = [settled(one, pods, zones) for one in self.hypotheses if agrees(one, pods, zones)]
            if kept:
                self.overflow = ""
                self._take(kept)
                return pods
        return None

    def keep(self, uids: Collection[str]) -> None:
        """Pods that left are forgotten but for these."""
        self.hypotheses = [
            replace(one, gone={uid: grant for uid, grant in one.gone.items() if uid in uids}) for one in self.hypotheses
        ]

    def _take(self, hypotheses: Iterable[Hypothesis]) -> None:
        found = distinct(hypotheses)
        if any(not one.unexplained for one in found):
            found = [one for one in found if not one.unexplained]
        if len(found) > MOST_HYPOTHESES:
            self.overflow = f"more than {MOST_HYPOTHESES} states of the kubelet are possible"
            found = _fair_share(found)
        self.hypotheses = found


def _fair_share(found: Sequence[Hypothesis]) -> list[Hypothesis]:
    """The likeliest of every variant of the node, so that none is given up for another's details."""
    groups: dict[int, list[Hypothesis]] = {}
    for one in found:
        groups.setdefault(id(one.state.node), []).append(one)
    share = max(1, MOST_HYPOTHESES // len(groups))
    return [one for group in groups.values() for one in group[:share]]


def _never_came(one: Hypothesis, uid: str) -> Hypothesis:
    gone = released(one, uid)
    return replace(gone, gone={other: grant for other, grant in gone.gone.items() if other != uid})


def _recent(one: Hypothesis, when: float) -> Hypothesis:
    """Without arrivals that are too old to be replayed."""
    return replace(one, recent=tuple([each for each in one.recent if each.when >= when - WINDOW][-MOST_RECENT + 1 :]))
