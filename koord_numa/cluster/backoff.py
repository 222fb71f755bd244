"""Growing, capped and jittered pauses between tries. It computes durations and never sleeps itself."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import SystemRandom


@dataclass(slots=True)
class Backoff:
    """
    The pauses of one series of failures, in seconds: doubling from ``initial`` to ``cap``, each shortened by up to half at random.

    The jitter keeps many clients of a server that comes back from asking in the same moment.
    """

    initial: float = 0.2
    cap: float = 30.0
    random: Callable[[], float] = field(default=SystemRandom().random)
    _next: float = 0.0

    def pause(self, at_least: float = 0.0) -> float:
        """The next pause; ``at_least`` is what the server asked for with Retry-After."""
        base = self._next or self.initial
        self._next = min(base * 2, self.cap)
        return max(at_least, base * (1 - self.random() / 2))

    def reset(self) -> None:
        """It worked: the next failure starts a new series."""
        self._next = 0.0
