"""Placements on record: bounded, compared with runners-up now and then, and the same decisions with and without."""

from collections.abc import Mapping

from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.scheduling.filters import ScoredPlacement
from koord_numa.engine.metrics import COMPARED_A_SECOND, KEPT, DecisionLog, LoggedDecision, RunnerUp

ANSWERS: Mapping[str, ScoredPlacement | Rejection] = {
    "a": ScoredPlacement(90, Placement("a"), {"resources": 40, "numa": 50}),
    "b": ScoredPlacement(80, Placement("b"), {"resources": 40, "numa": 40}),
    "c": Rejection(Reason.TAINT, "node(s) had untolerated taints"),
    "d": ScoredPlacement(90, Placement("d"), {"resources": 45, "numa": 45}),
}


def key(name: str) -> PodKey:
    return PodKey("default", name, f"uid-{name}")


def test_the_best_of_the_others_and_what_they_lack() -> None:
    log = DecisionLog(clock=lambda: 1.0, wall_clock=lambda: 1000.0)
    log.record(key("p"), Placement("a"), lambda: ANSWERS)
    runners = (RunnerUp("d", 90, {"numa": -5, "resources": 5}), RunnerUp("b", 80, {"numa": -10}))
    assert list(log.decisions) == [LoggedDecision(1000.0, key("p"), Placement("a"), 90, runners)]


def test_few_a_second_are_compared() -> None:
    now, compared = [0.0], [0.0]

    def compare() -> Mapping[str, ScoredPlacement | Rejection]:
        compared.append(now[0])
        return ANSWERS

    log = DecisionLog(clock=lambda: now[0])
    for number in range(1000):
        now[0] = number / 1000
        log.record(key(str(number)), Placement("a"), compare)
    assert len(compared) - 1 == COMPARED_A_SECOND
    assert len(log.decisions) == KEPT
    assert log.decisions[-1].pod == key("999")
    assert log.decisions[-1].score is None
