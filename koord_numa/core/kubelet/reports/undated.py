"""
What a topology says whose moment is not known, as it has no pod fingerprint.

Theory. It is of one moment, at which the pods of one of some sets ran. Where a pod is does not change while it is there, so that a state in
which none of these sets makes up what the topology shows is none that the kubelet is in, then or later. That remains so when arrivals are
replayed for later news: a state that was ruled out once, and comes up again, is ruled out again. News may tell of further sets, as a
pod that is seen gone shortly after the topology came may have left before it was made; one that was refused is in none.

How many CPUs a pod has is the same in all states. So few of the sets are left to compare: those whose pods
have as many as are shown in all.

Example: two devices are near each NUMA node. Pods a and b have those near NUMA node 0, and c came to NUMA node 1 or to NUMA node 2. A
topology shows a device in use on NUMA node 1 and none on NUMA node 2. That pod d has left by now does not make NUMA node 2 possible.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.reports.report import agrees, in_use, may_explain, running_cpus
from koord_numa.core.objects.node import Zone
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.value_objects import replace

MOST_SETS: Final = 1_024
"""Of more sets of pods nothing is said any more."""


@dataclass(frozen=True)
class UndatedTopology:
    """
    One of the sets of pods ``shown``, by uid, ran when it was made; it came at ``when``. ``cpus`` is how many each of the pods has that
    ``zones`` would show, where that is known.
    """

    shown: Sequence[tuple[str, ...]]
    zones: Sequence[Zone]
    when: float
    cpus: Mapping[str, int]

    @classmethod
    def of(
        cls, shown: Iterable[Collection[str]], zones: Sequence[Zone], when: float, states: Sequence[Hypothesis]
    ) -> Self:
        """One that came when these were the states."""
        sets = [*map(tuple, shown)]
        uids = dict.fromkeys(uid for pods in sets for uid in pods)
        return cls(sets, zones, when, running_cpus(states[0], uids) if states else {})

    @cached_property
    def sets(self) -> list[tuple[str, ...]]:
        """Those of the sets that have as many CPUs as are shown in all."""
        if not self.cpus:
            return list(self.shown)
        there = sum(in_use(zone).get(CPU, 0) for zone in self.zones) // MILLI
        known = self.cpus
        return [
            pods
            for pods in self.shown
            if any(uid not in known for uid in pods) or sum(known[uid] for uid in pods) == there
        ]

    def agreeing(self, states: Sequence[Hypothesis]) -> tuple[Collection[str] | None, list[Hypothesis]]:
        """The first set that any of the states agrees with, ``None`` where there is none, and the states that agree with some set."""
        found: Collection[str] | None = None
        # By identity: equal states of different variants must both stay.
        kept: dict[int, Hypothesis] = {}
        for pods in self.sets:
            here = {id(one): one for one in states if agrees(one, pods, self.zones)}
            kept |= here
            if here and found is None:
                found = list(pods)
        return found, list(kept.values())

    def allows(self, one: Hypothesis) -> bool:
        """May it be of the moment of this state, or of a later one?"""
        return may_explain(one, self.sets, self.zones)

    def speaks_of(self, uids: Iterable[str]) -> bool:
        """Is any of these pods in one of the sets?"""
        return any(uid in self._uids for uid in uids)

    @cached_property
    def _uids(self) -> frozenset[str]:
        return frozenset(uid for pods in self.sets for uid in pods) if len(self.shown) <= MOST_SETS else frozenset()

    def without(self, uid: str, *, surely: bool) -> "UndatedTopology":
        """With this pod away when it was made, or ``surely`` away."""
        if len(self.shown) > MOST_SETS:
            return self
        away = [tuple(other for other in pods if other != uid) for pods in self.shown]
        return replace(self, shown=[*dict.fromkeys(away if surely else [*self.shown, *away])])


def allowed(states: list[Hypothesis], topologies: Iterable[UndatedTopology], uid: str) -> list[Hypothesis]:
    """
    Those of the states after this pod has come that all of these topologies allow.

    Where one allows none, what is known is of another history, and all stay.
    """
    for each in topologies:
        # What the others of its pods come to was asked when these came.
        if each.speaks_of([uid]):
            states = list(filter(each.allows, states)) or states
    return states
