"""
The states after pods have left unseen, one or several, for pods whose memory may be bound to several NUMA nodes.

Theory. Where a policy does not keep it to one the memory manager refuses hints that cut through a group of NUMA nodes which a block ties
together. Groups come and go with pods, so that more room may be a refusal in any direction. Not all sets of pods
can be tried: each pod is, all together, and then ``MOST_TRIED`` sets of two and more.

Example: NUMA nodes of 8, 8 and 12 GiB, a pod holds 1 GiB of node 0. A pod of 13 GiB gets nodes 1 and 2. Should the first one have left, it
gets nodes 0 and 1, where an init container of 6 GiB and an app of 12 have no room beside each other.

*Before pods on their way.* One of these may become a group that a pod after it cuts through, and one departure may be too few to lead it
there: the lowest set of NUMA nodes with room for it has room only once pods have left several of them, or has room for a pod before it only
then. So the same sets are taken away before each pod on its way that is decided on otherwise without them, and after it one pod more before
the next. ``BEFORE_ARRIVALS`` dry runs are spent on that, as every set of pods may be gone before any of them.

Example: pods of 2 and 5 CPUs have left NUMA nodes 0 and 1, unseen. Two pods are on their way: one of 5 CPUs, foreseen on NUMA node 2, is on
1, and so the memory of one with devices of three NUMA nodes is bound to 0, 2 and 5. A pod whose container needs NUMA nodes 0 and 2 is
refused; were either of the first two still there, the group would be another one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, islice
from typing import Final

from koord_numa.core.kubelet.demand import ContainerDemand, PodDemand
from koord_numa.core.kubelet.departures.asked import Asked
from koord_numa.core.kubelet.departures.one_away import holding, with_one_away
from koord_numa.core.kubelet.inference.arrivals import Arrival, without_left
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, Signature, released
from koord_numa.core.kubelet.inference.replay import Effort, arrive
from koord_numa.core.kubelet.inference.variants import one_of_each_kind
from koord_numa.core.kubelet.room import fits_on
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace

MOST_TRIED: Final = 40
"""So many sets of several pods are tried."""

BEFORE_ARRIVALS: Final = 300
"""So many dry runs are spent on sets of pods that left before pods on their way came."""

SEVERAL: Final = 2
"""Pods at least."""


def binds_freely(demand: PodDemand, node: KubeletNode) -> bool:
    """Is memory of the pod bound of which the policy does not say that it comes from one NUMA node?"""
    policy = node.config.topology_policy
    if not node.pins_memory or policy is KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    if not any(part.memory for _, part in demand.containers):
        return False
    by_pod = node.config.topology_scope is KubeletScope.POD
    units = [demand.pod] if by_pod else [part for _, part in demand.containers]
    return policy is not KubeletPolicy.RESTRICTED or not all(_fits_one(unit, node) for unit in units)


def _fits_one(unit: ContainerDemand, node: KubeletNode) -> bool:
    """May restricted align it on one NUMA node?"""
    empty = KubeletState.empty(node).managers
    return any(fits_on(node, empty, numa, unit) for numa in node.machine.numa_ids)


def with_several_away(one: Hypothesis) -> Iterator[Hypothesis]:
    """
    All pods away, then two and more; of pods of one kind so many as leave, whichever they are. At most ``MOST_TRIED`` of these sets.
    """
    everyone = frozenset(holding(one))
    if len(everyone) < SEVERAL:
        return
    known: set[Signature] = set()
    without = {frozenset[str](): one}
    waiting = [frozenset[str]()]
    sets = chain([everyone], _several(one, everyone, without, waiting))
    for away in islice(sets, MOST_TRIED):
        if away not in without:
            without[away] = reduce(released, sorted(away), one)
        after = without[away]
        if (room := after.room) not in known:
            known.add(room)
            yield after


def _several(
    one: Hypothesis, everyone: frozenset[str], without: dict[frozenset[str], Hypothesis], waiting: list[frozenset[str]]
) -> Iterator[frozenset[str]]:
    """Sets of two and more that are not all, smaller ones first; what is left ``without`` each."""
    for away in waiting:
        for uid in one_of_each_kind(without[away], (uid for uid in holding(one) if uid not in away)):
            more = away | {uid}
            if more not in without and more != everyone:
                without[more] = released(without[away], uid)
                waiting.append(more)
                if len(more) >= SEVERAL:
                    yield more


Less = Callable[[Hypothesis], Iterable[Hypothesis]]
"""A state with pods away, in some ways."""


@dataclass(slots=True)
class LeftBefore:
    """
    Pods on their way before which several pods have left unseen, as far as ``effort`` goes.

    ``left`` are pods that were seen gone, and ``fates`` verdicts that are known, by uid.
    """

    arrivals: Sequence[Arrival]
    left: Collection[str]
    fates: Mapping[str, bool]
    effort: Effort = field(default_factory=lambda: Effort(BEFORE_ARRIVALS))
    _known: set[tuple[int, Signature]] = field(default_factory=set, init=False)
    _followed: list[tuple[int, Hypothesis]] = field(
        default_factory=list, init=False
    )  # with the place of the next arrival

    def states(self) -> Iterator[Hypothesis]:
        """What may be after all of the arrivals: first where all left at one moment, then with more moments."""
        for place, each in enumerate(self.arrivals):
            yield from self._without(each.before, place, with_several_away)
        for place, one in self._followed:  # which grows
            if self.effort.left < 0:
                return
            yield from self._without([one], place, with_one_away)

    def _without(self, states: Iterable[Hypothesis], place: int, less: Less) -> Iterator[Hypothesis]:
        """Where the arrival at this place is decided on otherwise with pods away."""
        asked = Asked(self.arrivals[place].request)
        for before in states:
            usual, _ = asked.foreseen(before, self.effort)
            for there in less(before):
                # Of what is open besides the likeliest is followed.
                gone = replace(there, loose={}, spread=frozenset())
                outcome, _ = asked.foreseen(gone, self.effort)
                if self.effort.left < 0:
                    return
                if outcome != usual:
                    yield from self._after(gone, place)

    def _after(self, one: Hypothesis, place: int) -> Iterator[Hypothesis]:
        """The states after this arrival and those that come after it, each once."""
        if self.effort.left < 0 or (place, one.room) in self._known:
            return
        self._known.add((place, one.room))
        if place == len(self.arrivals):
            yield from without_left(one, self.left)
            return
        each = self.arrivals[place]
        fate = self.fates.get(each.uid)
        for after in arrive(one, each.uid, each.request, self.effort).values():
            if fate is None or after.has(each.uid) == fate:
                if place + 1 < len(self.arrivals):
                    self._followed.append((place + 1, after))
                yield from self._after(after, place + 1)
