"""Counts and durations of the engine since it started, for metrics. Nothing depends on them."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

BUCKETS: Final = tuple(0.001 * 2**power for power in range(15))
"""Upper bounds in seconds, as kube-scheduler's ``scheduling_attempt_duration_seconds``."""


@dataclass(slots=True)
class Histogram:
    """Durations in seconds, counted per bucket; the last one has no upper bound."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        """One more duration."""
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds
        self.count += 1


@dataclass(slots=True)
class Meter:
    """
    ``attempts`` counts decisions by result (scheduled, unschedulable, error), ``placements`` bound pods by alignment, ``refusals``
    rejected pods by kubelet reason, ``failures`` failed binds by kind of error, ``waits`` verdicts by the reasons in them,
    ``preemptions`` attempts to make room by result, and ``victims`` those evicted for it.
    """

    attempts: Counter[str] = field(default_factory=Counter)
    placements: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    preemptions: Counter[str] = field(default_factory=Counter)
    victims: int = 0
    deciding: Histogram = field(default_factory=Histogram)
    binding: Histogram = field(default_factory=Histogram)
