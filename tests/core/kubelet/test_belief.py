"""The states that one kubelet may be in, as news of its pods and topologies come in late and out of order."""

from random import Random

import pytest

from koord_numa.core.kubelet import replay
from koord_numa.core.kubelet.admit import Admitted, DryRunAdmitted, NotAdmitted, Trust, admit_pod, dry_run
from koord_numa.core.kubelet.belief import Belief, expecting
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.replay import SHORTEST
from koord_numa.core.kubelet.reports import leads_to, may_come_to
from koord_numa.core.kubelet.state import EVENT, KubeletNode, KubeletState
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import MILLI
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, finished, init, node, pod
from tests.tables import each_row


def _node() -> KubeletNode:
    """Two NUMA nodes of 8 CPUs of which only the counts are known."""
    return replace(node("2x1x4x2", policy=KubeletPolicy.SINGLE_NUMA_NODE), ids_are_real=False)


def _belief(on: KubeletNode) -> Belief:
    return Belief([Hypothesis(KubeletState.empty(on))])


def _free(belief: Belief) -> set[tuple[int, ...]]:
    return {cpus_by_numa(one.state.managers.cpus, one.state.node) for one in belief.hypotheses}


def _zones(*used: int) -> list[Zone]:
    whole = {"cpu": 8 * MILLI}
    return [Zone(numa, whole, whole, {"cpu": (8 - count) * MILLI}) for numa, count in enumerate(used)]


def _everyone(_: str) -> bool:
    return True


def test_a_pod_that_left_may_have_left_before_another_came() -> None:
    """The topology tells on which NUMA node the other one is."""
    belief = _belief(_node())
    belief.arrive("old", pod(app(6)), 0.0)
    belief.started("old", 1.0)
    belief.arrive("new", pod(app(4)), 10.0)
    belief.started("new", 12.0)
    assert _free(belief) == {(2, 4)}
    belief.depart("old", 11.0)
    assert _free(belief) == {(8, 4), (4, 8)}
    assert finished(belief.report([["new"]], _zones(4, 0), _everyone, 20.0, certain=True)) == ["new"]
    assert _free(belief) == {(4, 8)}


def test_news_that_is_too_old_changes_nothing() -> None:
    """The other pod was seen to run long before this one was seen gone."""
    belief = _belief(_node())
    belief.arrive("old", pod(app(6)), 0.0)
    belief.arrive("new", pod(app(4)), 10.0)
    belief.started("new", 12.0)
    belief.depart("old", 100.0)
    assert _free(belief) == {(8, 4)}


def test_what_came_after_a_pod_is_replayed_when_it_was_refused() -> None:
    """That was not foreseen: its CPUs were free for the next one."""
    belief = _belief(_node())
    belief.arrive("odd", pod(app(5)), 0.0)
    belief.arrive("next", pod(app(4)), 1.0)
    assert _free(belief) == {(3, 4)}
    belief.rejected("odd", 5.0, tells=False)
    assert _free(belief) == {(4, 8)}
    assert not belief.lost


def test_a_topology_shows_that_pods_have_left_unseen() -> None:
    """A pod that it should show and does not show is gone, and may have been before later ones came."""
    belief = _belief(_node())
    for uid, cpus, when in (("a", 6, 0.0), ("b", 4, 1.0), ("c", 2, 2.0)):
        belief.arrive(uid, pod(app(cpus)), when)
        belief.started(uid, when)
    assert finished(belief.report([["b", "c"]], _zones(4, 2), _everyone, 20.0, certain=True)) is None
    assert finished(belief.report([["b", "c"]], _zones(2, 4), _everyone, 20.0, certain=True)) == ["b", "c"]
    assert _free(belief) == {(6, 4)}


