"""What the search aims at, and that it plays no history otherwise for playing only a part of it again."""

from itertools import islice
from math import inf
from pathlib import Path
from random import Random
from typing import Final

from koord_numa.core.kubelet.admit import Admitted, admit
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.room import STRICT
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.aims.departing import departing
from tests.conformance.kubelet.aims.filling import filling, too_much
from tests.conformance.kubelet.aims.goals import Goal
from tests.conformance.kubelet.aims.tracks import Track, played
from tests.conformance.kubelet.departures import Script, graded, replayed, windows
from tests.conformance.kubelet.variants import device_order
from tests.conformance.kubelet.worlds import NEVER, Recorded, World
from tests.conformance.vectors import cases, each_file

EVERY: Final = 40
"""Of the sequences one in so many, for time."""

MOST: Final = 120
"""So many events of each."""

DEALT: Final = "churn-98"
"""A sequence with devices near several NUMA nodes."""

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
        world = World(recorded, recorded.node, recorded.ends)
        may = windows(recorded, index)
        script = Script(recorded.ends)
        track = played(world, script, index, inf)
        for change in range(CHANGES if may else 0):
            if change % 3:
                uid = dice.choice(sorted(may))
                script = replace(script, ends={**script.ends, uid: dice.randint(may[uid][0], index)})
            else:
                order = {name: tuple(dice.sample(ids, len(ids))) for name, ids in device_order(world.node).items()}
                script = replace(script, orders={**script.orders, dice.randrange(index): order})
            assert isinstance(track, Track)
            whole, state = graded(world, script, index)
            part = played(world, script, index, whole - 1, track)
            # Pods that stay too long are seen at the end only.
            assert isinstance(part, int) or part.total(world, index) == whole
            track = played(world, script, index, inf, track)
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


@each_file("kubelet-churn")
def test_a_pod_that_is_admitted_has_room_by_its_amounts(file: Path) -> None:
    judged = 0
    for number, case in enumerate(cases(file)):
        recorded = Recorded(case)
        if number % EVERY or not recorded.node.pins_cpus:
            continue
        states = World(recorded, recorded.node, recorded.ends).play(min(MOST, len(recorded.events))).states
        for state in states[::CHANGES]:
            for request in recorded.requests:
                # What init containers hold is taken over by later ones in part only, so that it is no bound for them.
                if too_much(state, request) or any(
                    one.kind is ContainerKind.INIT for one, _ in pod_demand(request).containers
                ):
                    continue
                verdict = admit(state, "question", request)
                wide = state.node.config.topology_policy in STRICT and max(pod_demand(request).counts, default=0) > min(
                    bits.bit_count() for bits in state.node.machine.numa_bits.values()
                )
                assert wide or not isinstance(verdict, Admitted)
                judged += 1
    assert judged


@each_file("kubelet-churn")
def test_histories_with_less_room_agree_with_all_that_was_shown(file: Path) -> None:
    case = next(case for case in cases(file) if Recorded(case).node.pins_cpus)
    recorded = Recorded(case)
    index = max(at for at, event in enumerate(recorded.events[:MOST]) if event["ev"] == "ask")
    truth = World(recorded, recorded.node, recorded.ends)
    found = islice(filling(truth, Script(recorded.ends).before(index + 1), index, Random(1)), CHANGES)
    for world, branch in found:
        state = replayed(world, branch.script, index)
        assert state is not None
        assert state.managers == branch.state.managers


@each_file("kubelet-churn")
def test_a_refusal_may_need_a_departure_and_another_device_at_once(file: Path) -> None:
    """A pod got the other one of two devices, as the one that it has in truth had not been given back yet."""
    for case in cases(file):
        if case["id"] != DEALT:
            continue
        recorded, index = Recorded(case), 270
        world = World(recorded, recorded.node, recorded.ends)
        request = recorded.requests[recorded.events[index]["pod"]]
        found = departing(world, Script(recorded.ends).before(index + 1), index, Random(1))
        branch = next(branch for _, branch in found if not too_much(branch.state, request))
        assert branch.script.orders
        assert replayed(world, branch.script, index) is not None
        assert not isinstance(admit(branch.state, "question", request), Admitted)
