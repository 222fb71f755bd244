"""
Whom preemption evicts, beside kube-scheduler's recorded choice: compared by cost, as several choices may be equally good.

Never a victim of equal or higher priority; not more violations of disruption budgets, not a higher highest priority, not more victims.
Where kube-scheduler's choice costs less by a rule of its own, a row of ``docs/deviations.md`` says so.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.preempt.victims import PreemptionCandidate
from tests.conformance.kube_scheduler.cluster import load
from tests.conformance.vectors import Case, cases, each_file

LOWEST: Final = -(1 << 31)
BUDGETS: Final = "LikeKubeScheduler"
"""The setting under which budgets bind no more than there; by default only system-critical pods break them."""


@dataclass(frozen=True, order=True)
class Cost:
    """Cost of a choice, most significant number first."""

    violations: int
    highest: int
    victims: int


def planned(case: Case) -> tuple[PreemptionCandidate | None, int]:
    """Return the planned preemption for the pod of a case, and the pod's priority."""
    cluster = load(case, settings=f"preemption: {{budgets: {BUDGETS}, candidateNodes: 10000}}")
    engine, pod = cluster.world.engine, cluster.pod
    request_class = engine.handle.classes.of(pod)
    assert request_class is not None
    verdict = engine.handle.selector.decide(request_class)
    if isinstance(verdict, Placement) or isinstance(engine.handle.selector.decide(request_class), Placement):
        return None, pod.request.priority
    _, found = asyncio.run(engine.preemption.foresee(pod, request_class, verdict))
    return found, pod.request.priority


def cost_of_theirs(case: Case) -> Cost | None:
    """Return the cost of kube-scheduler's choice, ``None`` without an eviction."""
    told = case["out"]["preempt"]
    chosen = (told.get("candidates") or {}).get(told.get("chosen") or "")
    if chosen is None:
        return None
    priorities = _priorities(case["in"])
    return Cost(
        chosen["violations"], max((priorities[name] for name in chosen["pods"]), default=LOWEST), len(chosen["pods"])
    )


def cost_of_ours(found: PreemptionCandidate) -> Cost:
    """Return the cost of the choice of this package."""
    highest = max((victim.request.priority for victim in found.victims), default=LOWEST)
    return Cost(found.violations, highest, len(found.victims))


def _priorities(given: Mapping[str, Any]) -> dict[str, int]:
    return {
        f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}": pod["spec"].get("priority") or 0
        for pod in given["pods"]
    }


def difference(case: Case) -> str | None:
    """Describe in what respect the choice of this package is worse."""
    found, priority = planned(case)
    theirs = cost_of_theirs(case)
    if found is None:
        return None if theirs is None else f"no room is made, theirs costs {theirs}"
    if any(victim.request.priority >= priority for victim in found.victims):
        return f"a victim is as important as the pod: {found.victims}"
    if theirs is not None and cost_of_ours(found) > theirs:
        return f"{cost_of_ours(found)} on {found.node}, theirs {theirs} on {case['out']['preempt']['chosen']}"
    return None


@each_file("kube-scheduler-random")
def test_no_choice_costs_more(file: Path, record_property: Any) -> None:
    asked = [case for case in cases(file) if "preempt" in case["out"]]
    worse = {case["id"]: found for case in asked if (found := difference(case)) is not None}
    record_property("conformance", f"{file.name}: {len(asked) - len(worse)}/{len(asked)} victims cost no more")
    if worse:
        pytest.fail("\n".join(f"{name}: {how}" for name, how in worse.items()), pytrace=False)
