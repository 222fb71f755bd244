"""Counters and durations of the engine since its start, for metrics. They do not affect decisions."""

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

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


@dataclass(slots=True)
class RebindMetrics:
    """
    Counters of rebinds.

    ``ended`` counts rebinds by phase and whether they were dry runs, ``automatic`` those created by ``rebindPolicy``, by mode. ``moves``
    counts changes of a pod's CPUs. NUMA crossings are summed over rebinds with a plan that were no dry runs.
    """

    ended: Counter[tuple[str, bool]] = field(default_factory=Counter)
    automatic: Counter[str] = field(default_factory=Counter)
    moves: int = 0
    crossings_before: int = 0
    crossings_after: int = 0


@dataclass(slots=True)
class GroupMetrics:
    """
    Counters of groups of pods.

    ``attempts`` counts group cycles by result, ``rejections`` rejected groups by the reasons of the nodes that reject the blocked member,
    and ``waited`` has the seconds from the first member until all members of the minimal count were bound.
    """

    attempts: Counter[Result] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    waited: Histogram = field(default_factory=lambda: Histogram(WAIT_BUCKETS))


@dataclass(slots=True)
class SchedulerMetrics:
    """
    Counters and durations of a scheduler.

    ``attempts`` has the durations of attempts by result and scheduler name, ``placements`` counts bound pods by alignment, ``refusals``
    rejected pods by kubelet reason, ``failures`` failed binds by error type, ``rejections`` verdicts by their reasons, ``preemptions``
    preemption attempts by result, ``victims`` evicted pods, and ``victims_each`` has their number per preemption. ``device_moves`` is the
    number of moves in the current report, and ``device_evictions`` counts pods evicted by it. ``deciding`` and ``binding`` are the two
    parts of an attempt. ``waited`` has the waiting time of bound pods by number of attempts, and ``tries`` that number.
    """

    attempts: defaultdict[tuple[Result, str], Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    placements: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    preemptions: Counter[str] = field(default_factory=Counter)
    victims: int = 0
    device_moves: int = 0
    device_evictions: int = 0
    victims_each: Histogram = field(default_factory=lambda: Histogram(VICTIM_BUCKETS))
    deciding: Histogram = field(default_factory=Histogram)
    binding: Histogram = field(default_factory=Histogram)
    waited: dict[str, Histogram] = field(default_factory=dict)
    tries: Histogram = field(default_factory=lambda: Histogram(ATTEMPT_BUCKETS))
    rebinds: RebindMetrics = field(default_factory=RebindMetrics)
    groups: GroupMetrics = field(default_factory=GroupMetrics)

    def bound(self, attempts: int, seconds: float) -> None:
        """Record a bound pod with its number of attempts and its waiting time in seconds."""
        label = str(attempts) if attempts < MANY_ATTEMPTS else f"{MANY_ATTEMPTS}+"
        if label not in self.waited:
            self.waited[label] = Histogram(WAIT_BUCKETS)
        self.waited[label].add(seconds)
        self.tries.add(attempts)
