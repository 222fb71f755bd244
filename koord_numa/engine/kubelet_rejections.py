"""
Backoff of nodes: a node whose kubelet rejected a pod takes no pods of that request class for a while.

Without it a controller that makes the same pod again and again would run in circles. Each rejection in a row doubles the pause, up to
a limit.
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
    over: bool = False  # its end has been told


@dataclass(slots=True)
class NodeBackoff:
    """Pairs of node and request class that pause. Times are monotonic seconds; each rejection in a row doubles the pause, capped."""

    backoff: BackoffSettings
    _pauses: dict[tuple[str, RequestClass], _Pause] = field(default_factory=dict)

    def refused(self, node: str, request_class: RequestClass, why: str, now: float) -> float:
        """A kubelet rejected a pod of this class; returns until when the pair pauses."""
        known = self._pauses.get((node, request_class))
        times = known.times + 1 if known else 1
        # 2**32 times any pause is beyond the limit; a larger exponent would only cost digits.
        until = now + min(self.backoff.max, self.backoff.initial * 2.0 ** min(times - 1, 32))
        self._pauses[node, request_class] = _Pause(until, times, why)
        return until

    def refusal(self, node: str, request_class: RequestClass, now: float) -> Rejection | None:
        """Why this class may not go to this node now."""
        pause = self._pauses.get((node, request_class))
        if pause is None or pause.until <= now:
            return None
        detail = f"its kubelet answered {pause.why} {pause.times} time(s) to such pods"
        message = "node(s) had a kubelet that just refused such a pod"
        return Rejection(Reason.COOLING_DOWN, message, detail, resolvable=False)

    # Ended pauses stay for a while, so that the next rejection counts on; they are no timers any more.
    def next_end(self, now: float) -> float | None:
        """When the first pause ends that has not ended yet."""
        return min((pause.until for pause in self._pauses.values() if pause.until > now), default=None)

    def ended(self, now: float) -> list[str]:
        """Nodes of which a pause has ended since the last call. Pairs that stay quiet for as long again are forgotten."""
        nodes = set()
        for pair, pause in list(self._pauses.items()):
            if pause.until <= now and not pause.over:
                pause.over = True
                nodes.add(pair[0])
            # As long again as the longest pause without a rejection: the pair starts small next time.
            if pause.until + self.backoff.max <= now:
                del self._pauses[pair]
        return sorted(nodes)

    def __len__(self) -> int:
        return len(self._pauses)
