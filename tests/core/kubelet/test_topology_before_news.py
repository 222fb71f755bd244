"""A topology that does not show a pod, before any news of its end: it may be older than the pod, or newer than its end."""

from koord_numa.core.kubelet.belief import Belief
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.node import Zone
from koord_numa.core.resources import MILLI
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, finished, node, pod


def _zones(*used: int) -> list[Zone]:
    whole = {"cpu": 8 * MILLI}
    return [Zone(numa, whole, whole, {"cpu": (8 - count) * MILLI}) for numa, count in enumerate(used)]


def test_what_came_meanwhile_stays_open() -> None:
    """Pod b has left before c came, which a topology shows before the news of it: c may have its place."""
    belief = _belief()
    for uid, cpus, when in (("a", 6, 0.0), ("b", 2, 1.0)):
        belief.arrive(uid, pod(app(cpus)), when)
        belief.started(uid, when)
    assert finished(belief.report([["a", "b"]], _zones(8, 0), lambda _: True, 10.0, certain=True)) == ["a", "b"]
    belief.arrive("c", pod(app(2)), 20.0)
    assert finished(belief.report([["a"]], _zones(6, 0), lambda _: True, 21.0, certain=True)) == ["a"]
    assert _free(belief) == {(0, 6)}
    belief.depart("b", 22.0)
    assert _free(belief) == {(2, 6), (0, 8)}


def test_a_departure_before_later_arrivals_stays_open() -> None:
    """The topology may be of before the other pod came, so that it does not tell where that one is."""
    belief = _belief()
    belief.arrive("old", pod(app(6)), 0.0)
    belief.started("old", 1.0)
    belief.arrive("new", pod(app(4)), 10.0)
    sets = [["old", "new"], ["old"], []]
    assert finished(belief.report(sets, _zones(6, 0), lambda _: True, 11.0, certain=False)) == ["old"]
    belief.depart("old", 12.0)
    assert _free(belief) == {(8, 4), (4, 8)}


def test_states_that_do_not_lead_to_what_is_shown_are_dropped() -> None:
    """The pod that is shown is on NUMA node 1, so that another one had left after it came; no later news changes that."""
    belief = _belief()
    belief.arrive("gone", pod(app(6)), 0.0)
    belief.arrive("old", pod(app(6)), 1.0)
    belief.started("old", 2.0)
    belief.depart("gone", 3.0)
    belief.arrive("new", pod(app(2)), 4.0)
    assert _free(belief) == {(0, 8), (6, 2)}
    assert finished(belief.report([["old", "new"], ["old"]], _zones(0, 6), lambda _: True, 5.0, certain=False)) == [
        "old"
    ]
    belief.started("new", 6.0)
    assert _free(belief) == {(6, 2)}


def _belief() -> Belief:
    return Belief([Hypothesis(KubeletState.empty(replace(node("2x1x4x2"), ids_are_real=False)))])


def _free(belief: Belief) -> set[tuple[int, ...]]:
    return {cpus_by_numa(one.state.managers.cpus, one.state.node) for one in belief.hypotheses}