def test_a_late_topology_is_of_the_moment_of_its_last_pod() -> None:
    """Later pods are replayed on the published state."""
    belief = _belief(_node())
    belief.arrive("a", pod(app(6)), 0.0)
    belief.arrive("b", pod(app(4)), 10.0)
    belief.depart("a", 12.0)
    belief.arrive("c", pod(app(5)), 13.0)
    assert _free(belief) == {(3, 4), (4, 3)}
    assert finished(belief.report([["a"]], _zones(6, 0), _everyone, 14.0, certain=True)) == ["a"]
    assert _free(belief) == {(3, 4), (4, 3)}
    assert finished(belief.report([["b"]], _zones(0, 4), _everyone, 15.0, certain=True)) == ["b"]
    assert _free(belief) == {(3, 4)}


def _with_one_refused() -> Belief:
    """Two pods run, and one has been refused beside them."""
    belief = _belief(_node())
    for at, (uid, request) in enumerate({"gone": app(6), "there": app(4)}.items()):
        belief.arrive(uid, pod(request), at)
        belief.started(uid, at)
    belief.arrive("refused", pod(app(6)), 20.0)
    belief.rejected("refused", 21.0, tells=True)
    return belief


def test_a_topology_may_be_newer_than_a_pod_that_was_refused() -> None:
    """It shows no refused pod, so that another one may have left after that one came, which explains why it was refused."""
    belief = _with_one_refused()
    belief.depart("gone", 30.0)
    assert finished(belief.report([["there"]], _zones(0, 4), _everyone, 35.0, certain=True)) == ["there"]
    assert not belief.lost
    assert _free(belief) == {(8, 4)}


def test_unshown_pods_left_before_later_shown_pods_arrived() -> None:
    """The pod that is gone may have left after one that was refused, but not after one that a newer topology would show."""
    belief = _with_one_refused()
    belief.arrive("late", pod(app(4)), 30.0)
    belief.started("late", 31.0)
    assert _free(belief) == {(2, 0)}
    assert finished(belief.report([["there"]], _zones(0, 4), _everyone, 35.0, certain=True)) == ["there"]
    assert _free(belief) == {(4, 4)}
    # The news comes after what the topology has told.
    belief.depart("gone", 40.0)
    assert _free(belief) == {(4, 4)}


