"""
Is a pod whose containers are aligned one by one admitted whichever pods have left, each of its containers on one NUMA node?

Theory. Under a strict policy a container that fits one NUMA node of the empty machine gets the lowest NUMA node that has all it asks for,
or is refused; while it is to take over what an init container left, that can only be the one where this is. So the answer depends on what
each NUMA node has free, and not on who holds the rest. On each of them departures leave one of a few amounts: what is free, and with it
what any of the pods there hold. The containers are followed one after the other. One may go to a NUMA node that has room for it with some
of the amounts that are still possible there, while those below lack room with some of theirs; with these amounts the next is followed.
Where at some point all may lack room for a container, the pod may be refused. That counts pods on several NUMA nodes as if each part
could leave alone, and init containers' CPUs as if any number of them could be taken over, so that a yes holds and a no says nothing.

The number of ways is the product of the NUMA nodes' amounts; followed like this, only those are told apart that containers come across.

Where the pods that may leave are not known, each NUMA node may have anything free between what is and all that it has. No init container
leaves CPUs or devices to later containers there (``is_confined``), so what earlier ones keep of a NUMA node is the sum of what some of them
want. The same holds for memory: an init container adds as much to what is taken as to what is left, or nothing to both, and others add
what they want to the difference of the two. So amounts are only ever compared with such sums, and between two of these all are alike.

Example: on NUMA node 0 are 2 CPUs free, or 4 without a pod that holds 2. ``init 2, app 4`` goes there. The app gets the init container's 2
CPUs again and needs 2 more: with the amount 2 there are none, and it is refused. ``init 2, app 2`` is admitted with either amount.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from operator import add, ge
from typing import Final

from koord_numa.core.kubelet.departures.turns import Amounts, Own, Turn, Turns
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.state import Grant, KubeletNode, free_on
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind

MOST_AMOUNTS: Final = 64
"""With more amounts that one NUMA node may have free nothing is told."""

EFFORT: Final = 6_000
"""So many times an amount is compared with a container for one pod, about 10 ms. Where it takes more, nothing is told."""

Ways = frozenset[Amounts]
"""The amounts that may be free on one NUMA node."""


@dataclass(slots=True)
class SinglePlaces:
    """
    One pod on the variants of one node.

    ``reached`` are all NUMA nodes, as a mask, to which containers may go in the states that were found to admit the pod.
    """

    request: PodRequest
    reached: int = field(default=0, init=False)
    _left: int = field(default=EFFORT, init=False)
    # By identity, with the objects themselves so that none of these is given to another one meanwhile.
    _turns: dict[int, tuple[KubeletNode, Turns | None]] = field(default_factory=dict, init=False)
    _held: dict[tuple[int, int], tuple[Grant, Mapping[int, Amounts] | None]] = field(default_factory=dict, init=False)
    _known: dict[tuple[int, tuple[Ways, ...]], bool] = field(default_factory=dict, init=False)

    def admit(self, one: Hypothesis) -> bool:
        """Do the managers admit the pod in this state, whichever pods have left it? A no says nothing."""
        node = one.state.node
        if id(node) not in self._turns:
            self._turns[id(node)] = node, Turns.of(self.request, node)
        _, turns = self._turns[id(node)]
        if turns is None or not _is_plain(one, turns):
            return False
        ways = self._ways(one, turns)
        return ways is not None and self._walked(turns, ways)

    def admit_whatever_is_free(self, one: Hypothesis) -> bool:
        """
        As ``admit``, where any amount may have come free that pods can hold, whether these are known or not.

        Only for pods in which no init container ties later ones to it.
        """
        node = one.state.node
        turns = Turns.of(self.request, node)
        if turns is None or not _is_plain(one, turns) or (sums := turns.sums(MOST_AMOUNTS)) is None:
            return False
        # Kept, as states are known by identity.
        self._turns[id(node)] = node, turns
        found = []
        for numa in turns.numas:
            least = map(min, turns.amounts(free_on(node, one.state.managers, numa)), turns.whole)
            most = map(min, turns.size(node, numa), turns.whole)
            choices = [
                {low, *(amount for amount in amounts if low < amount <= high)}
                for low, high, amounts in zip(least, most, sums, strict=True)
            ]
            if prod(map(len, choices)) > MOST_AMOUNTS:
                return False
            found.append(frozenset(product(*choices)))
        return self._walked(turns, tuple(found))

    def _walked(self, turns: Turns, ways: tuple[Ways, ...]) -> bool:
        key = (id(turns), ways)
        if key not in self._known:
            walk = _Walk(turns, self._left)
            self._known[key] = walk.admits(0, ways, turns.start)
            self._left = walk.left
            self.reached |= walk.reached
        return self._known[key]

    def _ways(self, one: Hypothesis, turns: Turns) -> tuple[Ways, ...] | None:
        """For each NUMA node what may be free there; ``None`` where that is too much."""
        node = one.state.node
        gains: dict[int, list[Amounts]] = {}
        for pod in one.state.pods.values():
            key = id(pod.grant), id(node)
            if key not in self._held:
                self._held[key] = pod.grant, turns.held(pod.grant, node)
            _, held = self._held[key]
            if held is None:
                return None
            for numa, amounts in held.items():
                gains.setdefault(numa, []).append(amounts)
        found = []
        for numa in turns.numas:
            free = turns.amounts(free_on(node, one.state.managers, numa))
            ways = {tuple(map(min, free, turns.whole))}
            for gain in gains.get(numa, ()):
                ways |= {tuple(map(min, map(add, way, gain), turns.whole)) for way in ways}
                if len(ways) > MOST_AMOUNTS:
                    return None
            found.append(frozenset(ways))
        return tuple(found)


def _is_plain(one: Hypothesis, turns: Turns) -> bool:
    """Is it known what each pod holds of every NUMA node, and no memory bound to several?"""
    if (
        one.spread
        or one.mixed
        or one.loose
        or one.unlocated
        or one.leaving
        or one.unplaced
        or one.sharing.keys() & set(turns.names)
    ):
        return False
    if None in one.gone.values():
        return False  # what it held stays counted, and may be free
    memory = one.state.managers.memory
    return memory is None or all(group == 1 << numa for numa, group in memory.groups.items())


@dataclass(slots=True)
class _Walk:
    """The containers of one pod over the NUMA nodes, in all ways in which they may be taken."""

    turns: Turns
    left: int
    reached: int = 0

    def admits(self, at: int, ways: tuple[Ways, ...], own: tuple[Own, ...]) -> bool:
        """Are this container and those after it admitted in every one of these ways?"""
        if at == len(self.turns.each):
            return True
        turn = self.turns.each[at]
        pinned = [place for place, (_, left, _) in enumerate(own) if self._pins(turn, left)]
        if len(pinned) > 1:
            return False
        below = list(ways)
        for place in pinned or range(len(ways)):
            self.left -= len(ways[place])
            if self.left < 0:
                return False
            fitting = frozenset(way for way in ways[place] if turn.sized[place] and _fits(way, own[place], turn))
            if fitting:
                here = (*below[:place], fitting, *below[place + 1 :])
                self.reached |= 1 << self.turns.numas[place]
                if not all(self.admits(at + 1, *next_) for next_ in self._after(turn, place, here, own)):
                    return False
            if len(fitting) == len(ways[place]):
                return True
            below[place] = ways[place] - fitting
        return False

    def _pins(self, turn: Turn, left: Amounts) -> bool:
        counted = self.turns.counted
        return any(want and kept for want, kept in zip(turn.wants[:counted], left[:counted], strict=True))

    def _after(
        self, turn: Turn, place: int, ways: tuple[Ways, ...], own: tuple[Own, ...]
    ) -> Iterator[tuple[tuple[Ways, ...], tuple[Own, ...]]]:
        """After the container has taken its share there, with any number of CPUs taken over from init containers."""
        taken, left, same = own[place]
        for again in self._taken_over(turn, own[place], ways[place]):
            more, kept = list(taken), list(left)
            for at, want in enumerate(turn.wants):
                if at >= self.turns.counted:
                    more[at], kept[at] = _with_memory(turn, want, taken[at], left[at])
                    continue
                over = again if at == self.turns.cpus else min(want, left[at])
                more[at] += want - over
                kept[at] += want - over if turn.kind is ContainerKind.INIT else -over
            # Where fewer are taken over, more have to be free.
            there = frozenset(way for way in ways[place] if all(map(ge, way, more)))
            if there:
                mine = (tuple(more), tuple(kept), same)
                yield (*ways[:place], there, *ways[place + 1 :]), self._offering(turn, place, own, mine)

    def _offering(self, turn: Turn, place: int, own: tuple[Own, ...], mine: Own) -> tuple[Own, ...]:
        """What the pod has where, with this of one NUMA node, and what later containers find there as init containers found it."""
        want = 0 if self.turns.cpus is None else turn.wants[self.turns.cpus]
        taken, left, same = mine
        if want and turn.kind is ContainerKind.INIT:
            mine = (taken, left, (*same, want))
        after = (*own[:place], mine, *own[place + 1 :])
        return after if not want or turn.kind is ContainerKind.INIT else tuple((*one[:2], ()) for one in after)

    def _taken_over(self, turn: Turn, own: Own, ways: Ways) -> Sequence[int]:
        """How many CPUs the container may get of those that init containers have left on its NUMA node."""
        at, (taken, kept, same) = self.turns.cpus, own
        if at is None or not kept[at]:
            return (0,)
        want = turn.wants[at]
        # One that chooses as many from the same CPUs gets the same ones (``CpuStock``).
        if want in same:
            return (want,)
        fewest = min(max(0, want - (way[at] - taken[at])) for way in ways)
        return range(fewest, min(want, kept[at]) + 1)


def _with_memory(turn: Turn, want: int, taken: int, left: int) -> tuple[int, int]:
    """What is taken of one NUMA node and left to later containers, as ``MemoryTable.take`` enters it."""
    if not want:
        return taken, left
    return taken + max(0, want - left), max(left, want) if turn.kind is ContainerKind.INIT else max(0, left - want)


def _fits(way: Amounts, own: Own, turn: Turn) -> bool:
    taken, left, _ = own
    return all(
        not want or has - less + more >= want
        for want, has, less, more in zip(turn.wants, way, taken, left, strict=True)
    )
