"""Choice of the node to free: each criterion decides if all earlier criteria are equal."""

import pytest

from koord_numa.core.objects.constraints import DisruptionBudget, LabelSelector
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Alignment, Placement
from koord_numa.core.ordering import importance
from koord_numa.core.preempt.victims import PreemptionCandidate, protected, rank, violating
from koord_numa.core.value_objects import replace
from tests.core.preempt.preemption_nodes import budget, running
from tests.tables import each_row


def candidate(
    node: str, *victims: Pod, violations: int = 0, alignment: Alignment = Alignment.ALIGNED
) -> PreemptionCandidate:
    """A node and its victims."""
    return PreemptionCandidate(node, Placement(node, alignment=alignment), victims, violations)


def pod(priority: int, created: float = 0.0) -> Pod:
    """A victim."""
    return running(f"p{priority}", "0", priority, created=created)


BETTER_AND_WORSE = {
    "no-victims": (candidate("b"), candidate("a", pod(-5))),
    "fewest-violations": (candidate("b", pod(9), pod(9)), candidate("a", pod(1), violations=1)),
    "lowest-of-the-most-important": (candidate("b", pod(3), pod(3), pod(3)), candidate("a", pod(4))),
    "smallest-sum": (candidate("b", pod(4), pod(1)), candidate("a", pod(4), pod(2))),
    "a-sum-counts-heads-of-negative-priority-too": (candidate("b", pod(-1)), candidate("a", pod(-1), pod(-100))),
    "fewest-victims": (candidate("b", pod(4)), candidate("a", pod(4), pod(-(1 << 31)))),
    "aligned": (candidate("b", pod(4)), candidate("a", pod(4), alignment=Alignment.UNALIGNED)),
    "latest-start-of-the-most-important": (
        candidate("b", pod(4, created=5.0), pod(1, created=0.0)),
        candidate("a", pod(4, created=4.0), pod(1, created=9.0)),
    ),
    "first-name": (candidate("a", pod(4)), candidate("b", pod(4))),
}


@each_row(("better", "worse"), BETTER_AND_WORSE.values(), ids=BETTER_AND_WORSE.keys())
def test_the_cheaper_node_is_chosen(better: PreemptionCandidate, worse: PreemptionCandidate) -> None:
    assert rank(better) < rank(worse)


def test_importance_is_priority_then_age_then_name() -> None:
    young, old, twin, high = pod(1, 2.0), pod(1, 1.0), running("z", "0", 1, created=1.0), pod(2, 9.0)
    assert sorted([young, twin, old, high], key=importance) == [high, old, twin, young]


A, B, C = (running(name, "0") for name in "abc")

BROKEN = {
    "enough-is-allowed": (budget("x", 2, "a", "b"), [A, B, C], set()),
    "the-last-one-is-too-many": (budget("x", 1, "a", "b"), [A, B, C], {"b"}),
    "the-order-decides": (budget("x", 1, "a", "b"), [B, A], {"a"}),
    "counted-already": (budget("x", 0, "a", disrupted=("a",)), [A], set()),
    "another-namespace": (replace(budget("x", 0, "a"), namespace="other"), [A], set()),
    "no-selector": (replace(budget("x", 0, "a"), selector=None), [A], set()),
}


@each_row(("rule", "victims", "broken"), BROKEN.values(), ids=BROKEN.keys())
def test_who_breaks_a_budget(rule: DisruptionBudget, victims: list[Pod], broken: set[str]) -> None:
    assert violating(victims, [rule]) == broken


def test_a_pod_under_two_budgets_cannot_be_evicted() -> None:
    rules = [budget("x", 5, "a"), budget("y", 5, "a", "b")]
    assert violating([A, B, C], rules) == {"a"}
    assert [protected(pod, rules) for pod in (A, B, C)] == [True, True, False]


@each_row(
    ("state", "some", "breaks"),
    [
        pytest.param({}, {}, True, id="ready"),
        pytest.param({"phase": "Pending"}, {}, False, id="it-never-ran"),
        pytest.param({"ready": False}, {}, True, id="not-ready"),
        pytest.param({"ready": False}, {"unhealthy_always": True}, False, id="not-ready-and-always-allowed"),
        pytest.param({"ready": False}, {"healthy": True}, False, id="not-ready-beside-enough-that-are"),
        pytest.param({}, {"unhealthy_always": True, "healthy": True}, True, id="ready-whatever-the-policy"),
    ],
)
def test_budgets_let_broken_pods_go_as_the_eviction_does(
    state: dict[str, object], some: dict[str, object], breaks: bool
) -> None:
    victim = replace(running("a", "0"), **state)  # type: ignore[arg-type]  # fields of several types  # state has named fields
    strict = replace(DisruptionBudget("default", "b", LabelSelector(), allowed=0), **some)  # type: ignore[arg-type]  # fields of several types
    assert violating([victim], [strict]) == (frozenset({"a"}) if breaks else frozenset())


def test_a_free_node_precedes_a_node_to_wait_for() -> None:
    waits = replace(candidate("a", pod(4)), awaited=frozenset({"p4", "leaving"}))
    at_once = replace(candidate("b", pod(4)), awaited=frozenset({"p4"}))
    assert rank(at_once) < rank(waits)