def test_a_state_that_was_given_up_is_found_again_by_a_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more states than are followed the least doubtful ones stay; what the topology shows rules them out on the way to it."""
    monkeypatch.setattr(replay, "MOST_HYPOTHESES", 1)
    belief = _belief(_node())
    belief.arrive("old", pod(app(6)), 0.0)
    belief.started("old", 1.0)
    belief.arrive("new", pod(app(4)), 10.0)
    belief.started("new", 12.0)
    belief.arrive("next", pod(app(3)), 12.5)
    belief.depart("old", 13.0)
    assert belief.overflow
    assert _free(belief) == {(8, 1)}
    assert finished(belief.report([["new", "next"]], _zones(7, 0), _everyone, 20.0, certain=True)) == ["new", "next"]
    assert _free(belief) == {(1, 8)}
    assert not belief.overflow


def test_a_state_above_the_topology_cannot_lead_to_it() -> None:
    """Pods that the topology does not show do not count, nor what is cut off where nothing is left."""
    belief = _belief(_node())
    for at, count in enumerate((6, 4, 2)):
        belief.arrive(f"p{at}", pod(app(count)), at)
        (one,) = belief.hypotheses
        assert may_come_to(one, ["p0", "p1", "p2"], _zones(8, 4))
        assert may_come_to(one, ["p1", "p2"], _zones(2, 4))
    assert not may_come_to(one, ["p0", "p1", "p2"], _zones(8, 3))
    assert not may_come_to(one, ["p0", "p1", "p2"], _zones(7, 4))


def test_a_shown_pod_had_not_left_before_later_shown_pods() -> None:
    belief = _belief(_node())
    belief.arrive("first", pod(app(4)), 0.0)
    (one,) = belief.hypotheses
    leads_on = leads_to(["first", "next"], _zones(4, 5))
    assert leads_on(one)
    assert not leads_on(replace(one, gone={"first": None}))
    assert not leads_to(["first", "next"], _zones(3, 5))(one)


def test_cpus_that_no_pod_needed_to_be_free_stay_uncertain() -> None:
    """An init container may hold a CPU of each NUMA node; a pod that proves one of them free proves nothing about the other."""
    # A reserved CPU on each NUMA node: what is left of an entirely free one would be known.
    belief = _belief(replace(node("2x1x4x2", scope=KubeletScope.POD, reserved="0,8"), ids_are_real=False))
    belief.arrive("first", pod(init(1), app(5)), 0.0)
    belief.arrive("second", pod(init(1), app(5)), 1.0)
    assert _free(belief) == {(1, 1)}
    belief.arrive("third", pod(app(2)), 2.0)
    belief.started("third", 3.0)
    assert _free(belief) == {(0, 1), (1, 0)}
    assert all(sum(bits.bit_count() for bits in one.loose.values()) == 1 for one in belief.hypotheses)


def test_init_containers_may_hold_the_room_of_a_departed_pod() -> None:
    """They may have found 7 CPUs free, and 6 of them are not the same 6 for both; no topology shows what finished ones hold."""
    belief = _belief(_node())
    for at, (uid, request) in enumerate({"stays": pod(app(1)), "old": pod(app(1))}.items()):
        belief.arrive(uid, request, at)
        belief.started(uid, at)
    belief.arrive("new", pod(init(4), init(6), app(1)), 10.0)
    belief.started("new", 12.0)
    assert _free(belief) == {(0, 8)}
    belief.depart("old", 11.0)
    assert min(_free(belief)) == (0, 8)


def test_a_contradiction_leaves_the_belief_as_it_was() -> None:
    """No state has put these pods there."""
    belief = _belief(_node())
    belief.arrive("a", pod(app(6)), 0.0)
    belief.started("a", 1.0)
    assert finished(belief.report([["a"]], _zones(0, 6), _everyone, 2.0, certain=True)) is None
    assert _free(belief) == {(2, 8)}


def test_the_work_of_one_replay_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods with init containers that leave while others arrive: every moment at which each may have left is another state."""
    asked = 0

    def counted(
        state: KubeletState, request: PodRequest, trust: Trust, order: CpuReuse
    ) -> DryRunAdmitted | NotAdmitted:
        nonlocal asked
        asked += 1
        return dry_run(state, request, trust, order)

    monkeypatch.setattr(replay, "dry_run", counted)
    on = replace(node("2x2x8x2", policy=KubeletPolicy.RESTRICTED, scope=KubeletScope.CONTAINER), ids_are_real=False)
    belief = _belief(on)
    most = 0
    for number in range(18):
        belief.arrive(f"p{number}", pod(init(3), app(2)), float(number))
        if number > 6:
            asked = 0
            belief.depart(f"p{number - 6}", number + 0.5)
            most = max(most, asked)
    assert belief.shortened
    # Every arrival advances one state at least, in all orders in which the pods may have left; without a limit it takes 10,000 and more.
    assert most <= EVENT / 4
    assert not belief.lost


