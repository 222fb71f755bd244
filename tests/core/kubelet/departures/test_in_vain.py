"""Replays that would take too many dry runs are not begun, and none that would not."""

from collections.abc import Collection, Iterable
from random import Random

import pytest

from koord_numa.core.kubelet import unseen_departures
from koord_numa.core.kubelet.admit import admit
from koord_numa.core.kubelet.departures.in_vain import surely_takes
from koord_numa.core.kubelet.inference import replay
from koord_numa.core.kubelet.inference.arrivals import Replayed
from koord_numa.core.kubelet.inference.belief import Belief
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, Signature
from koord_numa.core.kubelet.spreading.places import TooManyWays
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.kubelet.unseen_departures import expecting
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod, sidecar


def _nothing(_states: Collection[Hypothesis], _fates: Iterable[bool | None]) -> int:
    return 0


def _some_node(dice: Random) -> KubeletNode:
    numas = dice.choice((2, 2, 3, 4))
    near = [1 << numa for numa in range(numas) for _ in range(dice.choice((1, 2)))]
    return node(
        f"{numas}x1x{dice.choice((3, 4, 6))}x1",
        dice.choice([*KubeletPolicy, KubeletPolicy.SINGLE_NUMA_NODE]),
        dice.choice([*KubeletScope]),
        memory={numa: {"memory": dice.randint(5, 12) * GI} for numa in range(numas)} if dice.random() < 0.5 else None,
        devices={"vendor.com/gpu": gpus(*near)} if dice.random() < 0.5 else {},
    )


def _some_pod(dice: Random) -> PodRequest:
    parts = []
    for place in range(dice.choice([0, 0, 0, 1, 2])):
        kind, cpus = dice.choice((init, init, sidecar, app)), dice.choice([0.5, 1, 1, 2])
        parts.append(kind(cpus, f"c{place}", memory=dice.choice([1, 1, 2]) * GI))
    parts.sort(key=lambda part: part.kind is ContainerKind.APP)
    gpu = {"gpu": dice.choice((1, 1, 2))} if dice.random() < 0.3 else {}
    return pod(*parts, app(dice.choice([0.5, 1, 1, 2, 3]), "last", memory=dice.choice([1, 2]) * GI, **gpu))


def _some_belief(dice: Random) -> Belief:
    """Pods that run and others on their way, some of which are gone or have a verdict."""
    state = KubeletState.empty(_some_node(dice))
    for number in range(dice.randint(3, 9)):
        state = admit(state, f"pod {number}", _some_pod(dice)).state
    belief = Belief([Hypothesis(state)])
    for number in range(dice.randint(3, 8)):
        belief.arrive(f"coming {number}", _some_pod(dice), 0.0)
    if state.pods and dice.random() < 0.3:
        belief.depart(dice.choice([*state.pods]), 1.0)
    if dice.random() < 0.3:
        belief.started(belief.arrivals[-1].uid, 2.0)
    return belief


def _answer(belief: Belief) -> list[Signature] | None:
    """How much room is left in each state that is found; ``None`` where that takes too many dry runs."""
    _, others = expecting(belief, belief.hypotheses, {})
    try:
        return [one.room for one in others.states()] if others is not None else []
    except TooManyWays:
        return None


@pytest.mark.parametrize("seed", range(6))
def test_no_replay_is_given_up_that_would_have_come_to_an_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice, foreseen, ended = Random(seed), 0, 0
    for _ in range(20):
        belief = _some_belief(dice)
        # Asked again when one more is on its way: what is known by then is no longer to be found out.
        for uid in ("first", "second", "third"):
            belief.arrive(uid, _some_pod(dice), 3.0)
            monkeypatch.setattr(unseen_departures, "EFFORT", dice.choice((10, 30, 100, 300)))
            asked = [(each, each.replayed) for each in belief.arrivals]
            kept = [Replayed(**{name: getattr(known, name) for name in Replayed.__slots__}) for _, known in asked]
            answer = _answer(belief)
            for (each, _), known in zip(asked, kept, strict=True):
                each.replayed = known
            with monkeypatch.context() as without:
                without.setattr(unseen_departures, "surely_takes", _nothing)
                assert answer == _answer(belief)
            foreseen, ended = foreseen + (answer is None), ended + (answer is not None)
    assert foreseen
    assert ended


def test_pods_on_their_way_that_are_too_many_take_no_dry_runs_when_they_are_asked_about_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = KubeletState.empty(node("2x1x12x1"))
    for number, cpus in enumerate((3, 2, 1, 3, 2, 1, 2, 3, 1, 2, 3)):
        state = admit(state, str(number), pod(app(cpus))).state
    belief = Belief([Hypothesis(state)])
    for number, cpus in enumerate((2, 1, 3, 1, 2, 1, 2, 1, 3, 1)):
        belief.arrive(f"coming {number}", pod(app(cpus)), 0.0)
    monkeypatch.setattr(unseen_departures, "EFFORT", 60)
    taken = []

    def counted(before: Hypothesis, request: PodRequest) -> object:
        taken.append(request)
        return replay.foreseen(before, request)

    monkeypatch.setattr("koord_numa.core.kubelet.departures.asked.foreseen", counted)
    assert _answer(belief) is None
    first = len(taken)
    assert 0 < first < 60
    belief.arrive("last", pod(app(2)), 1.0)
    assert _answer(belief) is None
    assert len(taken) == first


def test_states_in_which_pods_have_the_same_places_count_once() -> None:
    state = admit(KubeletState.empty(node("2x1x4x1")), "there", pod(app(2))).state
    one, other = Hypothesis(state), Hypothesis(state.without("there"))
    assert surely_takes([one, one, other], [None, None, None]) == 5
    # A verdict may rule states out, once the pod has been replayed in each of them.
    assert surely_takes([one, other], [None, True, None, None]) == 3
    assert surely_takes([], [None]) == 0
    lax = Hypothesis(KubeletState.empty(node("2x1x4x1", KubeletPolicy.BEST_EFFORT)))
    assert surely_takes([lax], [None] * 9) == 0
