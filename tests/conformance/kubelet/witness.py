"""
For a pod that waits although the kubelet would take it: a state in which the kubelet refuses, and that agrees with all that was shown.

The *witness* proves that the scheduler could not know better. It is looked for among histories (``worlds``): pods that left or
stayed unseen, other moments at which pods left, and what is not published of the node. Not finding one proves nothing; finding one does,
as every history is played by the kubelet's own procedure and compared with every verdict and scan that was shown before the question.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Final

from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.aims.aimed import aimed
from tests.conformance.kubelet.aims.departing import departing
from tests.conformance.kubelet.aims.filling import filling
from tests.conformance.kubelet.aims.refusals import refusing
from tests.conformance.kubelet.aims.shaping import kept, shaping
from tests.conformance.kubelet.aims.wandering import wandering
from tests.conformance.kubelet.caches import other_caches
from tests.conformance.kubelet.closing import annealed, closing, rewired
from tests.conformance.kubelet.departures import Branch, Departures, Script, moved, replayed, shifted
from tests.conformance.kubelet.early import early_histories
from tests.conformance.kubelet.variants import last_named, variant
from tests.conformance.kubelet.worlds import NEVER, Played, Recorded, World
from tests.conformance.vectors import Case

EVENTS: Final = 9_000
"""So many events are played in all with the recorded departures, on nodes that agree with what is published."""

MORE_SHARED: Final = 4
"""So many times as many where devices are near several NUMA nodes, which there are many ways to be."""

FEWEST_NODES: Final = 4
"""On so many of them pods leave at other moments, too."""

MOST_VARIED: Final = 8
"""So are they on so many of those that agree with all that was shown."""

MOST_CACHES: Final = 40
"""On so many nodes with other uncore caches pods leave at other moments, too."""

NARROW: Final = 4
"""So many histories are followed side by side from the empty node on."""

RECENT: Final = 60
"""From so many events before a question on many are."""

MOST_SHIFTS: Final = 60
"""So many other moments for one pod are tried."""


@dataclass
class Search:
    """The wrong nos of one sequence, by the index of the question; ``found`` says in words which state refuses the pod."""

    recorded: Recorded
    open: set[int]
    found: dict[int, str] = field(default_factory=dict)
    dice: Random = field(default_factory=lambda: Random(1))
    tries: dict[int, int] = field(
        default_factory=dict
    )  # on so many other nodes pods have left at other moments, by question

    def run(self) -> dict[int, str]:
        """Witnesses, by question; questions without one are missing."""
        truth = World(self.recorded, self.recorded.node, self.recorded.ends)
        last = max(self.open, default=0) + 1
        played = truth.play(last)
        script = Script(truth.ends)
        for index in sorted(self.open):
            self._keep(truth, script, index)
        for index in sorted(self.open):
            self._look(truth, [Branch(played.states[index], script.before(index + 1))], index, "the node as it is", 2)
        for index in sorted(self.open):
            first = max(0, index - RECENT)
            begin = Branch(played.states[first], script.before(first))
            self._depart(truth, begin, first, index, "pods left at other moments")
            if index in self.open:
                self._move(truth, played, index)
            if index in self.open:
                self._shift(truth, played, index)
        for index in sorted(self.open):
            self._hurry(index)
        self._close(truth, played)
        for index in sorted(self.open):
            self._anneal(truth, script, index)
            if index in self.open:
                self._rewire(truth, script, index)
        self._elsewhere(truth, last)
        for index in sorted(self.open):
            self._other_caches(truth, index)
        self._look_near_refusals(truth, script)
        return self.found

    def _look_near_refusals(self, truth: World, script: Script) -> None:
        """Where the scheduler expects the kubelet to refuse the pod, and then where too little is free for it."""
        for look in (self._aim, self._depart_near, self._fill, self._shape):
            for index in sorted(self.open):
                look(truth, script, index)

    def _elsewhere(self, truth: World, last: int) -> None:
        """On nodes that differ in anything that is not published."""
        shared = any(device.near.bit_count() > 1 for pool in truth.node.devices.values() for device in pool.devices)
        for number in range(max(FEWEST_NODES, EVENTS * (MORE_SHARED if shared else 1) // last)):
            if not self.open:
                break
            world = self._other_node(truth)
            self._as_recorded(world)
            if self.open and number < FEWEST_NODES:
                self._on(world)

    def _move(self, world: World, played: Played, index: int) -> None:
        """Some pods at other moments, of all that may have been: those of which nothing says that they are gone stay, and then any."""
        for ends in moved(self.recorded, index, self.dice):
            first = min(min(at, world.ends.get(uid, NEVER)) for uid, at in ends.items())
            other = world.with_ends(ends)
            after = other.play_on(played, min(first, index), index)
            if after.agrees_until(index):
                branch = Branch(after.states[index], Script(other.ends).before(index + 1))
                self._look(other, [branch], index, "pods left at other moments")
                if index not in self.open:
                    return

    def _shift(self, world: World, played: Played, index: int) -> None:
        """One pod at another moment, where an arrival is treated otherwise for it."""
        for uid, at in islice(shifted(world, played, max(0, index - RECENT), index), MOST_SHIFTS):
            other = world.with_ends({uid: at})
            after = other.play_on(played, min(at, world.ends.get(uid, NEVER)), index)
            if after.agrees_until(index):
                branch = Branch(after.states[index], Script(other.ends).before(index + 1))
                self._look(other, [branch], index, "a pod left at another moment")
            if index not in self.open:
                return

    def _hurry(self, index: int) -> None:
        """Pods at the kubelet soon after their bind, and others that leave at any moments."""
        first = max(0, index - RECENT)
        for recorded in early_histories(self.recorded, first, index, self.dice):
            world = World(recorded, recorded.node, recorded.ends)
            played, what = world.play(index + 1), "pods came early"
            if played.agrees_until(index):
                branch = Branch(played.states[index], Script(world.ends).before(index + 1))
                self._look(world, [branch], index, what)
            if index in self.open:
                begin = Branch(played.states[first], Script(world.ends).before(first))
                self._depart(world, begin, first, index, f"{what}, others left at other moments")
            if index not in self.open:
                return

    def _close(self, truth: World, played: Played) -> None:
        """On nodes where devices in use are shared so that few are left for the pod."""
        for index in sorted(self.open):
            for node in closing(self.recorded, played, index, self.dice):
                world = replace(truth, node=node)
                after = world.play(index + 1)
                if after.agrees_until(index):
                    branch = Branch(after.states[index], Script(world.ends).before(index + 1))
                    self._look(world, [branch], index, "a node that is equal in all that is published", 0)
                if index not in self.open:
                    break

    def _rewire(self, truth: World, script: Script, index: int) -> None:
        """On nodes that came about from the recorded one as its devices exchanged NUMA nodes, one after the other."""
        for world, branch in rewired(truth, script.before(index + 1), index, self.dice):
            self._look(world, [branch], index, "a node that is equal in all that is published")
            if index not in self.open:
                return

    def _anneal(self, truth: World, script: Script, index: int) -> None:
        """On nodes whose devices came to be near other NUMA nodes through such that contradict what was shown."""
        for world, branch in annealed(truth, script.before(index + 1), index, self.dice):
            self._look(world, [branch], index, "a node that is equal in all that is published")
            if index not in self.open:
                return

    def _other_caches(self, truth: World, index: int) -> None:
        """On nodes with other uncore caches, with the recorded departures and, on some, others."""
        what, first = "a node with other uncore caches", max(0, index - RECENT)
        for number, (world, played) in enumerate(other_caches(truth, index, self.dice)):
            script = Script(world.ends)
            self._look(world, [Branch(played.states[index], script.before(index + 1))], index, what)
            if index in self.open and number < MOST_CACHES:
                begin = Branch(played.states[first], script.before(first))
                self._depart(world, begin, first, index, f"{what}, pods left at other moments")
            if index not in self.open:
                return

    def _aim(self, truth: World, script: Script, index: int) -> None:
        """
        On nodes with other cores and caches, and with other departures, that lead to where the scheduler expects a refusal; then on nodes
        whose devices came to be near any other NUMA nodes.
        """
        begin, what = (
            script.before(index + 1),
            "a node that is equal in all that is published, pods left at other moments",
        )
        for search in (aimed, wandering):
            for world, branch in search(truth, begin, index, self.dice):
                self._look(world, [branch], index, what)
                if index not in self.open:
                    return

    def _depart_near(self, truth: World, script: Script, index: int) -> None:
        """With other departures that lead to what the scheduler expects a refusal of."""
        for world, branch in departing(truth, script.before(index + 1), index, self.dice):
            self._look(world, [branch], index, "pods left at other moments")
            if index not in self.open:
                return

    def _fill(self, truth: World, script: Script, index: int) -> None:
        """On nodes that came about, with their departures, from the recorded one as ever less was free for the pod."""
        what = "a node that is equal in all that is published, pods left at other moments"
        for world, branch in filling(truth, script.before(index + 1), index, self.dice):
            self._look(world, [branch], index, what)
            if index not in self.open:
                return

    def _keep(self, truth: World, script: Script, index: int) -> None:
        for world, branch in kept(truth, script.before(index + 1), index):
            self._look(world, [branch], index, "a node with uncore caches of other shapes that is kept", 0)

    def _shape(self, truth: World, script: Script, index: int) -> None:
        """On nodes whose uncore caches came to have any shape, as ever less was free for the pod."""
        # With dice of their own these runs change nothing of what others find.
        for world, branch in shaping(truth, script.before(index + 1), index, Random(index)):
            self._look(world, [branch], index, "a node with uncore caches of other shapes", 0)
            if index not in self.open:
                return

    def _other_node(self, truth: World) -> World:
        node = variant(self.recorded, self.dice)
        return replace(truth, node=node, last_named=last_named(node, self.dice))

    def _as_recorded(self, world: World) -> None:
        """On another node, with the recorded departures and, where that agrees with all that was shown, others of the latest ones."""
        played, what = world.play(max(self.open)), "a node that is equal in all that is published"
        for index in sorted(self.open):
            if not played.agrees_until(index):
                continue
            script, first = Script(world.ends), max(0, index - RECENT)
            self._look(world, [Branch(played.states[index], script.before(index + 1))], index, what)
            self.tries[index] = self.tries.get(index, 0) + 1
            if index in self.open and self.tries[index] <= MOST_VARIED:
                begin = Branch(played.states[first], script.before(first))
                self._depart(world, begin, first, index, f"{what}, pods left at other moments")

    def _on(self, world: World) -> None:
        """On another node: a history to the last question, and from each of its states on other moments."""
        begins = {max(0, index - RECENT): index for index in sorted(self.open, reverse=True)}
        walk = Departures(world, max(self.open), self.dice, NARROW)
        branches = [Branch(KubeletState.empty(world.node), Script({}))]
        at = 0
        for stop in sorted({*begins, *self.open}):
            branches = walk.run_on(branches, at, stop)
            at = stop
            if not branches:
                return
            if stop in self.open:
                self._look(world, branches, stop, "a node that is equal in all that is published")
            if begins.get(stop) in self.open:
                self._depart(
                    world,
                    self.dice.choice(branches),
                    stop,
                    begins[stop],
                    "a node that is equal in all that is published, pods left at other moments",
                )

    def _depart(self, world: World, begin: Branch, first: int, index: int, what: str) -> None:
        self._look(world, Departures(world, index, self.dice).run_on([begin], first, index), index, what)

    def _look(self, world: World, branches: Sequence[Branch], index: int, what: str, most_away: int = 1) -> None:
        request = self.recorded.requests[self.recorded.events[index]["pod"]]
        for branch in branches:
            why = refusing(branch.state, request, most_away, self.dice)
            if why and replayed(world, branch.script, index) is not None:
                self.found[index] = f"{what}; {why}"
                self.open.discard(index)
                return


def without_witness(wrong: Iterable[tuple[Case, int]]) -> list[str]:
    """Those of these wrong nos, a sequence and the index of a question each, that have no witness, in words."""
    indexes: dict[str, set[int]] = {}
    cases: dict[str, Case] = {}
    for case, index in wrong:
        cases[case["id"]] = case
        indexes.setdefault(case["id"], set()).add(index)
    missing = []
    for name, case in cases.items():
        found = Search(Recorded(case), set(indexes[name])).run()
        for index in sorted(indexes[name] - found.keys()) if len(indexes[name]) > 1 else ():
            # By itself, as the dice then fall otherwise.
            found |= Search(Recorded(case), {index}).run()
        missing += [f"{name} event {index}" for index in sorted(indexes[name] - found.keys())]
    return missing
