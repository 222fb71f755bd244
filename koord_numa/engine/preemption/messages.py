"""What a waiting pod is told about preemption, besides why it waits."""

from typing import Final

from koord_numa.core.preempt.victims import PreemptionCandidate

NEVER: Final = "preemption: not eligible due to preemptionPolicy=Never."
PROTECTED: Final = "preemption: every choice of victims would violate a PodDisruptionBudget."
SHOWN: Final = 3
"""So many of the victims are named to the pod that waits."""


def being_freed(candidate: PreemptionCandidate) -> str:
    """``preemption: node n is being freed, 4 pod(s) are evicted: default/a, default/b, default/c, ...``"""
    names = sorted(str(victim.key) for victim in candidate.victims)
    others = len(candidate.awaited) - len(names)
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    text = f"preemption: node {candidate.node} is being freed"
    if names:
        text += f", {len(names)} pod(s) are evicted: {shown}"
    if others:
        text += f", {others} pod(s) are leaving anyway"
    return f"{text}."
