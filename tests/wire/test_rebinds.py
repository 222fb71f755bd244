"""RebindResource: requests and answers."""

from typing import Any

import pytest

from koord_numa.core.rebind_request import RebindMove, RebindPhase, RebindRequest
from koord_numa.wire import parse_rebind, rebind_status
from koord_numa.wire.rebinds import RebindAnswer
from tests.wire.objects import REBIND, changed

NOW = "2026-01-01T00:01:00Z"


def test_a_whole_request() -> None:
    assert parse_rebind(REBIND) == RebindRequest(
        name="tidy",
        uid="b1",
        node="worker-2",
        deadline=30,
        dry_run=True,
        generation=2,
        created=1767225600.0,
        phase=RebindPhase.PENDING,
        observed_generation=1,
    )


def test_defaults() -> None:
    assert parse_rebind({"metadata": {"name": "r"}, "spec": {"nodeName": "n"}}) == RebindRequest("r", "", "n")


PROBLEMS: dict[str, tuple[str, Any, str]] = {
    "no node": ("spec nodeName", None, "spec.nodeName: is missing"),
    "action": ("spec rebindAction", "Shuffle", 'spec.rebindAction: "Shuffle" is none of RebindCPU'),
    "deadline": ("spec deadlineInSeconds", 0, "spec.deadlineInSeconds: 0: input should be greater than or equal to 1"),
    "phase": ("status phase", "Done", 'status.phase: "Done" is none of Failed, Pending, Succeed, Unknown'),
}


@pytest.mark.parametrize(("path", "value", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_problems(path: str, value: Any, problem: str) -> None:
    assert parse_rebind(changed(REBIND, path, value)).problem == f"RebindResource tidy: {problem}"


SETTLED = {"": False, "Pending": False, "Unknown": False, "Succeed": True, "Failed": True}


@pytest.mark.parametrize(("phase", "settled"), SETTLED.items())
def test_what_is_settled(phase: str, settled: bool) -> None:
    assert parse_rebind(changed(REBIND, "status phase", phase)).settled is settled


def test_an_answer() -> None:
    answer = RebindAnswer(RebindPhase.SUCCEED, "2 pods moved", NOW, 2, (RebindMove("a", "b", "0-1", "2-3"),), moves=2)
    assert rebind_status(answer) == {
        "phase": "Succeed",
        "reason": "2 pods moved",
        "updateTimestamp": NOW,
        "observedGeneration": 2,
        "conditions": [
            {
                "type": "Complete",
                "status": "True",
                "reason": "Succeed",
                "message": "2 pods moved",
                "lastTransitionTime": NOW,
                "observedGeneration": 2,
            }
        ],
        "plan": [{"namespace": "a", "name": "b", "from": "0-1", "to": "2-3"}],
        "moves": 2,
    }


TRANSITIONS = {
    "first answer": (None, NOW),
    "same answer": (
        {"conditions": [{"type": "Complete", "status": "False", "lastTransitionTime": "before"}]},
        "before",
    ),
    "other answer": ({"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "before"}]}, NOW),
    "broken status": ({"conditions": [None, {"type": "Complete", "status": "False", "lastTransitionTime": 5}]}, NOW),
}


@pytest.mark.parametrize(("before", "expected"), TRANSITIONS.values(), ids=TRANSITIONS.keys())
def test_the_condition_keeps_its_time_with_its_answer(before: dict[str, Any] | None, expected: str) -> None:
    status = rebind_status(RebindAnswer(RebindPhase.FAILED, "deadline exceeded", NOW, 1), before)
    assert status["conditions"][0]["lastTransitionTime"] == expected
    assert "plan" not in status


def test_answers_are_read_again() -> None:
    for phase in RebindPhase:
        request = parse_rebind({**REBIND, "status": rebind_status(RebindAnswer(phase, "", NOW, 2))})
        assert (request.phase, request.observed_generation, request.problem) == (phase, 2, "")
