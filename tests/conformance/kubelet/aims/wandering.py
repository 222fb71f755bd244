"""
Histories on nodes with any devices that agree with all that was shown, and not only such that leave little for a pod.

A pod may be refused where many devices are free: an init container gets one that is near NUMA nodes on which later containers have no room.
No amount tells how near a node is to that, so that nothing is aimed at. By simulated annealing devices exchange NUMA nodes, and pods leave
at other moments, until nothing contradicts what was shown any more. What agrees is a history that may be a witness, and the walk goes on.
"""

from collections.abc import Iterator
from math import exp
from random import Random
from typing import Final

from tests.conformance.kubelet.closing import exchanging, shared_and_wanted, with_other_ends
from tests.conformance.kubelet.departures import Branch, Script, graded, windows
from tests.conformance.kubelet.worlds import World

RUNS: Final = 6
"""So often it begins again with the recorded node."""

EVENTS: Final = 100_000
"""So many events are played in each run, and for no more changes than ``STEPS``."""

STEPS: Final = 400

WARMTH: Final = (1.0, 0.3)
"""By how much more a change may contradict what was shown, first and last."""


def wandering(truth: World, script: Script, index: int, dice: Random) -> Iterator[tuple[World, Branch]]:
    """Histories that agree with all that was shown before this question, on nodes that share other devices."""
    recorded = truth.recorded
    request = recorded.requests[recorded.events[index]["pod"]]
    # Where the pod asks for none, devices still decide where others came to.
    names = shared_and_wanted(truth, request) or shared_and_wanted(truth, None)
    may = {uid: span for uid, span in windows(recorded, index).items() if span[0] < min(span[1], index)}
    steps = min(STEPS, EVENTS // (index + 1))
    first, last = WARMTH
    for _ in range(RUNS if names else 0):
        world, ends = truth, script
        wrong, state = graded(world, ends, index)
        for step in range(steps):
            other, changed = world, ends
            if may and dice.random() < 0.1:
                changed = with_other_ends(ends, may, index, dice)
            else:
                other = exchanging(world, dice.choice(names), dice)
            more, state = graded(other, changed, index)
            if more <= wrong or dice.random() < exp((wrong - more) / (first * (last / first) ** (step / steps))):
                world, ends, wrong = other, changed, more
                if not wrong:
                    yield world, Branch(state, ends)
