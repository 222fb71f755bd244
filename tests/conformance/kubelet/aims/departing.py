"""
Histories on the recorded node that come ever nearer to what a refusal needs (``goals``), as pods leave at other moments.

A departure moves pods that came after it, and these others, so that it may take several at once to come to a refusal, long before the
question. By simulated annealing one departure after the other comes at another moment: what contradicts a scan or a verdict costs, and so
does what is missing to the goal. The search stays close to histories without contradictions, of which the recorded one is the first.

Of devices that are equally near a kubelet takes any (devicesToAllocate in its devicemanager/manager.go goes through a set). Where they are
near several NUMA nodes that decides which are left: with such a pod each also gets another one now and then, and the goal is that the pod
of the question finds too little.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, log
from random import Random
from typing import Final

from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.aims.filling import too_much
from tests.conformance.kubelet.aims.goals import goals
from tests.conformance.kubelet.aims.tracks import Track, played
from tests.conformance.kubelet.closing import asks_for, shared_and_wanted
from tests.conformance.kubelet.departures import Branch, Script, replayed, windows
from tests.conformance.kubelet.variants import device_order
from tests.conformance.kubelet.worlds import World

RUNS: Final = 6
"""So often it begins again with the recorded history."""

EVENTS: Final = 60_000
"""So many events are played in each run, and for no more changes than ``STEPS``."""

DEALT: Final = 12
"""So often where devices are given out otherwise, which takes little time."""

KINDS: Final = (0.3, 0.6)
"""So often another device is given then, and so often it is that or what was changed before is undone: most changes make no difference."""

LATELY: Final = 100
"""Then changes are of so many events before the question."""

STEPS: Final = 2_000

WARMTH: Final = (0.5, 0.3)
"""By how much a change may be farther from what is wanted, first and last."""

DEALT_WARMTH: Final = (0.3, 0.1)
"""As ``WARMTH``, where devices are given out otherwise."""


def departing(truth: World, script: Script, index: int, dice: Random) -> Iterator[tuple[World, Branch]]:
    """Histories that agree with all that was shown before this question, near what the scheduler expects a refusal of its pod of."""
    recorded = truth.recorded
    may = {uid: span for uid, span in windows(recorded, index).items() if span[0] < min(span[1], index)}
    request = recorded.requests[recorded.events[index]["pod"]]
    names = shared_and_wanted(truth, request) if recorded.node.pins_cpus else []
    lately = {uid: (max(first, index - LATELY), last) for uid, (first, last) in may.items() if last >= index - LATELY}
    # With dice of their own these runs change nothing of what others find.
    apart = Random(index)
    for _ in range(DEALT if names else 0):
        yield from _Run(truth, index, script, lately, apart, names).toward(lambda state: too_much(state, request))
    state = replayed(truth, script, index) if may else None
    wanted = goals(recorded, index, state) if state is not None else []
    for _ in range(RUNS if wanted else 0):
        yield from _Run(truth, index, script, may, dice).toward(lambda state: min(goal.apart(state) for goal in wanted))


@dataclass
class _Run:
    """One run, in which these pods ``may`` leave at any of these events, and those that want some of ``dealt`` get other devices."""

    truth: World
    index: int
    begin: Script
    may: Mapping[str, tuple[int, int]]
    dice: Random
    dealt: Sequence[str] = ()

    def toward(self, apart: Callable[[KubeletState], int]) -> Iterator[tuple[World, Branch]]:
        """Histories that contradict nothing. ``apart`` says how far the last state is from what is wanted."""
        truth, index, script = self.truth, self.index, self.begin
        track = played(truth, script, index, inf)
        assert isinstance(track, Track)
        cost, left = track.total(truth, index) + apart(track.states[-1]), EVENTS
        first, last = DEALT_WARMTH if self.dealt else WARMTH
        for step in range(STEPS):
            if left < 0:
                return
            done = max(step / STEPS, 1 - left / EVENTS)
            # Metropolis' rule, with the dice thrown first: what comes to cost more is not kept, so that it is not played to its end.
            most = cost - first * (last / first) ** done * log(1 - self.dice.random())
            other = self._changed(script, track.states)
            after = played(truth, other, index, most, track)
            if isinstance(after, int):
                left -= after
                continue
            left -= after.steps
            total = after.total(truth, index) + apart(after.states[-1])
            if total <= most:
                script, track, cost = other, after, total
                if not track.total(truth, index):
                    yield truth, Branch(track.states[-1], script)

    @cached_property
    def _arrivals(self) -> list[int]:
        events = self.truth.recorded.events
        return [at for at in range(self.index) if events[at]["ev"] == "pod"]

    def _changed(self, script: Script, states: Sequence[KubeletState]) -> Script:
        if not self.dealt:
            return self._with_other_end(script)
        kind, (dealt, undone) = self.dice.random(), KINDS
        if not self.may or kind < dealt:
            return self._dealt_otherwise(script, states)
        return self._undone(script) if kind < undone else self._with_other_end(script)

    def _undone(self, script: Script) -> Script:
        """With one departure as it was in the beginning, or without one of the orders."""
        moved = [uid for uid in self.may if script.ends.get(uid) != self.begin.ends.get(uid)]
        chosen = self.dice.choice([*moved, *script.orders] or [self.index])
        if isinstance(chosen, int):
            return replace(script, orders={at: order for at, order in script.orders.items() if at != chosen})
        ends = {uid: at for uid, at in script.ends.items() if uid != chosen}
        return replace(script, ends=ends | {uid: at for uid, at in self.begin.ends.items() if uid == chosen})

    def _with_other_end(self, script: Script) -> Script:
        ends = dict(script.ends)
        uid = self.dice.choice(sorted(self.may))
        first, last = self.may[uid]
        ends.pop(uid, None)
        # A departure matters in whether it comes before or after an arrival.
        at = self.dice.choice([at for at in (*self._arrivals, self.index) if first <= at <= last] + [last])
        if at <= self.index:
            ends[uid] = at
        return replace(script, ends=ends)

    def _dealt_otherwise(self, script: Script, states: Sequence[KubeletState]) -> Script:
        """With a free device that one pod takes first of all, before those that it took."""
        name, recorded = self.dice.choice(self.dealt), self.truth.recorded
        lately = (at for at in self._arrivals if at >= self.index - LATELY)
        takers = [at for at in lately if asks_for(recorded.requests[recorded.events[at]["pod"]], [name])]
        if not takers:
            return script
        at = self.dice.choice(takers)
        pool, taken = states[at].node.devices[name], states[at].managers.devices[name]
        free = [device.id for place, device in enumerate(pool.devices) if not taken >> place & 1]
        usual, first = device_order(self.truth.node), self.dice.choice(free or [pool.devices[0].id])
        order = {**usual, name: (first, *(each for each in usual[name] if each != first))}
        # Pods that come later take them in the usual order.
        return replace(script, orders={at + 1: usual, **script.orders, at: order})
