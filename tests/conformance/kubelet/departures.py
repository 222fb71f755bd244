"""
Histories that differ in when pods left: all that matter are followed side by side, and those dropped that contradict what was shown.

A departure matters only in whether it comes before or after an arrival, so pods leave right before an arrival, a scan or the question. When
a pod may have left follows from the scans that were shown: a fingerprint tells of which pods it speaks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, islice
from random import Random
from typing import Final

from koord_numa.core.kubelet.inference.hypothesis import signature
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.variants import device_order, in_order, taken_in_any_order
from tests.conformance.kubelet.worlds import NEVER, Played, Recorded, World

WIDTH: Final = 12
"""So many histories are followed side by side."""

MOST_LEAVING: Final = 2
"""So many pods may leave between two arrivals, beside those that must."""

MOST_WAYS: Final = 4
"""So many ways in which pods leave before one arrival are tried in each history."""


MOST_TURNING: Final = 3
"""So many ways more are tried where the kubelet would decide otherwise than was shown, or nothing was shown yet."""

MOST_STAYING: Final = 4
"""Of so many pods that may still be there every subset is."""

MOVES: Final = 24
"""So many times random pods leave at random moments."""


WRONG_VERDICT: Final = 4
"""A verdict that is not the one that was shown weighs as much as so many CPUs or devices."""


@dataclass(frozen=True)
class Script:
    """What makes a history on one node: the events before which pods are gone, and the orders of devices by the event they are taken at."""

    ends: Mapping[str, int]
    orders: Mapping[int, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def before(self, first: int) -> "Script":
        """The part of it up to this event."""
        return Script(
            {uid: at for uid, at in self.ends.items() if at < first},
            {at: order for at, order in self.orders.items() if at < first},
        )


@dataclass(frozen=True)
class Branch:
    """One history up to now, and its state."""

    state: KubeletState
    script: Script


def windows(recorded: Recorded, index: int) -> dict[str, tuple[int, int]]:
    """
    By pod the first and the last event before which it may be gone, by what was shown before event ``index``.

    A scan with a fingerprint is a proof for the pods that it speaks of: those that ran are still there, and the others are gone.
    """
    found = {}
    for uid, begin in recorded.begins.items():
        if begin >= index or not recorded.events[begin]["admitted"]:
            continue
        end = recorded.ends.get(uid, NEVER)
        shown = recorded.shown.get(end, NEVER)
        first, last = begin + 1, shown if shown < index else NEVER
        for scan, listed in recorded.told.items():
            if scan <= begin or recorded.shown[scan] >= index:
                continue
            if uid in listed:
                first = max(first, scan + 1)
            elif uid in recorded.listable:
                last = min(last, scan)
        found[uid] = (first, last)
    return found


def moved(recorded: Recorded, index: int, dice: Random) -> Iterator[dict[str, int]]:
    """Other ends for some pods: those of which nothing shows that they are gone are still there, and then any moments that may be."""
    may = windows(recorded, index)
    stay = [uid for uid, (_, last) in may.items() if recorded.ends.get(uid, NEVER) < index <= last]
    for count in range(1, min(len(stay), MOST_STAYING) + 1):
        yield from (dict.fromkeys(chosen, NEVER) for chosen in combinations(stay[-MOST_STAYING:], count))
    if len(stay) > MOST_STAYING:
        yield dict.fromkeys(stay, NEVER)
    movable = sorted(uid for uid, (first, last) in may.items() if first < last and first < index)
    for _ in range(MOVES if movable else 0):
        chosen = dice.sample(movable, min(len(movable), dice.choice((1, 1, 2, 3))))
        yield {uid: dice.randint(may[uid][0], min(may[uid][1], index)) for uid in chosen}


def shifted(world: World, played: Played, first: int, index: int) -> Iterator[tuple[str, int]]:
    """
    A pod and another event before which it may have been gone: an arrival that comes to another NUMA node for it, or to another verdict, or
    one before which it was gone in the history that was ``played``. The latest arrivals come first.
    """
    recorded, may = world.recorded, windows(world.recorded, index)
    for at in range(index - 1, first - 1, -1):
        event, state = recorded.events[at], played.states[at]
        if event["ev"] != "pod":
            continue
        came = _place(played.states[at + 1], event["uid"])
        for uid, (begin, end) in may.items():
            if uid in state.pods and begin <= at <= end:
                after, _ = world.step(state, at, [uid])
                if _place(after, event["uid"]) != came:
                    yield uid, at
            elif uid not in state.pods and begin < at < end and world.ends.get(uid, NEVER) <= at:
                yield uid, at + 1


def _place(state: KubeletState, uid: str) -> object:
    """The NUMA nodes that the pod came to; ``None`` where it was refused."""
    pod = state.pods.get(uid)
    return None if pod is None else signature(pod.grant, state.node)


class Departures:
    """The histories on one node from one event on."""

    def __init__(self, world: World, index: int, dice: Random, width: int = WIDTH) -> None:
        self.world = world
        self.index = index
        self.dice = dice
        self.width = width
        self.windows = windows(world.recorded, index)

    def run_on(self, branches: list[Branch], first: int, last: int) -> list[Branch]:
        """The branches before event ``last``, going on from before event ``first``; none where all contradict what was shown."""
        recorded = self.world.recorded
        for at in range(first, last):
            kind = recorded.events[at]["ev"]
            if kind not in ("pod", "scan", "end", "seen"):
                continue
            found: dict[object, Branch] = {}
            for branch in branches:
                for after in self._step(branch, at, kind):
                    found.setdefault(_key(after.state), after)
            branches = list(found.values())
            if len(branches) > self.width:
                branches = branches[:1] + self.dice.sample(branches[1:], self.width - 1)
        return branches

    def _step(self, branch: Branch, at: int, kind: str) -> Iterator[Branch]:
        shown = self.world.recorded.shown.get(at, NEVER)
        ways = self._ways(branch.state, at, kind)
        if kind == "pod":
            ways += self._turning(branch.state, at, ways[0])
        for number, away in enumerate(ways):
            state, script = branch.state, branch.script
            ends, orders = {**script.ends, **dict.fromkeys(away, at)}, script.orders
            if kind == "pod" and number and any(state.node.devices):
                state = taken_in_any_order(state, self.dice)
                orders = {**orders, at: device_order(state.node)}
            after, matches = self.world.step(state, at, away)
            if matches or shown >= self.index:
                yield Branch(after, Script(ends, orders) if number or away else script)

    def _turning(self, state: KubeletState, at: int, must: tuple[str, ...]) -> list[tuple[str, ...]]:
        """
        The same with one pod more that leaves, so that the verdict is another one: where it was not shown yet, or is not the one that was.
        Pods that change least go first.
        """
        _, matches = self.world.step(state, at, must)
        if matches and self.world.recorded.shown[at] < self.index:
            return []
        may = sorted(self._leaving(state, at), key=lambda uid: _is_tied(state, uid))
        ways = ((*must, uid) for uid in may)
        return list(islice((way for way in ways if self.world.step(state, at, way)[1] is not matches), MOST_TURNING))

    def _leaving(self, state: KubeletState, at: int) -> list[str]:
        """Who may leave right before this event; those first that are shown to be gone by now, who left at some moment."""
        may = [uid for uid in state.pods if uid in self.windows and self.windows[uid][0] <= at < self.windows[uid][1]]
        return sorted(may, key=lambda uid: self.windows[uid][1])

    def _ways(self, state: KubeletState, at: int, kind: str) -> list[tuple[str, ...]]:
        """Sets of pods that leave right before this event: those that must, and some of those that may."""
        must = tuple(uid for uid in state.pods if uid in self.windows and self.windows[uid][1] <= at)
        if kind != "pod":
            return [must]
        may = self._leaving(state, at)
        ways = [must]
        for count in range(1, MOST_LEAVING + 1):
            ways += [(*must, *chosen) for chosen in combinations(may, count)]
        return ways if len(ways) <= MOST_WAYS else ways[:1] + self.dice.sample(ways[1:], MOST_WAYS - 1)


def _is_tied(state: KubeletState, uid: str) -> bool:
    """Does the pod hold anything that is tied to NUMA nodes?"""
    return any(one.cpus or one.memory or one.devices for one in state.pods[uid].grant.containers)


def _key(state: KubeletState) -> object:
    managers = state.managers
    memory = managers.memory
    return (
        managers.cpus,
        tuple(sorted(managers.devices.items())),
        None if memory is None else (repr(memory.free), repr(memory.groups)),
        frozenset(state.pods),
        tuple(pool.devices for pool in state.node.devices.values()),
    )


def graded(world: World, script: Script, index: int) -> tuple[int, KubeletState]:
    """As ``replayed``, with how much contradicts what was shown: 0 where nothing does."""
    recorded = world.recorded
    ending = replace(world, ends=script.ends).ending()
    state, differences = KubeletState.empty(world.node), 0
    for at in range(index):
        if at in script.orders:
            state = in_order(state, script.orders[at])
        state, matches = world.step(state, at, ending.get(at, ()))
        differences += 0 if matches else weight(world, state, at, index)
    return differences + WRONG_VERDICT * len(late(recorded, state, index)), state


def weight(world: World, state: KubeletState, at: int, index: int) -> int:
    """How much an event weighs that is not as it was shown before the event ``index``, if it was."""
    event = world.recorded.events[at]
    if world.recorded.shown[at] >= index:
        return 0
    return max(1, world.differences(state, event["nrt"])) if event["ev"] == "scan" else WRONG_VERDICT


def replayed(world: World, script: Script, index: int) -> KubeletState | None:
    """The state before event ``index``, played again from the empty node by the script; ``None`` where it contradicts what was shown."""
    recorded = world.recorded
    ending = replace(world, ends=script.ends).ending()
    state = KubeletState.empty(world.node)
    for at in range(index):
        if at in script.orders:
            state = in_order(state, script.orders[at])
        state, matches = world.step(state, at, ending.get(at, ()))
        if not matches and recorded.shown[at] < index:
            return None
    return None if late(recorded, state, index) else state


def late(recorded: Recorded, state: KubeletState, index: int) -> list[str]:
    """Pods that are still there although they were shown to be gone before this event."""
    return [uid for uid in state.pods if recorded.shown.get(recorded.ends.get(uid, NEVER), NEVER) < index]
