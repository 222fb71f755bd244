"""
The last placements, with the nodes that came next: what people ask about when a pod went elsewhere than they thought.

Theory. To compare nodes completely costs as much as a decision itself, so only a few decisions a second are compared with their
runners-up; the others are recorded without. Nothing here changes a decision, and the log is bounded.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.scheduling.evaluate import ScoredPlacement
from koord_numa.core.value_objects import ValueObject
from koord_numa.ports import Clock

KEPT: Final = 500
"""Decisions on record."""

COMPARED_A_SECOND: Final = 5
"""Decisions a second that are compared with their runners-up; each costs a fraction of a millisecond."""

RUNNERS_UP: Final = 3

Compare = Callable[[], Mapping[str, ScoredPlacement | Rejection]]
"""What the chosen node and those that ranked next say, with complete scores."""


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """A node that could have taken the pod, its score, and the scorers in which it differs from the chosen node, as points."""

    node: str
    score: int
    differences: Mapping[str, int]


class Decision(ValueObject):
    """One placement. ``seconds`` since the epoch; ``score`` is ``None`` where nodes were not compared."""

    seconds: float
    pod: PodKey
    placement: Placement
    score: int | None = None
    runners_up: Sequence[RunnerUp] = ()


@dataclass(slots=True)
class DecisionLog:
    """The newest decisions come last. ``clock`` is monotonic and paces the comparisons."""

    clock: Clock
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=KEPT))
    wall_clock: Clock = time.time
    _next: float = 0.0

    def record(self, pod: PodKey, placement: Placement, compare: Compare) -> None:
        """Record a placement before it is counted; ``compare`` is called for some only."""
        now = self.clock()
        compared = now >= self._next
        if compared:
            # Paced by time and not by count: a burst of decisions is compared as often as a trickle.
            self._next = now + 1.0 / COMPARED_A_SECOND
        answers = compare() if compared else {}
        self.decisions.append(_decision(self.wall_clock(), pod, placement, answers))


def _decision(
    seconds: float, pod: PodKey, placement: Placement, answers: Mapping[str, ScoredPlacement | Rejection]
) -> Decision:
    chosen = answers.get(placement.node)
    if not isinstance(chosen, ScoredPlacement):
        return Decision(seconds, pod, placement)
    others = [(name, it) for name, it in answers.items() if isinstance(it, ScoredPlacement) and name != placement.node]
    # By score, then by name: the order in which nodes are chosen.
    ranked = sorted(others, key=lambda entry: (-entry[1].score, entry[0]))[:RUNNERS_UP]
    runners = tuple(RunnerUp(name, it.score, _differences(it, chosen)) for name, it in ranked)
    return Decision(seconds, pod, placement, chosen.score, runners)


def _differences(one: ScoredPlacement, chosen: ScoredPlacement) -> dict[str, int]:
    mine, theirs = one.parts or {}, chosen.parts or {}
    found = {name: mine.get(name, 0) - theirs.get(name, 0) for name in sorted({*mine, *theirs})}
    return {name: points for name, points in found.items() if points}
