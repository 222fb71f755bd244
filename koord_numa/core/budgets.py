"""Disruption budgets: what preemption has to respect."""

from dataclasses import dataclass

from koord_numa.core.constraints import LabelSelector


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """How many of the pods that ``selector`` matches in ``namespace`` may be evicted now."""

    namespace: str
    name: str
    selector: LabelSelector | None
    allowed: int = 0  # status.disruptionsAllowed
    disrupted: tuple[str, ...] = ()  # names of pods whose eviction is counted already
    problem: str = ""
