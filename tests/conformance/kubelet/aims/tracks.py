"""
Histories that are played again after a small change: only from where the change matters, and no further than it is worth.

A search by many small changes plays nearly the same history again and again. A departure at another moment changes nothing before the
earlier of both, and often nothing some arrivals after the later one; and what contradicts more than would be kept needs no end.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.departures import WRONG_VERDICT, Script, late, weight
from tests.conformance.kubelet.variants import in_order
from tests.conformance.kubelet.worlds import NEVER, World


@dataclass(frozen=True)
class Track:
    """
    A history in the world: ``states[i]`` is the state before event ``i``, ``wrong[i]`` how much contradicts what was shown up to there.

    ``steps`` is how many events have been played for it.
    """

    script: Script
    states: list[KubeletState]
    wrong: list[int]
    steps: int

    def total(self, world: World, index: int) -> int:
        """As the first of ``graded``: 0 where nothing contradicts what was shown before the event ``index``."""
        return self.wrong[-1] + WRONG_VERDICT * len(late(world.recorded, self.states[-1], index))


def played(world: World, script: Script, index: int, most: float, before: Track | None = None) -> Track | int:
    """
    The history up to the event ``index``; where more than ``most`` contradicts what was shown, after how many events it does.

    ``before`` is one in the same world with another script.
    """
    first, last = (0, 0) if before is None else _changed(before.script, script, index)
    states = [KubeletState.empty(world.node)] if before is None else before.states[: first + 1]
    wrong = [0] if before is None else before.wrong[: first + 1]
    ending = replace(world, ends=script.ends).ending()
    for at in range(first, index):
        if before is not None and at > last and _are_alike(states[-1], before.states[at]):
            more = wrong[-1] - before.wrong[at]
            rest = [each + more for each in before.wrong[at + 1 :]]
            return Track(script, states + before.states[at + 1 :], wrong + rest, at - first)
        state = in_order(states[-1], script.orders[at]) if at in script.orders else states[-1]
        state, matches = world.step(state, at, ending.get(at, ()))
        states.append(state)
        wrong.append(wrong[-1] + (0 if matches else weight(world, state, at, index)))
        if wrong[-1] > most:
            return at - first + 1
    return Track(script, states, wrong, index - first)


def _changed(one: Script, other: Script, index: int) -> tuple[int, int]:
    """The first event and the last before which other pods are gone, or devices are in another order."""
    moments = [min(at, index) for at in (*_moved(one, other), *_moved(other, one))]
    return (min(moments), max(moments)) if moments else (index, index)


def _moved(one: Script, other: Script) -> Iterator[int]:
    """The events before which pods are gone in one script that are not gone before the same in the other; and so of orders of devices."""
    for uid in one.ends.keys() | other.ends.keys():
        if one.ends.get(uid) != other.ends.get(uid):
            yield one.ends.get(uid, NEVER)
    yield from (at for at, order in one.orders.items() if other.orders.get(at) != order)


def _are_alike(one: KubeletState, other: KubeletState) -> bool:
    if one is other:
        return True
    return one.managers == other.managers and one.pods == other.pods and one.node.devices == other.node.devices
