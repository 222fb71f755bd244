"""Groups in the live state: as good as an exhaustive search, and without a trace."""

from itertools import combinations
from random import Random

import pytest

from koord_numa.core.objects.constraints import Constraints, LabelSelector, Operator, PodTerm, Requirement
from koord_numa.core.scheduling.gangs import Placed, Refused, decide_in_steps
from koord_numa.core.value_objects import replace
from tests.engine.gangs.groups import fill, fits, group_of, kubelet_topology, make_kind, random_members, random_world
from tests.engine.world import make_node, make_pod, make_world
from tests.steps import finished

CASES = 30
"""By default; 2,000 cases were never wrong."""


@pytest.mark.parametrize("equal", [True, False], ids=["equal members", "mixed members"])
def test_groups_are_placed_as_by_an_exhaustive_search(equal: bool) -> None:
    found = {True: 0, False: 0}
    wrong = []
    for seed in range(CASES):
        dice = Random(seed)
        world = random_world(dice)
        trial, group = group_of(world, random_members(dice, equal=equal))
        with trial.begun():
            placed = isinstance(finished(decide_in_steps(trial, group)), Placed)
            possible = fits(trial, list(group.members), sorted(world.engine.cache.nodes))
        found[possible] += 1
        if placed != possible:
            wrong.append(seed)
    assert min(found.values()) > CASES // 8  # both answers occur
    assert len(wrong) <= (0 if equal else CASES // 50)


def test_minimum_counts_are_met_if_some_choice_fits() -> None:
    answers = set()
    for seed in range(CASES // 3):
        dice = Random(seed)
        world = random_world(dice)
        fill(world, dice)
        pods = random_members(dice, equal=bool(seed % 2))
        count = max(1, len(pods) - dice.randint(0, 2))
        trial, group = group_of(world, pods, count)
        with trial.begun():
            placed = isinstance(finished(decide_in_steps(trial, group)), Placed)
            nodes = sorted(world.engine.cache.nodes)
            possible = any(fits(trial, list(some), nodes) for some in combinations(group.members, count))
        assert placed == possible, seed
        answers.add(placed)
    assert answers == {True, False}


def test_a_trial_leaves_no_trace() -> None:
    for seed in range(10):
        dice = Random(seed)
        world = random_world(dice)
        nodes = world.engine.cache.nodes.values()
        before = [(info.candidate(), dict(info.nominees), dict(info.history.pods)) for info in nodes]
        trial, group = group_of(world, random_members(dice, equal=False))
        with trial.begun():
            answer = finished(decide_in_steps(trial, group))
            if isinstance(answer, Placed):  # a caller may fail in the middle
                for member in group.members[:2]:
                    if member.uid in answer.placements:
                        trial.assume(member, answer.placements[member.uid])
        assert [(info.candidate(), dict(info.nominees), dict(info.history.pods)) for info in nodes] == before


def test_members_are_refused_that_a_kubelet_would_refuse() -> None:
    world = make_world(make_node("node", cpu=16, memory=200))
    world.engine.handlers.topologies.observe("ADDED", kubelet_topology("node", 2, 8))
    # 15 of 16 CPUs are free enough by amounts; no NUMA node takes the third member.
    trial, group = group_of(world, [make_kind(f"m{number}", 5, True) for number in range(3)])
    with trial.begun():
        assert isinstance(finished(decide_in_steps(trial, group)), Refused)


def test_members_follow_one_another_by_affinity() -> None:
    role = LabelSelector((Requirement("role", Operator.IN, ("leader",)),))
    term = PodTerm("kubernetes.io/hostname", role, ("default",))
    world = make_world(*(make_node(n, labels={"kubernetes.io/hostname": n}) for n in ("a", "b")))
    leader = make_pod("leader", cpu=4000, labels=(("role", "leader"),))
    leader = replace(leader, request=replace(leader.request, labels=leader.labels))
    worker = make_pod("worker")
    worker = replace(worker, request=replace(worker.request, constraints=Constraints(affinity=(term,))))
    trial, group = group_of(world, [worker, leader])
    with trial.begun():
        answer = finished(decide_in_steps(trial, group))
    assert isinstance(answer, Placed)
    assert len({placement.node for placement in answer.placements.values()}) == 1
