"""
Log of the last placements with the next best nodes, to explain why a node was chosen.

A complete comparison of nodes costs as much as a decision, so only a few decisions per second are compared. The log is bounded and does not
affect decisions.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.scheduling.filters import ScoredPlacement
from koord_numa.core.value_objects import ValueObject
from koord_numa.ports import Clock

KEPT: Final = 500
"""Number of decisions in the log."""

COMPARED_A_SECOND: Final = 5
"""Decisions per second that are compared with the next best nodes. A comparison takes a fraction of a millisecond."""

RUNNERS_UP: Final = 3

Compare = Callable[[], Mapping[str, ScoredPlacement | Rejection]]
"""Evaluates the chosen node and the nodes ranked next, with complete scores."""


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """Next best node with its score, and its differences from the chosen node by scorer, in points."""

    node: str
    score: int
    differences: Mapping[str, int]


class LoggedDecision(ValueObject):
    """Placement of a pod. ``seconds`` since the epoch; ``score`` is ``None`` if nodes were not compared."""

    seconds: float
    pod: PodKey
    placement: Placement
    score: int | None = None
    runners_up: Sequence[RunnerUp] = ()


@dataclass(slots=True)
class DecisionLog:
    """Log of decisions, newest last. ``clock`` is monotonic and limits the rate of comparisons."""

    clock: Clock
    decisions: deque[LoggedDecision] = field(default_factory=lambda: deque(maxlen=KEPT))
    wall_clock: Clock = time.time
    _next: float = 0.0

    def record(self, pod: PodKey, placement: Placement, compare: Compare) -> None:
        """Record a placement before it is counted. ``compare`` is called for some placements only."""
        now = self.clock()
        compared = now >= self._next
        if compared:
            # Limited by time instead of count: a burst of decisions has as many comparisons as a low rate.
            self._next = now + 1.0 / COMPARED_A_SECOND
        answers = compare() if compared else {}
        self.decisions.append(_decision(self.wall_clock(), pod, placement, answers))


def _decision(
    seconds: float, pod: PodKey, placement: Placement, answers: Mapping[str, ScoredPlacement | Rejection]
) -> LoggedDecision:
    chosen = answers.get(placement.node)
    if not isinstance(chosen, ScoredPlacement):
        return LoggedDecision(seconds, pod, placement)
    others = [(name, it) for name, it in answers.items() if isinstance(it, ScoredPlacement) and name != placement.node]
    # By score, then by name: the order in which nodes are chosen.
    ranked = sorted(others, key=lambda entry: (-entry[1].score, entry[0]))[:RUNNERS_UP]
    runners = tuple(RunnerUp(name, it.score, _differences(it, chosen)) for name, it in ranked)
    return LoggedDecision(seconds, pod, placement, chosen.score, runners)


def _differences(one: ScoredPlacement, chosen: ScoredPlacement) -> dict[str, int]:
    mine, theirs = one.parts or {}, chosen.parts or {}
    found = {name: mine.get(name, 0) - theirs.get(name, 0) for name in sorted({*mine, *theirs})}
    return {name: points for name, points in found.items() if points}
