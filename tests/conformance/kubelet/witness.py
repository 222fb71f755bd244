"""
For a pod that waits although the kubelet would take it: a state in which the kubelet refuses, and that agrees with all that was shown.

The *witness* proves that the scheduler could not know better. It is looked for among histories (``worlds``): pods that left or
stayed unseen, other moments at which pods left, and what is not published of the node. Not finding one proves nothing; finding one does,
as every history is played by the kubelet's own procedure and compared with every verdict and scan that was shown before the question.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from random import Random
from typing import Final

from koord_numa.core.kubelet.managers.admit import Admitted, admit
from koord_numa.core.kubelet.managers.aggregates import pod_demand
from koord_numa.core.kubelet.managers.manager_state import KubeletState
from koord_numa.core.objects.request import PodRequest
from tests.conformance.kubelet.histories import RandomHistory, moment, windows_of
from tests.conformance.kubelet.variants import last_named, taken_in_any_order, variant
from tests.conformance.kubelet.worlds import NEVER, Played, Recorded, World
from tests.conformance.vectors import Case

EVENTS: Final = 9_000
"""So many events are played in all with nodes that agree with what is published; at least of ``FEWEST_NODES`` of them."""

FEWEST_NODES: Final = 12

HISTORIES: Final = 24
"""So many other moments of departures are tried for one question, with each of ``MOST_AGREEING`` nodes."""

MOST_AGREEING: Final = 12
"""So many nodes that agree with what was shown are tried with other moments."""

RECENT: Final = 60
"""So many events before a question departures are moved about."""

MOST_PAIRS: Final = 24
"""Of so many pods each two are taken away together."""

ORDERS: Final = 6
"""So many orders of devices are tried for a pod that asks for some."""


@dataclass
class Search:
    """The wrong nos of one sequence, by the index of the question; ``found`` says in words which state refuses the pod."""

    recorded: Recorded
    open: set[int]
    found: dict[int, str] = field(default_factory=dict)
    dice: Random = field(default_factory=lambda: Random(1))

    def run(self) -> dict[int, str]:
        """Witnesses, by question; questions without one are missing."""
        last = max(self.open, default=0) + 1
        truth = World(self.recorded, self.recorded.node, self.recorded.ends)
        agreeing = [(truth, truth.play(last))]
        self._look(agreeing[0][1], self.open, "the node as it is")
        for _ in range(max(FEWEST_NODES, EVENTS // last)):
            if not self.open:
                break
            history = RandomHistory(self._other_node(truth), self.dice)
            played = history.play(max(self.open) + 1)
            agreeing.append((history.world, played))
            self._look(played, self.open, "a node that is equal in all that is published")
        for index in sorted(self.open):
            fitting = [(world, played) for world, played in agreeing if played.agrees_until(index)]
            for world, played in fitting[:MOST_AGREEING]:
                if index in self.open:
                    self._other_histories(world, played, index)
        return self.found

    def _other_node(self, truth: World) -> World:
        node = variant(self.recorded, self.dice)
        return replace(truth, node=node, last_named=last_named(node, self.dice))

    def _other_histories(self, world: World, played: Played, index: int) -> None:
        for ends in _histories(self.recorded, index, self.dice):
            first = min(min(moment, world.ends.get(uid, NEVER)) for uid, moment in ends.items())
            other = world.with_ends(ends).play_on(played, first, index)
            self._look(other, {index}, "pods left at other moments", most_away=1)
            if index not in self.open:
                return

    def _look(self, played: Played, indexes: Iterable[int], what: str, *, most_away: int = 2) -> None:
        for index in sorted(indexes):
            if index >= len(played.states) or not played.agrees_until(index):
                continue
            if why := refusing(played.states[index], self._request(index), most_away, self.dice):
                self.found[index] = f"{what}; {why}"
                self.open.discard(index)

    def _request(self, index: int) -> PodRequest:
        template: int = self.recorded.events[index]["pod"]
        return self.recorded.requests[template]


def refusing(state: KubeletState, request: PodRequest, most_away: int, dice: Random | None = None) -> str:
    """
    How the kubelet comes to refuse the pod, empty when it does not: as it is, or after one pod or two have left just now, unseen.

    That a pod has left just now nothing can contradict that was shown. With ``dice`` devices are taken in several orders.
    """
    ways: list[tuple[str, ...]] = [()]
    if most_away:
        ways += ((uid,) for uid in state.pods)
    if most_away > 1:
        ways += combinations(sorted(state.pods)[-MOST_PAIRS:], 2)
    tries = ORDERS if dice is not None and any(state.node.devices) and _asks_for_devices(request, state) else 1
    for away in ways:
        left = state
        for uid in away:
            left = left.without(uid)
        for number in range(tries):
            asked = taken_in_any_order(left, dice) if number and dice is not None else left
            verdict = admit(asked, "question", request)
            if not isinstance(verdict, Admitted):
                gone = f" without {' and '.join(away)}" if away else ""
                return f"refused{gone}: {verdict.refusal.reason}, {verdict.refusal.detail}"
    return ""


def _asks_for_devices(request: PodRequest, state: KubeletState) -> bool:
    return any(part.devices.keys() & state.node.devices.keys() for _, part in pod_demand(request).containers)


def _histories(recorded: Recorded, index: int, dice: Random) -> Iterator[dict[str, int]]:
    """Other moments for the ends of pods around a question: those not shown yet have not come, and then random ones."""
    unseen = [uid for uid, end in recorded.ends.items() if end < index <= recorded.shown[end]]
    for count in range(1, len(unseen) + 1):
        yield from (dict.fromkeys(chosen, NEVER) for chosen in combinations(unseen[-4:], count))
    windows = dict(windows_of(recorded, index - RECENT, index))
    movable = sorted(windows)
    for _ in range(HISTORIES if movable else 0):
        chosen = dice.sample(movable, min(len(movable), dice.choice((1, 1, 2, 3))))
        yield {uid: moment(windows[uid], dice) for uid in chosen}


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
        missing += [f"{name} event {index}" for index in sorted(indexes[name] - found.keys())]
    return missing
