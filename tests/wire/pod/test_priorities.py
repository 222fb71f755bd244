"""PriorityClasses, and the priority that a new pod gets."""

import pytest

from koord_numa.wire.errors import WireError
from koord_numa.wire.pods import PriorityClassObject, parse_priority_class, with_priority
from tests.tables import each_row

RANKS = (
    PriorityClassObject("low", 1, "Never"),
    PriorityClassObject("high", 9),
    PriorityClassObject("usual", 5, global_default=True),
    PriorityClassObject("other", 6, global_default=True),
)


def test_a_priority_class() -> None:
    found = {"metadata": {"name": "high"}, "value": 9, "globalDefault": True, "preemptionPolicy": "Never"}
    assert parse_priority_class(found) == PriorityClassObject("high", 9, "Never", global_default=True)
    assert parse_priority_class({"metadata": {"name": "plain"}, "value": 0}) == PriorityClassObject("plain", 0)


def test_a_malformed_class_is_named_and_counts_for_no_pod() -> None:
    priority_class = parse_priority_class({"metadata": {"name": "high"}, "value": "nine"})
    assert "value" in priority_class.problem
    with pytest.raises(WireError, match="there is no PriorityClass high"):
        with_priority({"spec": {"priorityClassName": "high"}}, (priority_class,))


@each_row(
    ("spec", "expected"),
    [
        pytest.param(
            {"priorityClassName": "low"},
            {"priorityClassName": "low", "priority": 1, "preemptionPolicy": "Never"},
            id="named",
        ),
        pytest.param(
            {}, {"priorityClassName": "usual", "priority": 5, "preemptionPolicy": "PreemptLowerPriority"}, id="default"
        ),
        pytest.param(
            {"priorityClassName": "high", "preemptionPolicy": "Never"},
            {"priorityClassName": "high", "priority": 9, "preemptionPolicy": "Never"},
            id="its-own-policy",
        ),
        pytest.param(
            {"priorityClassName": "system-node-critical"},
            {
                "priorityClassName": "system-node-critical",
                "priority": 2_000_001_000,
                "preemptionPolicy": "PreemptLowerPriority",
            },
            id="built-in",
        ),
        pytest.param({"priority": 7}, {"priority": 7}, id="admitted-already"),
    ],
)
def test_admission(spec: dict[str, object], expected: dict[str, object]) -> None:
    assert with_priority({"spec": spec}, RANKS) == {"spec": expected}


def test_without_classes_nothing_is_written() -> None:
    assert with_priority({"spec": {}}, ()) == {"spec": {}}
    assert with_priority({}, RANKS) == {}
