"""
Counters, durations and the last placements of the engine since its start, for metrics and explanations.

They do not affect decisions.
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.scheduling.filters import ScoredPlacement
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field
from koord_numa.ports import Clock

BUCKETS: Final = tuple(0.001 * 2**power for power in range(15))
"""Upper bounds in seconds, as in ``scheduling_attempt_duration_seconds`` of kube-scheduler."""

WAIT_BUCKETS: Final = tuple(0.01 * 2**power for power in range(20))
"""Upper bounds in seconds, as in ``pod_scheduling_sli_duration_seconds`` of kube-scheduler."""

ATTEMPT_BUCKETS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Upper bounds in attempts, as in ``pod_scheduling_attempts`` of kube-scheduler."""

VICTIM_BUCKETS: Final = tuple(2.0**power for power in range(7))
"""Upper bounds in pods, as in ``preemption_victims`` of kube-scheduler."""

MANY_ATTEMPTS: Final = 15
"""Number of attempts from which pods share one label."""


class Result(StrEnum):
    """Results of scheduling attempts, with the names of kube-scheduler."""

    SCHEDULED = "scheduled"
    UNSCHEDULABLE = "unschedulable"
    ERROR = "error"


@dataclass(slots=True)
class Histogram:
    """Counts by bucket; the last bucket has no upper bound."""

    bounds: tuple[float, ...] = BUCKETS
    buckets: list[int] = field(init=False)
    total: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        self.buckets = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Add a value."""
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.total += value
        self.count += 1


class RebindMetrics(MutableObject):
    """
    Counters of rebinds.

    ``ended`` counts rebinds by phase and whether they were dry runs, ``automatic`` those created by ``rebindPolicy``, by mode. ``moves``
    counts changes of a pod's CPUs. NUMA crossings are summed over rebinds with a plan that were no dry runs.
    """

    ended: Counter[tuple[str, bool]] = value_field(default_factory=Counter)
    automatic: Counter[str] = value_field(default_factory=Counter)
    moves: int = 0
    crossings_before: int = 0
    crossings_after: int = 0


class GroupMetrics(MutableObject):
    """
    Counters of groups of pods.

    ``attempts`` counts group cycles by result, ``rejections`` rejected groups by the reasons of the nodes that reject the blocked member,
    and ``waited`` has the seconds from the first member until all members of the minimal count were bound.
    """

    attempts: Counter[Result] = value_field(default_factory=Counter)
    rejections: Counter[str] = value_field(default_factory=Counter)
    waited: Histogram = value_field(default_factory=lambda: Histogram(WAIT_BUCKETS))


class SchedulerMetrics(MutableObject):
    """
    Counters and durations of a scheduler.

    ``attempts`` has the durations of attempts by result and scheduler name, ``placements`` counts bound pods by alignment, ``refusals``
    rejected pods by kubelet reason, ``failures`` failed binds by error type, ``rejections`` verdicts by their reasons, ``preemptions``
    preemption attempts by result, ``victims`` evicted pods, and ``victims_each`` has their number per preemption. ``device_moves`` is the
    number of moves in the current report, and ``device_evictions`` counts pods evicted by it. ``deciding`` and ``binding`` are the two
    parts of an attempt. ``waited`` has the waiting time of bound pods by number of attempts, and ``tries`` that number.
    """

    attempts: defaultdict[tuple[Result, str], Histogram] = value_field(default_factory=lambda: defaultdict(Histogram))
    placements: Counter[str] = value_field(default_factory=Counter)
    refusals: Counter[str] = value_field(default_factory=Counter)
    failures: Counter[str] = value_field(default_factory=Counter)
    rejections: Counter[str] = value_field(default_factory=Counter)
    preemptions: Counter[str] = value_field(default_factory=Counter)
    victims: int = 0
    device_moves: int = 0
    device_evictions: int = 0
    victims_each: Histogram = value_field(default_factory=lambda: Histogram(VICTIM_BUCKETS))
    deciding: Histogram = value_field(default_factory=Histogram)
    binding: Histogram = value_field(default_factory=Histogram)
    waited: dict[str, Histogram] = value_field(default_factory=dict)
    tries: Histogram = value_field(default_factory=lambda: Histogram(ATTEMPT_BUCKETS))
    rebinds: RebindMetrics = value_field(default_factory=RebindMetrics)
    groups: GroupMetrics = value_field(default_factory=GroupMetrics)

    def bound(self, attempts: int, seconds: float) -> None:
        """Record a bound pod with its number of attempts and its waiting time in seconds."""
        label = str(attempts) if attempts < MANY_ATTEMPTS else f"{MANY_ATTEMPTS}+"
        if label not in self.waited:
            self.waited[label] = Histogram(WAIT_BUCKETS)
        self.waited[label].add(seconds)
        self.tries.add(attempts)


# Log of the last placements with the next best nodes, to explain why a node was chosen.
#
# A complete comparison of nodes costs as much as a decision, so only a few decisions per second are compared. The log is bounded and
# does not affect decisions.

KEPT: Final = 500
"""Number of decisions in the log."""

COMPARED_A_SECOND: Final = 5
"""Decisions per second that are compared with the next best nodes. A comparison takes a fraction of a millisecond."""

RUNNERS_UP: Final = 3

Compare = Callable[[], Mapping[str, ScoredPlacement | Rejection]]
"""Evaluates the chosen node and the nodes ranked next, with complete scores."""


class RunnerUp(ValueObject):
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


class DecisionLog(MutableObject):
    """Log of decisions, newest last. ``clock`` is monotonic and limits the rate of comparisons."""

    clock: Clock
    decisions: deque[LoggedDecision] = value_field(default_factory=lambda: deque(maxlen=KEPT))
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
