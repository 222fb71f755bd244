"""Pauses between the tries of one series of failures. It computes durations and never sleeps itself."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import SystemRandom

from koord_numa.settings import BackoffSettings

CLIENT: BackoffSettings = BackoffSettings(initial=0.2, max=30.0, jitter=0.5)
"""Of lists and watches."""


@dataclass(slots=True)
class Backoff:
    """A count of failures in a row, and how long to wait after each."""

    limits: BackoffSettings = CLIENT
    random: Callable[[], float] = field(default=SystemRandom().random)
    failures: int = 0

    def pause(self, at_least: float = 0.0) -> float:
        """Count a failure and return the pause in seconds; ``at_least`` is what the server asked for with Retry-After."""
        self.failures += 1
        # What the server asked for is a lower bound: our own pause may be longer by now.
        return max(at_least, self.limits.pause(self.failures, self.random()))

    def reset(self) -> None:
        """A success: the next failure starts a new series."""
        self.failures = 0