def _published(state: KubeletState) -> list[Zone]:
    """Return the amounts that an exporter publishes for this state: CPUs of running containers."""
    used = 0
    for held in state.pods.values():
        for container in held.grant.containers:
            used |= container.cpus.bits if container.kind is not ContainerKind.INIT else 0
    zones = []
    for numa, here in state.node.machine.numa_bits.items():
        whole = {"cpu": here.bit_count() * MILLI}
        zones.append(Zone(numa, whole, whole, {"cpu": (here & ~used).bit_count() * MILLI}))
    return zones


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(10))
def test_a_late_topology_is_explained_however_much_came_after_it(seed: int) -> None:
    """Many histories are possible before it, and more after it, for which no effort is needed to explain it."""
    dice = Random(seed)
    on = node("2x2x8x2", policy=KubeletPolicy.RESTRICTED, scope=KubeletScope.CONTAINER)
    belief = _belief(replace(on, ids_are_real=False))
    state, there, unseen, moment = KubeletState.empty(on), list[str](), list[str](), KubeletState.empty(on)
    for number in range(28):
        uid, early = f"p{number}", number < 8
        if there and (dice.random() < 0.5 if early else number % 2):
            gone = there.pop(dice.randrange(len(there)))
            state = state.without(gone)
            unseen.append(gone)
        request = pod(init(dice.choice((1, 3))), app(dice.choice((2, 5)))) if early else pod(init(3), app(2))
        verdict = admit_pod(state, uid, request)
        state = verdict.state
        there += [uid] if isinstance(verdict, Admitted) else []
        belief.arrive(uid, request, float(number))
        if unseen and dice.random() < 0.7:
            belief.depart(unseen.pop(0), number + 0.5)
        moment = state if early else moment
    assert belief.shortened
    assert finished(belief.report([list(moment.pods)], _published(moment), _everyone, 100.0, certain=True)) is not None


def test_without_alignment_topologies_count_what_is_settled_once() -> None:
    """The first pod's place is known when the second topology tells where the second one's CPUs are."""
    belief = _belief(replace(node("2x1x4x2", policy=KubeletPolicy.NONE), ids_are_real=False))
    belief.arrive("a", pod(app(2)), 0.0)
    belief.started("a", 1.0)
    assert finished(belief.report([["a"]], _zones(2, 0), _everyone, 10.0, certain=True)) == ["a"]
    belief.arrive("b", pod(app(3)), 20.0)
    belief.started("b", 21.0)
    assert finished(belief.report([["a", "b"]], _zones(2, 3), _everyone, 30.0, certain=True)) == ["a", "b"]
    assert _free(belief) == {(6, 5)}


def test_pods_that_no_topology_can_show_leave_all_states() -> None:
    belief = _belief(_node())
    for number in range(30):
        belief.arrive(f"p{number}", pod(app(2)), 60.0 * number)
        belief.started(f"p{number}", 60.0 * number + 1)
        belief.depart(f"p{number}", 60.0 * number + 50)
        belief.keep([f"p{number}"])
    before = [one for each in belief.arrivals for one in each.before]
    assert max(len(one.gone) for one in (*before, *belief.last, *belief.hypotheses)) <= 2
    states = belief.last
    belief.keep(["p29"])
    assert belief.last is states


def test_what_a_refused_pod_was_foreseen_to_hold_it_never_held() -> None:
    belief = _belief(_node())
    belief.arrive("refused", pod(app(2)), 0.0)
    belief.started("refused", 1.0)
    belief.arrive("later", pod(app(2)), 600.0)
    belief.rejected("refused", 601.0, tells=False)
    assert not any("refused" in one.gone or one.has("refused") for one in belief.hypotheses)


@each_row(
    ("gap", "listed", "moves"),
    [(SHORTEST / 2, False, False), (SHORTEST, False, True), (SHORTEST / 2, True, True)],
)
def test_a_pod_in_flight_leaves_only_after_the_time_that_it_needs(gap: float, *, listed: bool, moves: bool) -> None:
    """The first pod has NUMA node 0. If it has left, the second pod is there instead of on NUMA node 1."""
    belief = Belief([Hypothesis(KubeletState.empty(node()))])
    belief.arrive("first", pod(app(6)), 10.0, listed=listed)
    belief.arrive("second", pod(app(4)), 10.0 + gap)
    _, in_flight = expecting(belief, belief.hypotheses, {})
    assert in_flight is not None
    assert in_flight.may_move() == moves
    assert any(not one.has("first") for one in belief.with_one_unseen()) == moves


def test_a_nominated_pod_arrives_after_all_pods_in_flight() -> None:
    belief = Belief([Hypothesis(KubeletState.empty(node()))])
    belief.arrive("first", pod(app(6)), 10.0)
    _, later = expecting(belief, belief.hypotheses, {"second": pod(app(4))})
    assert later is not None
    assert later.may_move()
