"""What the search aims at, and that it plays no history otherwise for playing only a part of it again."""

from math import inf
from pathlib import Path
from random import Random
from typing import Final

from tests.conformance.kubelet.aims.goals import Goal
from tests.conformance.kubelet.aims.tracks import Track, played
from tests.conformance.kubelet.departures import Script, graded, windows
from tests.conformance.kubelet.worlds import NEVER, Recorded, World
from tests.conformance.vectors import cases, each_file

EVERY: Final = 40
"""Of the sequences one in so many, for time."""

MOST: Final = 120
"""So many events of each."""

CHANGES: Final = 12
"""So many departures of each are moved, one after the other."""


@each_file("kubelet-churn")
def test_a_history_that_is_played_again_from_a_change_on_is_the_whole_one(file: Path) -> None:
    shared = 0
    for number, case in enumerate(cases(file)):
        if number % EVERY:
            continue
        recorded, dice = Recorded(case), Random(number)
        index = min(case.get("leak_from", NEVER), MOST, len(recorded.events))
        world, ends = World(recorded, recorded.node, recorded.ends), dict(recorded.ends)
        may = windows(recorded, index)
        track = played(world, Script(ends), index, inf)
        for _ in range(CHANGES if may else 0):
            uid = dice.choice(sorted(may))
            ends = {**ends, uid: dice.randint(may[uid][0], index)}
            assert isinstance(track, Track)
            whole, state = graded(world, Script(ends), index)
            part = played(world, Script(ends), index, whole - 1, track)
            # Pods that stay too long are seen at the end only.
            assert isinstance(part, int) or part.total(world, index) == whole
            track = played(world, Script(ends), index, inf, track)
            assert isinstance(track, Track)
            assert track.total(world, index) == whole
            assert track.states[-1].managers == state.managers
            assert track.states[-1].pods == state.pods
            assert len(track.states) == len(track.wrong) == index + 1
            shared += track.steps < index
    assert shared


@each_file("kubelet-churn")
def test_a_state_is_as_far_from_a_goal_as_cpus_and_pods_are_missing(file: Path) -> None:
    for case in cases(file):
        recorded = Recorded(case)
        states = World(recorded, recorded.node, recorded.ends).play(min(MOST, len(recorded.events))).states
        pinned = [
            (state, uid, max(one.cpus.bits for one in pod.grant.containers))
            for state in states
            for uid, pod in state.pods.items()
            if any(one.cpus for one in pod.grant.containers)
        ]
        if not pinned:
            continue
        state, uid, bits = pinned[0]
        numa, here = next((numa, here) for numa, here in state.node.machine.numa_bits.items() if bits & here)
        used = (here & ~state.managers.cpus & ~state.node.reserved).bit_count()
        assert Goal(frozenset(), ((numa, used),)).apart(state) == 0
        assert Goal(frozenset(), ((numa, used + 3),)).apart(state) == 3
        assert Goal(frozenset({uid}), ((numa, used),)).apart(state) >= (bits & here).bit_count()
        assert Goal(frozenset({uid}), ((numa, used),)).apart(state.without(uid)) >= (bits & here).bit_count()
        free = state.node.allocatable["cpu"] - state.requested["cpu"]
        assert Goal(frozenset(), (), (("cpu", free + 1),)).apart(state) == 0
        assert Goal(frozenset(), (), (("cpu", free),)).apart(state) == 1
        return
    raise AssertionError("no pod has CPUs of its own")
