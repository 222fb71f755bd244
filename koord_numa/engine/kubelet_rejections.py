"""
Exponential back-off per node and request class after a kubelet has rejected a pod.

Without it, a controller that recreates the same pod would loop. Each consecutive rejection doubles the pause, up to a limit.
"""

from dataclasses import dataclass, field

from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.engine.queue.request_class import RequestClass
from koord_numa.settings import BackoffSettings


@dataclass(slots=True)
class _Pause:
    until: float
    times: int
    why: str
    over: bool = False  # the end of the pause has been reported


@dataclass(slots=True)
class NodeBackoff:
    """Paused pairs of node and request class. Times are monotonic seconds. Each consecutive rejection doubles the pause, up to a limit."""

    backoff: BackoffSettings
    _pauses: dict[tuple[str, RequestClass], _Pause] = field(default_factory=dict)

    def refused(self, node: str, request_class: RequestClass, why: str, now: float) -> float:
        """Record that a kubelet rejected a pod of this class and return the end of the pause."""
        known = self._pauses.get((node, request_class))
        times = known.times + 1 if known else 1
        # 2**32 times any pause exceeds the limit; larger exponents have no effect.
        until = now + min(self.backoff.max, self.backoff.initial * 2.0 ** min(times - 1, 32))
        self._pauses[node, request_class] = _Pause(until, times, why)
        return until

    def refusal(self, node: str, request_class: RequestClass, now: float) -> Rejection | None:
        """Return the rejection of this class by this node during a pause, else ``None``."""
        pause = self._pauses.get((node, request_class))
        if pause is None or pause.until <= now:
            return None
        detail = f"its kubelet answered {pause.why} {pause.times} time(s) to such pods"
        message = "node(s) had a kubelet that just refused such a pod"
        return Rejection(Reason.COOLING_DOWN, message, detail, resolvable=False)

    # Ended pauses are kept for a while, so that the next rejection increases the count.
    def next_end(self, now: float) -> float | None:
        """Return the end of the first pause that has not ended yet."""
        return min((pause.until for pause in self._pauses.values() if pause.until > now), default=None)

    def ended(self, now: float) -> list[str]:
        """Return the nodes with pauses that ended since the last call. Pairs without a rejection for the maximum pause are removed."""
        nodes = set()
        for pair, pause in list(self._pauses.items()):
            if pause.until <= now and not pause.over:
                pause.over = True
                nodes.add(pair[0])
            # Another maximum pause without a rejection: the pair restarts with the initial pause.
            if pause.until + self.backoff.max <= now:
                del self._pauses[pair]
        return sorted(nodes)

    def __len__(self) -> int:
        return len(self._pauses)
