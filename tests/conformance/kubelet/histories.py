"""
Histories drawn at random that agree with what was shown: from one topology to the next, again and again until the next one agrees.

What was shown between two topologies is one *stretch*. A history that does not come out at the end of it is taken back to its beginning,
and goes on from there with other moments at which pods left and other devices taken: what agrees so far is not lost.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Final

from koord_numa.core.kubelet.managers.manager_state import KubeletState
from tests.conformance.kubelet.variants import taken_in_any_order
from tests.conformance.kubelet.worlds import NEVER, Played, Recorded, World

TRIES: Final = 12
"""So many times a stretch is begun again."""

MOST_MOVED: Final = 3
"""Of so many pods the moments are moved at once."""


class RandomHistory:
    """One history in progress. ``played`` is what has come of it."""

    def __init__(self, world: World, dice: Random) -> None:
        self.world = world
        self.dice = dice
        self.played = Played([KubeletState.empty(world.node)], [])
        self._begin = 0
        self._tries = TRIES

    def play(self, until: int) -> Played:
        """Go on to before the event ``until``."""
        recorded, states = self.world.recorded, self.played.states
        ending = self.world.ending()
        while len(states) <= until:
            index = len(states) - 1
            state = states[-1]
            if recorded.events[index]["ev"] == "pod":
                state = taken_in_any_order(state, self.dice)
            state, matches = self.world.step(state, index, ending.get(index, ()))
            states.append(state)
            shown = recorded.shown.get(index, NEVER)
            if not matches and shown < until and self._tries:
                self._tries -= 1
                self._move()
                ending = self.world.ending()
                del states[self._begin + 1 :]
            elif not matches:
                self.played.wrong.append((index, shown))
            elif recorded.events[index]["ev"] == "scan" and shown < NEVER:
                self._begin, self._tries = index + 1, TRIES
        return self.played

    def _move(self) -> None:
        """Other moments in this stretch for some pods; the recorded ones for the rest."""
        recorded = self.world.recorded
        here = len(self.played.states) - 1
        ends = {uid: end for uid, end in self.world.ends.items() if end < self._begin}
        moved = {uid: end for uid, end in recorded.ends.items() if uid not in ends}
        windows = dict(windows_of(recorded, self._begin, here))
        movable = sorted(windows.keys() & moved.keys())
        for uid in self.dice.sample(movable, min(len(movable), self.dice.randint(0, MOST_MOVED))):
            moved[uid] = moment(windows[uid], self.dice)
        for uid, end in moved.items():
            if end < self._begin:
                moved[uid] = self._begin  # it has stayed until here in this history
        self.world = replace(self.world, ends={**ends, **moved})


def windows_of(recorded: Recorded, first: int, last: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The first and last event before which a pod may have ended, where that is between these two events."""
    for uid, begin in recorded.begins.items():
        shown = recorded.shown.get(recorded.ends.get(uid, NEVER), NEVER)
        if begin < last and shown >= first and recorded.events[begin]["admitted"]:
            yield uid, (max(begin + 1, first), min(shown, last))


def moment(window: tuple[int, int], dice: Random) -> int:
    """A moment of this window, or none before it is over."""
    first, last = window
    return dice.choice((NEVER, dice.randint(first, last))) if last >= first else NEVER
