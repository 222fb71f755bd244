"""RebindResource: requests and answers."""

from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.rebind.plan import NodeFigures, RebindAnswer, RebindMove, RebindPhase, RebindRequest
from koord_numa.wire import WireError, parse_rebind, rebind_status
from koord_numa.wire.rebinds import with_cpus
from tests.tables import each_row
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
    "deadline": ("spec deadlineInSeconds", 0, "spec.deadlineInSeconds: 0 is below 1, the least that is allowed"),
    "phase": ("status phase", "Done", 'status.phase: "Done" is none of Failed, Pending, Succeed, Unknown'),
}


@each_row(("path", "value", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_problems(path: str, value: Any, problem: str) -> None:
    assert parse_rebind(changed(REBIND, path, value)).problem == f"RebindResource tidy: {problem}"


SETTLED = {"": False, "Pending": False, "Unknown": False, "Succeed": True, "Failed": True}


@each_row(("phase", "settled"), SETTLED.items())
def test_what_is_settled(phase: str, settled: bool) -> None:
    assert parse_rebind(changed(REBIND, "status phase", phase)).settled is settled


def test_an_answer() -> None:
    move = RebindMove("a", "b", "0-1", "2-3")
    before, after = NodeFigures(1, 2, 3, 4, {1: 2, 0: 4}), NodeFigures(0, 0, 1, 0, {0: 8})
    answer = RebindAnswer(
        RebindPhase.SUCCEED, "1 pod moved", NOW, 2, (move,), (move,), 3, ("a/c",), before, after, started="earlier"
    )
    assert rebind_status(answer) == {
        "phase": "Succeed",
        "reason": "1 pod moved",
        "updateTimestamp": NOW,
        "startTime": "earlier",
        "observedGeneration": 2,
        "conditions": [
            {
                "type": "Complete",
                "status": "True",
                "reason": "Succeed",
                "message": "1 pod moved",
                "lastTransitionTime": NOW,
                "observedGeneration": 2,
            }
        ],
        "plan": [{"namespace": "a", "name": "b", "from": "0-1", "to": "2-3"}],
        "result": [{"namespace": "a", "name": "b", "from": "0-1", "to": "2-3"}],
        "moves": 1,
        "steps": 3,
        "stuck": ["a/c"],
        "before": {
            "crossingPods": 1,
            "crossings": 2,
            "splitCores": 3,
            "conflicts": 4,
            "largestBlocks": [{"numa": 0, "cpus": 4}, {"numa": 1, "cpus": 2}],
        },
        "after": {
            "crossingPods": 0,
            "crossings": 0,
            "splitCores": 1,
            "conflicts": 0,
            "largestBlocks": [{"numa": 0, "cpus": 8}],
        },
    }


def test_a_new_answer_removes_what_an_older_one_said() -> None:
    status = rebind_status(RebindAnswer(RebindPhase.PENDING, "waits", NOW, 3))
    removed = {key for key, value in status.items() if value is None}
    assert removed == {"startTime", "moves", "steps", "plan", "result", "stuck", "before", "after"}


STATUS_TEXTS = {
    "plain": ('{"cpuset":"0-1"}', '{"cpuset":"4-5"}'),
    "others survive": (
        '{"x": 123456789012345678901234567890, "cpuset": "0", "numaNodeResources": [{"node": 0}], "ü": null}',
        '{"x":123456789012345678901234567890,"cpuset":"4-5","numaNodeResources":[{"node":0}],"ü":null}',
    ),
    "as Go reads": ('{"CPUSet":"0-1"}', '{"CPUSet":"4-5"}'),
    "none yet": ("{}", '{"cpuset":"4-5"}'),
}


@each_row(("text", "expected"), STATUS_TEXTS.values(), ids=STATUS_TEXTS.keys())
def test_only_the_cpus_change(text: str, expected: str) -> None:
    assert with_cpus(text, CpuSet.parse("4-5")) == expected


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_status_that_is_no_object_is_not_touched(text: str) -> None:
    with pytest.raises(WireError, match="resource-status"):
        with_cpus(text, CpuSet.parse("0"))


def test_when_it_began() -> None:
    begun = changed(REBIND, "status startTime", NOW)
    assert parse_rebind(begun).started == 1767225660.0
    assert "startTime" in parse_rebind(changed(REBIND, "status startTime", "soon")).problem


TRANSITIONS = {
    "first answer": (None, NOW),
    "same answer": (
        {"conditions": [{"type": "Complete", "status": "False", "lastTransitionTime": "before"}]},
        "before",
    ),
    "other answer": ({"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "before"}]}, NOW),
    "broken status": ({"conditions": [None, {"type": "Complete", "status": "False", "lastTransitionTime": 5}]}, NOW),
}


@each_row(("before", "expected"), TRANSITIONS.values(), ids=TRANSITIONS.keys())
def test_the_condition_keeps_its_time_with_its_answer(before: dict[str, Any] | None, expected: str) -> None:
    status = rebind_status(RebindAnswer(RebindPhase.FAILED, "deadline exceeded", NOW, 1), before)
    assert status["conditions"][0]["lastTransitionTime"] == expected
    assert status["plan"] is None


def test_answers_are_read_again() -> None:
    for phase in RebindPhase:
        request = parse_rebind({**REBIND, "status": rebind_status(RebindAnswer(phase, "", NOW, 2))})
        assert (request.phase, request.observed_generation, request.problem) == (phase, 2, "")


def test_a_plan_is_read_back_for_people() -> None:
    good = {"namespace": "a", "name": "b", "from": "0-1", "to": "2-3"}
    plan = [good, 1, {}, {**good, "from": "zero"}, {**good, "to": 3}]
    found = parse_rebind({"metadata": {"name": "r"}, "spec": {"nodeName": "n"}, "status": {"plan": plan}})
    assert found.plan == (RebindMove("a", "b", "0-1", "2-3"),)
    assert found.problem == ""
