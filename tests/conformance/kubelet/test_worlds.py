"""Recorded histories played again on the exact model."""

from pathlib import Path

from koord_numa.core.kubelet.admit import Admitted, admit_pod
from tests.conformance.kubelet.worlds import NEVER, Recorded, World
from tests.conformance.vectors import cases, each_file

EVERY = 20
"""One sequence in so many is played, for time."""


@each_file("kubelet-churn")
def test_recorded_histories_give_recorded_verdicts_and_scans(file: Path) -> None:
    for number, case in enumerate(cases(file)):
        if number % EVERY:
            continue
        recorded = Recorded(case)
        played = World(recorded, recorded.node, recorded.ends).play(len(recorded.events))
        leaks = case.get("leak_from", NEVER)
        assert not [wrong for wrong in played.wrong if wrong[0] < leaks], case["id"]
        for index, event in enumerate(recorded.events[:leaks]):
            if event["ev"] == "ask":
                answer = admit_pod(played.states[index], str(index), recorded.requests[event["pod"]])
                assert isinstance(answer, Admitted) is event["kubelet_admits"], f"{case['id']} event {index}: {answer}"
