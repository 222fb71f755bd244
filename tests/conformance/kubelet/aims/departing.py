"""
Histories on the recorded node that come ever nearer to what a refusal needs (``goals``), as pods leave at other moments.

A departure moves pods that came after it, and these others, so that it may take several at once to come to a refusal, long before the
question. By simulated annealing one departure after the other comes at another moment: what contradicts a scan or a verdict costs, and so
does what is missing to the goal. The search stays close to histories without contradictions, of which the recorded one is the first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, log
from random import Random
from typing import Final

from tests.conformance.kubelet.aims.goals import Goal, goals
from tests.conformance.kubelet.aims.tracks import Track, played
from tests.conformance.kubelet.departures import Branch, Script, replayed, windows
from tests.conformance.kubelet.worlds import World

RUNS: Final = 6
"""So often it begins again with the recorded history."""

EVENTS: Final = 60_000
"""So many events are played in each run, and for no more changes than ``STEPS``."""

STEPS: Final = 2_000

WARMTH: Final = (0.5, 0.3)
"""By how much a change may be farther from what is wanted, first and last."""


def departing(truth: World, script: Script, index: int, dice: Random) -> Iterator[tuple[World, Branch]]:
    """Histories that agree with all that was shown before this question, near what the scheduler expects a refusal of its pod of."""
    recorded = truth.recorded
    may = {uid: span for uid, span in windows(recorded, index).items() if span[0] < min(span[1], index)}
    state = replayed(truth, script, index) if may else None
    wanted = goals(recorded, index, state) if state is not None else []
    for _ in range(RUNS if wanted else 0):
        yield from _run(truth, script, index, wanted, may, dice)


def _run(
    truth: World,
    script: Script,
    index: int,
    wanted: Sequence[Goal],
    may: Mapping[str, tuple[int, int]],
    dice: Random,
) -> Iterator[tuple[World, Branch]]:
    events = truth.recorded.events
    # A departure matters in whether it comes before or after an arrival.
    arrivals = [at for at in range(index + 1) if events[at]["ev"] == "pod" or at == index]
    track = played(truth, script, index, inf)
    assert isinstance(track, Track)
    cost, left = _cost(truth, track, index, wanted), EVENTS
    first, last = WARMTH
    for step in range(STEPS):
        if left < 0:
            return
        done = max(step / STEPS, 1 - left / EVENTS)
        # Metropolis' rule, with the dice thrown first: what comes to cost more is not kept, so that it is not played to its end.
        most = cost - first * (last / first) ** done * log(1 - dice.random())
        other = _with_other_end(script, arrivals, may, index, dice)
        after = played(truth, other, index, most, track)
        if isinstance(after, int):
            left -= after
            continue
        left -= after.steps
        total = _cost(truth, after, index, wanted)
        if total <= most:
            script, track, cost = other, after, total
            if not track.total(truth, index):
                yield truth, Branch(track.states[-1], script)


def _cost(world: World, track: Track, index: int, wanted: Sequence[Goal]) -> int:
    """What contradicts what was shown, and how far the nearest goal is."""
    return track.total(world, index) + min(goal.apart(track.states[-1]) for goal in wanted)


def _with_other_end(
    script: Script, arrivals: Sequence[int], may: Mapping[str, tuple[int, int]], index: int, dice: Random
) -> Script:
    ends = dict(script.ends)
    uid = dice.choice(sorted(may))
    first, last = may[uid]
    ends.pop(uid, None)
    at = dice.choice([at for at in arrivals if first <= at <= last] + [last])
    if at <= index:
        ends[uid] = at
    return replace(script, ends=ends)
