"""Topologies without a pod fingerprint, which are of an unknown moment: what they rule out for good."""

from collections.abc import Sequence
from itertools import combinations, product
from random import Random

import pytest

from koord_numa.core.kubelet import reports
from koord_numa.core.kubelet.belief import Belief
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.reports import UndatedTopology, agrees, allowed
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.node import Zone
from koord_numa.core.resources import MILLI
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, finished, init, node, pod
from tests.tables import each_row


def _zones(*used: int) -> list[Zone]:
    whole = {"cpu": 8 * MILLI}
    return [Zone(numa, whole, whole, {"cpu": (8 - count) * MILLI}) for numa, count in enumerate(used)]


def _belief() -> Belief:
    return Belief([Hypothesis(KubeletState.empty(replace(node("2x1x4x2"), ids_are_real=False)))])


def _free(belief: Belief) -> set[tuple[int, ...]]:
    return {cpus_by_numa(one.state.managers.cpus, one.state.node) for one in belief.hypotheses}


def _report(belief: Belief, sets: Sequence[Sequence[str]], used: Sequence[int], when: float) -> object:
    return finished(belief.report(sets, _zones(*used), lambda _: True, when, certain=False))


def _after_one_was_ruled_out() -> Belief:
    """Pod b is on NUMA node 1, so that a left after it came."""
    belief = _belief()
    for uid, cpus, when in (("early", 1, 0.0), ("a", 6, 1.0), ("b", 6, 2.0)):
        belief.arrive(uid, pod(app(cpus)), when)
    for uid in ("early", "a", "b"):
        belief.started(uid, 3.0)
    belief.depart("a", 4.0)
    assert _free(belief) == {(7, 2), (1, 8)}
    assert _report(belief, [["early", "a", "b"], ["early", "b"]], (1, 6), 5.0) == ["early", "b"]
    assert _free(belief) == {(7, 2)}
    return belief


def test_what_was_ruled_out_does_not_come_back_with_a_replay() -> None:
    """Pod early has left before the others came, or after them: all of them are replayed."""
    belief = _after_one_was_ruled_out()
    belief.depart("early", 6.0)
    assert _free(belief) == {(8, 2)}


def test_it_is_forgotten_with_the_last_of_its_pods() -> None:
    belief = _after_one_was_ruled_out()
    assert belief.undated
    belief.arrive("late", pod(app(1)), 1000.0)
    assert not belief.undated


def test_a_pod_seen_gone_soon_after_may_not_have_been_shown() -> None:
    topology = UndatedTopology([("a", "b"), ("a",)], _zones(2, 0), 0.0, {})
    assert topology.without("a", surely=False).shown == [("a", "b"), ("a",), ("b",), ()]
    belief = _after_one_was_ruled_out()
    (before,) = belief.undated
    belief.depart("b", 5.0 + 40.0)
    assert belief.undated == [before]
    belief.depart("early", 5.0 + 20.0)
    assert ("b",) in belief.undated[0].shown


def test_a_refused_pod_was_not_shown() -> None:
    belief = _belief()
    belief.arrive("a", pod(app(6)), 0.0)
    belief.arrive("b", pod(app(2)), 1.0)
    assert _report(belief, [["a", "b"], ["a"]], (6, 0), 2.0) == ["a"]
    belief.rejected("b", 3.0, tells=True)
    assert belief.undated[0].shown == [("a",)]


def test_of_too_many_sets_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MOST_SETS", 3)
    topology = UndatedTopology([("a", "b")], _zones(3, 3), 0.0, {}).without("a", surely=False)
    (state,) = _belief().hypotheses
    assert allowed([state], [topology], "b") == [state]
    topology = topology.without("b", surely=False)
    assert not topology.speaks_of(["a", "b"])
    assert topology.without("a", surely=False) is topology


@each_row("seed", range(40), every=2)
def test_sets_left_out_for_their_cpus_agree_with_no_state(seed: int) -> None:
    """Two pods each stay, leave early, or late, beside others; all sets of them are held against what two of these sets would show."""
    dice = Random(seed)
    belief, uids = _belief(), ["a", "b", "c", "d"]
    for at, uid in enumerate(uids):
        containers = [app(dice.randint(1, 5))]
        belief.arrive(uid, pod(*([init(dice.randint(1, 3))] * dice.randint(0, 1)), *containers), float(at))
    for uid in dice.sample(uids, 2):
        belief.depart(uid, 10.0)
    sets = [pods for size in range(len(uids) + 1) for pods in combinations(uids, size)]
    for used in product(range(0, 9, 2), repeat=2):
        zones = _zones(*used)
        found, kept = UndatedTopology.of(sets, zones, 0.0, belief.hypotheses).agreeing(belief.hypotheses)
        agreeing = [[one for one in belief.hypotheses if agrees(one, pods, zones)] for pods in sets]
        assert found == next((list(pods) for pods, states in zip(sets, agreeing, strict=True) if states), None)
        assert {id(one) for one in kept} == {id(one) for states in agreeing for one in states}
