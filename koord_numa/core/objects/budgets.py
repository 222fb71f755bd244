"""Disruption budgets: what preemption has to respect."""

from dataclasses import dataclass

from koord_numa.core.objects.constraints import LabelSelector


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """
    How many of the pods that ``selector`` matches in ``namespace`` may be evicted now.

    Pods that are not ready may be evicted beyond that: always with ``unhealthy_always`` (``unhealthyPodEvictionPolicy: AlwaysAllow``),
    else while as many as desired are healthy (``healthy``).
    """

    namespace: str
    name: str
    selector: LabelSelector | None
    allowed: int = 0  # status.disruptionsAllowed
    disrupted: tuple[str, ...] = ()  # names of pods whose eviction is counted already
    unhealthy_always: bool = False
    healthy: bool = False  # status.currentHealthy is at least status.desiredHealthy, and that is above 0
    problem: str = ""
