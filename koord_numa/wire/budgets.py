"""PodDisruptionBudgets: from API objects to what preemption respects."""

from collections.abc import Mapping
from typing import Any

from koord_numa.core.objects.constraints import LabelSelector
from koord_numa.core.objects.workloads import DisruptionBudget
from koord_numa.wire.metadata import head
from koord_numa.wire.parsing import Int64, Problems, Strict, read
from koord_numa.wire.selectors import LabelSelectorModel, label_selector


class BudgetSpec(Strict):
    """Whom a budget protects."""

    selector: LabelSelectorModel | None = None
    unhealthy_pod_eviction_policy: str | None = None


class BudgetStatus(Strict):
    """How much disruption is allowed now."""

    disruptions_allowed: Int64 | None = None
    disrupted_pods: dict[str, str] | None = None
    current_healthy: Int64 | None = None
    desired_healthy: Int64 | None = None


def parse_budget(obj: Mapping[str, Any]) -> DisruptionBudget:
    """A PodDisruptionBudget; a malformed one protects every pod of its namespace. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "PodDisruptionBudget", problems)
    path = top.path.at("spec")
    spec = problems.collect(lambda: read(BudgetSpec, top.body.get("spec") or {}, path), BudgetSpec())
    status = problems.collect(
        lambda: read(BudgetStatus, top.body.get("status") or {}, top.path.at("status")), BudgetStatus()
    )
    selector = problems.collect(lambda: label_selector(spec.selector, path.at("selector")), None)
    return DisruptionBudget(
        # As policy/v1 objects are always in a namespace; the fallback only concerns objects from files.
        namespace=top.namespace or "default",
        name=top.name,
        # An empty selector matches every pod: a budget that cannot be read must not be broken by accident.
        selector=LabelSelector() if problems.problem else selector,
        allowed=0 if problems.problem else max(0, status.disruptions_allowed or 0),
        disrupted=tuple(sorted(status.disrupted_pods or ())),
        unhealthy_always=spec.unhealthy_pod_eviction_policy == "AlwaysAllow",
        # More than 0 desired: a budget without pods is not healthy, it says nothing.
        healthy=(status.current_healthy or 0) >= (status.desired_healthy or 0) > 0,
        problem=problems.problem,
    )
